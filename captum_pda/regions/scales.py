"""Windows of several sizes at once: which sizes, how far apart, and one grid for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from captum_pda.regions.extents import Extent, is_integer, window_grid
from captum_pda.regions.window_grid import WindowGrid

#: One size or several; each an int or a spatial tuple.
Scales: TypeAlias = int | Sequence[Extent] | None

#: The shorter side from which an input counts as large.
LARGE_SIDE = 64
#: The default sizes in each context, as shares of the shorter side, and the strides as shares of
#: the size. What a small window says by itself is next to nothing, and next to larger ones a
#: window of 16 pixels in the full context adds passes and noise (benchmarks/FAITHFULNESS.md).
LARGE_INPUT = {
    # 32, 64 and 96 pixels of 224 and the larger two of them, at strides of 16.
    "full": ((1 / 7, 1 / 2), (2 / 7, 1 / 4), (3 / 7, 1 / 6)),
    "empty": ((2 / 7, 1 / 4), (3 / 7, 1 / 6)),
}
SMALL_INPUT = {
    # 4 and 8 pixels of 28, at strides of 1 and 2; 8 and 12, at strides of 2 and 3.
    "full": ((1 / 7, 1 / 4), (2 / 7, 1 / 4)),
    "empty": ((2 / 7, 1 / 4), (3 / 7, 1 / 4)),
}
#: Where a size has more windows than this, its strides grow up to the window by default; where they
#: are still too many, as small windows are in volumes, the size is left out.
MOST_WINDOWS = 1500


def default_grids(
    space: tuple[int, ...], strides: Extent | None = None, context: str = "full"
) -> tuple[WindowGrid, ...]:
    """Windows in proportion to the input's shorter side, the same in all directions.

    Strides that are given hold for every size, up to the width of its windows.
    """
    side = min(space)
    grids: dict[tuple[int, ...], WindowGrid] = {}
    for share, step in (LARGE_INPUT if side >= LARGE_SIDE else SMALL_INPUT)[context]:
        width = max(1, round(share * side))
        if strides is not None:
            grid = window_grid(space, width, _within(strides, width))
        else:
            grid = _affordable_grid(space, width, max(1, round(step * width)))
        grids.setdefault(grid.window, grid)
    every = tuple(grids.values())
    affordable = tuple(grid for grid in every if len(grid) <= MOST_WINDOWS)
    return every if strides is not None else affordable or every[-1:]


def _affordable_grid(space: tuple[int, ...], width: int, step: int) -> WindowGrid:
    """The grid of a size, with larger steps where a volume or a long image has too many windows."""
    while (grid := window_grid(space, width, step)) and len(grid) > MOST_WINDOWS and step < width:
        step += 1
    return grid


def _within(strides: Extent, width: int) -> Extent:
    """Strides for a size that the user did not choose: no larger than its windows."""
    if isinstance(strides, Sequence):
        return [min(step, width) for step in strides]
    return min(strides, width)


def scale_grids(
    space: tuple[int, ...], scales: Scales, strides: Extent | Sequence[Extent] | None
) -> tuple[WindowGrid, ...]:
    """One grid for each size, at strides of a quarter of the window unless they are given.

    Args:
        space: the input's spatial shape.
        scales: the sizes, such as (16, 32, 64).
        strides: one for all sizes, or one for each of them.
    """
    sizes = [scales] if is_integer(scales) else scales
    if not isinstance(sizes, Sequence) or not sizes or isinstance(sizes, str):
        raise TypeError(f"scales={scales!r} must be a tuple of sizes, such as scales=(16, 32, 64)")
    if is_integer(strides) or strides is None:
        steps: Sequence[Extent | None] = [strides] * len(sizes)
    elif isinstance(strides, Sequence) and len(strides) == len(sizes):
        steps = strides
    else:
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
