"""Which prior an example gets: the user's, or without one the example's own autocovariance."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from captum_pda.priors.gaussian.prior import GaussianPatchPrior
from captum_pda.regions.window_grid import WindowGrid

#: How far the outer patch reaches beyond the window on each side: 10 in 18, as in the paper.
MARGIN = 4


def prior_for(prior: Any, method: str, example: Tensor, grid: WindowGrid) -> Any:
    """The given prior, or a stationary Gaussian fitted to one example (1, C, *space) by itself.

    Args:
        prior: the user's prior, or None.
        method: the method that will be called on it.
        example: the example to explain.
        grid: its windows.
    """
    if prior is None:
        patch = tuple(width + 2 * MARGIN for width in grid.window)
        return GaussianPatchPrior(patch).fit(example)
    if isinstance(prior, type) or not callable(getattr(prior, method, None)):
        raise TypeError(
            f"prior={prior!r} is no object with a method {method}; use a GaussianPatchPrior, "
            "MarginalPrior or ConstantPrior, or write the method as PatchPrior describes"
        )
    return prior
