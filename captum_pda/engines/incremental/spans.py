"""Where the boxes of a batch lie along one axis of a feature map."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Span:
    """The part of one axis that can differ from the unperturbed example, for each copy.

    ``low`` and ``high`` (one past the last) are exact for every copy, so that nothing is lost from
    layer to layer. The boxes that are computed all have one ``length``, that of the widest, and lie
    inside the map: a box may hold more than what can differ, never less.

    Args:
        size: the extent of the map.
        low: the first place that can differ, one number per copy.
        high: the place after the last that can differ.
        begin: where each box starts, if not as soon as something can differ.
    """

    size: int
    low: Integers
    high: Integers
    begin: Integers | None = None

    @classmethod
    def of(cls, size: int, low: Integers, high: Integers) -> Span:
        """A span inside the map, of at least one place."""
        low = np.clip(low, 0, size - 1)
        return cls(size, low, np.clip(high, low + 1, size))

    @classmethod
    def whole(cls, size: int, n_copies: int) -> Span:
        """All of an axis, for every copy."""
        low = np.zeros(n_copies, dtype=np.int64)
        return cls(size, low, low + size)

    @cached_property
    def length(self) -> int:
        """The extent of every box."""
        return int((self.high - self.low).max())

    @cached_property
    def start(self) -> Integers:
        """Where each box starts."""
        if self.begin is not None:
            return self.begin
        return np.minimum(self.low, self.size - self.length)

    @property
    def is_whole(self) -> bool:
        """Whether the boxes cover the axis."""
        return self.length == self.size

    @cached_property
    def places(self) -> Integers:
        """The places that the boxes hold, (copies, length)."""
        return self.start[:, None] + np.arange(self.length)

    def same_boxes(self, other: Span) -> bool:
        """Whether the boxes of another span lie at the same places."""
        return self is other or (
            self.length == other.length and np.array_equal(self.start, other.start)
        )

    def union(self, other: Span) -> Span:
        """What can differ in either of two maps of the same size."""
        if self is other:
            return self
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Span(self.size, low, high)

    def moved(self, before: int, size: int) -> Span:
        """The same places after ``before`` places were put in front, on a map of a new size."""
        return Span(size, self.low + before, self.high + before, self.start + before)


@dataclass(frozen=True)
class Slide:
    """How a kernel slides along one axis: convolution and pooling."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """From the first place that the kernel reads to the place after the last."""
        return self.dilation * (self.kernel - 1) + 1

    def after(self, span: Span, size: int) -> Span:
        """What can differ in the output, of extent ``size``."""
        if span.is_whole:
            return Span.whole(size, len(span.low))
        low = -((self.reach - 1 - self.padding - span.low) // self.stride)
        high = (span.high - 1 + self.padding) // self.stride + 1
        return Span.of(size, low, high)

    def reads(self, after: Span) -> Integers:
        """The input places that the boxes of the output need; some lie outside the map."""
        first = after.start * self.stride - self.padding
        places: Integers = first[:, None] + np.arange((after.length - 1) * self.stride + self.reach)
        return places

    def reached(self, before: Span, after: Span) -> Span:
        """All places that a box can change with a stride of 1, also outside the output's map."""
        low = before.start + self.padding - (self.reach - 1)
        high = low + before.length + self.reach - 1
        return Span(after.size, low, high, low)


def per_axis(value: Any, n_axes: int) -> tuple[int, ...]:
    """An int, or a sequence of one or as many numbers as there are axes, as one number an axis."""
    values = (value,) if isinstance(value, int) else tuple(int(number) for number in value)
    return values * n_axes if len(values) == 1 else values
