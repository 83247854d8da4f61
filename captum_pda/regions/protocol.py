"""The interface of regions, which are hidden one at a time, and of the boxes around them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import Self

Integers = npt.NDArray[np.int64]


class Windows(Protocol):
    """Regions in boxes of one shape, as priors fill them and engines run them."""

    @property
    def space(self) -> tuple[int, ...]:
        """The input's spatial shape."""

    @property
    def window(self) -> tuple[int, ...]:
        """The shape of every box."""

    @property
    def first(self) -> int:
        """The number of the first region among all that these are part of."""

    @property
    def corner_array(self) -> Integers:
        """The first pixel of each box, (W, dims)."""

    @property
    def hidden(self) -> Tensor | None:
        """Which pixels of each box are hidden, (W, *window); None hides all of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: slice) -> Self: ...

    def pick(self, numbers: Iterable[int]) -> Self:
        """Some of these regions, in this order."""

    def pixels(self, device: torch.device | str = "cpu") -> Tensor:
        """The flat numbers of each box's pixels in the input, (W, pixels per box)."""


def drawing_numbers(windows: Windows) -> tuple[int, int]:
    """Seeds for samples: the first region's number and, since masks may share it, its shape."""
    if windows.hidden is None or not len(windows):
        return windows.first, 0
    shape = np.packbits(windows.hidden[0].cpu().numpy()).tobytes()
    return windows.first, zlib.crc32(shape, zlib.crc32(windows.corner_array[0].tobytes()))


class Regions(Protocol):
    """All regions of an input, and how their values become a map.

    Implemented by WindowGrid, FeatureMaskRegions and Superpixels.
    """

    @property
    def space(self) -> tuple[int, ...]:
        """The input's spatial shape."""

    @property
    def size(self) -> tuple[int, ...]:
        """The window's shape, or the typical extent of other regions."""

    def __len__(self) -> int: ...

    @property
    def title(self) -> str:
        """The name of the regions, with their number or size."""

    def boxes(self, example: int) -> Sequence[Windows]:
        """The regions of an example, in groups with boxes of the same shape."""

    def members(self, example: int) -> Sequence[Integers]:
        """The numbers of the regions in each group of ``boxes``."""

    def absent(self, n_examples: int) -> Tensor:
        """Which regions an example lacks, (N, W); no group contains them."""

    def average(self, values: Tensor) -> Tensor:
        """Give each pixel the mean of the values (N, W) of its regions, (N, *space)."""

    def coverage(self, device: torch.device | str = "cpu") -> Tensor:
        """How many regions contain each pixel, (1 or N, *space)."""

    def of_examples(self, rows: slice) -> Self:
        """The same regions for some of the examples."""

    def settings(self) -> dict[str, object]:
        """A description of the regions in plain values."""


def row_major_steps(shape: tuple[int, ...]) -> Integers:
    """The strides of a contiguous array of this shape, in elements."""
    steps: Integers = np.cumprod((1, *shape[:0:-1]))[::-1]
    return steps


def block_pixels(
    corners: Integers,
    block: tuple[int, ...],
    space: tuple[int, ...],
    device: torch.device | str = "cpu",
) -> Tensor:
    """The flat pixel numbers of blocks of one shape at several corners, (blocks, pixels)."""
    steps = row_major_steps(space)
    along = [np.arange(n) * step for n, step in zip(block, steps, strict=True)]
    within = reduce(np.add.outer, along)
    return torch.from_numpy((corners @ steps)[:, None] + within.reshape(-1)).to(device)


@dataclass(frozen=True, eq=False)
class PlacedWindows:
    """Windows of one shape at any corners; see ``Windows`` for the fields."""

    space: tuple[int, ...]
    window: tuple[int, ...]
    corner_array: Integers
    hidden: Tensor | None = None
    first: int = 0

    def __post_init__(self) -> None:
        last = np.subtract(self.space, self.window)
        if not ((self.corner_array >= 0) & (self.corner_array <= last)).all():
            raise ValueError(f"windows of {self.window} do not all lie inside {self.space}")

    def __len__(self) -> int:
        return len(self.corner_array)

    def __getitem__(self, numbers: slice) -> PlacedWindows:
        start, stop, _ = numbers.indices(len(self))
        return self.pick(range(start, stop))

    def pick(self, numbers: Iterable[int]) -> PlacedWindows:
        """Some of these windows, in this order."""
        chosen = np.fromiter(numbers, dtype=np.int64)
        return replace(
            self,
            corner_array=self.corner_array[chosen],
            hidden=None if self.hidden is None else self.hidden[torch.from_numpy(chosen)],
            first=self.first + (int(chosen[0]) if len(chosen) else 0),
        )

    def pixels(self, device: torch.device | str = "cpu") -> Tensor:
        """The flat numbers of each window's pixels in the input, (W, pixels per window)."""
        return block_pixels(self.corner_array, self.window, self.space, device)


def box_values(example: Tensor, windows: Windows) -> Tensor:
    """The pixels of an example (C, *space) in the box of each region, (W, C, *window)."""
    values = example.flatten(1)[:, windows.pixels(example.device)].transpose(0, 1)
    return values.reshape(len(windows), len(example), *windows.window)


def inside_regions(windows: Windows, inside: Tensor, outside: Tensor) -> Tensor:
    """One value inside each region and another in the rest of its box, (..., W, C, *window)."""
    if windows.hidden is None:
        return inside
    return torch.where(windows.hidden.to(inside.device).unsqueeze(1), inside, outside)
