"""Matrices that are kept between calls, within bounds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

#: Values of matrices that are kept between calls (128 MiB in single precision), beside the factor
#: of the last whole patch.
REMEMBERED_VALUES = 2**25


class Sized(Protocol):
    """Says how many values it keeps, in single precision."""

    @property
    def size(self) -> int: ...


_Made = TypeVar("_Made", bound=Sized | None)

#: Threads may share a prior. One lock for all priors, since a prior can be copied and a lock can't.
_lock = threading.Lock()


class Remembered:
    """What was made for a key, made anew where it was forgotten."""

    def __init__(self) -> None:
        self.held: OrderedDict[object, Sized | None] = OrderedDict()

    def recall(self, key: object, make: Callable[[], _Made], keep: bool = True) -> _Made:
        """What was made for this key, made now unless it is remembered; what was used last is
        kept, and the first is forgotten where there is much."""
        with _lock:
            known = key in self.held
            found = self.held.get(key)
        made = cast(_Made, found) if known else make()
        if keep:
            with _lock:
                self.held[key] = made
                self.held.move_to_end(key)
                sizes = [
                    0 if matrices is None else matrices.size for matrices in self.held.values()
                ]
                held = sum(sizes)
                while held > REMEMBERED_VALUES and len(self.held) > 1:
                    forgotten = self.held.popitem(last=False)[1]
                    held -= 0 if forgotten is None else forgotten.size
        return made
