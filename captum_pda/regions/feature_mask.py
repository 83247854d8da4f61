"""Regions of any shape from a mask of numbers: superpixels, organs, patches of a transformer."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from captum_pda.basics.fingerprints import fingerprint
from captum_pda.regions.placed_windows import PlacedWindows
from captum_pda.regions.protocol import Integers

#: Boxes whose sides differ by less than this factor share one shape, so that they share batches.
ALIKE = 1.25


class FeatureMaskRegions:
    """The regions that a mask of integers draws: all pixels with one number are one region.

    The regions are numbered by the size of their boxes, smallest first, and ``labels`` tells the
    mask's own number of each. A number that an example's mask lacks is a region without pixels.

    Args:
        mask: the numbers of the pixels, (1 or N, *space); one row serves all examples.

    Example::

        >>> regions = FeatureMaskRegions(torch.tensor([[[0, 0, 1], [0, 2, 1]]]))
        >>> regions.labels
        (2, 1, 0)
    """

    def __init__(self, mask: Tensor) -> None:
        labels, numbers = torch.unique(mask.cpu(), return_inverse=True)
        numbers = numbers.reshape(mask.shape)
        self.space = tuple(mask.shape[1:])
        low, high = _extents(numbers, len(labels))
        sides = _alike((high - low).max(axis=0), self.space)
        order = np.lexsort((*sides.T, sides.prod(axis=1)))
        self.labels = tuple(int(label) for label in labels[torch.from_numpy(order)])
        self._numbers = torch.from_numpy(np.argsort(order))[numbers]
        self._low = low[:, order]
        self._sides = sides[order]

    def __repr__(self) -> str:
        return f"FeatureMaskRegions({len(self)} regions of about {self.size} in {self.space})"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> tuple[int, ...]:
        """The mean extent of the regions' boxes."""
        return tuple(int(side) for side in self._sides.mean(axis=0).round())

    def boxes(self, example: int) -> tuple[PlacedWindows, ...]:
        """The regions of an example, in groups whose boxes have one shape."""
        row = 0 if len(self._numbers) == 1 else example
        return tuple(self._group(row, start, stop) for start, stop in self._groups)

    def average(self, values: Tensor) -> Tensor:
        """Give each pixel its region's value of (N, W), (N, *space)."""
        numbers = self._numbers.to(values.device).flatten(1).expand(len(values), -1)
        return values.gather(1, numbers).reshape(len(values), *self.space)

    def coverage(self, device: torch.device | str = "cpu") -> Tensor:
        """Each pixel lies in one region."""
        return torch.ones((1, *self.space), dtype=torch.int64, device=device)

    def settings(self) -> dict[str, object]:
        """What describes the regions, as plain values."""
        described = {"labels": list(self.labels), "numbers": self._numbers}
        return {"kind": "FeatureMaskRegions", "mask_sha256": fingerprint(described)}

    @cached_property
    def _groups(self) -> list[tuple[int, int]]:
        """Where each group of regions with equal boxes begins and ends."""
        changes = 1 + np.flatnonzero((self._sides[1:] != self._sides[:-1]).any(axis=1))
        edges = [0, *changes.tolist(), len(self)]
        return list(pairwise(edges))

    def _group(self, row: int, start: int, stop: int) -> PlacedWindows:
        window = tuple(int(side) for side in self._sides[start])
        corners = np.minimum(self._low[row, start:stop], np.subtract(self.space, window))
        placed = PlacedWindows(self.space, window, corners, first=start)
        within = self._numbers[row].reshape(-1)[placed.pixels()]
        hidden = within == torch.arange(start, stop, device="cpu").unsqueeze(1)
        return PlacedWindows(self.space, window, corners, hidden.reshape(-1, *window), first=start)


def feature_mask_regions(mask: object, inputs: Tensor, name: str) -> FeatureMaskRegions:
    """Check a mask for one tensor: (1 or N, 1 or C, *space) as Captum's FeatureAblation has it, or
    one of the shape of the space for all examples, as superpixels come from scikit-image."""
    if isinstance(mask, np.ndarray):
        if not np.issubdtype(mask.dtype, np.integer):
            raise TypeError(f"{name} has dtype {mask.dtype}; give integers, one for each region")
        mask = torch.from_numpy(mask.astype(np.int64, order="C"))
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"{name} must be a tensor or a NumPy array of integers, got {type(mask).__name__}"
        )
    if tuple(mask.shape) == tuple(inputs.shape[2:]):
        mask = mask[None, None]
    if mask.is_floating_point() or mask.is_complex() or mask.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {mask.dtype}; give integers, one for each region")
    rows, channels, *space = mask.shape if mask.dim() > 2 else (0, 0)
    fits = rows in (1, len(inputs)) and channels in (1, inputs.shape[1])
    if not fits or tuple(space) != tuple(inputs.shape[2:]):
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)} for inputs of {tuple(inputs.shape)}; expected "
            f"(1 or {len(inputs)}, 1 or {inputs.shape[1]}, *{tuple(inputs.shape[2:])}), or "
            f"{tuple(inputs.shape[2:])} for all examples"
        )
    mask = mask.cpu()  # once, since regions are worked out there
    if not bool((mask == mask[:, :1]).all()):
        raise ValueError(
            f"{name} has other regions in one channel than in another; all channels of a pixel are "
            "hidden together, so give one channel"
        )
    return FeatureMaskRegions(mask[:, 0])


def _extents(numbers: Tensor, n_regions: int) -> tuple[Integers, Integers]:
    """The first pixel of each region and the one past its last, each (rows, regions, dims)."""
    rows, *space = numbers.shape
    low = np.zeros((rows, n_regions, len(space)), dtype=np.int64)
    high = low + 1
    for row, values in enumerate(numbers.numpy()):
        places = np.indices(space).reshape(len(space), -1)
        flat = values.reshape(-1)
        for axis, along in enumerate(places):
            first = np.full(n_regions, math.prod(space), dtype=np.int64)
            last = np.full(n_regions, -1, dtype=np.int64)
            np.minimum.at(first, flat, along)
            np.maximum.at(last, flat, along)
            present = last >= 0
            low[row, present, axis] = first[present]
            high[row, present, axis] = last[present] + 1
    return low, high


def _alike(sides: Integers, space: tuple[int, ...]) -> Integers:
    """Sides rounded up to a ladder of sizes, so that boxes of about one size get one shape."""
    steps = np.ceil(np.log(sides) / math.log(ALIKE))
    ladder = np.ceil(ALIKE**steps - 1e-9).astype(np.int64)
    alike: Integers = np.minimum(np.maximum(ladder, sides), space)
    return alike
