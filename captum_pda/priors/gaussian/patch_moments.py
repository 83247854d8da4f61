"""Running mean and covariance of whole patches, the papers' model."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda.priors.gaussian.moments import Moments
from captum_pda.regions.protocol import Integers


class PatchMoments(Moments):
    """The mean and covariance of patches drawn on a regular lattice from every image.

    Means and scatters are combined pairwise (Chan's formula), so that the result does not depend on
    the batches, and two fits merge into the fit of both.
    """

    @staticmethod
    def shapes(patch: tuple[int, ...], joint: bool, channels: int) -> dict[str, list[int]]:
        groups, values = (1, channels) if joint else (channels, 1)
        values *= math.prod(patch)
        return {"count": [], "mean": [groups, values], "scatter": [groups, values, values]}

    def update(self, images: Tensor) -> None:
        if any(size < width for size, width in zip(images.shape[2:], self.patch, strict=True)):
            raise ValueError(
                f"images of spatial shape {tuple(images.shape[2:])} are smaller than the patch "
                f"{self.patch}; use a smaller patch_size, or covariance='stationary'"
            )
        for image in images:
            patches = self._patches(image)
            mean = patches.mean(dim=1, keepdim=True)
            centred = patches - mean
            count = images.new_tensor(float(patches.shape[1]))
            self._combine(count, mean[:, 0], centred.transpose(1, 2) @ centred)

    def merge(self, other: Self) -> None:
        tensors = other.tensors
        self._combine(tensors["count"], tensors["mean"], tensors["scatter"])

    @property
    def origin(self) -> Tensor:
        return self.tensors["mean"]

    def sums_about(self, origin: Tensor) -> dict[str, Tensor]:
        own = self.tensors
        apart = own["mean"] - origin
        outer = apart[:, :, None] * apart[:, None]
        return {
            "count": own["count"],
            "mean": own["count"] * apart,
            "scatter": own["scatter"] + own["count"] * outer,
        }

    def set_sums(self, origin: Tensor, sums: dict[str, Tensor]) -> None:
        apart = sums["mean"] / sums["count"]
        outer = apart[:, :, None] * apart[:, None]
        self.tensors = {
            "count": sums["count"],
            "mean": origin + apart,
            "scatter": sums["scatter"] - sums["count"] * outer,
        }

    def mean(self, places: Integers) -> Tensor:
        return self.tensors["mean"][:, self._values(places)]

    def covariance(self, first: Integers, second: Integers) -> Tensor:
        rows, columns = self._values(first), self._values(second)
        return self.tensors["scatter"][:, rows[:, None], columns] / self.tensors["count"]

    def variance(self) -> Tensor:
        scatter = self.tensors["scatter"].diagonal(dim1=1, dim2=2)
        return scatter.mean(dim=1) / self.tensors["count"]

    def rounding(self) -> Tensor:
        return 1e-20 * self.tensors["mean"].square().mean(dim=1) + 1e-12 * self.variance()

    def _patches(self, image: Tensor) -> Tensor:
        """An image's patches, (groups, patches, values), a quarter of a patch apart."""
        patches = image
        for axis, width in enumerate(self.patch):
            patches = patches.unfold(1 + axis, width, lattice_step(width))
        dims = len(self.patch)
        flat = patches.flatten(1 + dims).flatten(1, dims)
        if self.joint:
            return flat.permute(1, 2, 0).flatten(1).unsqueeze(0)
        return flat

    def _combine(self, count: Tensor, mean: Tensor, scatter: Tensor) -> None:
        own = self.tensors
        total = own["count"] + count
        apart = mean - own["mean"]
        outer = apart[:, :, None] * apart[:, None]
        own["scatter"] = own["scatter"] + scatter + outer * (own["count"] * count / total)
        own["mean"] = own["mean"] + apart * (count / total)
        own["count"] = total

    def _values(self, places: Integers) -> Tensor:
        """The numbers of these places' values in a patch; channels of a pixel stand together."""
        pixels = np.ravel_multi_index(tuple(places.T), self.patch)
        if self.joint:
            channels = self.tensors["mean"].shape[1] // math.prod(self.patch)
            pixels = (pixels[:, None] * channels + np.arange(channels)).reshape(-1)
        return torch.from_numpy(pixels).to(self.tensors["mean"].device)

    def check(self) -> None:
        scatter = self.tensors["scatter"]
        largest = float(scatter.abs().max())
        if not torch.allclose(scatter, scatter.transpose(1, 2), rtol=1e-6, atol=1e-9 * largest):
            raise ValueError("its scatter is not symmetric")
        if float(self.tensors["count"]) < 1:
            raise ValueError("it counts no patches")
        self.check_positive()

    @property
    def n_values(self) -> int:
        return self.tensors["mean"].shape[1]


def lattice_step(width: int) -> int:
    """How far apart the patches drawn from an image are along an axis."""
    return max(1, width // 4)
