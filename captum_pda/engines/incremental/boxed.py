"""A batch of feature maps of which only the part that can differ is held."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from captum_pda.engines.incremental.postponed import Fresh, Origin, Postponed
from captum_pda.engines.incremental.spans import Integers, Span


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
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        """Where the values are."""
        return self._values.device

    @property
    def n_copies(self) -> int:
        """How many perturbed copies there are."""
        return len(self.spans[0].low)

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

    def copy(self) -> Boxed:
        """The same maps as another object."""
        return Boxed(self._values, self.spans, self.base, self.space)

    def like(self, values: Tensor, base: Tensor | None, space: tuple[int, ...] = ()) -> Boxed:
        """Other values at the same places."""
        return Boxed(values, self.spans, base, space or self.space)

    def take(self, places: list[Integers], outside: float = 0.0) -> Tensor:
        """Read some places of every copy: from its box, or from the unperturbed map around it.

        Args:
            places: for each spatial axis the places to read, (copies, extent).
            outside: the value of places that lie outside the map.
        """
        if all(map(_holds_exactly, self.spans, places)):
            return self.values
        begins = list(map(_begin, self.spans, places))
        if None in begins:
            return self._pick(places, outside)
        taken = inside = read_map(self.base, places, self.space, outside)
        for axis, span, begin in zip(self.space, self.spans, begins, strict=True):
            inside = inside.narrow(axis, begin or 0, span.length)
        inside.copy_(self.values)
        return taken

    def _pick(self, places: list[Integers], outside: float) -> Tensor:
        """Read places that lie differently about the boxes of different copies."""
        if self.base is None:
            raise ValueError("boxes that cover the map keep no unperturbed map")
        boxes, unperturbed = _pixels(self.values, self.space), _pixels(self.base, self.space)
        edge = unperturbed.new_full((1, unperturbed.shape[1]), outside)
        index = torch.from_numpy(self._pixel_numbers(places)).to(boxes.device)
        pixels = torch.cat([unperturbed, edge, boxes]).index_select(0, index.reshape(-1))
        return _maps(pixels, tuple(index.shape), self.values.shape, self.space)

    def lies_at(self, spans: tuple[Span, ...]) -> bool:
        """Whether the boxes are just these."""
        return all(mine.same_boxes(other) for mine, other in zip(self.spans, spans, strict=True))

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

    def _pixel_numbers(self, places: list[Integers]) -> Integers:
        """Where each place is found among the map's pixels, one pixel outside, the boxes'."""
        n_copies, n_axes = self.n_copies, len(places)
        in_map = np.zeros((n_copies,) + (1,) * n_axes, dtype=np.int64)
        in_box = np.arange(n_copies).reshape(in_map.shape)
        outside, boxed = in_map < 0, in_map == 0
        for axis, (span, read) in enumerate(zip(self.spans, places, strict=True)):
            shape = (n_copies, *(-1 if axis == other else 1 for other in range(n_axes)))
            within = read - span.start[:, None]
            missing = ((read < 0) | (read >= span.size)).reshape(shape)
            inside = ((within >= 0) & (within < span.length)).reshape(shape)
            outside = outside | missing
            boxed = boxed & inside
            in_map = in_map * span.size + read.reshape(shape)
            in_box = in_box * span.length + within.reshape(shape)
        edge = math.prod(span.size for span in self.spans)
        numbers: Integers = np.where(boxed, in_box + (edge + 1), np.where(outside, edge, in_map))
        return numbers


def postpone(
    origin: Origin,
    function: Callable[[], Tensor],
    like: Boxed,
    spans: tuple[Span, ...],
    base: Tensor | None,
    sizes: dict[int, int] | None = None,
) -> Boxed:
    """The result of a function that returns memory of its own, to be computed when it is needed.

    It has the type and the shape of ``like``, but for other boxes, and other ``sizes`` of some
    dimensions.
    """
    shape = list(like.shape)
    for axis, size in (sizes or {}).items():
        shape[axis] = size
    for axis, span in zip(like.space, spans, strict=True):
        shape[axis] = span.length
    values = Fresh(
        origin=origin,
        shape=tuple(shape),
        dtype=like.dtype,
        device=like.device,
        function=function,
    )
    return Boxed(values if origin.can_wait else values.compute(), spans, base, like.space)


def _holds_exactly(span: Span, places: Integers) -> bool:
    """Whether the boxes hold just these places, which have no gaps."""
    return span.length == places.shape[1] and bool((places[:, 0] == span.start).all())


def _begin(span: Span, places: Integers) -> int | None:
    """Where the boxes begin among these places, if that is the same for all copies."""
    first = span.start - places[:, 0]
    begin = int(first[0])
    inside = begin >= 0 and begin + span.length <= places.shape[1]
    return begin if inside and bool((first == begin).all()) else None


def read_boxes(base: Tensor | None, spans: tuple[Span, ...], space: tuple[int, ...]) -> Tensor:
    """What an unperturbed map (1, ...) holds at boxes, also where they stick out of it."""
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
        shape = (len(read), *(-1 if axis == other else 1 for other in range(n_axes)))
        number = number * size + np.clip(read, 0, size - 1).reshape(shape)
        if read.min() < 0 or read.max() >= size:
            missing = missing | ((read < 0) | (read >= size)).reshape(shape)
    index = torch.from_numpy(number).to(base.device)
    pixels = _pixels(base, space).index_select(0, index.reshape(-1))
    if missing.ndim == number.ndim and missing.any():
        rows = np.flatnonzero(np.broadcast_to(missing, number.shape))
        pixels.index_fill_(0, torch.from_numpy(rows).to(base.device), outside)
    return _maps(pixels, number.shape, base.shape, space)


def _pixels(maps: Tensor, space: tuple[int, ...]) -> Tensor:
    """One row of numbers per pixel; free where the channels are last in memory."""
    moved = maps.movedim(space, tuple(range(1, 1 + len(space))))
    return moved.reshape(math.prod(moved.shape[: 1 + len(space)]), -1)


def _maps(
    pixels: Tensor, places: tuple[int, ...], like: tuple[int, ...], space: tuple[int, ...]
) -> Tensor:
    """Pixels as maps again: ``places`` is (copies, *extents), ``like`` has the channels."""
    channels = [size for axis, size in enumerate(like) if axis not in (0, *space)]
    return pixels.view(*places, *channels).movedim(tuple(range(1, 1 + len(space))), space)
