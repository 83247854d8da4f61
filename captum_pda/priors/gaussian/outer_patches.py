"""Where the outer patch of each region lies, and where the region sits within it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from captum_pda.priors.gaussian.region_shapes import RegionShape
from captum_pda.regions.protocol import Integers, Windows, row_major_steps


@dataclass(frozen=True)
class OuterPatchGroup:
    """The windows that sit at the same place within their outer patch.

    ``offset`` is that place, ``members`` are the windows' numbers among those given, ``corners``
    the corners of their outer patches, ``in_whole_grid`` counts such windows among all that these
    were taken from, and ``places`` the different places of those.
    """

    offset: tuple[int, ...]
    members: Integers
    corners: Integers
    in_whole_grid: int
    places: int

    def some(self, first: int, last: int) -> OuterPatchGroup:
        """The windows of this group from the first to before the last."""
        return replace(self, members=self.members[first:last], corners=self.corners[first:last])


def outer_patches(regions: Windows, patch: tuple[int, ...]) -> Iterator[OuterPatchGroup]:
    """Group windows by where they sit within an outer patch of this shape.

    The patch is centred on its window, and moved inside the input at the border; where the input is
    smaller than the patch, the patch is cut to the input.
    """
    fitted = np.minimum(patch, regions.space)
    corners = patch_corners(regions.corner_array, regions.window, fitted, regions.space)
    offsets = regions.corner_array - corners
    everywhere = getattr(regions, "whole", regions).corner_array
    all_offsets = everywhere - patch_corners(everywhere, regions.window, fitted, regions.space)
    # One number for each place, since rows of integers take far longer to compare.
    steps = row_major_steps(tuple(fitted))
    counts = np.bincount(all_offsets @ steps)
    numbers, first, group = np.unique(offsets @ steps, return_index=True, return_inverse=True)
    for position, (number, example) in enumerate(zip(numbers, first, strict=True)):
        members = np.flatnonzero(group.reshape(-1) == position)
        yield OuterPatchGroup(
            offset=tuple(offsets[example].tolist()),
            members=members,
            corners=corners[members],
            in_whole_grid=int(counts[number]),
            places=int(np.count_nonzero(counts)),
        )


def in_portions(groups: Iterable[OuterPatchGroup], most: int) -> Iterator[list[OuterPatchGroup]]:
    """Groups, or some windows of them, that together have no more than this many windows."""
    portion: list[OuterPatchGroup] = []
    room = most
    for group in groups:
        first = 0
        while first < len(group.members):
            some = group.some(first, first + room)
            portion.append(some)
            first, room = first + len(some.members), room - len(some.members)
            if not room:
                yield portion
                portion, room = [], most
    if portion:
        yield portion


def patch_corners(
    corners: Integers, window: tuple[int, ...], patch: Integers, space: tuple[int, ...]
) -> Integers:
    """Where outer patches start: centred on their windows, then moved inside the input."""
    margin = np.maximum(np.subtract(patch, window), 0) // 2
    moved: Integers = np.clip(corners - margin, 0, np.subtract(space, patch))
    return moved


def middle_of(fitted: tuple[int, ...], patch: tuple[int, ...]) -> Integers:
    """Where a patch that is smaller than the fitted one is taken from: its middle."""
    return np.subtract(fitted, patch) // 2


def ring_and_region(
    patch: tuple[int, ...], offset: tuple[int, ...], shape: RegionShape
) -> tuple[Integers, Integers]:
    """The places of a patch outside a region at ``offset``, and inside it, in row-major order."""
    inside = np.zeros(patch, dtype=np.bool_)
    inside[tuple(map(slice, offset, np.add(offset, shape.window)))] = shape.mask
    return np.argwhere(~inside), np.argwhere(inside)
