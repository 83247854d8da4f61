"""Feature maps of perturbed copies, of which only the boxes that can differ are held.

A ``Span`` says where the boxes of a batch lie along one axis, a ``Slide`` how a kernel moves along
it, and ``Boxed`` holds the values in the boxes. Values may be ``Postponed``: computed when they are
first needed, so that what follows can overwrite them. A convolution, a sum or a concatenation is
mostly followed by batch-norm or an activation; done in place on memory that nothing else reads,
these cost half, and batch-norm after a convolution nothing at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda.regions.protocol import Windows

Integers = npt.NDArray[np.int64]
#: The fraction of a map from which it is cheaper to compute all of it than to add its rim.
WHOLE_FROM_FRACTION = 0.75


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
        begin: where each box starts, if not at ``low``.
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
    """An int, or a sequence of one or ``n_axes`` numbers, as one number per axis."""
    values = (value,) if isinstance(value, int) else tuple(int(number) for number in value)
    return values * n_axes if len(values) == 1 else values


def order_of_windows(grid: Windows, n_samples: int, rows: int) -> Integers:
    """The numbers of all rows, sample by sample and window by window, in the order to run them.

    A box near the border is cut by it, and all boxes of a batch are as large as its largest. So
    windows at about the same distance from the border go together: sorted by their distance along
    the first axis into as many parts as there are to be along each axis, then each by the next.
    """
    corners = np.tile(grid.corner_array, (n_samples, 1))
    distance = np.minimum(corners, np.subtract(grid.space, grid.window) - corners)
    order = np.arange(len(corners), dtype=np.int64)
    return _sorted(order, distance, -(-len(corners) // rows))


def _sorted(numbers: Integers, distance: Integers, n_batches: int) -> Integers:
    """Sort by the first column into parts, and each part by the columns that follow."""
    ordered = numbers[np.argsort(distance[numbers, 0], kind="stable")]
    n_axes = distance.shape[1]
    if n_axes == 1:
        return ordered
    n_parts = max(1, round(n_batches ** (1 / n_axes)))
    parts = np.array_split(ordered, n_parts)
    n_each = -(-n_batches // n_parts)
    return np.concatenate([_sorted(part, distance[:, 1:], n_each) for part in parts])


class Origin:
    """A call of the model's forward whose result is postponed.

    A result that is needed twice would be computed twice: that is noted once, and in the batches
    that follow the same call is computed at once.

    Args:
        number: which of the forward's calls it is.
        needed_twice: the numbers of the calls whose results are needed twice.
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


AnyPostponed = TypeVar("AnyPostponed", bound="Postponed")


@dataclass(frozen=True, kw_only=True)
class Postponed:
    """Values that will be computed in memory of their own, then overwritten by some functions."""

    origin: Origin
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    function: Callable[[], Tensor] | None = None
    overwrites: tuple[Callable[[Tensor], Tensor], ...] = ()

    def then(self: AnyPostponed, overwrite: Callable[[Tensor], Tensor]) -> AnyPostponed:
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
        """The values before they are overwritten, in memory of their own."""
        assert self.function is not None
        return self.function()


class Boxed:
    """Feature maps of perturbed copies: a box for each copy, and the unperturbed map around it.

    Args:
        values: what is in the boxes, (copies, ...), perhaps still to be computed.
        spans: where the boxes lie along each spatial axis.
        base: the unperturbed map, (1, ...); not needed where the boxes cover the map.
        space: which dimensions of ``values`` are the spatial axes.
    """

    def __init__(
        self,
        values: Tensor | Postponed,
        spans: tuple[Span, ...],
        base: Tensor | None,
        space: tuple[int, ...],
    ) -> None:
        self._values = values
        self.spans = spans
        self.base = base
        self.space = space
        self.dtype = values.dtype
        self.device = values.device
        self.n_copies = len(spans[0].low)

    @property
    def values(self) -> Tensor:
        """What is in the boxes, (copies, ...)."""
        if not isinstance(self._values, Tensor):
            self._values = self._values.compute()
        return self._values

    @property
    def postponed(self) -> Postponed | None:
        """How the values will be computed, if they are not yet."""
        return None if isinstance(self._values, Tensor) else self._values

    @property
    def is_whole(self) -> bool:
        """Whether the boxes cover the map."""
        return all(span.is_whole for span in self.spans)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the maps in full."""
        shape = list(self._values.shape)
        for axis, span in zip(self.space, self.spans, strict=True):
            shape[axis] = span.size
        return tuple(shape)

    @property
    def images(self) -> bool:
        """Whether the dimensions are (copies, channels, *space), as convolutions want them."""
        return self.space == tuple(range(2, 2 + len(self.spans)))

    def like(
        self, values: Tensor | Postponed, base: Tensor | None, space: tuple[int, ...] = ()
    ) -> Boxed:
        """Other values at the same places."""
        return Boxed(values, self.spans, base, space or self.space)

    def take(self, places: list[Integers], outside: float = 0.0) -> Tensor:
        """Read some places of every copy: from its box, or from the unperturbed map around it.

        Args:
            places: for each spatial axis the places to read, (copies, extent), without gaps.
            outside: the value of places that lie outside the map.
        """
        firsts = [span.start - read[:, 0] for span, read in zip(self.spans, places, strict=True)]
        begins = [int(first[0]) for first in firsts]
        same = all((first == begin).all() for first, begin in zip(firsts, begins, strict=True))
        after = [
            read.shape[1] - begin - span.length
            for span, read, begin in zip(self.spans, places, begins, strict=True)
        ]
        if not same or min(*begins, *after) < 0:
            return self._pick(places, outside)
        if max(*begins, *after) == 0:
            return self.values
        taken = inside = read_map(self.base, places, self.space, outside)
        for axis, span, begin in zip(self.space, self.spans, begins, strict=True):
            inside = inside.narrow(axis, begin, span.length)
        inside.copy_(self.values)
        return taken

    def _pick(self, places: list[Integers], outside: float) -> Tensor:
        """Read places that lie differently relative to the boxes of different copies."""
        if self.base is None:
            raise ValueError("boxes that cover the map keep no unperturbed map")
        boxes, unperturbed = _pixels(self.values, self.space), _pixels(self.base, self.space)
        edge = unperturbed.new_full((1, unperturbed.shape[1]), outside)
        index = torch.from_numpy(self._pixel_numbers(places)).to(boxes.device)
        pixels = torch.cat([unperturbed, edge, boxes]).index_select(0, index.reshape(-1))
        return _maps(pixels, tuple(index.shape), self.values.shape, self.space)

    def _pixel_numbers(self, places: list[Integers]) -> Integers:
        """The index of each place in the map's pixels, one pixel outside, and the boxes' pixels."""
        n_copies, n_axes = self.n_copies, len(places)
        in_map = np.zeros((n_copies,) + (1,) * n_axes, dtype=np.int64)
        in_box = np.arange(n_copies).reshape(in_map.shape)
        outside, boxed = in_map < 0, in_map == 0
        for axis, (span, read) in enumerate(zip(self.spans, places, strict=True)):
            shape = _along(axis, n_axes, n_copies)
            within = read - span.start[:, None]
            outside = outside | ((read < 0) | (read >= span.size)).reshape(shape)
            boxed = boxed & ((within >= 0) & (within < span.length)).reshape(shape)
            in_map = in_map * span.size + read.reshape(shape)
            in_box = in_box * span.length + within.reshape(shape)
        edge = math.prod(span.size for span in self.spans)
        numbers: Integers = np.where(boxed, in_box + (edge + 1), np.where(outside, edge, in_map))
        return numbers

    def lies_at(self, spans: tuple[Span, ...]) -> bool:
        """Whether the boxes are just these."""
        return all(map(Span.same_boxes, self.spans, spans))

    def at(self, spans: tuple[Span, ...]) -> Tensor:
        """What is in boxes at these places, which hold at least what can differ."""
        if self.lies_at(spans):
            return self.values
        return self.take([span.places for span in spans])

    def whole(self) -> Tensor:
        """The maps in full."""
        return self.at(tuple(Span.whole(span.size, self.n_copies) for span in self.spans))

    @cached_property
    def differences(self) -> Tensor:
        """How the boxes differ from the unperturbed map."""
        return self.values - read_boxes(self.base, self.spans, self.space)


def postpone(
    origin: Origin,
    function: Callable[[], Tensor],
    like: Boxed,
    spans: tuple[Span, ...],
    base: Tensor | None,
    sizes: dict[int, int] | None = None,
) -> Boxed:
    """The result of a function that returns memory of its own, to be computed when it is needed.

    It has the type and the shape of ``like``, except for other boxes, and other ``sizes`` of some
    dimensions.
    """
    shape = dict(enumerate(like.shape)) | (sizes or {})
    shape |= {axis: span.length for axis, span in zip(like.space, spans, strict=True)}
    values = Postponed(
        origin=origin,
        shape=tuple(shape.values()),
        dtype=like.dtype,
        device=like.device,
        function=function,
    )
    return Boxed(values if origin.can_wait else values.compute(), spans, base, like.space)


def read_boxes(base: Tensor | None, spans: tuple[Span, ...], space: tuple[int, ...]) -> Tensor:
    """What an unperturbed map (1, ...) holds at boxes, also where they extend beyond it."""
    return read_map(base, [span.places for span in spans], space)


def read_map(
    base: Tensor | None, places: list[Integers], space: tuple[int, ...], outside: float = 0.0
) -> Tensor:
    """Read places (copies, extent) along each axis of an unperturbed map, for every copy."""
    if base is None:
        raise ValueError("boxes that cover the map keep no unperturbed map")
    n_axes = len(places)
    number = np.zeros((1,) * (n_axes + 1), dtype=np.int64)
    missing = number < 0
    for axis, (dimension, read) in enumerate(zip(space, places, strict=True)):
        size = base.shape[dimension]
        shape = _along(axis, n_axes, len(read))
        number = number * size + np.clip(read, 0, size - 1).reshape(shape)
        if read.min() < 0 or read.max() >= size:
            missing = missing | ((read < 0) | (read >= size)).reshape(shape)
    index = torch.from_numpy(number).to(base.device)
    pixels = _pixels(base, space).index_select(0, index.reshape(-1))
    if missing.any():
        rows = np.flatnonzero(np.broadcast_to(missing, number.shape))
        pixels.index_fill_(0, torch.from_numpy(rows).to(base.device), outside)
    return _maps(pixels, number.shape, base.shape, space)


def _along(axis: int, n_axes: int, n_copies: int) -> tuple[int, ...]:
    """The shape in which numbers (copies, extent) of one axis are broadcast over the others."""
    return (n_copies, *(-1 if axis == other else 1 for other in range(n_axes)))


def _pixels(maps: Tensor, space: tuple[int, ...]) -> Tensor:
    """One row of numbers per pixel; no copy where the channels are last in memory."""
    moved = maps.movedim(space, tuple(range(1, 1 + len(space))))
    return moved.reshape(math.prod(moved.shape[: 1 + len(space)]), -1)


def _maps(
    pixels: Tensor, places: tuple[int, ...], like: tuple[int, ...], space: tuple[int, ...]
) -> Tensor:
    """Pixels as maps again: ``places`` is (copies, *extents), ``like`` has the channels."""
    channels = [size for axis, size in enumerate(like) if axis not in (0, *space)]
    return pixels.view(*places, *channels).movedim(tuple(range(1, 1 + len(space))), space)


def slides_for(x: Boxed, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[Slide]:
    """How a kernel with these arguments slides along each axis."""
    n_axes = len(x.spans)
    kernels = per_axis(kernel, n_axes)
    dilations = per_axis(dilation, n_axes)
    if padding == "same":
        paddings = tuple(d * (k - 1) // 2 for k, d in zip(kernels, dilations, strict=True))
    else:
        paddings = per_axis(0 if padding == "valid" else padding, n_axes)
    strides = per_axis(stride, n_axes)
    return [Slide(*numbers) for numbers in zip(kernels, strides, paddings, dilations, strict=True)]


def spans_after(x: Boxed, slides: list[Slide], sizes: tuple[int, ...]) -> tuple[Span, ...]:
    """Where the boxes of the output lie, on maps of these sizes."""
    spans = tuple(map(Slide.after, slides, x.spans, sizes))
    if math.prod(span.length / span.size for span in spans) >= WHOLE_FROM_FRACTION:
        return tuple(Span.whole(size, x.n_copies) for size in sizes)
    return spans


def slide_boxes(
    x: Boxed, slides: list[Slide], sizes: tuple[int, ...], outside: float
) -> tuple[Tensor, tuple[Span, ...]]:
    """What the kernel reads for the boxes of its output, and where those lie.

    The places read outside the map are ``outside``, so the kernel itself needs no padding.
    """
    after = spans_after(x, slides, sizes)
    return x.take(list(map(Slide.reads, slides, after)), outside), after
