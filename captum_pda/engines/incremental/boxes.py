"""Feature maps of perturbed copies, of which only the boxes that can differ are stored.

A ``Span`` has the places of a batch of boxes along one axis, a ``Slide`` moves a kernel along it,
and ``Boxed`` has the values in the boxes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captum_pda.regions.protocol import Integers

#: The fraction of a map from which computing all of it is cheaper than adding its rim.
WHOLE_FROM_FRACTION = 0.75


@dataclass(frozen=True, eq=False)
class Span:
    """The part of one axis that can differ from the unperturbed example, for each copy.

    ``low`` and ``high`` (exclusive) are exact for every copy. The boxes that are computed have one
    ``length``, that of the widest, lie inside the map and contain at least what can differ.
    ``begin`` is the start of each box, if not ``low``.
    """

    size: int
    low: Integers
    high: Integers
    begin: Integers | None = None

    @classmethod
    def of(cls, size: int, low: Integers, high: Integers) -> Span:
        """A span inside the map of at least one place."""
        low = np.clip(low, 0, size - 1)
        return cls(size, low, np.clip(high, low + 1, size))

    @classmethod
    def whole(cls, size: int, n_copies: int) -> Span:
        low = np.zeros(n_copies, dtype=np.int64)
        return cls(size, low, low + size)

    @cached_property
    def length(self) -> int:
        return int((self.high - self.low).max())

    @cached_property
    def start(self) -> Integers:
        if self.begin is not None:
            return self.begin
        return np.minimum(self.low, self.size - self.length)

    @property
    def is_whole(self) -> bool:
        """Whether the boxes cover the axis."""
        return self.begin is None and self.length == self.size

    @cached_property
    def places(self) -> Integers:
        """The places in the boxes, (copies, length)."""
        return self.start[:, None] + np.arange(self.length)

    def same_boxes(self, other: Span) -> bool:
        """Whether the boxes of another span lie at the same places."""
        return self is other or (
            self.length == other.length and np.array_equal(self.start, other.start)
        )

    def union(self, other: Span) -> Span:
        """The union of what can differ in two maps of the same size."""
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return self if self is other else Span(self.size, low, high)

    def moved(self, before: int, size: int) -> Span:
        """The same places with ``before`` places inserted in front, on a map of a new size."""
        return Span(size, self.low + before, self.high + before, self.start + before)


@dataclass(frozen=True)
class Slide:
    """The movement of a kernel along one axis in convolution and pooling."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """The extent of the places that the kernel reads."""
        return self.dilation * (self.kernel - 1) + 1

    def after(self, span: Span, size: int) -> Span:
        """What can differ in the output, of extent ``size``."""
        if span.is_whole:
            return Span.whole(size, len(span.low))
        low = -((self.reach - 1 - self.padding - span.low) // self.stride)
        high = (span.high - 1 + self.padding) // self.stride + 1
        return Span.of(size, low, high)

    def reads(self, after: Span) -> Integers:
        """The input places for the boxes of the output; some lie outside of the map."""
        first = after.start * self.stride - self.padding
        places: Integers = first[:, None] + np.arange((after.length - 1) * self.stride + self.reach)
        return places


def whole_maps(values: Tensor, x: Boxed) -> Boxed:
    """Maps that are held in full, after their size has changed."""
    spans = tuple(Span.whole(values.shape[axis], x.n_copies) for axis in x.space)
    return Boxed(values, spans, None, x.space)


def per_axis(value: Any, n_axes: int) -> tuple[int, ...]:
    """An int, or a sequence of one or ``n_axes`` numbers, as one number per axis."""
    values = (value,) if isinstance(value, int) else tuple(int(number) for number in value)
    return values * n_axes if len(values) == 1 else values


class Boxed:
    """Feature maps of perturbed copies: a box for each copy, and the unperturbed map around it.

    Args:
        values: what is in the boxes, (copies, ...).
        spans: where the boxes lie along each spatial axis.
        base: the unperturbed map, (1, ...); None where the boxes cover the map.
        space: which dimensions of ``values`` are the spatial axes.
    """

    def __init__(
        self,
        values: Tensor,
        spans: tuple[Span, ...],
        base: Tensor | None,
        space: tuple[int, ...],
    ) -> None:
        #: Not to be written.
        self.values = values
        self.spans = spans
        self.is_whole = all(span.is_whole for span in spans)
        self.base = None if self.is_whole else base
        self.space = space
        self.dtype = values.dtype
        self.device = values.device
        self.n_copies = len(values)
        shape = list(values.shape)
        for axis, span in zip(space, spans, strict=True):
            shape[axis] = span.size
        #: The shape of the whole maps.
        self.shape = tuple(shape)

    def at(self, spans: tuple[Span, ...]) -> Tensor:
        """The contents of boxes at these places, which include all that can differ."""
        if all(map(Span.same_boxes, self.spans, spans)):
            return self.values
        return read_map(self.base, [span.places for span in spans], self.space, 0.0, self)

    def whole(self) -> Tensor:
        return self.at(tuple(Span.whole(span.size, self.n_copies) for span in self.spans))

    def differences(self) -> Tensor:
        return self.values - read_boxes(self.base, self.spans, self.space)


def read_boxes(base: Tensor | None, spans: tuple[Span, ...], space: tuple[int, ...]) -> Tensor:
    """The contents of an unperturbed map (1, ...) in boxes; 0 outside of the map."""
    return read_map(base, [span.places for span in spans], space)


def read_map(
    base: Tensor | None,
    places: list[Integers],
    space: tuple[int, ...],
    outside: float = 0.0,
    boxed: Boxed | None = None,
) -> Tensor:
    """Read places (copies, extent) along each axis of an unperturbed map, with the values of its
    boxes, and ``outside`` beyond the map."""
    if base is None:
        raise ValueError("boxes that cover the map keep no unperturbed map")
    n_copies, n_axes = len(places[0]), len(places)
    # The index of each place in the map's pixels, one outside pixel, and the boxes' pixels.
    in_map = np.zeros((1,) * (n_axes + 1), dtype=np.int64)
    in_box = np.arange(n_copies).reshape(-1, *(1,) * n_axes)
    is_outside, is_boxed = in_map < 0, in_box >= 0
    for axis, read in enumerate(places):
        shape = (n_copies, *(-1 if axis == other else 1 for other in range(n_axes)))
        size = base.shape[space[axis]]
        is_outside = is_outside | ((read < 0) | (read >= size)).reshape(shape)
        in_map = in_map * size + read.reshape(shape)
        if boxed is not None:
            span = boxed.spans[axis]
            within = (read - span.start[:, None]).reshape(shape)
            is_boxed = is_boxed & (within >= 0) & (within < span.length)
            in_box = in_box * span.length + within
    pixels = _pixels(base, space)
    index = np.where(is_outside, len(pixels), in_map)
    sources = [pixels, pixels.new_full((1, pixels.shape[1]), outside)]
    if boxed is not None:
        index = np.where(is_boxed, in_box + len(pixels) + 1, index)
        sources.append(_pixels(boxed.values, space))
    rows = torch.from_numpy(index.reshape(-1)).to(base.device)
    picked = torch.cat(sources).index_select(0, rows)
    channels = [size for axis, size in enumerate(base.shape) if axis not in (0, *space)]
    maps: Tensor = picked.view(*index.shape, *channels)
    return maps.movedim(tuple(range(1, 1 + n_axes)), space)


def _pixels(maps: Tensor, space: tuple[int, ...]) -> Tensor:
    """One row of numbers per pixel; not copied if the channels are last in memory."""
    moved = maps.movedim(space, tuple(range(1, 1 + len(space))))
    return moved.reshape(math.prod(moved.shape[: 1 + len(space)]), -1)


def slides_for(x: Boxed, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[Slide]:
    """The movement of a kernel with these arguments along each axis."""
    n_axes = len(x.spans)
    kernels, dilations = per_axis(kernel, n_axes), per_axis(dilation, n_axes)
    if padding == "same":
        paddings = tuple(d * (k - 1) // 2 for k, d in zip(kernels, dilations, strict=True))
    else:
        paddings = per_axis(0 if padding == "valid" else padding, n_axes)
    strides = per_axis(stride, n_axes)
    return [Slide(*numbers) for numbers in zip(kernels, strides, paddings, dilations, strict=True)]


def slide_boxes(
    x: Boxed, slides: list[Slide], sizes: tuple[int, ...], outside: float
) -> tuple[Tensor, tuple[Span, ...]]:
    """The input of the kernel for the boxes of its output, and the places of those. Places outside
    of the map are ``outside``, so the kernel itself needs no padding."""
    after = tuple(map(Slide.after, slides, x.spans, sizes))
    if math.prod(span.length / span.size for span in after) >= WHOLE_FROM_FRACTION:
        after = tuple(Span.whole(size, x.n_copies) for size in sizes)
    places = list(map(Slide.reads, slides, after))
    return read_map(x.base, places, x.space, outside, x), after
