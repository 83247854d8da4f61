"""Regions by their shape: those of one shape share what is worked out for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda.regions.protocol import Integers, PlacedWindows, Windows, row_major_steps


@dataclass(frozen=True, eq=False)
class RegionShape:
    """Which pixels of a box (*window) belong to a region; the box is no larger than need be."""

    mask: npt.NDArray[np.bool_]

    @classmethod
    def of_window(cls, window: tuple[int, ...]) -> RegionShape:
        """All pixels of a window."""
        return cls(np.ones(window, dtype=np.bool_))

    @property
    def window(self) -> tuple[int, ...]:
        """The shape of the box."""
        return self.mask.shape

    @cached_property
    def places(self) -> Integers:
        """The region's pixels in its box, in row-major order, (pixels, dims)."""
        return np.argwhere(self.mask)

    @cached_property
    def key(self) -> tuple[tuple[int, ...], bytes]:
        """Equal for equal shapes."""
        return self.window, b"" if self.mask.all() else np.packbits(self.mask).tobytes()


@dataclass(frozen=True, eq=False)
class AlikeRegions:
    """Regions of one shape among others.

    Args:
        shape: their shape.
        windows: their boxes, which fit tightly.
        members: their numbers among all.
        pixels: the numbers of their pixels in the boxes that they came in, (members, pixels).
    """

    shape: RegionShape
    windows: PlacedWindows
    members: Tensor
    pixels: Tensor


def alike_regions(regions: Windows, hidden: Tensor) -> Iterator[AlikeRegions]:
    """Sort regions of any shape by their shape; those without pixels are left out."""
    masks = hidden.cpu().numpy()
    found: dict[object, tuple[RegionShape, list[int], list[Integers]]] = {}
    for number, mask in enumerate(masks):
        places = np.argwhere(mask)
        if len(places):
            low, high = places.min(axis=0), places.max(axis=0) + 1
            tight = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
            shape = RegionShape(np.ascontiguousarray(mask[tight]))
            _, numbers, starts = found.setdefault(shape.key, (shape, [], []))
            numbers.append(number)
            starts.append(low)
    steps = row_major_steps(regions.window)
    for shape, numbers, starts in found.values():
        corners = regions.corner_array[numbers] + np.stack(starts)
        inside = (np.stack(starts)[:, None] + shape.places) @ steps
        yield AlikeRegions(
            shape,
            PlacedWindows(regions.space, shape.window, corners, first=regions.first),
            torch.tensor(numbers, device="cpu"),
            torch.from_numpy(inside),
        )
