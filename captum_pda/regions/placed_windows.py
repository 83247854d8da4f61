"""Boxes of one shape wherever they are wanted, of which all or some pixels are hidden."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from captum_pda.regions.protocol import Integers, block_pixels


@dataclass(frozen=True, eq=False)
class PlacedWindows:
    """Windows of one shape at corners of one's choice.

    Args:
        space: the input's spatial shape.
        window: the shape of each window.
        corner_array: the first pixel of each window, (W, dims).
        hidden: which pixels of each window are hidden, (W, *window); None hides all of them.
        first: the number of the first window among all that these are part of.

    Example::

        >>> PlacedWindows((28, 28), (4, 4), np.array([[0, 0], [3, 17]]))
    """

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
