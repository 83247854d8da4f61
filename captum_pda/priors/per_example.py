"""The user's prior, or the default one, and what describes it."""

from __future__ import annotations

from typing import Any

from captum_pda.basics.fingerprints import fingerprint
from captum_pda.priors.field import GaussianFieldPrior

DEFAULT_PRIOR = GaussianFieldPrior()


def prior_for(prior: Any, method: str) -> Any:
    """The given prior, or without one the default.

    Args:
        prior: the user's prior, or None.
        method: the method that will be called on it.
    """
    if prior is None:
        return DEFAULT_PRIOR
    if isinstance(prior, type) or not callable(getattr(prior, method, None)):
        raise TypeError(
            f"prior={prior!r} has no method {method}; use a GaussianFieldPrior(), "
            "GaussianPatchPrior, MarginalPrior or ConstantPrior, or write the method as PatchPrior "
            "describes"
        )
    return prior


def prior_settings(prior: Any) -> dict[str, object]:
    """What describes a prior, as plain values; one of your own without ``settings()`` is known by
    its class and a hash of its attributes."""
    if prior is None:
        return DEFAULT_PRIOR.settings()
    if callable(getattr(prior, "settings", None)):
        return dict(prior.settings())
    return {"kind": type(prior).__qualname__, "sha256": fingerprint(prior)}
