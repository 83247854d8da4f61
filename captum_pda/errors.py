"""Errors that are more than a plain ValueError, and warnings at the user's own line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


class NotFittedError(ValueError):
    """A prior was asked for fills before it was fitted."""


class BatchDimensionError(ValueError):
    """One example was given without the dimension of the batch."""


class CovarianceError(ValueError):
    """A covariance could not be factored, even with its diagonal raised."""


class NonFiniteOutputError(ValueError):
    """The model answered NaN or infinity for some windows.

    Nothing that was computed is lost: ``result`` holds what would have been returned, with NaN
    wherever such a window lies.
    """

    def __init__(self, message: str, result: object) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        # Goes from one process to another whole.
        return type(self), (str(self), self.result)


def attach_result(error: BaseException, result: object) -> None:
    """Let whatever stopped a run carry what was finished by then, as its ``result``."""
    note = "what was finished by then is in this exception's .result"
    error.result = result  # type: ignore[attr-defined]
    if sys.version_info >= (3, 11) and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


@contextmanager
def result_read_by(read: Callable[[Tensor], object]) -> Iterator[None]:
    """Let whatever stops the block carry what ``read`` makes of the scores that it carries."""
    try:
        yield
    except BaseException as error:
        known = getattr(error, "result", None)
        if isinstance(known, Tensor):
            attach_result(error, read(known))
        raise


#: Packages and modules whose lines are not the user's own; the last carries out ``no_grad``.
INTERNAL = {"captum_pda", "captum", "contextlib", "torch.utils._contextlib"}


def warn_user(message: str) -> None:
    """Warn at the innermost line that is neither this library's nor Captum's."""
    frame, level = sys._getframe(), 1
    while frame.f_back:
        module = frame.f_globals.get("__name__", "")
        if not {module, module.partition(".")[0]} & INTERNAL:
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
