"""From a window's shape and strides, as users give them, to a WindowGrid."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TypeAlias, TypeGuard

from captum_pda.regions.window_grid import WindowGrid

#: An int for all axes, a spatial tuple, or a full tuple with channels first.
Extent: TypeAlias = int | Sequence[int]


def window_grid(
    space: tuple[int, ...],
    shape: Extent,
    stride: Extent | None = None,
    name: str = "sliding_window_shapes",
    channels: int | None = None,
) -> WindowGrid:
    """The grid of a window and strides, checked in the user's words.

    Args:
        space: the input's spatial shape.
        shape: the window's shape.
        stride: the step along each axis; None is a quarter of the window.
        name: the argument that the shape came from.
        channels: how many the input has, where the shape may begin with them.
    """
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
    if stride is None:
        steps = tuple(max(1, width // 4) for width in window)
    else:
        steps = spatial(stride, "strides", space)[-len(space) :]
    for step, width, size in zip(steps, window, space, strict=True):
        if step > width and width < size:
            raise ValueError(
                f"strides={stride!r} steps over pixels: a stride of {step} is beyond the window's "
                f"{width}; use at most {width}"
            )
    return WindowGrid(space, window, steps)


def spatial(given: object, name: str, space: Sequence[int]) -> tuple[int, ...]:
    """An int or a tuple as a tuple of positive integers, with or without channels."""
    if is_integer(given):
        values = (operator.index(given),) * len(space)
    elif isinstance(given, Sequence) and all(is_integer(item) for item in given):
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


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value counts as an integer, which True and False do not."""
    return hasattr(value, "__index__") and not isinstance(value, bool)
