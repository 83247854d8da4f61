"""What a Gaussian patch prior needs to know of its data: means and covariances within a patch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda.regions.protocol import Integers

#: Values of a patch whose covariance is factored to see whether it is one.
CHECKED_VALUES = 1024
#: How far below zero rounding may take a variance, as a share of the mean variance.
ROUNDING = 1e-6


class Moments(ABC):
    """Means and covariances between places of an outer patch, as running sums in double precision.

    Values that vary together form a group: all channels ("joint"), or one channel each. Within a
    group, values are ordered by place, then by channel.

    Args:
        patch: the outer patch's shape.
        joint: whether all channels form one group.
        tensors: the sums, by name.
    """

    def __init__(self, patch: tuple[int, ...], joint: bool, tensors: dict[str, Tensor]) -> None:
        self.patch = patch
        self.joint = joint
        self.tensors = tensors

    @classmethod
    def empty(cls, patch: tuple[int, ...], joint: bool, images: Tensor) -> Self:
        """No sums yet, for images like these (N, C, *space)."""
        shapes = cls.shapes(patch, joint, images.shape[1])
        return cls(patch, joint, {name: images.new_zeros(shape) for name, shape in shapes.items()})

    def to(self, device: torch.device | str) -> Self:
        """The same sums on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return type(self)(self.patch, self.joint, moved)

    def clone(self) -> Self:
        """A copy that can be added to."""
        copied = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return type(self)(self.patch, self.joint, copied)

    @staticmethod
    @abstractmethod
    def shapes(patch: tuple[int, ...], joint: bool, channels: int) -> dict[str, list[int]]:
        """The name and shape of each tensor."""

    @abstractmethod
    def update(self, images: Tensor) -> None:
        """Add a batch of images in double precision."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add what another one has seen."""

    @property
    @abstractmethod
    def origin(self) -> Tensor:
        """A point near the data, about which sums lose nothing to rounding."""

    @abstractmethod
    def sums_about(self, origin: Tensor) -> dict[str, Tensor]:
        """Sums about another origin. Those of several fits about one origin add up."""

    @abstractmethod
    def set_sums(self, origin: Tensor, sums: dict[str, Tensor]) -> None:
        """Become the fit that has these sums about an origin."""

    @abstractmethod
    def mean(self, places: Integers) -> Tensor:
        """The mean at these places of a patch (n, dims), (groups, values)."""

    @abstractmethod
    def covariance(self, first: Integers, second: Integers) -> Tensor:
        """The covariance between two sets of places, (groups, first values, second values)."""

    def predict(self, weights: Tensor, first: Integers, second: Integers) -> Tensor:
        """Weights (groups, n, first values) times the covariance, (groups, n, second values)."""
        return weights @ self.covariance(first, second)

    @abstractmethod
    def variance(self) -> Tensor:
        """The mean variance of each group, (groups,)."""

    @abstractmethod
    def rounding(self) -> Tensor:
        """How large rounding errors in the covariance may be, (groups,)."""

    @abstractmethod
    def check(self) -> None:
        """Refuse sums that no images can have, with a ValueError that says why."""

    def check_positive(self) -> None:
        """Refuse a covariance in the middle of a patch that no images can have."""
        n_pixels = max(1, CHECKED_VALUES // max(1, self.n_values // math.prod(self.patch)))
        side = max(1, int(n_pixels ** (1 / len(self.patch)) + 1e-9))
        cut = np.minimum(self.patch, side)
        places = np.indices(tuple(cut)).reshape(len(cut), -1).T + np.subtract(self.patch, cut) // 2
        covariance = self.covariance(places, places)
        loading = ROUNDING * self.variance() + self.rounding()
        loaded = covariance.clone()
        loaded.diagonal(dim1=1, dim2=2).add_(loading.clamp_min(1e-300)[:, None])
        _, failed = torch.linalg.cholesky_ex(loaded)
        if bool(failed.any()) or not bool(torch.isfinite(covariance).all()):
            raise ValueError("its covariance is indefinite: no images have such a one")

    @property
    @abstractmethod
    def n_values(self) -> int:
        """How many values of a patch vary together."""
