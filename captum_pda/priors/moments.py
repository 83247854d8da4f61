"""The moments of a Gaussian patch prior: means and covariances within an outer patch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from scipy.fft import next_fast_len
from torch import Tensor
from typing_extensions import Self

from captum_pda.files import counted
from captum_pda.regions.protocol import Integers, row_major_steps

#: The values of a patch whose covariance is factored to check a file.
CHECKED_VALUES = 1024
#: The relative error of a covariance that rounding may cause, as a share of the mean variance.
ROUNDING = 1e-6


class Moments(ABC):
    """Means and covariances between places of an outer patch, as sums in double precision.

    Values that vary together form a group: all channels ("joint"), or one channel each. Values of a
    group are ordered by place, then by channel. Moments are immutable. ``tensors`` has the sums by
    name, and the lowest and highest value of each channel as "range".
    """

    #: The values of images that are summed at once.
    values_at_once = 1
    #: The number of patches or pixels.
    count: Tensor

    def __init__(self, patch: tuple[int, ...], joint: bool, tensors: dict[str, Tensor]) -> None:
        self.patch = patch
        self.joint = joint
        self.tensors = tensors
        self.device = tensors["range"].device
        self.n_channels = tensors["range"].shape[1]
        #: The number of values of a pixel that vary together.
        self.values_per_pixel = self.n_channels if joint else 1
        self._axes = tuple(range(-len(patch), 0))

    @classmethod
    def of(cls, patch: tuple[int, ...], joint: bool, images: Tensor) -> Self:
        """The moments of images (N, C, *space) in double precision."""
        at_once = max(1, cls.values_at_once // images[0].numel())
        total: Self | None = None
        for some in torch.split(images, at_once):
            by_channel = some.transpose(0, 1).flatten(1)
            extremes = torch.stack([by_channel.amin(dim=1), by_channel.amax(dim=1)])
            own = cls(patch, joint, {**cls._sums(patch, joint, some), "range": extremes})
            total = own if total is None else total.merged(own)
        if total is None:
            raise ValueError("a batch holds no images")
        return total

    def merged(self, other: Self) -> Self:
        """The moments of the images of both."""
        if self.n_channels != other.n_channels:
            raise ValueError(
                f"this prior was fitted on {counted(self.n_channels, 'channel')}; these images "
                f"have {other.n_channels}"
            )
        if (type(self), self.patch, self.joint) != (type(other), other.patch, other.joint):
            raise ValueError("only fits of the same settings merge: patch, covariance and channels")
        (low, high), (their_low, their_high) = self.tensors["range"], other.tensors["range"]
        extremes = torch.stack([low.minimum(their_low), high.maximum(their_high)])
        return type(self)(self.patch, self.joint, {**self._merged(other), "range": extremes})

    def to(self, device: torch.device | str) -> Self:
        """The same moments on a device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return type(self)(self.patch, self.joint, moved)

    def loading(self, share: float) -> Tensor:
        """What is added to diagonals of covariances, (groups,): this share of the mean variance,
        and at least the size of rounding errors."""
        variance, rounding = self._scales()
        return torch.maximum(share * variance, rounding).clamp_min(1e-30)

    def check(self) -> None:
        """Raise a ValueError for sums that no images can have."""
        low, high = self.tensors["range"]
        if bool((low > high).any()):
            raise ValueError("its range has a lowest value above the highest")
        # A part in the centre of the patch, whose covariance is factored quickly.
        n_pixels = max(1, CHECKED_VALUES // self.values_per_pixel)
        side = max(1, int(n_pixels ** (1 / len(self.patch)) + 1e-9))
        cut = np.minimum(self.patch, side)
        places = np.indices(tuple(cut)).reshape(len(cut), -1).T + np.subtract(self.patch, cut) // 2
        covariance, loading = self.covariance(places, places), self.loading(ROUNDING)
        raised = covariance + torch.diag_embed(loading[:, None].expand(covariance.shape[:2]))
        _, failed = torch.linalg.cholesky_ex(raised)
        skew = (covariance - covariance.mT).abs().amax(dim=(1, 2))
        # These comparisons are false for sums that are not finite.
        if bool(failed.any()) or not bool((skew <= loading).all() and self.count >= 1):
            raise ValueError("its covariance is not that of any images")

    @abstractmethod
    def mean(self, places: Integers) -> Tensor:
        """The mean at these places of a patch (n, dims), (groups, values)."""

    @abstractmethod
    def covariance(self, first: Integers, second: Integers) -> Tensor:
        """The covariance between two sets of places, (groups, first values, second values)."""

    @staticmethod
    @abstractmethod
    def shapes(patch: tuple[int, ...], joint: bool, channels: int) -> dict[str, list[int]]:
        """The name and shape of each tensor."""

    @staticmethod
    @abstractmethod
    def _sums(patch: tuple[int, ...], joint: bool, images: Tensor) -> dict[str, Tensor]: ...

    @abstractmethod
    def _merged(self, other: Self) -> dict[str, Tensor]: ...

    @abstractmethod
    def _scales(self) -> tuple[Tensor, Tensor]:
        """The mean variance of each group, and the size of its rounding errors, (groups,)."""


class FullMoments(Moments):
    """The mean and covariance of whole patches, the papers' model.

    Patches lie a quarter of a patch apart. Means and scatters are combined pairwise (Chan's
    formula), so the result does not depend on the batches or the offset of the data.
    """

    def __init__(self, patch: tuple[int, ...], joint: bool, tensors: dict[str, Tensor]) -> None:
        super().__init__(patch, joint, tensors)
        self.count = tensors["count"]

    @staticmethod
    def shapes(patch: tuple[int, ...], joint: bool, channels: int) -> dict[str, list[int]]:
        groups, values = (1, channels) if joint else (channels, 1)
        values *= math.prod(patch)
        return {
            "count": [],
            "mean": [groups, values],
            "scatter": [groups, values, values],
            "range": [2, channels],
        }

    @staticmethod
    def _sums(patch: tuple[int, ...], joint: bool, images: Tensor) -> dict[str, Tensor]:
        if any(size < width for size, width in zip(images.shape[2:], patch, strict=True)):
            raise ValueError(
                f"images of spatial shape {tuple(images.shape[2:])} are smaller than the patch "
                f"{patch}; use a smaller patch_size, or covariance='stationary'"
            )
        patches = images
        for axis, width in enumerate(patch, start=2):
            patches = patches.unfold(axis, width, max(1, width // 4))
        # (C, patches, pixels), and then (groups, patches, values).
        patches = patches.flatten(2 + len(patch)).movedim(1, 0).flatten(1, 1 + len(patch))
        if joint:
            patches = patches.permute(1, 2, 0).flatten(1).unsqueeze(0)
        mean = patches.mean(dim=1, keepdim=True)
        centred = patches - mean
        count = images.new_tensor(float(patches.shape[1]))
        return {"count": count, "mean": mean[:, 0], "scatter": centred.mT @ centred}

    def _merged(self, other: Self) -> dict[str, Tensor]:
        own, others = self.tensors, other.tensors
        total = self.count + other.count
        apart = others["mean"] - own["mean"]
        outer = apart[:, :, None] * apart[:, None]
        outer *= self.count * other.count / total
        return {
            "count": total,
            "mean": own["mean"] + apart * (other.count / total),
            "scatter": own["scatter"] + others["scatter"] + outer,
        }

    def mean(self, places: Integers) -> Tensor:
        return self.tensors["mean"][:, self._values(places)]

    def covariance(self, first: Integers, second: Integers) -> Tensor:
        rows, columns = self._values(first), self._values(second)
        return self.tensors["scatter"][:, rows[:, None], columns] / self.count

    def _values(self, places: Integers) -> Tensor:
        """The numbers of these places' values in a patch."""
        pixels = np.ravel_multi_index(tuple(places.T), self.patch)
        channels = self.values_per_pixel
        values = (pixels[:, None] * channels + np.arange(channels)).reshape(-1)
        return torch.from_numpy(values).to(self.device)

    def _scales(self) -> tuple[Tensor, Tensor]:
        scatter = self.tensors["scatter"].diagonal(dim1=1, dim2=2)
        variance = scatter.mean(dim=1) / self.count
        return variance, 1e-20 * self.tensors["mean"].square().mean(dim=1) + 1e-12 * variance


class StationaryMoments(Moments):
    """The mean of each channel and the autocovariance up to the size of an outer patch.

    For lag h and channels c, d the autocovariance is R_cd(h) = 1/P sum_p (x_c(p) - mean_c) (x_d(p +
    h) - mean_d), where pixels outside an image count as 0 and P is the number of all pixels. This
    estimate is positive semi-definite.

    For every lag, ``products`` sums x_c(p) x_d(p + h), ``sums`` x_c(p), and ``counts`` 1, over the
    pixels p with p + h in the image. Values are taken relative to ``origin`` (the first images'
    mean), which keeps the sums accurate for data far from zero.
    """

    values_at_once = 2**22

    def __init__(self, patch: tuple[int, ...], joint: bool, tensors: dict[str, Tensor]) -> None:
        super().__init__(patch, joint, tensors)
        self._lags = tuple(2 * size - 1 for size in patch)
        self.count = self._at_no_lag("counts")

    @staticmethod
    def shapes(patch: tuple[int, ...], joint: bool, channels: int) -> dict[str, list[int]]:
        lags = [2 * size - 1 for size in patch]
        return {
            "origin": [channels],
            "products": [channels] * (2 if joint else 1) + lags,
            "sums": [channels, *lags],
            "counts": lags,
            "range": [2, channels],
        }

    @staticmethod
    def _sums(patch: tuple[int, ...], joint: bool, images: Tensor) -> dict[str, Tensor]:
        space, axes = images.shape[2:], tuple(range(-len(patch), 0))
        origin = images.flatten(2).mean(dim=(0, 2))
        # Fourier transforms are padded so that the ends do not overlap.
        padded = [
            next_fast_len(max(size, width) + width - 1, real=True)
            for size, width in zip(space, patch, strict=True)
        ]
        centred = images - origin.reshape(-1, *(1 for _ in patch))
        spectrum = torch.fft.rfftn(centred, s=padded, dim=axes)
        inside = torch.fft.rfftn(images.new_ones(tuple(space)), s=padded, dim=axes)
        if joint:
            power = torch.einsum("nc...,nd...->cd...", spectrum.conj(), spectrum)
        else:
            power = (spectrum.conj() * spectrum).sum(dim=0)

        def at_lags(transformed: Tensor) -> Tensor:
            # From the order of a Fourier transform (0, 1, ..., -1) to lags from the lowest up.
            values: Tensor = torch.fft.irfftn(transformed, s=padded, dim=axes)
            values = values.roll([width - 1 for width in patch], axes)
            for axis, width in zip(axes, patch, strict=True):
                values = values.narrow(axis, 0, 2 * width - 1)
            return values

        counts = np.array(len(images))
        for size, width in zip(space, patch, strict=True):
            counts = counts[..., None] * (size - abs(np.arange(1 - width, width))).clip(0)
        return {
            "origin": origin,
            "products": at_lags(power),
            "sums": at_lags(spectrum.sum(dim=0).conj() * inside),
            "counts": torch.from_numpy(counts).to(images.device).to(images.dtype),
        }

    def _merged(self, other: Self) -> dict[str, Tensor]:
        # Values relative to this origin are those relative to the other one plus the difference.
        apart = other.tensors["origin"] - self.tensors["origin"]
        wide = apart.reshape(-1, *(1 for _ in self.patch))
        sums = {
            "products": other._shifted_products(wide),
            "sums": other.tensors["sums"] + wide * other.tensors["counts"],
            "counts": other.tensors["counts"],
        }
        added = {name: self.tensors[name] + more for name, more in sums.items()}
        return {"origin": self.tensors["origin"], **added}

    def _shifted_products(self, shift: Tensor) -> Tensor:
        """sum_p (x_c(p) + shift_c) (x_d(p + h) + shift_d), for shift (C, 1, ...)."""
        left = self.tensors["sums"]
        right = left.flip(self._axes)
        if self.joint:
            left, right = left.unsqueeze(1), right.unsqueeze(0)
            first, second = shift.unsqueeze(1), shift.unsqueeze(0)
        else:
            first = second = shift
        crossed = left * second + first * right + first * second * self.tensors["counts"]
        return self.tensors["products"] + crossed

    def mean(self, places: Integers) -> Tensor:
        means = self._mean() + self.tensors["origin"]
        return (
            means.repeat(1, len(places)) if self.joint else means[:, None].expand(-1, len(places))
        )

    def covariance(self, first: Integers, second: Integers) -> Tensor:
        # The flat number of a lag is linear in it, so lags are not computed pair by pair.
        steps = row_major_steps(self._lags)
        flat = (second @ steps)[None] - (first @ steps)[:, None] + math.prod(self._lags) // 2
        values = self._by_lag()[torch.from_numpy(flat).to(self.device)]
        if not self.joint:
            return values.movedim(-1, 0)
        channels = self.n_channels
        return values.transpose(1, 2).reshape(1, len(first) * channels, len(second) * channels)

    def _scales(self) -> tuple[Tensor, Tensor]:
        squares = self._at_no_lag("products") / self.count
        scales = self._by_lag()[math.prod(self._lags) // 2], 1e-12 * squares
        if not self.joint:
            return scales
        variance, rounding = (each.diagonal().mean().reshape(1) for each in scales)
        return variance, rounding

    def _by_lag(self) -> Tensor:
        """The autocovariance of each lag, (lags, channels[, channels])."""
        shift = -self._mean().reshape(-1, *(1 for _ in self.patch))
        covariance = self._shifted_products(shift) / self.count
        return covariance.flatten(-len(self.patch)).movedim(-1, 0)

    def _mean(self) -> Tensor:
        """The mean of each channel relative to the origin: at lag 0 every pixel is counted."""
        return self._at_no_lag("sums") / self.count

    def _at_no_lag(self, name: str) -> Tensor:
        return self.tensors[name].flatten(-len(self.patch))[..., math.prod(self._lags) // 2]
