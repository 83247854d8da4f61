"""Of the surroundings of a large region, the pixels that say most about it; of its inside, those
that the others can be interpolated from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda.priors.gaussian.region_shapes import RegionShape
from captum_pda.regions.protocol import Integers

Booleans = npt.NDArray[np.bool_]

#: Distances from a region at which pixels are kept, and how many pixels apart: from the most pixels
#: to ever fewer.
SPACINGS = (
    {1: 1, 2: 2, 3: 3, 4: 4, 8: 8, 16: 16},
    {1: 1, 2: 2, 4: 4, 8: 8, 16: 16},
    {1: 1, 2: 4, 4: 4, 8: 8, 16: 16},
    {1: 2, 2: 4, 4: 4, 8: 8, 16: 16},
    *({1: 2 * times, 4: 4 * times, 16: 16 * times} for times in (1, 2, 4, 8, 16)),
)
#: The first of them in a volume, whose next pixels are many and leave little to say to others: for
#: 8x8x8 half the time, and 1 to 4% more error.
FIRST_IN_VOLUMES = 2
#: Values that are conditioned on at most, where one of the spacings leaves no more.
MOST_NODE_VALUES = 1000
#: How deep inside a region the mean is worked out at every pixel, and how far apart beyond.
RIM, LATTICE = 4, 4


@dataclass(frozen=True, eq=False)
class ThinnedRegion:
    """A region with the pixels around it that it is given, and those where its mean is worked out.

    Places are relative to the first pixel of the region's box. Next to the region every pixel is
    kept (or every second of a very large region), and at a distance of d (the larger of those along
    the axes) about every d-th.

    Args:
        shape: the region.
        patch: the outer patch's shape; no pixel outside it is taken.
        channels: how many values of a pixel vary together.
    """

    shape: RegionShape
    patch: tuple[int, ...]
    channels: int

    @cached_property
    def before(self) -> Integers:
        """How far the outer patch reaches before the region's box, (dims,)."""
        return np.subtract(self.patch, self.shape.window) // 2

    @cached_property
    def nodes(self) -> Integers:
        """The pixels around the region that it is given, (nodes, dims)."""
        mask = np.zeros(self.patch, dtype=np.bool_)
        mask[tuple(map(slice, self.before, self.before + self.shape.window))] = self.shape.mask
        kept = mask
        for spacings in SPACINGS[FIRST_IN_VOLUMES if len(self.patch) > 2 else 0 :]:
            kept = self._kept(mask, spacings)
            if kept.sum() * self.channels <= MOST_NODE_VALUES:
                break
        return np.argwhere(kept) - self.before

    def _kept(self, mask: Booleans, spacings: dict[int, int]) -> Booleans:
        """The pixels of the patch that are kept."""
        kept = np.zeros_like(mask)
        places = np.indices(self.patch) - self.before.reshape(-1, *(1 for _ in self.patch))
        for distance, spacing in spacings.items():
            inner = dilated(mask, distance - 1)
            contour = dilated(mask, distance) & ~inner
            chosen = contour
            for axis, along in enumerate(places):
                # Across the contour there is no choice: it is one pixel wide.
                across = _shifted(inner, axis, 1) | _shifted(inner, axis, -1)
                chosen = chosen & (across | (along % spacing == 0))
            kept |= chosen
        return kept

    @cached_property
    def direct(self) -> Booleans:
        """Which pixels of the box are near the region's edge, (*window)."""
        framed = np.pad(~self.shape.mask, 1, constant_values=True)
        near = dilated(framed, RIM)[tuple(slice(1, -1) for _ in framed.shape)]
        return near & self.shape.mask

    @cached_property
    def lattice(self) -> tuple[Integers, ...]:
        """Along each axis, where the mean deep inside is worked out."""
        return tuple(
            np.unique(np.append(np.arange(0, width, LATTICE), width - 1))
            for width in self.shape.window
        )

    @cached_property
    def targets(self) -> Integers:
        """Where the mean is worked out: near the edge, then on the lattice, (targets, dims)."""
        near = np.argwhere(self.direct)
        if len(near) == len(self.shape.places):
            return near
        grid = np.stack(np.meshgrid(*self.lattice, indexing="ij"), axis=-1)
        return np.concatenate([near, grid.reshape(-1, len(self.shape.window))])

    def spread(self, values: Tensor) -> Tensor:
        """From values at the targets (..., targets, C) to the region's pixels (..., pixels, C)."""
        near = int(self.direct.sum())
        if near == values.shape[-2]:
            return values
        dims = len(self.lattice)
        deep = values[..., near:, :].movedim(-1, -2)
        deep = deep.reshape(*deep.shape[:-1], *map(len, self.lattice))
        for axis, (stops, width) in enumerate(zip(self.lattice, self.shape.window, strict=True)):
            matrix = torch.from_numpy(linear_interpolation(stops, width)).to(values)
            deep = (deep.movedim(axis - dims, -1) @ matrix.mT).movedim(-1, axis - dims)
        everywhere = deep.flatten(-dims).movedim(-1, -2).contiguous()
        inside, rim = (
            torch.from_numpy(np.flatnonzero(mask)).to(values.device)
            for mask in (self.shape.mask, self.direct)
        )
        everywhere[..., rim, :] = values[..., :near, :]
        return everywhere[..., inside, :]


def linear_interpolation(stops: Integers, width: int) -> npt.NDArray[np.float64]:
    """From values at the stops to values at 0, 1, ..., width - 1, (width, stops)."""
    identity = np.eye(len(stops))
    return np.stack([np.interp(np.arange(width), stops, row) for row in identity], axis=1)


def dilated(mask: Booleans, distance: int) -> Booleans:
    """The pixels that are no further than this from a region, along each axis."""
    grown = mask
    for _ in range(distance):
        for axis in range(mask.ndim):
            grown = grown | _shifted(grown, axis, 1) | _shifted(grown, axis, -1)
    return grown


def _shifted(mask: Booleans, axis: int, step: int) -> Booleans:
    """A mask moved along an axis by one, with nothing coming in from outside."""
    moved = np.roll(mask, step, axis)
    edge: list[slice | int] = [slice(None)] * mask.ndim
    edge[axis] = 0 if step > 0 else -1
    moved[tuple(edge)] = False
    return moved
