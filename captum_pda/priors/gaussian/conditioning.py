"""A Gaussian window at one place of its outer patch, given the ring around it."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from captum_pda.basics import device_sync
from captum_pda.basics.errors import CovarianceError, warn_user
from captum_pda.priors.gaussian.moments import Moments
from captum_pda.regions.protocol import Integers

#: The most values whose covariance is factored (2 GiB in double precision).
MOST_FACTORED_VALUES = 16384
TENFOLDS = 5


class Conditional:
    """The distribution of a window given the rest of its outer patch.

    With w for the window and r for the ring, S the covariance with its diagonal raised by
    ``regularization`` times the mean variance (and by no less than rounding errors may be):

        mean        = m_w + S_wr S_rr^-1 (x_r - m_r)
        covariance  = S_ww - S_wr S_rr^-1 S_rw

    Args:
        moments: where mean and covariance come from.
        ring: the ring's places in the patch, (r, dims).
        window: the window's places in the patch, (w, dims).
        regularization: the relative diagonal loading.
    """

    def __init__(
        self, moments: Moments, ring: Integers, window: Integers, regularization: float
    ) -> None:
        self._moments = moments
        self._ring = ring
        self._window = window
        self.ring_mean = moments.mean(ring)
        self.window_mean = moments.mean(window)
        self._loading = diagonal_loading(moments, regularization)

    @cached_property
    def operator(self) -> Tensor:
        """(S_wr S_rr^-1)^T, (groups, ring values, window values)."""
        return torch.cholesky_solve(self._cross, self._ring_factor)

    @cached_property
    def sample_factor(self) -> Tensor:
        """The Cholesky factor of the conditional covariance, (groups, window, window values)."""
        values = self.window_mean.shape[1]
        if values > MOST_FACTORED_VALUES:
            raise ValueError(
                f"a window of {values} values is too large to draw samples of; use a smaller "
                "window, channels='independent', or EfficientPDA, which needs no samples"
            )
        own = self._moments.covariance(self._window, self._window)
        covariance = own - self._cross.mT @ self.operator
        return loaded_factor((covariance + covariance.mT) / 2, self._loading)

    def project(self, deviation: Tensor, without_matrix: bool) -> Tensor:
        """S_wr S_rr^-1 (x_r - m_r) without forming the operator: cheaper for few windows.

        Args:
            deviation: x_r - m_r in double precision, (groups, n, ring values).
            without_matrix: whether not to form S_wr either: cheaper for very few windows.
        """
        weights = torch.cholesky_solve(deviation.mT, self._ring_factor).mT
        if without_matrix:
            return self._moments.predict(weights, self._ring, self._window)
        return weights @ self._cross

    def scale(self, rings: Tensor) -> Tensor:
        """How much rings (groups, n, ring values) vary, as a multiple of what is expected: the root
        of (x_r - m_r)^T S_rr^-1 (x_r - m_r) / n_r, (groups, n, 1)."""
        if not rings.shape[2]:
            return rings.new_ones(*rings.shape[:2], 1)
        deviation = device_sync.in_double(rings).to(self.ring_mean.device) - self.ring_mean[:, None]
        white = torch.linalg.solve_triangular(self._ring_factor, deviation.mT, upper=False)
        energy = white.square().mean(dim=1)
        return device_sync.moved_like(energy.sqrt().unsqueeze(-1), rings)

    @cached_property
    def _cross(self) -> Tensor:
        return self._moments.covariance(self._ring, self._window)

    @cached_property
    def _ring_factor(self) -> Tensor:
        values = self.ring_mean.shape[1]
        if values > MOST_FACTORED_VALUES:
            raise ValueError(
                f"the ring around a window has {values} values, and conditioning on more than "
                f"{MOST_FACTORED_VALUES} is out of reach; use a smaller patch_size, or "
                "channels='independent'"
            )
        return loaded_factor(self._moments.covariance(self._ring, self._ring), self._loading)


def diagonal_loading(moments: Moments, regularization: float) -> Tensor:
    """By how much a diagonal is raised, (groups,)."""
    loading = torch.maximum(regularization * moments.variance(), moments.rounding())
    return loading.clamp_min(1e-30)


def loaded_factor(covariance: Tensor, loading: Tensor) -> Tensor:
    """The Cholesky factor of a covariance, with its diagonal raised as far as it needs."""
    for tenfold in range(TENFOLDS + 1):
        loaded = covariance.clone()
        loaded.diagonal(dim1=1, dim2=2).add_(loading[:, None] * 10**tenfold)
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(loaded)
        if not device_sync.is_true(failed.any()):
            return factor
        if tenfold < TENFOLDS:
            warn_user(
                "a patch covariance is not positive definite; raising its diagonal loading "
                f"{10 ** (tenfold + 1)}-fold. More images, or a larger regularization, "
                "condition it better."
            )
    raise CovarianceError(
        "a patch covariance is not positive definite, even with its diagonal loading raised "
        f"{10**TENFOLDS}-fold; fit on more images, or raise regularization"
    )
