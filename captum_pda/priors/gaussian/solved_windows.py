"""Fill few windows at one place of their outer patch: each is solved for by itself."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from captum_pda.basics.device_sync import in_double, moved_like
from captum_pda.priors.gaussian.conditioning import (
    Conditional,
    diagonal_loading,
    loaded_factor,
)
from captum_pda.priors.gaussian.moments import Moments
from captum_pda.priors.gaussian.outer_patches import middle_of

#: Windows at one place up to which the covariance between ring and window is not repaid.
VERY_FEW = 16
#: The samples of a window that are reckoned with where their number must not decide.
USUAL_SAMPLES = 10


#: One thread makes a patch's factor, and the others wait for it. For all priors, since a prior can
#: be copied and a lock can't.
_lock = threading.Lock()


class WholePatches:
    """The distribution of all values of a patch, with mean zero.

    Args:
        moments: where the covariance comes from.
        regularization: the relative diagonal loading.
    """

    def __init__(self, moments: Moments, regularization: float) -> None:
        self._moments = moments
        self._regularization = regularization
        self._last: tuple[object, Tensor] | None = None

    def draw(
        self,
        patch: tuple[int, ...],
        n_samples: int,
        like: Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draws (S, groups, windows, values), for rings (groups, windows, values) like these."""
        factor = self._factor(patch, like)
        noise = torch.randn(
            (n_samples, *like.shape[:2], factor.shape[2]),
            generator=generator,
            dtype=like.dtype,
            device=like.device,
        )
        return noise @ factor.mT

    def _factor(self, patch: tuple[int, ...], like: Tensor) -> Tensor:
        """The Cholesky factor of the covariance; only the last one is kept, since it is large."""
        key = (patch, like.dtype, like.device)
        with _lock:
            if self._last is None or self._last[0] != key:
                self._last = None  # before there is another
                places = np.indices(patch).reshape(len(patch), -1).T
                places = places + middle_of(self._moments.patch, patch)
                covariance = self._moments.covariance(places, places)
                loading = diagonal_loading(self._moments, self._regularization)
                self._last = key, moved_like(loaded_factor(covariance, loading), like)
            return self._last[1]


@dataclass(frozen=True, eq=False)
class PatchValues:
    """Where a region's values and those of its ring are among the values of a patch.

    Args:
        patch: the patch's shape.
        around: the numbers of the ring's values.
        within: the numbers of the region's values.
    """

    patch: tuple[int, ...]
    around: Tensor
    within: Tensor


class SolvedWindows:
    """Works out nothing that only many windows would repay.

    The mean needs one solution with S_rr for each window, and no operator. Samples follow
    Matheron's rule: with z drawn from the distribution of the whole patch,

        m_w + z_w + S_wr S_rr^-1 (x_r - m_r - z_r)

    is distributed as the window given its ring. One factor of the patch's covariance serves windows
    at every place of it, where factors of their own would be needed otherwise.

    Args:
        conditional: the distribution of such a window given its ring.
        values: where the window and its ring are in the patch.
        patches: the distribution of whole patches.
        very_few: whether they do not even repay the covariance between ring and window.
        local_scale: whether samples vary as much as their ring does.
    """

    def __init__(
        self,
        conditional: Conditional,
        values: PatchValues,
        patches: WholePatches,
        very_few: bool,
        local_scale: bool,
    ) -> None:
        self._conditional = conditional
        self._values = values
        self._patches = patches
        self._very_few = very_few
        self._local_scale = local_scale

    @property
    def size(self) -> int:
        """How many values are kept; in double precision, so each counts twice."""
        groups, ring = self._conditional.ring_mean.shape
        window = 0 if self._very_few else self._conditional.window_mean.shape[1]
        return 2 * groups * ring * (ring + window)

    def fill(
        self, ring: Tensor, n_samples: int | None, generator: torch.Generator | None
    ) -> Tensor:
        """Fills (S, groups, windows, values) of windows with these rings (groups, windows, values);
        without ``n_samples`` the conditional mean as the only one."""
        if n_samples is None:
            return self._expected(ring.unsqueeze(0))
        values = self._values
        drawn = self._patches.draw(values.patch, n_samples, ring, generator)
        around, within = (drawn[..., of.to(ring.device)] for of in (values.around, values.within))
        if not self._local_scale:
            return self._expected(ring - around) + within
        mean = self._expected(ring.unsqueeze(0))
        # Without the ring's own values, the same formula draws about the mean.
        about = self._expected(moved_like(self._conditional.ring_mean, ring)[:, None] - around)
        about = about + within - moved_like(self._conditional.window_mean, ring)[:, None]
        return mean + self._conditional.scale(ring) * about

    def _expected(self, rings: Tensor) -> Tensor:
        """m_w + S_wr S_rr^-1 (x_r - m_r) of rings (S, groups, windows, values)."""
        means = self._conditional.ring_mean, self._conditional.window_mean
        deviation = in_double(rings).to(means[0].device) - means[0].unsqueeze(1)
        explained = self._conditional.project(deviation.movedim(0, 1).flatten(1, 2), self._very_few)
        by_sample = explained.reshape(*deviation.movedim(0, 1).shape[:3], -1).movedim(1, 0)
        return moved_like(by_sample + means[1].unsqueeze(1), rings)


def are_few(windows: int, ring: int, window: int, drawing: bool) -> bool:
    """Whether windows at one place are too few to repay an operator of their own.

    Args:
        windows: how many they are.
        ring: how many values surround a window and vary together.
        window: how many of its own do.
        drawing: whether samples will be asked for.
    """
    if not drawing:
        return windows < window / 2
    draws, patch = windows * USUAL_SAMPLES, ring + window
    # Multiplications and additions; the patch's factor is shared by the places, often 9 or more.
    own_matrices = ring**3 / 3 + 2 * ring * window * patch + window**3 / 3
    for_many = own_matrices + draws * 2 * window**2
    for_few = patch**3 / 27 + ring**3 / 3 + draws * 2 * (patch**2 + ring**2)
    return for_few < for_many
