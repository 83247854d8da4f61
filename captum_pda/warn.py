"""Warnings that point at the user's own line."""

from __future__ import annotations

import sys
import warnings

INTERNAL = {"captum_pda", "captum", "contextlib"}


def warn_user(message: str) -> None:
    """Warn at the innermost line that is neither this library's nor Captum's."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in INTERNAL:
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)
