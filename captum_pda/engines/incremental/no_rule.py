"""Why something is not computed incrementally."""

from __future__ import annotations


class NoRule(Exception):  # noqa: N818 - no error: the maps are completed, and the model goes on
    """A rule does not hold for these arguments; the message completes "because ..."."""


class IncrementalError(RuntimeError):
    """The model can't be run incrementally; ``engine="dense"`` runs any model."""
