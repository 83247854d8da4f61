"""Which prior an example gets: the user's, or without one the example's own autocovariance."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from captum_pda.basics.fingerprints import fingerprint
from captum_pda.priors.gaussian.prior import GaussianPatchPrior
from captum_pda.regions.protocol import Windows

#: How far the outer patch reaches beyond the window on each side: 10 in 18, as in the paper.
MARGIN = 4


def prior_for(prior: Any, method: str, example: Tensor, regions: Windows) -> Any:
    """The given prior, or a stationary Gaussian fitted to one example (C, *space) by itself.

    Args:
        prior: the user's prior, or None.
        method: the method that will be called on it.
        example: the example to explain.
        regions: its windows.
    """
    if prior is None:
        patch = tuple(width + 2 * MARGIN for width in regions.window)
        return GaussianPatchPrior(patch).fit(example.unsqueeze(0))
    if isinstance(prior, type) or not callable(getattr(prior, method, None)):
        raise TypeError(
            f"prior={prior!r} is no object with a method {method}; use a GaussianPatchPrior, "
            "MarginalPrior or ConstantPrior, or write the method as PatchPrior describes"
        )
    return prior


def prior_settings(prior: Any) -> dict[str, object]:
    """What describes a prior, as plain values; one of your own without ``settings()`` is known by
    its class and a hash of its attributes."""
    if prior is None:
        return {"kind": "GaussianPatchPrior", "fitted": "to each example by itself"}
    if callable(getattr(prior, "settings", None)):
        return dict(prior.settings())
    return {"kind": type(prior).__qualname__, "sha256": fingerprint(prior)}
