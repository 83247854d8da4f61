"""Special errors, and warnings at the user's own line."""

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
    """One example was given without the batch dimension."""


class CovarianceError(ValueError):
    """A covariance could not be factored, even with its diagonal raised."""


class NonFiniteOutputError(ValueError):
    """The model returned NaN or infinity for some windows. ``result`` has what would have been
    returned, with NaN for these windows."""

    def __init__(self, message: str, result: object) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled with its result.
        return type(self), (str(self), self.result)


def attach_result(error: BaseException, result: object) -> None:
    """Attach the finished part of a run to the error that stopped it, as its ``result``."""
    note = "what was finished by then is in this exception's .result"
    error.result = result  # type: ignore[attr-defined]
    if sys.version_info >= (3, 11) and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


@contextmanager
def result_read_by(read: Callable[[Tensor], object]) -> Iterator[None]:
    """Convert the scores that an error in the block carries with ``read``."""
    try:
        yield
    except BaseException as error:
        known = getattr(error, "result", None)
        if isinstance(known, Tensor):
            attach_result(error, read(known))
        raise


#: Packages and modules whose lines are not the user's own; the last one runs ``no_grad``.
INTERNAL = {"captum_pda", "captum", "contextlib", "torch.utils._contextlib"}


def warn_user(message: str) -> None:
    """Warn at the innermost line outside of this library and Captum."""
    frame, level = sys._getframe(), 1
    while frame.f_back:
        module = frame.f_globals.get("__name__", "")
        if not {module, module.partition(".")[0]} & INTERNAL:
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
