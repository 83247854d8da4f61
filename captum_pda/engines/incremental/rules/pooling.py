"""Pooling on boxes: with a sliding kernel, adaptive, or over the whole map."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines.incremental.boxes import (
    Boxed,
    per_axis,
    read_boxes,
    slide_boxes,
    slides_for,
    whole_maps,
)
from captum_pda.engines.incremental.cache import Function, PassState
from captum_pda.engines.incremental.rules import NoRule, check_images, rule


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
    """The maximum under the kernel, with -infinity outside of the map."""
    check_images(x)
    if return_indices:
        raise NoRule("it returns indices")
    stride = stride or kernel_size
    pool = getattr(torch, f"max_pool{len(x.spans)}d")  # without indices
    arguments = (kernel_size, stride, padding, dilation, ceil_mode)
    if x.is_whole:
        return whole_maps(pool(x.values, *arguments), x)
    base = state.base(pool, x.base, *arguments)
    slides = slides_for(x, kernel_size, stride, padding, dilation)
    maps, spans = slide_boxes(x, slides, base.shape[2:], outside=-math.inf)
    values = pool(maps, kernel_size, stride, 0, dilation)
    return Boxed(values, spans, base, x.space)


@rule("avg_pool1d avg_pool2d avg_pool3d", saves=True)
def average_pool(
    state: PassState,
    func: Function,
    x: Boxed,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    *args: Any,
    **kwargs: Any,
) -> Boxed:
    """The mean under the kernel, corrected for places outside of the map."""
    check_images(x)
    stride = stride or kernel_size
    pool = getattr(F, f"avg_pool{len(x.spans)}d")
    if x.is_whole:
        return whole_maps(pool(x.values, kernel_size, stride, padding, *args, **kwargs), x)
    base = state.base(pool, x.base, kernel_size, stride, padding, *args, **kwargs)
    slides = slides_for(x, kernel_size, stride, padding, 1)
    maps, spans = slide_boxes(x, slides, base.shape[2:], outside=0.0)
    values = pool(maps, kernel_size, stride)
    if args or kwargs:
        factor = state.base(_factor, pool, x.base, kernel_size, stride, padding, *args, **kwargs)
        values = values if factor is None else values * read_boxes(factor, spans, x.space)
    return Boxed(values, spans, base, x.space)


def _factor(
    pool: Callable[..., Tensor],
    like: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    *args: Any,
    **kwargs: Any,
) -> Tensor | None:
    """The correction at every place: pooled ones over their padded mean; None if all are 1."""
    ones = torch.ones_like(like[:, :1])
    pooled = pool(ones, kernel, stride, padding, *args, **kwargs)
    n_axes = like.dim() - 2
    paddings, kernels = per_axis(padding, n_axes), per_axis(kernel, n_axes)
    around = [(before, before + size) for before, size in zip(paddings, kernels, strict=True)]
    plain = pool(F.pad(ones, [number for pair in around[::-1] for number in pair]), kernel, stride)
    within: tuple[Any, ...] = (..., *map(slice, pooled.shape[2:]))
    factor: Tensor = pooled / plain[within]
    return None if device_sync.is_true((factor == 1).all()) else factor


@rule("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", saves=True)
def adaptive_average_pool(
    state: PassState, func: Callable[..., Tensor], x: Boxed, output_size: Any
) -> Boxed | Tensor:
    """The mean of the map, or of equal parts of it."""
    check_images(x)
    if x.is_whole:
        return func(x.values, output_size)
    sizes = tuple(func(torch.empty(x.shape[1:], device="meta"), output_size).shape[1:])
    if all(size == 1 for size in sizes):
        return _mean(state, func, x, output_size)
    if any(span.size % size for span, size in zip(x.spans, sizes, strict=True)):
        raise NoRule("its parts have unequal sizes")
    kernel = tuple(span.size // size for span, size in zip(x.spans, sizes, strict=True))
    return average_pool(state, func, x, kernel)


@rule("mean", saves=True)
def mean_over_space(
    state: PassState, func: Callable[..., Tensor], x: Boxed, dim: Any = None, **kwargs: Any
) -> Tensor:
    """A mean over all spatial dimensions, and perhaps others."""
    n_dims = len(x.shape)
    dims = range(n_dims) if dim is None else (dim,) if isinstance(dim, int) else dim
    over = {number % n_dims for number in dims}
    if 0 in over or not over.issuperset(x.space):
        raise NoRule("it averages other dimensions than space")
    return _mean(state, func, x, dim=dim, **kwargs)


def _mean(
    state: PassState, func: Callable[..., Tensor], x: Boxed, *args: Any, **kwargs: Any
) -> Tensor:
    """The unperturbed mean plus the change in the box. ``func`` averages over all of space."""
    if x.is_whole:
        return func(x.values, *args, **kwargs)
    unperturbed: Tensor = state.base(func, x.base, *args, **kwargs)
    fraction = math.prod(span.length / span.size for span in x.spans)
    return unperturbed + func(x.differences(), *args, **kwargs) * fraction
