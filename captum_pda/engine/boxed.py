"""A batch of feature maps of which only the part that can differ is held."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from captum_pda.engine.spans import Integers, Span


class Postponed(Protocol):
    """Values that are computed when they are first needed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the values will be."""
        ...

    def compute(self) -> Tensor:
        """The values, in memory of their own."""
        ...


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

    @property
    def unperturbed(self) -> Tensor:
        """The unperturbed map, where there is one."""
        if self.base is None:
            raise ValueError("boxes that cover the map keep no unperturbed map")
        return self.base

    @property
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

    @classmethod
    def constant(cls, base: Tensor, n_copies: int, space: tuple[int, ...]) -> Boxed:
        """Copies of a map, none of which differs; their boxes are one pixel in the corner."""
        first, centre = np.zeros(n_copies, dtype=np.int64), np.full(n_copies, 0.5)
        spans = tuple(Span(base.shape[axis], first, first + 1, centre) for axis in space)
        corner = base
        for axis in space:
            corner = corner.narrow(axis, 0, 1)
        return cls(corner.expand(n_copies, *corner.shape[1:]), spans, base, space)

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
        boxes, unperturbed = self._pixels(self.values), self._pixels(self.unperturbed)
        edge = unperturbed.new_full((1, unperturbed.shape[1]), outside)
        index = torch.from_numpy(self._pixel_numbers(places)).to(boxes.device)
        pixels = torch.cat([unperturbed, edge, boxes]).index_select(0, index.reshape(-1))
        others = [size for axis, size in enumerate(self.values.shape) if axis not in self._leading]
        taken = pixels.view(*index.shape, *others)
        return taken.movedim(tuple(range(1, 1 + len(self.space))), self.space)

    def at(self, spans: tuple[Span, ...]) -> Tensor:
        """What is in boxes at these places, which hold at least what can differ."""
        if all(mine.same_boxes(other) for mine, other in zip(self.spans, spans, strict=True)):
            return self.values
        return self.take([span.places for span in spans])

    def whole(self) -> Tensor:
        """The maps in full."""
        return self.at(tuple(Span.whole(span.size, self.n_copies) for span in self.spans))

    @cached_property
    def differences(self) -> Tensor:
        """How the boxes differ from the unperturbed map."""
        return self.values - Boxed.constant(self.unperturbed, self.n_copies, self.space).at(
            self.spans
        )

    @property
    def _leading(self) -> tuple[int, ...]:
        return (0, *self.space)

    def _pixels(self, maps: Tensor) -> Tensor:
        """One row of numbers a pixel; free where the channels are last in memory."""
        moved = maps.movedim(self.space, tuple(range(1, 1 + len(self.space))))
        return moved.reshape(math.prod(moved.shape[: 1 + len(self.space)]), -1)

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


def _holds_exactly(span: Span, places: Integers) -> bool:
    """Whether the boxes hold just these places, which have no gaps."""
    return span.length == places.shape[1] and bool((places[:, 0] == span.start).all())
