"""Sliding windows: the grid of all positions of a window, and grids from users' arguments."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor

from captum_pda.regions.contexts import CONTEXTS, Context
from captum_pda.regions.protocol import Integers, block_pixels


@dataclass(frozen=True)
class WindowGrid:
    """All positions of a window that slides over an input's spatial dimensions.

    Along each axis windows start at 0, s, 2s, ..., and the last one is moved back to end at the
    border, so that all windows are complete and cover all pixels. Windows are numbered in row-major
    order; ``grid[10:20]`` and ``grid.pick([3, 7])`` are grids of some of them.

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

    # All pixels of a window are hidden, and all examples have the same windows. These methods are
    # documented in ``Regions`` and ``Windows``.

    @property
    def size(self) -> tuple[int, ...]:
        return self.window

    @property
    def hidden(self) -> None:
        return None

    def boxes(self, example: int) -> tuple[WindowGrid]:
        return (self,)

    def members(self, example: int) -> tuple[Integers]:
        return (np.arange(len(self)),)

    def absent(self, n_examples: int) -> Tensor:
        return torch.zeros(n_examples, len(self), dtype=torch.bool, device="cpu")

    def of_examples(self, rows: slice) -> WindowGrid:
        return self

    @property
    def title(self) -> str:
        return f"windows of {'x'.join(map(str, self.window))}"

    def settings(self) -> dict[str, object]:
        places = None if self.selected is None else list(self.selected)
        shapes = {"space": self.space, "window": self.window, "strides": self.strides}
        return {"kind": "WindowGrid", **{k: list(v) for k, v in shapes.items()}, "picked": places}

    @property
    def first(self) -> int:
        return self.selected[0] if self.selected else 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, windows: slice) -> WindowGrid:
        if not isinstance(windows, slice) or windows.step not in (None, 1):
            raise TypeError(f"a WindowGrid takes a slice such as grid[0:10], got {windows!r}")
        return replace(self, selected=self._numbers[windows])

    def pick(self, windows: Iterable[int]) -> WindowGrid:
        """The grid of some of these windows, in this order."""
        return replace(self, selected=tuple(self._numbers[window] for window in windows))

    @property
    def _numbers(self) -> range | tuple[int, ...]:
        return range(math.prod(self.shape)) if self.selected is None else self.selected

    @cached_property
    def corner_array(self) -> Integers:
        places = np.unravel_index(np.array(self._numbers, dtype=np.int64), self.shape)
        corners = [starts[place] for starts, place in zip(self.starts, places, strict=True)]
        return np.stack(corners, axis=1)

    @property
    def corners(self) -> Tensor:
        """``corner_array`` as a tensor."""
        return torch.from_numpy(self.corner_array)

    def pixels(self, device: torch.device | str = "cpu") -> Tensor:
        return block_pixels(self.corner_array, self.window, self.space, device)

    def average(self, values: Tensor) -> Tensor:
        """Give each pixel the mean of its windows' values, (..., W) to (..., *space)."""
        if self.selected is not None:
            raise ValueError("only values of the whole grid can be averaged, not those of a part")
        averaged = values.reshape(*values.shape[:-1], *self.shape)
        for axis, (begin, end) in enumerate(self._covering, start=-len(self.space)):
            # The grid is a product of its axes, so the mean over the windows that cover a pixel is
            # taken along one axis after the other. Values that are not finite do not spread.
            steps = begin[:, None] + np.arange((end - begin).max())
            covering = torch.from_numpy(steps < end[:, None]).to(values.device)
            index = torch.from_numpy(np.minimum(steps, end.max() - 1)).to(values.device)
            gathered = averaged.movedim(axis, -1)[..., index].where(covering, 0)
            averaged = (gathered.sum(-1) / covering.sum(-1)).movedim(-1, axis)
        return averaged.contiguous()

    @cached_property
    def _covering(self) -> tuple[tuple[Integers, Integers], ...]:
        """For each pixel along each axis, the range of the windows that cover it."""
        return tuple(
            (
                np.searchsorted(starts, np.arange(size) - width, side="right"),
                np.searchsorted(starts, np.arange(size), side="right"),
            )
            for starts, width, size in zip(self.starts, self.window, self.space, strict=True)
        )

    def coverage(self, device: torch.device | str = "cpu") -> Tensor:
        counts = np.ones((), dtype=np.int64)
        for begin, end in self._covering:
            counts = counts[..., None] * (end - begin)
        return torch.from_numpy(counts).to(device)


#: An int for all axes, a spatial tuple, or a full tuple with channels first.
Extent: TypeAlias = int | Sequence[int]


def window_grid(
    space: tuple[int, ...],
    shape: Extent,
    stride: Extent | None = None,
    name: str = "sliding_window_shapes",
    channels: int | None = None,
) -> WindowGrid:
    """The grid of a window and its strides, by default a quarter of the window. The window is the
    argument ``name``, and may have the ``channels`` in front."""
    full = spatial(shape, name, space)
    if len(full) > len(space) and full[0] != channels:
        raise ValueError(
            f"{name}={shape!r} covers {full[0]} of {channels} channels; a window takes all "
            f"channels of a pixel together, so start the tuple with {channels} or leave the "
            "channels out"
        )
    window = full[-len(space) :]
    if any(width > size for width, size in zip(window, space, strict=True)):
        raise ValueError(
            f"{name}={shape!r} is larger than the input's spatial shape {space}; choose a window "
            "that fits inside it"
        )
    steps = tuple(max(1, width // 4) for width in window)
    if stride is not None:
        steps = spatial(stride, "strides", space)[-len(space) :]
    for step, width, size in zip(steps, window, space, strict=True):
        if step > width and width < size:
            raise ValueError(
                f"strides={stride!r} steps over pixels: a stride of {step} is beyond the window's "
                f"{width}; use at most {width}"
            )
    return WindowGrid(space, window, steps)


def spatial(given: object, name: str, space: Sequence[int]) -> tuple[int, ...]:
    """An int or a tuple as a tuple of positive integers, which may have channels in front."""
    values = [given] * len(space) if is_integer(given) else given
    if not isinstance(values, Sequence) or not all(is_integer(item) for item in values):
        raise TypeError(f"{name} must be an int or a tuple of ints, got {given!r}")
    if len(values) not in (len(space), len(space) + 1):
        raise ValueError(
            f"{name}={given!r} has {len(values)} entries; an input with spatial shape "
            f"{tuple(space)} takes an int, {len(space)} entries, or {len(space) + 1} with "
            "channels first"
        )
    if any(value < 1 for value in values):
        raise ValueError(f"{name}={given!r} must be positive")
    return tuple(operator.index(value) for value in values)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer, but not a bool."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


#: One size or several; each an int or a spatial tuple.
Scales: TypeAlias = int | Sequence[Extent] | None

#: The shorter side from which an input is large.
LARGE_SIDE = 64
#: If a size has more windows than this, its default strides grow up to the window; if there are
#: still too many, as for small windows in volumes, the size is left out.
MOST_WINDOWS = 1500


def default_grids(
    space: tuple[int, ...], strides: Extent | None = None, context: Context = CONTEXTS["full"]
) -> tuple[WindowGrid, ...]:
    """Windows in proportion to the shorter side; given strides are at most their width."""
    side = min(space)
    grids: dict[tuple[int, ...], WindowGrid] = {}
    for share, step in context.large_windows if side >= LARGE_SIDE else context.small_windows:
        width = max(1, round(share * side))
        if strides is not None:
            steps: list[Extent] = [[min(n, width) for n in spatial(strides, "strides", space)]]
        else:
            # Larger steps if a volume or a long image has too many windows.
            steps = list(range(max(1, round(step * width)), width + 1))
        tried = (window_grid(space, width, each) for each in steps)
        fits = (grid for grid in tried if strides is not None or len(grid) <= MOST_WINDOWS)
        grid = next(fits, None) or window_grid(space, width, width)
        grids.setdefault(grid.window, grid)
    every = tuple(grids.values())
    few = tuple(grid for grid in every if strides is not None or len(grid) <= MOST_WINDOWS)
    return few or every[-1:]


def scale_grids(
    space: tuple[int, ...], scales: Scales, strides: Extent | Sequence[Extent] | None
) -> tuple[WindowGrid, ...]:
    """A grid for each size, with one stride for all sizes or one for each."""
    sizes = [scales] if is_integer(scales) else scales
    if not isinstance(sizes, Sequence) or not sizes or isinstance(sizes, str):
        raise TypeError(f"scales={scales!r} must be a tuple of sizes, such as scales=(16, 32, 64)")
    steps = [strides] * len(sizes) if is_integer(strides) or strides is None else strides
    if not isinstance(steps, Sequence) or len(steps) != len(sizes):
        raise ValueError(
            f"strides={strides!r} does not fit scales={scales!r}; give one int for all sizes, or "
            f"{len(sizes)} of them"
        )
    grids = tuple(
        window_grid(space, size, step, "scales") for size, step in zip(sizes, steps, strict=True)
    )
    if len({grid.window for grid in grids}) < len(grids):
        raise ValueError(f"scales={scales!r} holds a size twice; give each size once")
    return grids
