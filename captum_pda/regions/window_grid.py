"""Where the windows lie, and how window values are averaged back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from captum_pda.regions.protocol import Integers, block_pixels


@dataclass(frozen=True)
class WindowGrid:
    """All places of a window that slides over an input's spatial dimensions.

    Along each axis the window starts at 0, s, 2s, ... and a last window is moved back to end at
    the border, so every window is whole and every pixel is covered. Windows are numbered in
    row-major order; ``grid[10:20]`` is the grid of those ten windows, and ``grid.pick([3, 7])``
    that of those two.

    Args:
        space: the input's spatial shape (1 to 3 dimensions).
        window: the window's shape.
        strides: the step along each axis.

    Example::

        >>> grid = WindowGrid((28, 28), (4, 4), (3, 3))
        >>> len(grid), grid.corners[-1].tolist()
        (81, [24, 24])
    """

    space: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    selected: range | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        pairs = zip(self.space, self.window, self.strides, strict=True)
        if not all(1 <= width <= size and stride >= 1 for size, width, stride in pairs):
            raise ValueError(
                f"a window of {self.window} with strides {self.strides} does not fit in "
                f"{self.space}"
            )

    @cached_property
    def starts(self) -> tuple[Integers, ...]:
        """Where windows start along each axis."""
        return tuple(
            np.append(np.arange(0, size - width, stride, dtype=np.int64), size - width)
            for size, width, stride in zip(self.space, self.window, self.strides, strict=True)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of windows along each axis of the whole grid."""
        return tuple(len(starts) for starts in self.starts)

    @property
    def size(self) -> tuple[int, ...]:
        """The window's shape."""
        return self.window

    @property
    def hidden(self) -> None:
        """All pixels of a window are hidden."""

    def boxes(self, example: int) -> tuple[WindowGrid]:
        """The windows, which are the same for every example."""
        return (self,)

    def settings(self) -> dict[str, object]:
        """What describes the windows, as plain values."""
        places = None if self.selected is None else list(self.selected)
        shapes = {"space": self.space, "window": self.window, "strides": self.strides}
        return {"kind": "WindowGrid", **{k: list(v) for k, v in shapes.items()}, "picked": places}

    @property
    def first(self) -> int:
        """The number of the first window, counted in the whole grid."""
        return self.selected[0] if self.selected else 0

    def __len__(self) -> int:
        return math.prod(self.shape) if self.selected is None else len(self.selected)

    def __getitem__(self, windows: slice) -> WindowGrid:
        if not isinstance(windows, slice):
            raise TypeError(f"a WindowGrid takes a slice such as grid[0:10], got {windows!r}")
        start, stop, step = windows.indices(len(self))
        if step != 1:
            raise ValueError(f"a WindowGrid is sliced in steps of 1, got a step of {step}")
        return replace(self, selected=self._numbers[start:stop])

    def pick(self, windows: Iterable[int]) -> WindowGrid:
        """The grid of some of these windows, in this order."""
        return replace(self, selected=tuple(self._numbers[window] for window in windows))

    @property
    def whole(self) -> WindowGrid:
        """The grid that these windows were taken from."""
        return self if self.selected is None else replace(self, selected=None)

    @property
    def _numbers(self) -> range | tuple[int, ...]:
        """The numbers of these windows in the whole grid."""
        return range(math.prod(self.shape)) if self.selected is None else self.selected

    def chunks(self, size: int) -> Iterator[WindowGrid]:
        """The grid in consecutive parts of at most ``size`` windows."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    @cached_property
    def corner_array(self) -> Integers:
        """Each window's first pixel, (W, dims), as a NumPy array."""
        places = np.unravel_index(np.array(self._numbers, dtype=np.int64), self.shape)
        corners = [starts[place] for starts, place in zip(self.starts, places, strict=True)]
        return np.stack(corners, axis=1)

    @property
    def corners(self) -> Tensor:
        """Each window's first pixel, (W, dims)."""
        return torch.from_numpy(self.corner_array)

    def pixels(self, device: torch.device | str = "cpu") -> Tensor:
        """The flat numbers of each window's pixels in the input, (W, pixels per window)."""
        return block_pixels(self.corner_array, self.window, self.space, device)

    def average(self, values: Tensor) -> Tensor:
        """Give each pixel the mean of the values of the windows that cover it.

        Args:
            values: (..., W), one value per window of the whole grid.

        Returns:
            (..., *space).
        """
        if self.selected is not None:
            raise ValueError("only values of the whole grid can be averaged, not those of a part")
        averaged = values.reshape(*values.shape[:-1], *self.shape)
        for axis, (begin, end) in enumerate(self._covering, start=-len(self.space)):
            # The grid is a product of its axes, so the mean over all windows that cover a pixel
            # is a mean along each axis in turn.
            steps = begin[:, None] + np.arange((end - begin).max())
            covering = torch.from_numpy(steps < end[:, None]).to(values.device)
            index = torch.from_numpy(np.minimum(steps, end.max() - 1)).to(values.device)
            count = torch.from_numpy(end - begin).to(values.device)
            gathered = averaged.movedim(axis, -1)[..., index]
            total = torch.where(covering, gathered, 0).sum(-1)
            averaged = (total / count).movedim(-1, axis)
        return averaged.contiguous()

    @cached_property
    def _covering(self) -> tuple[tuple[Integers, Integers], ...]:
        """For each pixel along each axis, the first window that covers it and the one past the
        last: they are consecutive."""
        return tuple(
            (
                np.searchsorted(starts, np.arange(size) - width, side="right"),
                np.searchsorted(starts, np.arange(size), side="right"),
            )
            for starts, width, size in zip(self.starts, self.window, self.space, strict=True)
        )

    def coverage(self, device: torch.device | str = "cpu") -> Tensor:
        """How many windows of the whole grid cover each pixel, (*space)."""
        counts = np.ones((), dtype=np.int64)
        for begin, end in self._covering:
            counts = counts[..., None] * (end - begin)
        return torch.from_numpy(counts).to(device)

    def sum_pixels(self, values: Tensor) -> Tensor:
        """Give each pixel the sum of what these windows (W, C, *window) say of it, (C, *space)."""
        total = values.new_zeros(values.shape[1], math.prod(self.space))
        flat = values.flatten(2).transpose(0, 1).flatten(1)
        total.index_add_(1, self.pixels(values.device).reshape(-1), flat)
        return total.reshape(-1, *self.space)
