"""Draws of a stationary Gaussian field, by Fourier transforms on a torus."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from captum_pda.basics import device_sync
from captum_pda.priors.gaussian.stationary_moments import (
    VALUES_PER_TRANSFORM,
    StationaryMoments,
)


class FadedMoments(StationaryMoments):
    """The same fit, its autocovariance faded out towards the size of the patch.

    An autocovariance that ends with the patch may be none of any field. Times Parzen's window,
    (1 - 6 u^2 (1 - u) for u <= 1/2, else 2 (1 - u)^3, with u = lag / size along each axis), it is
    one; what is near each other varies together as before, and what is far apart less. So it is for
    the shape of samples only: their mean and their mean variance are those of the fit.
    """

    def autocovariance(self) -> Tensor:
        window = torch.ones((), dtype=torch.float64, device=self.origin.device)
        for side in self.patch:
            share = torch.arange(1 - side, side, dtype=torch.float64, device=window.device).abs()
            share = share / side
            near, far = 1 - 6 * share**2 * (1 - share), 2 * (1 - share) ** 3
            window = window.unsqueeze(-1) * torch.where(share <= 0.5, near, far)
        return super().autocovariance() * window


class StationaryDraws:
    """Draws with mean zero whose autocovariance is the fitted one, up to the size of a patch.

    White noise is coloured with a factor A of the autocovariance's spectrum H at each frequency,
    A A^H = H^T. A torus of twice the patch has room for all lags. If the fit has all lags of its
    images, H is positive semi-definite and draws are exact. Otherwise they are those of
    ``FadedMoments``, which are kept as ``moments``.

    Blocks that are drawn together come from one torus as far as they find room side by side: each
    is right by itself, and those of different samples are independent of each other.

    Args:
        moments: where the autocovariance comes from.
        like: has the dtype and device of the draws.
    """

    def __init__(self, moments: StationaryMoments, like: Tensor) -> None:
        self.torus = moments.torus
        self._dims = len(self.torus)
        factor, complete = _factor(_matrices(moments.spectrum(), moments.joint))
        if not complete:
            moments = FadedMoments(moments.patch, moments.joint, moments.tensors)
            factor, _ = _factor(_matrices(moments.spectrum(), moments.joint))
        self.moments = moments
        complex_dtype = torch.complex128 if like.dtype == torch.float64 else torch.complex64
        self._factor: Tensor = factor.to(complex_dtype).to(like.device)
        self._like = like

    @property
    def size(self) -> int:
        """How many values are kept."""
        return 2 * self._factor.numel()

    def blocks(
        self,
        n_samples: int,
        n_windows: int,
        block: tuple[int, ...],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draws of blocks of one shape, (S, W, *block, C)."""
        fits = [max(1, side // width) for side, width in zip(self.torus, block, strict=True)]
        tori = math.ceil(n_windows / math.prod(fits))
        parts = [self._cut(drawn, fits, block) for drawn in self._tori(n_samples * tori, generator)]
        drawn = torch.cat(parts).reshape(n_samples, -1, *block, self._factor.shape[-1])
        return drawn[:, :n_windows]

    def _tori(self, count: int, generator: torch.Generator | None) -> Iterator[Tensor]:
        """So many draws, some at once, (tori, *torus, C)."""
        axes = tuple(range(1, self._dims + 1))
        shape = *self.torus, self._factor.shape[-1]
        at_once = max(1, VALUES_PER_TRANSFORM // math.prod(shape))
        for start in range(0, count, at_once):
            noise = torch.randn(
                (min(at_once, count - start), *shape),
                generator=generator,
                dtype=self._like.dtype,
                device=self._like.device,
            )
            coloured = (self._factor @ torch.fft.rfftn(noise, dim=axes).unsqueeze(-1)).squeeze(-1)
            yield torch.fft.irfftn(coloured, s=self.torus, dim=axes)

    def _cut(self, drawn: Tensor, fits: list[int], block: tuple[int, ...]) -> Tensor:
        """The blocks that fit side by side, (tori * blocks, *block, C)."""
        for axis, (number, width) in enumerate(zip(fits, block, strict=True), start=1):
            drawn = drawn.narrow(axis, 0, number * width)
        shape = np.stack([fits, block], axis=1).reshape(-1).tolist()
        apart = drawn.reshape(len(drawn), *shape, -1)
        order = [1 + 2 * axis for axis in range(self._dims)]
        order += [2 + 2 * axis for axis in range(self._dims)]
        return apart.permute(0, *order, -1).reshape(-1, *block, drawn.shape[-1])


def _matrices(spectrum: Tensor, joint: bool) -> Tensor:
    """The spectrum as one matrix for each frequency, H^T, (*frequencies, C, C)."""
    if not joint:
        return torch.diag_embed(spectrum.movedim(0, -1))
    return spectrum.movedim((0, 1), (-2, -1)).mT


def _factor(matrices: Tensor) -> tuple[Tensor, bool]:
    """Lower triangular factors A of Hermitian matrices (..., C, C), a pivot that is not positive
    left out; and whether A A^H is the matrix all the same."""
    rest = matrices.clone()
    factor = torch.zeros_like(rest)
    least = 1e-12 * matrices.diagonal(dim1=-2, dim2=-1).real.abs().amax()
    for column in range(matrices.shape[-1]):
        pivot = rest[..., column, column].real
        root = torch.where(pivot > least, pivot.clamp_min(1e-300).rsqrt(), 0)
        own = rest[..., :, column] * root.unsqueeze(-1)
        factor[..., column:, column] = own[..., column:]
        rest = rest - own.unsqueeze(-1) * own.conj().unsqueeze(-2)
    return factor, device_sync.is_true(rest.abs().amax() <= 1e-9 * matrices.abs().amax())
