"""Running sums from which a stationary mean and autocovariance follow, whatever the image sizes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda.priors.gaussian.moments import Moments
from captum_pda.regions.protocol import Integers, row_major_steps

#: Values transformed at once.
VALUES_PER_TRANSFORM = 2**22


class StationaryMoments(Moments):
    """The mean of each channel and the autocovariance up to the size of an outer patch.

    For lag h and channels c, d the autocovariance is
    R_cd(h) = 1/P sum_p (x_c(p) - mean_c) (x_d(p + h) - mean_d), where pixels outside an image
    count as nothing and P is the number of all pixels. This estimate is positive semi-definite by
    construction.

    The sums are taken about ``origin`` (the first batch's mean), which keeps them exact for data
    far from zero, and they add up: over batches, and over two fits.
    """

    #: What ``_by_lag`` and ``spectrum`` have worked out, until something is added.
    _table: Tensor | None = None
    _transformed: Tensor | None = None

    @classmethod
    def empty(cls, patch: tuple[int, ...], joint: bool, images: Tensor) -> Self:
        moments = super().empty(patch, joint, images)
        moments.tensors["origin"] = images.flatten(2).mean(dim=(0, 2))
        return moments

    @staticmethod
    def shapes(patch: tuple[int, ...], joint: bool, channels: int) -> dict[str, list[int]]:
        lags = [2 * size - 1 for size in patch]
        return {
            "origin": [channels],
            "products": [channels] * (2 if joint else 1) + lags,
            "sums": [channels, *lags],
            "counts": lags,
        }

    def update(self, images: Tensor) -> None:
        origin = self.tensors["origin"].reshape(-1, *(1 for _ in self.patch))
        self._forget()
        at_once = max(1, VALUES_PER_TRANSFORM // images[0].numel())
        for start in range(0, len(images), at_once):
            self._add(images[start : start + at_once] - origin)

    def merge(self, other: Self) -> None:
        self._forget()
        for name, sums in other.sums_about(self.tensors["origin"]).items():
            self.tensors[name] = self.tensors[name] + sums

    def mean(self, places: Integers) -> Tensor:
        means = self._mean() + self.tensors["origin"]
        if self.joint:
            return means.repeat(1, len(places))
        return means[:, None].expand(-1, len(places))

    def covariance(self, first: Integers, second: Integers) -> Tensor:
        # The flat number of a lag is linear in it, so no lag is worked out pair by pair.
        steps = row_major_steps(self._lags())
        flat = (second @ steps)[None] - (first @ steps)[:, None] + math.prod(self._lags()) // 2
        index = torch.from_numpy(flat).to(self.tensors["products"].device)
        values = self._by_lag()[index]
        if not self.joint:
            return values.movedim(-1, 0)
        channels = values.shape[-1]
        return values.transpose(1, 2).reshape(1, len(first) * channels, len(second) * channels)

    def predict(self, weights: Tensor, first: Integers, second: Integers) -> Tensor:
        # A convolution with the autocovariance, so the matrix between the places is not needed.
        values = len(self.tensors["origin"]) * math.prod(self.torus)
        some = torch.split(weights, max(1, VALUES_PER_TRANSFORM // values), dim=1)
        return torch.cat([self._convolve(rows, first, second) for rows in some], dim=1)

    def _convolve(self, weights: Tensor, first: Integers, second: Integers) -> Tensor:
        channels = len(self.tensors["origin"])
        rows, size = weights.shape[1], math.prod(self.patch)
        given, wanted = (
            torch.from_numpy(np.ravel_multi_index(tuple(places.T), self.patch)).to(weights.device)
            for places in (first, second)
        )
        by_channel = (
            weights.reshape(rows, len(first), channels).transpose(1, 2)
            if self.joint
            else weights.transpose(0, 1)
        )
        placed = weights.new_zeros(rows, channels, size)
        placed[:, :, given] = by_channel
        axes = tuple(range(-len(self.patch), 0))
        spectrum = torch.fft.rfftn(
            placed.reshape(rows, channels, *self.patch), s=self.torus, dim=axes
        )
        if self.joint:
            spectrum = torch.einsum("nc...,cd...->nd...", spectrum, self.spectrum())
        else:
            spectrum = spectrum * self.spectrum()
        predicted = torch.fft.irfftn(spectrum, s=self.torus, dim=axes)
        for axis, width in zip(axes, self.patch, strict=True):
            predicted = predicted.narrow(axis, 0, width)
        values: Tensor = predicted.flatten(2)[:, :, wanted]
        return values.transpose(1, 2).flatten(1)[None] if self.joint else values.transpose(0, 1)

    def variance(self) -> Tensor:
        variances = self._at_no_lag(self.autocovariance())
        return variances.diagonal().mean().reshape(1) if self.joint else variances

    def rounding(self) -> Tensor:
        squares = self._at_no_lag(self.tensors["products"]) / self._pixels()
        return 1e-12 * (squares.diagonal().mean().reshape(1) if self.joint else squares)

    def _add(self, images: Tensor) -> None:
        space = images.shape[2:]
        axes = tuple(range(-len(space), 0))
        reach = [min(size, width) for size, width in zip(space, self.patch, strict=True)]
        padded = [
            _smooth_length(size + width - 1) for size, width in zip(space, reach, strict=True)
        ]
        spectrum = torch.fft.rfftn(images, s=padded, dim=axes)
        inside = torch.fft.rfftn(images.new_ones(tuple(space)), s=padded, dim=axes)
        total = spectrum.sum(dim=0)
        if self.joint:
            power = torch.einsum("nc...,nd...->cd...", spectrum.conj(), spectrum)
        else:
            power = (spectrum.conj() * spectrum).sum(dim=0)
        for name, correlated in (
            ("products", power),
            ("sums", total.conj() * inside),
            ("counts", len(images) * (inside.conj() * inside)),
        ):
            at_lags = torch.fft.irfftn(correlated, s=padded, dim=axes)
            self._middle(reach, name).add_(_centred(at_lags, reach))

    def _middle(self, reach: list[int], name: str) -> Tensor:
        """The part of the sums for lags that images of this reach have."""
        part = self.tensors[name]
        for axis, (width, own) in enumerate(zip(self.patch, reach, strict=True), -len(reach)):
            part = part.narrow(axis, width - own, 2 * own - 1)
        return part

    @property
    def origin(self) -> Tensor:
        return self.tensors["origin"]

    def sums_about(self, origin: Tensor) -> dict[str, Tensor]:
        # With x - origin = (x - own origin) + shift.
        shift = (self.tensors["origin"] - origin).reshape(-1, *(1 for _ in self.patch))
        return {
            "products": self._shifted_products(shift),
            "sums": self.tensors["sums"] + shift * self.tensors["counts"],
            "counts": self.tensors["counts"],
        }

    def set_sums(self, origin: Tensor, sums: dict[str, Tensor]) -> None:
        self._forget()
        self.tensors = {"origin": origin, **sums}

    def _shifted_products(self, shift: Tensor) -> Tensor:
        """sum_p (x_c(p) + shift_c) (x_d(p + h) + shift_d), for shift (C, 1, ...)."""
        left = self.tensors["sums"]
        right = left.flip(tuple(range(1, left.dim())))
        if self.joint:
            left, right = left.unsqueeze(1), right.unsqueeze(0)
            first, second = shift.unsqueeze(1), shift.unsqueeze(0)
        else:
            first = second = shift
        crossed = left * second + first * right + first * second * self.tensors["counts"]
        return self.tensors["products"] + crossed

    def _by_lag(self) -> Tensor:
        """The autocovariance of each lag, (lags, channels[, channels])."""
        table = self._table
        if table is None:
            flat = self.autocovariance().flatten(-len(self.patch))
            table = self._table = flat.movedim(-1, 0).contiguous()
        return table

    def spectrum(self) -> Tensor:
        """The Fourier transform of the autocovariance, (channels[, channels], frequencies)."""
        spectrum = self._transformed
        if spectrum is None:
            axes = tuple(range(-len(self.patch), 0))
            by_lag = self.autocovariance()
            wider = by_lag.new_zeros(*by_lag.shape[: -len(axes)], *self.torus)
            part = wider
            for axis, lags in zip(axes, self._lags(), strict=True):
                part = part.narrow(axis, 0, lags)
            part.copy_(by_lag)
            lag_0_first = wider.roll([1 - size for size in self.patch], dims=axes)
            spectrum = self._transformed = torch.fft.rfftn(lag_0_first, dim=axes)
        return spectrum

    def _forget(self) -> None:
        self._table = self._transformed = None

    def autocovariance(self) -> Tensor:
        """R of all lags, (channels[, channels], *lags)."""
        shift = -self._mean().reshape(-1, *(1 for _ in self.patch))
        return self._shifted_products(shift) / self._pixels()

    def _mean(self) -> Tensor:
        """The mean of each channel about the origin: at lag 0 every pixel is counted."""
        return self._at_no_lag(self.tensors["sums"]) / self._pixels()

    def _pixels(self) -> Tensor:
        return self._at_no_lag(self.tensors["counts"])

    def _at_no_lag(self, sums: Tensor) -> Tensor:
        return sums.flatten(-len(self.patch))[..., math.prod(self._lags()) // 2]

    def _lags(self) -> tuple[int, ...]:
        return tuple(2 * size - 1 for size in self.patch)

    @property
    def torus(self) -> tuple[int, ...]:
        """The lags with room to spare, in lengths that a Fourier transform is fast at."""
        return tuple(_smooth_length(lags) for lags in self._lags())

    def check(self) -> None:
        products, counts = self.tensors["products"], self.tensors["counts"]
        lags = tuple(range(-len(self.patch), 0))
        mirrored = products.flip(lags)
        mirrored = mirrored.transpose(0, 1) if self.joint else mirrored
        if not torch.allclose(products, mirrored, rtol=1e-6, atol=1e-6 * _scale(products)):
            raise ValueError("its products are not symmetric")
        if not torch.allclose(counts, counts.flip(lags), rtol=1e-6, atol=1e-6 * _scale(counts)):
            raise ValueError("its counts are not symmetric")
        if float(self._pixels()) < 1:
            raise ValueError("it counts no pixels")
        pixels = self._pixels()
        if bool(((counts > pixels * (1 + 1e-6)) | (counts < -1e-6 * pixels)).any()):
            raise ValueError("it counts more pairs of pixels than pixels, or fewer than none")
        self.check_positive()

    @property
    def n_values(self) -> int:
        channels = len(self.tensors["origin"]) if self.joint else 1
        return channels * math.prod(self.patch)


def _scale(values: Tensor) -> float:
    return max(float(values.abs().max()), math.ulp(0.0))


def _smooth_length(least: int) -> int:
    """The first number from ``least`` on that has no prime factor beyond 5."""
    length = least
    while True:
        rest = length
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 1


def _centred(at_lags: Tensor, reach: list[int]) -> Tensor:
    """From the order of a Fourier transform (0, 1, ..., -1) to lags from the lowest up."""
    for axis, width in enumerate(reach, -len(reach)):
        at_lags = at_lags.roll(width - 1, axis).narrow(axis, 0, 2 * width - 1)
    return at_lags
