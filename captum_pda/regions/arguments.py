"""From the ``sliding_window_shapes`` and ``strides`` a user gives to one WindowGrid a tensor."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor

from captum_pda.regions.window_grid import WindowGrid

#: An int, a spatial tuple, or a full tuple with channels first; for several tensors, a tuple of
#: those.
Extents: TypeAlias = int | Sequence[int] | Sequence[int | Sequence[int]] | None

LARGE_WINDOW, SMALL_WINDOW, SMALL_SIDE = 10, 4, 64


def make_grids(
    inputs: tuple[Tensor, ...], sliding_window_shapes: Extents, strides: Extents
) -> tuple[WindowGrid, ...]:
    """One grid for each input tensor.

    The default window is 10 wide, or 4 where the shorter side is under 64 (the paper's two
    settings), and the default stride is a quarter of the window.
    """
    shapes = _one_each(sliding_window_shapes, len(inputs), "sliding_window_shapes")
    steps = _one_each(strides, len(inputs), "strides")
    return tuple(
        _make_grid(tensor, shape, step)
        for tensor, shape, step in zip(inputs, shapes, steps, strict=True)
    )


def given_grids(
    inputs: tuple[Tensor, ...], windows: WindowGrid | tuple[WindowGrid, ...]
) -> tuple[WindowGrid, ...]:
    """Check that grids chosen by the user fit the input tensors, one each."""
    grids = windows if isinstance(windows, tuple) else (windows,)
    spaces = [tuple(tensor.shape[2:]) for tensor in inputs]
    if [grid.space for grid in grids] != spaces:
        raise ValueError(
            f"windows lie in spaces of {[grid.space for grid in grids]}, where the inputs have "
            f"{spaces}; make a WindowGrid(space, window, strides) for each tensor"
        )
    if not all(len(grid) for grid in grids):
        raise ValueError("windows holds no window; pick at least one")
    return grids


def _one_each(given: Extents, n_tensors: int, name: str) -> list[int | Sequence[int] | None]:
    """Split an argument over the input tensors."""
    if given is None or _is_integer(given):
        return [given] * n_tensors  # type: ignore[list-item]
    if not isinstance(given, Sequence):
        raise TypeError(f"{name} must be an int or a tuple of ints, got {given!r}")
    if n_tensors == 1 and all(_is_integer(item) for item in given):
        return [given]  # type: ignore[list-item]
    if len(given) != n_tensors:
        raise ValueError(
            f"{name}={given!r} has {len(given)} entries for {n_tensors} input tensors; "
            "give one int for all of them, or one int or tuple for each"
        )
    return list(given)


def _make_grid(
    tensor: Tensor, shape: int | Sequence[int] | None, stride: int | Sequence[int] | None
) -> WindowGrid:
    channels, *space = tensor.shape[1:]
    if shape is None:
        shape = LARGE_WINDOW if min(space) >= SMALL_SIDE else SMALL_WINDOW
        window = tuple(min(shape, size) for size in space)
    else:
        full = _spatial(shape, "sliding_window_shapes", space)
        if len(full) > len(space) and full[0] != channels:
            raise ValueError(
                f"sliding_window_shapes={shape!r} covers {full[0]} of {channels} channels; "
                "a window takes all channels of a pixel together, so start the tuple with "
                f"{channels} or leave the channels out"
            )
        window = full[-len(space) :]
    if any(width > size for width, size in zip(window, space, strict=True)):
        raise ValueError(
            f"sliding_window_shapes={shape!r} is larger than the input's spatial shape "
            f"{tuple(space)}; choose a window that fits inside it"
        )
    if stride is None:
        steps = tuple(max(1, width // 4) for width in window)
    else:
        steps = _spatial(stride, "strides", space)[-len(space) :]
    for step, width, size in zip(steps, window, space, strict=True):
        if step > width and width < size:
            raise ValueError(
                f"strides={stride!r} steps over pixels: a stride of {step} is beyond the window's "
                f"{width}; use at most {width}"
            )
    return WindowGrid(tuple(space), window, steps)


def _spatial(given: int | Sequence[int], name: str, space: Sequence[int]) -> tuple[int, ...]:
    """An int or a tuple as a tuple of positive integers, with or without channels."""
    if _is_integer(given):
        values = (operator.index(given),) * len(space)  # type: ignore[arg-type]
    elif isinstance(given, Sequence) and all(_is_integer(item) for item in given):
        values = tuple(operator.index(item) for item in given)
    else:
        raise TypeError(f"{name} must be an int or a tuple of ints, got {given!r}")
    if len(values) not in (len(space), len(space) + 1):
        raise ValueError(
            f"{name}={given!r} has {len(values)} entries; an input with spatial shape "
            f"{tuple(space)} takes an int, {len(space)} entries, or {len(space) + 1} with "
            "channels first"
        )
    if any(value < 1 for value in values):
        raise ValueError(f"{name}={given!r} must be positive")
    return values


def _is_integer(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)
