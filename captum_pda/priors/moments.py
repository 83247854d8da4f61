"""What a Gaussian patch prior learns of its data: means and covariances within an outer patch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from types import EllipsisType

import numpy as np
import torch
from scipy.fft import next_fast_len
from torch import Tensor
from typing_extensions import Self

from captum_pda.distributed import Ranks
from captum_pda.regions.protocol import Integers, row_major_steps

#: Values of a patch whose covariance is factored to see whether a file holds a covariance.
CHECKED_VALUES = 1024
#: How far below zero rounding may take a variance, as a share of the mean variance.
ROUNDING = 1e-6
#: Values of images that are transformed at once.
VALUES_PER_TRANSFORM = 2**22


class Moments(ABC):
    """Means and covariances between places of an outer patch, as running sums in double precision.

    Values that vary together form a group: all channels ("joint"), or one channel each. Within a
    group, values are ordered by place, then by channel. Tensors are replaced and never written to,
    so that two moments may share them.

    Args:
        patch: the outer patch's shape.
        joint: whether all channels form one group.
        tensors: the sums by name, and the lowest and highest value of each channel as "range".
    """

    def __init__(self, patch: tuple[int, ...], joint: bool, tensors: dict[str, Tensor]) -> None:
        self.patch = patch
        self.joint = joint
        self.tensors = tensors

    @classmethod
    def empty(cls, patch: tuple[int, ...], joint: bool, images: Tensor) -> Self:
        """No sums yet, for images like these (N, C, *space)."""
        shapes = cls.shapes(patch, joint, images.shape[1])
        tensors = {name: images.new_zeros(shape) for name, shape in shapes.items()}
        nothing = images.new_tensor([[torch.inf], [-torch.inf]])
        tensors["range"] = nothing.expand(2, images.shape[1])
        return cls(patch, joint, tensors)

    @classmethod
    def shapes(cls, patch: tuple[int, ...], joint: bool, channels: int) -> dict[str, list[int]]:
        """The name and shape of each tensor."""
        return {**cls._sum_shapes(patch, joint, channels), "range": [2, channels]}

    @property
    def device(self) -> torch.device:
        """Where the sums are kept."""
        return self.tensors["range"].device

    @property
    def n_channels(self) -> int:
        """How many channels the images have."""
        return self.tensors["range"].shape[1]

    @property
    def values_per_pixel(self) -> int:
        """How many values of a pixel vary together."""
        return self.n_channels if self.joint else 1

    def to(self, device: torch.device | str) -> Self:
        """The same sums on a device."""
        moved = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return type(self)(self.patch, self.joint, moved)

    def update(self, images: Tensor) -> None:
        """Add a batch of images (N, C, *space) in double precision."""
        self._update(images)
        by_channel = images.transpose(0, 1).flatten(1)
        self._widen(by_channel.amin(dim=1), by_channel.amax(dim=1))

    def merge(self, other: Self) -> None:
        """Add what another one has seen."""
        self._merge(other)
        self._widen(*other.tensors["range"])

    def _widen(self, lowest: Tensor, highest: Tensor) -> None:
        low, high = self.tensors["range"]
        self.tensors["range"] = torch.stack([low.minimum(lowest), high.maximum(highest)])

    def loading(self, share: float) -> Tensor:
        """By how much diagonals of covariances are raised, (groups,): by this share of the mean
        variance, and at least by what rounding errors may have taken from them."""
        variance, rounding = self._scales()
        return torch.maximum(share * variance, rounding).clamp_min(1e-30)

    def check(self) -> None:
        """Refuse sums that no images can have, with a ValueError that says why."""
        low, high = self.tensors["range"]
        if bool((low > high).any()):
            raise ValueError("its range has a lowest value above the highest")
        self._check_sums()
        # A part in the middle of the patch, whose covariance is factored quickly.
        n_pixels = max(1, CHECKED_VALUES // self.values_per_pixel)
        side = max(1, int(n_pixels ** (1 / len(self.patch)) + 1e-9))
        cut = np.minimum(self.patch, side)
        places = np.indices(tuple(cut)).reshape(len(cut), -1).T + np.subtract(self.patch, cut) // 2
        covariance = self.covariance(places, places)
        loading = self.loading(ROUNDING)[:, None].expand(covariance.shape[:2])
        _, failed = torch.linalg.cholesky_ex(covariance + torch.diag_embed(loading))
        if bool(failed.any()) or not bool(torch.isfinite(covariance).all()):
            raise ValueError("its covariance is indefinite: no images have such a one")

    @abstractmethod
    def mean(self, places: Integers) -> Tensor:
        """The mean at these places of a patch (n, dims), (groups, values)."""

    @abstractmethod
    def covariance(self, first: Integers, second: Integers) -> Tensor:
        """The covariance between two sets of places, (groups, first values, second values)."""

    @abstractmethod
    def _scales(self) -> tuple[Tensor, Tensor]:
        """The mean variance of each group, and how large its rounding errors may be, (groups,)."""

    @staticmethod
    @abstractmethod
    def _sum_shapes(patch: tuple[int, ...], joint: bool, channels: int) -> dict[str, list[int]]: ...

    @abstractmethod
    def _update(self, images: Tensor) -> None: ...

    @abstractmethod
    def _merge(self, other: Self) -> None: ...

    @abstractmethod
    def _check_sums(self) -> None: ...


class FullMoments(Moments):
    """The mean and covariance of whole patches, the papers' model.

    Patches lie a quarter of a patch apart in every image. Means and scatters are combined pairwise
    (Chan's formula), so the result does not depend on the batches, however far data are from zero.
    """

    @staticmethod
    def _sum_shapes(patch: tuple[int, ...], joint: bool, channels: int) -> dict[str, list[int]]:
        groups, values = (1, channels) if joint else (channels, 1)
        values *= math.prod(patch)
        return {"count": [], "mean": [groups, values], "scatter": [groups, values, values]}

    def _update(self, images: Tensor) -> None:
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
            self._combine(count, mean[:, 0], centred.mT @ centred)

    def _patches(self, image: Tensor) -> Tensor:
        """An image's patches, (groups, patches, values)."""
        patches = image
        for axis, width in enumerate(self.patch):
            patches = patches.unfold(1 + axis, width, max(1, width // 4))
        dims = len(self.patch)
        flat = patches.flatten(1 + dims).flatten(1, dims)
        return flat.permute(1, 2, 0).flatten(1).unsqueeze(0) if self.joint else flat

    def _merge(self, other: Self) -> None:
        self._combine(*(other.tensors[name] for name in ("count", "mean", "scatter")))

    def _combine(self, count: Tensor, mean: Tensor, scatter: Tensor) -> None:
        own = self.tensors
        total = own["count"] + count
        apart = mean - own["mean"]
        outer = apart[:, :, None] * apart[:, None]
        own["scatter"] = own["scatter"] + scatter + outer * (own["count"] * count / total)
        own["mean"] = own["mean"] + apart * (count / total)
        own["count"] = total

    def mean(self, places: Integers) -> Tensor:
        return self.tensors["mean"][:, self._values(places)]

    def covariance(self, first: Integers, second: Integers) -> Tensor:
        rows, columns = self._values(first), self._values(second)
        return self.tensors["scatter"][:, rows[:, None], columns] / self.tensors["count"]

    def _values(self, places: Integers) -> Tensor:
        """The numbers of these places' values in a patch; channels of a pixel stand together."""
        pixels = np.ravel_multi_index(tuple(places.T), self.patch)
        channels = self.values_per_pixel
        values = (pixels[:, None] * channels + np.arange(channels)).reshape(-1)
        return torch.from_numpy(values).to(self.device)

    def _scales(self) -> tuple[Tensor, Tensor]:
        scatter = self.tensors["scatter"].diagonal(dim1=1, dim2=2)
        variance = scatter.mean(dim=1) / self.tensors["count"]
        return variance, 1e-20 * self.tensors["mean"].square().mean(dim=1) + 1e-12 * variance

    def _check_sums(self) -> None:
        scatter = self.tensors["scatter"]
        largest = float(scatter.abs().max())
        if not torch.allclose(scatter, scatter.mT, rtol=1e-6, atol=1e-9 * largest):
            raise ValueError("its scatter is not symmetric")
        if float(self.tensors["count"]) < 1:
            raise ValueError("it counts no patches")


class StationaryMoments(Moments):
    """The mean of each channel and the autocovariance up to the size of an outer patch.

    For lag h and channels c, d the autocovariance is
    R_cd(h) = 1/P sum_p (x_c(p) - mean_c) (x_d(p + h) - mean_d), where pixels outside an image
    count as nothing and P is the number of all pixels. This estimate is positive semi-definite by
    construction.

    For every lag, ``products`` sums x_c(p) x_d(p + h), ``sums`` x_c(p), and ``counts`` 1, over the
    pixels p with p + h in the image. Values are taken about ``origin`` (the first batch's mean),
    which keeps the sums exact for data far from zero, and they add up: over batches, over fits.
    """

    @classmethod
    def empty(cls, patch: tuple[int, ...], joint: bool, images: Tensor) -> Self:
        moments = super().empty(patch, joint, images)
        moments.tensors["origin"] = images.flatten(2).mean(dim=(0, 2))
        return moments

    @staticmethod
    def _sum_shapes(patch: tuple[int, ...], joint: bool, channels: int) -> dict[str, list[int]]:
        lags = [2 * size - 1 for size in patch]
        return {
            "origin": [channels],
            "products": [channels] * (2 if joint else 1) + lags,
            "sums": [channels, *lags],
            "counts": lags,
        }

    def _update(self, images: Tensor) -> None:
        origin = self.tensors["origin"].reshape(-1, *(1 for _ in self.patch))
        at_once = max(1, VALUES_PER_TRANSFORM // images[0].numel())
        for some in torch.split(images, at_once):
            self._add(self._correlations(some - origin))

    def _correlations(self, images: Tensor) -> dict[str, Tensor]:
        """The sums of a few images, as Fourier transforms wide enough that no end meets another."""
        space = images.shape[2:]
        axes = self._axes
        padded = [
            next_fast_len(max(size, width) + width - 1, real=True)
            for size, width in zip(space, self.patch, strict=True)
        ]
        spectrum = torch.fft.rfftn(images, s=padded, dim=axes)
        inside = torch.fft.rfftn(images.new_ones(tuple(space)), s=padded, dim=axes)
        if self.joint:
            power = torch.einsum("nc...,nd...->cd...", spectrum.conj(), spectrum)
        else:
            power = (spectrum.conj() * spectrum).sum(dim=0)
        first_lags = [width - 1 for width in self.patch]
        middle: tuple[EllipsisType | slice, ...] = (..., *(slice(0, lags) for lags in self._lags))

        def at_lags(transformed: Tensor) -> Tensor:
            # From the order of a Fourier transform (0, 1, ..., -1) to lags from the lowest up.
            values: Tensor = torch.fft.irfftn(transformed, s=padded, dim=axes)
            return values.roll(first_lags, axes)[middle]

        counts = np.array(len(images))
        for size, width in zip(space, self.patch, strict=True):
            counts = counts[..., None] * (size - abs(np.arange(1 - width, width))).clip(0)
        return {
            "products": at_lags(power),
            "sums": at_lags(spectrum.sum(dim=0).conj() * inside),
            "counts": torch.from_numpy(counts).to(images.device).to(images.dtype),
        }

    def _merge(self, other: Self) -> None:
        # Values about this origin are those about the other one, and the distance of the two.
        apart = (other.tensors["origin"] - self.tensors["origin"]).reshape(
            -1, *(1 for _ in self.patch)
        )
        counts = other.tensors["counts"]
        sums = other.tensors["sums"] + apart * counts
        self._add({"products": other._shifted_products(apart), "sums": sums, "counts": counts})

    def _add(self, sums: dict[str, Tensor]) -> None:
        for name, more in sums.items():
            self.tensors[name] = self.tensors[name] + more

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
        if self.joint:
            return means.repeat(1, len(places))
        return means[:, None].expand(-1, len(places))

    def covariance(self, first: Integers, second: Integers) -> Tensor:
        # The flat number of a lag is linear in it, so no lag is worked out pair by pair.
        steps = row_major_steps(self._lags)
        flat = (second @ steps)[None] - (first @ steps)[:, None] + math.prod(self._lags) // 2
        values = self._by_lag()[torch.from_numpy(flat).to(self.device)]
        if not self.joint:
            return values.movedim(-1, 0)
        channels = self.n_channels
        return values.transpose(1, 2).reshape(1, len(first) * channels, len(second) * channels)

    def _scales(self) -> tuple[Tensor, Tensor]:
        squares = self._at_no_lag(self.tensors["products"]) / self._pixels()
        scales = self._by_lag()[math.prod(self._lags) // 2], 1e-12 * squares
        if not self.joint:
            return scales
        variance, rounding = (each.diagonal().mean().reshape(1) for each in scales)
        return variance, rounding

    def _by_lag(self) -> Tensor:
        """The autocovariance of each lag, (lags, channels[, channels])."""
        shift = -self._mean().reshape(-1, *(1 for _ in self.patch))
        covariance = self._shifted_products(shift) / self._pixels()
        return covariance.flatten(-len(self.patch)).movedim(-1, 0)

    def _mean(self) -> Tensor:
        """The mean of each channel about the origin: at lag 0 every pixel is counted."""
        return self._at_no_lag(self.tensors["sums"]) / self._pixels()

    def _pixels(self) -> Tensor:
        return self._at_no_lag(self.tensors["counts"])

    def _at_no_lag(self, sums: Tensor) -> Tensor:
        return sums.flatten(-len(self.patch))[..., math.prod(self._lags) // 2]

    @property
    def _lags(self) -> tuple[int, ...]:
        return tuple(2 * size - 1 for size in self.patch)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(-len(self.patch), 0))

    def _check_sums(self) -> None:
        products, counts = self.tensors["products"], self.tensors["counts"]
        mirrored = products.flip(self._axes)
        mirrored = mirrored.transpose(0, 1) if self.joint else mirrored
        for name, values, other in (
            ("products", products, mirrored),
            ("counts", counts, counts.flip(self._axes)),
        ):
            largest = max(float(values.abs().max()), math.ulp(0.0))
            if not torch.allclose(values, other, rtol=1e-6, atol=1e-6 * largest):
                raise ValueError(f"its {name} are not symmetric")
        pixels = self._pixels()
        if float(pixels) < 1:
            raise ValueError("it counts no pixels")
        if bool(((counts > pixels * (1 + 1e-6)) | (counts < -1e-6 * pixels)).any()):
            raise ValueError("it counts more pairs of pixels than pixels, or fewer than none")


def merged_over_ranks(own: Moments | None, ranks: Ranks) -> Moments:
    """The moments of all that any rank of a process group has seen, the same on every rank: all add
    them in the same order, as one process adds fits. A rank that has seen nothing has None."""
    fits: list[Moments] = [each for each in ranks.gather(own and own.to("cpu")) if each]
    if not fits:
        raise ValueError("there were no batches to fit on any rank; the iterables were empty")
    shapes = [(each.n_channels, each.patch) for each in fits]
    if len(set(shapes)) > 1:
        raise ValueError(
            "only fits of the same settings merge; the ranks have these numbers of channels and "
            f"patch sizes: {shapes}"
        )
    merged, *others = fits
    for other in others:
        merged.merge(other)
    return merged.to(own.device if own else "cpu")
