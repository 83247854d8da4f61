"""Fill windows at many places of their outer patch: one inverse of its covariance serves all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from captum_pda.basics import device_sync
from captum_pda.basics.device_sync import in_double, moved_like
from captum_pda.priors.gaussian.conditioning import diagonal_loading
from captum_pda.priors.gaussian.fill_options import Draws
from captum_pda.priors.gaussian.moments import Moments
from captum_pda.priors.gaussian.outer_patches import middle_of

#: The most values of a patch whose covariance is inverted (128 MiB in double precision).
MOST_INVERTED_VALUES = 4096
#: How much variances of values given others may differ for their inverse to be trusted.
STEEPEST = 1e8
#: What a factor of its own costs a place besides its arithmetic, in multiplications.
OF_ONE_PLACE = 2**24


@dataclass(frozen=True, eq=False)
class PlacedValues:
    """How many windows are at one place of their outer patches, and the numbers of a window's
    values among those of its patch."""

    count: int
    within: Tensor


class PrecisionWindows:
    """Windows given their ring, from the inverse P of the covariance of whole patches.

    With d = x - m in the ring and 0 in the window,

        mean        = m_w - P_ww^-1 (P d)_w
        covariance  = P_ww^-1
        energy      = d^T P d - (P d)_w^T P_ww^-1 (P d)_w

    which are m_w + S_wr S_rr^-1 d_r, S_ww - S_wr S_rr^-1 S_rw and d_r^T S_rr^-1 d_r.

    Args:
        precision: P, (groups, patch values, patch values).
        mean: m, (groups, patch values).
    """

    def __init__(self, precision: Tensor, mean: Tensor) -> None:
        self._precision = precision
        self._mean = mean

    @classmethod
    def of_patches(
        cls, moments: Moments, patch: tuple[int, ...], regularization: float
    ) -> PrecisionWindows | None:
        """From fitted moments; None where their covariance can't be inverted well."""
        places = np.indices(patch).reshape(len(patch), -1).T + middle_of(moments.patch, patch)
        covariance = moments.covariance(places, places).clone()
        loading = diagonal_loading(moments, regularization)
        covariance.diagonal(dim1=1, dim2=2).add_(loading[:, None])
        factor, failed = torch.linalg.cholesky_ex(covariance)
        spread = factor.diagonal(dim1=1, dim2=2)
        steep = (spread.amax(dim=1) / spread.amin(dim=1)).square() > STEEPEST
        if device_sync.is_true(failed.any() | steep.any()):
            return None
        return cls(torch.cholesky_inverse(factor), moments.mean(places))

    @property
    def size(self) -> int:
        """How many values are kept; in double precision, so each counts twice."""
        return 2 * self._precision.numel()

    def fill(
        self, patches: Tensor, windows: Sequence[PlacedValues], draws: Draws, local_scale: bool
    ) -> Tensor:
        """Fills (S, groups, windows, values) of windows in patches (groups, windows, values), by
        place; with ``local_scale`` samples vary as much as their ring does."""
        inside = torch.cat([place.within.expand(place.count, -1) for place in windows])
        inside = inside.to(self._mean.device).expand(len(patches), -1, -1)
        deviation = in_double(patches).to(self._mean.device) - self._mean[:, None]
        deviation = deviation.scatter(2, inside, 0)
        product = deviation @ self._precision
        in_window = product.gather(2, inside)
        factors = [self._window_factor(place.within) for place in windows]
        numbers = [place.count for place in windows]
        white = _by_place(in_window.unsqueeze(0), factors, numbers, upper=False)
        mean = self._mean[:, None].expand_as(product).gather(2, inside)
        mean = mean - _by_place(white, factors, numbers, upper=True)
        if draws.n_samples is None:
            return moved_like(mean, patches)
        noise = torch.randn(
            (draws.count, *in_window.shape),
            generator=draws.generator,
            dtype=patches.dtype,
            device=patches.device,
        )
        noise = in_double(noise).to(in_window.device)
        about = _by_place(noise, factors, numbers, upper=True)
        if local_scale and product.shape[2] > in_window.shape[2]:
            energy = (deviation * product).sum(dim=2) - white[0].square().sum(dim=2)
            scale = (energy / (product.shape[2] - in_window.shape[2])).clamp_min(0).sqrt()
            about = about * scale.unsqueeze(-1)
        return moved_like(mean + about, patches)

    def _window_factor(self, within: Tensor) -> Tensor:
        """The Cholesky factor of P_ww, (groups, window values, window values)."""
        within = within.to(self._precision.device)
        factor: Tensor = torch.linalg.cholesky_ex(self._precision[:, within[:, None], within])[0]
        return factor


def _by_place(
    values: Tensor, factors: Sequence[Tensor], numbers: Sequence[int], upper: bool
) -> Tensor:
    """Values (S, groups, windows, values) solved for with L, or with its transpose if ``upper``;
    the windows of each place follow each other."""
    solved = []
    for factor, some in zip(factors, torch.split(values, list(numbers), dim=2), strict=True):
        # All samples are right-hand sides of one solution.
        columns = some.movedim(0, 1).flatten(1, 2).mT
        rows = torch.linalg.solve_triangular(
            factor.mT if upper else factor, columns, upper=upper
        ).mT
        solved.append(rows.unflatten(1, (len(values), -1)).movedim(1, 0))
    return torch.cat(solved, dim=2)


def inverse_pays(places: int, ring: int, window: int) -> bool:
    """Whether one inverse for all places is cheaper than a factor of the ring for each.

    Args:
        places: at how many places of their patches windows are.
        ring: how many values surround a window and vary together.
        window: how many of its own do.
    """
    patch = ring + window
    if patch > MOST_INVERTED_VALUES:
        return False
    return patch**3 + places * window**3 / 3 < places * (ring**3 / 3 + OF_ONE_PLACE)
