"""Which prior an example gets: the user's, or without one the example's own autocovariance."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from captum_pda.basics.fingerprints import fingerprint, own_code
from captum_pda.priors.empty_context import EmptyContext
from captum_pda.priors.gaussian.prior import GaussianPatchPrior

#: How far the outer patch reaches beyond the window on each side: 10 in 18, as in the paper.
MARGIN = 4
#: Values of an autocovariance with all lags up to which all are fitted for samples.
MOST_LAG_VALUES = 2**22
#: Whether samples vary as much as what surrounds them, or as much as the whole example.
LOCAL_SCALE = True


def prior_for(prior: Any, method: str, example: Tensor, window: tuple[int, ...]) -> Any:
    """The given prior, or a stationary Gaussian fitted to one example (C, *space) by itself.

    Args:
        prior: the user's prior, or None.
        method: the method that will be called on it.
        example: the example to explain.
        window: the largest windows that will be filled; one fit serves all smaller ones too.
    """
    if prior is None:
        return GaussianPatchPrior(
            _patch_for(method, example, window), margin=MARGIN, local_scale=LOCAL_SCALE
        ).fit(example.unsqueeze(0))
    if isinstance(prior, type) or not callable(getattr(prior, method, None)):
        raise TypeError(
            f"prior={prior!r} is no object with a method {method}; use a GaussianPatchPrior, "
            "MarginalPrior or ConstantPrior, or write the method as PatchPrior describes"
        )
    return prior


def _patch_for(method: str, example: Tensor, window: tuple[int, ...]) -> tuple[int, ...]:
    """The outer patch to fit: around the largest window; for samples, which are drawn exactly where
    all lags are known, the whole example if that is not too much."""
    channels, *space = example.shape
    lags = channels**2 * math.prod(2 * side - 1 for side in space)
    if method == "sample" and lags <= MOST_LAG_VALUES:
        return tuple(space)
    return tuple(width + 2 * MARGIN for width in window)


def prior_settings(prior: Any) -> dict[str, object]:
    """What describes a prior, as plain values; one of your own without ``settings()`` is known by
    its class and a hash of its code and attributes."""
    if prior is None:
        return {
            "kind": "GaussianPatchPrior",
            "version": GaussianPatchPrior.version,
            "empty_context_version": EmptyContext.version,
            "fitted": "to each example by itself",
            "covariance": "stationary",
            "channels": "joint",
            "margin": MARGIN,
            "local_scale": LOCAL_SCALE,
        }
    described: dict[str, object] = {"empty_context_version": EmptyContext.version}
    if callable(getattr(prior, "settings", None)):
        return {**described, **prior.settings(), **own_code(prior)}
    return {**described, "kind": type(prior).__qualname__, "sha256": fingerprint(prior)}
