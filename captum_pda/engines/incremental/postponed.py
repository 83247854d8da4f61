"""Values that are computed when they are first needed, so that what follows can overwrite them.

A convolution, a sum or a concatenation is mostly followed by batch-norm or an activation. Done in
place on memory that nobody else has seen, these cost half, and batch-norm after a convolution
nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

#: Changes values in place, and returns them.
Overwrite = Callable[[Tensor], Tensor]
AnyPostponed = TypeVar("AnyPostponed", bound="Postponed")


class Origin:
    """A call of the model's forward whose result is postponed.

    What is needed twice would be computed twice: that is noted once, and in the batches that follow
    the same call is computed at once.

    Args:
        number: which of the forward's calls it is.
        needed_twice: the numbers that were found out so far.
    """

    def __init__(self, number: int, needed_twice: set[int]) -> None:
        self._number = number
        self._needed_twice = needed_twice
        self._computed = False

    @property
    def can_wait(self) -> bool:
        """Whether the result was needed only once in the batches before."""
        return self._number not in self._needed_twice

    def compute(self) -> None:
        """Note that the result is computed."""
        if self._computed:
            self._needed_twice.add(self._number)
        self._computed = True


@dataclass(frozen=True, kw_only=True)
class Postponed:
    """Values to be computed, in memory of their own."""

    origin: Origin
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    overwrites: tuple[Overwrite, ...] = ()

    def then(self: AnyPostponed, overwrite: Overwrite) -> AnyPostponed:
        """The values after a function that works in place."""
        return replace(self, overwrites=(*self.overwrites, overwrite))

    def compute(self) -> Tensor:
        """The values."""
        self.origin.compute()
        values = self.make()
        for overwrite in self.overwrites:
            values = overwrite(values)
        return values

    def make(self) -> Tensor:
        """The values before they are overwritten."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Fresh(Postponed):
    """The result of a function that returns memory of its own."""

    function: Callable[[], Tensor]

    def make(self) -> Tensor:
        return self.function()
