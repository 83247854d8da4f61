"""Pooling on boxes: with a sliding kernel, adaptive, or over the whole map."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.engines.incremental.boxes import (
    Boxed,
    Integers,
    Slide,
    Span,
    slide_boxes,
    slides_for,
)
from captum_pda.engines.incremental.cache import Function, PassState
from captum_pda.engines.incremental.rules import NoRule, rule


@rule("max_pool1d max_pool2d max_pool3d", saves=True)
def max_pool(
    state: PassState,
    func: Function,
    x: Boxed,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Boxed:
    """The largest value under the kernel; nothing outside the map is ever the largest."""
    _check_images(x)
    if return_indices:
        raise NoRule("it returns indices")
    stride = kernel_size if stride is None or stride == [] else stride
    pool = getattr(torch, f"max_pool{len(x.spans)}d")  # without indices
    arguments = (kernel_size, stride, padding, dilation, ceil_mode)
    if x.is_whole:
        return _whole(pool(x.values, *arguments), x)
    base = state.base(pool, x.base, *arguments)
    slides = slides_for(x, kernel_size, stride, padding, dilation)
    maps, spans = slide_boxes(x, slides, base.shape[2:], outside=-math.inf)
    return Boxed(pool(maps, kernel_size, stride, 0, dilation), spans, base, x.space)


@rule("avg_pool1d avg_pool2d avg_pool3d", saves=True)
def average_pool(
    state: PassState,
    func: Function,
    x: Boxed,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Boxed:
    """The sum under the kernel, divided by what the whole map would have counted there."""
    _check_images(x)
    n_axes = len(x.spans)
    stride = kernel_size if stride is None or stride == [] else stride
    pool = getattr(F, f"avg_pool{n_axes}d")
    arguments: tuple[Any, ...] = (kernel_size, stride, padding, ceil_mode, count_include_pad)
    if divisor_override is not None:
        arguments = (*arguments, divisor_override)
    if x.is_whole:
        return _whole(pool(x.values, *arguments), x)
    base = state.base(pool, x.base, *arguments)
    slides = slides_for(x, kernel_size, stride, padding, 1)
    maps, spans = slide_boxes(x, slides, base.shape[2:], outside=0.0)
    values = pool(maps, kernel_size, stride)
    area = math.prod(slide.kernel for slide in slides)
    if divisor_override is not None:
        return Boxed(values * (area / divisor_override), spans, base, x.space)
    for axis, (before, slide, after) in enumerate(zip(x.spans, slides, spans, strict=True)):
        counts = _counts(before, slide, after, count_include_pad)
        if (counts == slide.kernel).all():
            continue
        shape = (len(counts), 1, *(-1 if axis == other else 1 for other in range(n_axes)))
        factor = torch.from_numpy(slide.kernel / counts).to(values).reshape(shape)
        values = values * factor
    return Boxed(values, spans, base, x.space)


def _counts(before: Span, slide: Slide, after: Span, include_padding: bool) -> Integers:
    """How many places the kernel counts along one axis, (copies, extent of a box)."""
    first = after.places * slide.stride - slide.padding
    last = first + slide.kernel
    padding = slide.padding if include_padding else 0
    counts: Integers = np.minimum(last, before.size + padding) - np.maximum(first, -padding)
    return np.maximum(counts, 1)


@rule("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", saves=True)
def adaptive_average_pool(
    state: PassState, func: Callable[..., Tensor], x: Boxed, output_size: Any
) -> Boxed | Tensor:
    """The mean of the map, or of equal parts of it."""
    _check_images(x)
    sizes = _adaptive_sizes(x, output_size)
    if x.is_whole:
        return func(x.values, output_size)
    if all(size == 1 for size in sizes):
        return mean(state, func, x, output_size)
    kernel = _adaptive_kernel(x, sizes)
    return average_pool(state, func, x, kernel)


# Functions of these names elsewhere give indices too.
@rule(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d, saves=True)
def adaptive_max_pool(
    state: PassState, func: Function, x: Boxed, output_size: Any, return_indices: bool = False
) -> Boxed:
    """The maximum of equal parts of the map."""
    _check_images(x)
    kernel = _adaptive_kernel(x, _adaptive_sizes(x, output_size))
    return max_pool(state, func, x, kernel, return_indices=return_indices)


def mean(
    state: PassState, func: Callable[..., Tensor], x: Boxed, *args: Any, **kwargs: Any
) -> Tensor:
    """The unperturbed mean, moved by what changed in the box. ``func`` averages all of space."""
    if x.is_whole:
        return func(x.values, *args, **kwargs)
    unperturbed: Tensor = state.base(func, x.base, *args, **kwargs)
    fraction = math.prod(span.length / span.size for span in x.spans)
    return unperturbed + func(x.differences, *args, **kwargs) * fraction


@rule("mean", saves=True)
def mean_over_space(
    state: PassState,
    func: Function,
    x: Boxed,
    dim: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A mean over all spatial dimensions, and perhaps others."""
    n_dims = len(x.shape)
    dims = range(n_dims) if dim is None else (dim,) if isinstance(dim, int) else dim
    over = {number % n_dims for number in dims}
    if 0 in over or not over.issuperset(x.space):
        raise NoRule("it averages other dimensions than space")
    return mean(state, func, x, dim=dim, keepdim=keepdim, dtype=dtype)


def _adaptive_sizes(x: Boxed, output_size: Any) -> tuple[int, ...]:
    n_axes = len(x.spans)
    wanted = (output_size,) * n_axes if not isinstance(output_size, tuple | list) else output_size
    return tuple(
        span.size if size is None else size for size, span in zip(wanted, x.spans, strict=True)
    )


def _adaptive_kernel(x: Boxed, sizes: tuple[int, ...]) -> tuple[int, ...]:
    if any(span.size % size for span, size in zip(x.spans, sizes, strict=True)):
        raise NoRule("its parts have unequal sizes")
    return tuple(span.size // size for span, size in zip(x.spans, sizes, strict=True))


def _check_images(x: Boxed) -> None:
    if not isinstance(x, Boxed) or not x.images:
        raise NoRule("its input is not a batch of images")


def _whole(values: Tensor, x: Boxed) -> Boxed:
    """Maps that are held in full, after their size has changed."""
    spans = tuple(Span.whole(values.shape[axis], x.n_copies) for axis in x.space)
    return Boxed(values, spans, None, x.space)
