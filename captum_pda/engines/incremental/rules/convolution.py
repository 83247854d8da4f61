"""Convolution on boxes, and batch-norm."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from captum_pda.engines.incremental.boxes import Boxed, slide_boxes, slides_for, whole_maps
from captum_pda.engines.incremental.cache import Function, PassState
from captum_pda.engines.incremental.rules import NoRule, check_images, rule


@rule("conv1d conv2d conv3d", saves=True)
def convolution(
    state: PassState,
    func: Function,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Boxed:
    """Convolve each box with the margin that the kernel reads."""
    check_images(x)
    if isinstance(weight, Boxed) or isinstance(bias, Boxed):
        raise NoRule("its weights depend on the input")
    options = (dilation, groups)
    if x.is_whole:
        return whole_maps(func(x.values, weight, bias, stride, padding, *options), x)
    base = state.base(func, x.base, weight, bias, stride, padding, *options)
    slides = slides_for(x, weight.shape[2:], stride, padding, dilation)
    maps, spans = slide_boxes(x, slides, base.shape[2:], outside=0.0)
    values = func(maps, weight, bias, stride, 0, *options)
    return Boxed(values, spans, base, x.space)


@rule("batch_norm")
def batch_norm(
    state: PassState,
    func: Function,
    x: Boxed,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Boxed:
    """With running statistics batch-norm acts on every pixel separately."""
    check_images(x)
    if training or running_mean is None:
        raise NoRule("it uses the statistics of the batch")
    arguments = (running_mean, running_var, weight, bias, False, momentum, eps)
    base = None if x.base is None else state.base(F.batch_norm, x.base, *arguments)
    return Boxed(F.batch_norm(x.values, *arguments), x.spans, base, x.space)
