"""The user's prior, or the default one, and what describes it."""

from __future__ import annotations

from typing import Any

from captum_pda.fingerprints import fingerprint, own_code
from captum_pda.priors.empty_context import EmptyContext
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
    its class and a hash of its code and attributes."""
    if prior is None:
        prior = DEFAULT_PRIOR
    described: dict[str, object] = {"empty_context_version": EmptyContext.version}
    if callable(getattr(prior, "settings", None)):
        return {**described, **prior.settings(), **own_code(prior)}
    return {**described, "kind": type(prior).__qualname__, "sha256": fingerprint(prior)}
