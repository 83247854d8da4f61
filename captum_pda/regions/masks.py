"""Regions of any shape from integers: superpixels, organs, patches of a transformer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import find_objects
from torch import Tensor
from typing_extensions import Self

from captum_pda.files import counted
from captum_pda.fingerprints import fingerprint
from captum_pda.regions.protocol import Integers, PlacedWindows

#: Boxes are cubes, and sides that differ by less than this factor are rounded to the same length:
#: the boxes of 211 superpixels then have 7 shapes instead of 47, which fills the batches.
BOX_RATIO = 1.25


class FeatureMaskRegions:
    """The regions of an integer mask: all pixels with one number form a region.

    Regions are sorted by their numbers, the ``labels``. Regions without pixels in an example's mask
    are skipped for that example.

    Args:
        mask: the number of each pixel, (1 or N, *space); one row is used for all examples.

    Example::

        >>> regions = FeatureMaskRegions(torch.tensor([[[0, 0, 1], [0, 2, 1]]]))
        >>> regions.labels, regions.boxes(0)[0].window
        ((0, 1, 2), (1, 1))
    """

    #: How many of the first regions are never hidden: those outside of a region of interest.
    n_unasked = 0

    def __init__(self, mask: Tensor) -> None:
        labels, numbers = torch.unique(mask.cpu(), return_inverse=True)
        self.labels = tuple(int(label) for label in labels)
        self.space = tuple(mask.shape[1:])
        #: The index into ``labels`` of each pixel, (1 or N, *space).
        self.numbers = numbers.reshape(mask.shape)
        #: Labels that also occur in the mask of another tensor.
        self.shared: frozenset[int] = frozenset()
        self._groups_of: dict[int, tuple[tuple[PlacedWindows, ...], tuple[Integers, ...]]] = {}

    @classmethod
    def of_numbers(cls, numbers: Tensor, labels: tuple[int, ...]) -> Self:
        """Stored regions, whose labels need not all occur in these examples."""
        regions = cls.__new__(cls)
        regions.labels, regions.space = labels, tuple(numbers.shape[1:])
        regions.numbers, regions.shared, regions._groups_of = numbers, frozenset(), {}
        return regions

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} regions in {self.space})"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> tuple[int, ...]:
        """The median extent of the regions' boxes in the first example."""
        _, sides = _extents(self.numbers[0], len(self))
        return tuple(int(side) for side in np.median(sides[sides[:, 0] > 0], axis=0).round())

    @property
    def title(self) -> str:
        return counted(len(self), "region")

    def boxes(self, example: int) -> tuple[PlacedWindows, ...]:
        return self._groups(example)[0]

    def members(self, example: int) -> tuple[Integers, ...]:
        return self._groups(example)[1]

    def absent(self, n_examples: int) -> Tensor:
        present = torch.zeros(len(self.numbers), len(self), dtype=torch.bool, device="cpu")
        present.scatter_(1, self.numbers.flatten(1), True)
        present[:, : self.n_unasked] = False
        return ~present.expand(n_examples, -1)

    def of_examples(self, rows: slice) -> Self:
        if len(self.numbers) == 1:
            return self
        other = copy(self)
        other.numbers, other._groups_of = self.numbers[rows], {}
        return other

    def average(self, values: Tensor) -> Tensor:
        numbers = self.numbers.to(values.device).flatten(1).expand(len(values), -1)
        return values.gather(1, numbers).reshape(len(values), *self.space)

    @property
    def areas(self) -> Tensor:
        """The number of pixels of each region, (1 or N, W)."""
        ones = torch.ones_like(self.numbers)
        return torch.zeros(len(ones), len(self), dtype=ones.dtype, device=ones.device).scatter_add_(
            1, self.numbers.flatten(1), ones.flatten(1)
        )

    def means(self, values: Tensor) -> Tensor:
        """The mean of a map (N, *space) inside each region, (N, W); 0 without pixels."""
        numbers = self.numbers.to(values.device).flatten(1).expand(len(values), -1)
        sums = values.new_zeros(len(values), len(self))
        sums.scatter_add_(1, numbers, values.flatten(1))
        return sums / self.areas.clamp(min=1).to(values.device)

    def coverage(self, device: torch.device | str = "cpu") -> Tensor:
        return torch.ones((1, *self.space), dtype=torch.int64, device=device)

    def settings(self) -> dict[str, object]:
        described = {"labels": list(self.labels), "numbers": self.numbers}
        return {"kind": type(self).__name__, "mask_sha256": fingerprint(described)}

    def of_pixels(self, example: int) -> Tensor:
        """The region of each pixel of an example, (*space)."""
        numbers: Tensor = self.numbers[0 if len(self.numbers) == 1 else example]
        return numbers

    def _groups(self, example: int) -> tuple[tuple[PlacedWindows, ...], tuple[Integers, ...]]:
        """Boxes and members of an example; the last result is cached."""
        row = 0 if len(self.numbers) == 1 else example
        kept = self._groups_of.get(row)
        if kept is None:
            kept = self._grouped(self.of_pixels(example))
            self._groups_of = {row: kept}
        return kept

    def _grouped(self, numbers: Tensor) -> tuple[tuple[PlacedWindows, ...], tuple[Integers, ...]]:
        low, sides = _extents(numbers, len(self))
        present: npt.NDArray[np.bool_] = sides[:, 0] > 0
        present[: self.n_unasked] = False
        # Boxes are cubes, cut to the size of the input.
        longest = np.maximum(sides.max(axis=1, keepdims=True), 1)
        powers = BOX_RATIO ** np.ceil(np.log(longest) / math.log(BOX_RATIO))
        rounded = np.maximum(np.ceil(powers - 1e-9).astype(np.int64), longest)
        boxes = np.minimum(rounded, self.space)
        order = np.lexsort((*boxes.T, boxes.prod(axis=1)))
        order = order[present[order]]
        changes = 1 + np.flatnonzero((boxes[order][1:] != boxes[order][:-1]).any(axis=1))
        members = tuple(np.split(order, changes))
        groups = []
        for some in members:
            window = tuple(boxes[some[0]].tolist())
            corners = np.minimum(low[some], np.subtract(self.space, window))
            # The mask's own number, so that samples do not depend on the other examples.
            placed = PlacedWindows(self.space, window, corners, first=self.labels[some[0]])
            hidden = numbers.reshape(-1)[placed.pixels()] == torch.from_numpy(some).unsqueeze(1)
            groups.append(replace(placed, hidden=hidden.reshape(-1, *window)))
        return tuple(groups), members


def share_labels(masks: Sequence[FeatureMaskRegions]) -> None:
    """Record in the regions of several tensors which labels occur in more than one of them."""
    counts = Counter(label for regions in masks for label in regions.labels)
    for regions in masks:
        regions.shared = frozenset(label for label in regions.labels if counts[label] > 1)


def sum_shared(masks: Sequence[Any], values: Sequence[Tensor]) -> None:
    """Replace the values (N, W) of a label that several tensors share by their sum."""
    found: dict[int, list[Tensor]] = {}
    for regions, own in zip(masks, values, strict=True):
        for label in getattr(regions, "shared", ()):
            found.setdefault(label, []).append(own[:, regions.labels.index(label)])
    for columns in found.values():
        total = torch.stack(columns).sum(dim=0)
        for column in columns:
            column.copy_(total)


def feature_mask_regions(mask: object, inputs: Tensor, name: str) -> FeatureMaskRegions:
    """Check a mask for one tensor: (1 or N, 1 or C, *space) as in Captum's FeatureAblation, or
    (*space) for all examples, as in scikit-image."""
    if isinstance(mask, np.ndarray):
        if not np.issubdtype(mask.dtype, np.integer):
            raise TypeError(f"{name} has dtype {mask.dtype}; give integers, one for each region")
        mask = torch.from_numpy(mask.astype(np.int64, order="C"))
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"{name} must be a tensor or a NumPy array of integers, got {type(mask).__name__}"
        )
    space, sizes = tuple(inputs.shape[2:]), product({1, len(inputs)}, {1, inputs.shape[1]})
    shapes = [(*size, *space) for size in sorted(sizes)]
    if tuple(mask.shape) == space:
        mask = mask[None, None]
    if mask.is_floating_point() or mask.is_complex() or mask.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {mask.dtype}; give integers, one for each region")
    if tuple(mask.shape) not in shapes:
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)} for inputs of {tuple(inputs.shape)}; expected "
            f"{', '.join(map(str, shapes))}, or {space} for all examples"
        )
    mask = mask.cpu()  # once, since regions are computed there
    if not bool((mask == mask[:, :1]).all()):
        raise ValueError(
            f"{name} has other regions in one channel than in another; all channels of a pixel are "
            "hidden together, so give one channel"
        )
    return FeatureMaskRegions(mask[:, 0])


def _extents(numbers: Tensor, n_regions: int) -> tuple[Integers, Integers]:
    """The first pixel and the sides (0 without pixels) of each region's box, (regions, dims)."""
    boxes = find_objects(numbers.numpy() + 1, n_regions)
    nothing = (slice(0, 0),) * numbers.dim()
    ends = np.array([[(side.start, side.stop) for side in box or nothing] for box in boxes])
    return ends[..., 0], ends[..., 1] - ends[..., 0]
