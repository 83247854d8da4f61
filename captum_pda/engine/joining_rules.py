"""Operations on several maps: their boxes are joined."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from captum_pda import host
from captum_pda.engine.boxed import Boxed, read_boxes
from captum_pda.engine.going_dense import GoDense
from captum_pda.engine.run import Run
from captum_pda.engine.spans import Span


def elementwise(
    run: Run, func: Callable[..., Any], one: Any, other: Any, *args: Any, **kwargs: Any
) -> Boxed:
    """Arithmetic of two maps, or of a map and constants."""
    operands = [one, other]
    if any(isinstance(argument, Tensor | Boxed) for argument in (*args, *kwargs.values())):
        raise GoDense("it has more than two operands")
    boxed = [operand for operand in operands if isinstance(operand, Boxed)]
    n_dims = max(len(operand.shape) for operand in boxed)
    spans = _union(boxed)
    if any(isinstance(number, Tensor) and number.dim() > n_dims for number in operands):
        raise GoDense("its operand has more dimensions")
    pairs = [_operand(run, operand, boxed[0], spans) for operand in operands]
    values = func(*(pair[0] for pair in pairs), *args, **kwargs)
    if all(span.is_whole for span in spans):
        return Boxed(values, spans, None, boxed[0].space)
    base = run.base(func, *(pair[1] for pair in pairs), *args, **kwargs)
    return Boxed(values, spans, base, boxed[0].space)


def concatenate(run: Run, func: Callable[..., Tensor], maps: Any, dim: int = 0) -> Boxed:
    """Maps side by side along a dimension that is neither space nor the batch."""
    boxed = [operand for operand in maps if isinstance(operand, Boxed)]
    first = boxed[0]
    dim = dim % len(first.shape)
    if dim in (0, *first.space):
        raise GoDense("it joins copies or places")
    spans = _union(boxed)
    pairs = [_operand(run, operand, first, spans, same_shape=True) for operand in maps]
    values = func([pair[0] for pair in pairs], dim)
    if all(span.is_whole for span in spans):
        return Boxed(values, spans, None, first.space)
    return Boxed(values, spans, run.base(func, [pair[1] for pair in pairs], dim), first.space)


def _union(boxed: list[Boxed]) -> tuple[Span, ...]:
    """Where any of the maps can differ."""
    first = boxed[0]
    for operand in boxed[1:]:
        sizes = [span.size for span in operand.spans]
        same = operand.space == first.space and sizes == [span.size for span in first.spans]
        if not same or len(operand.shape) != len(first.shape):
            raise GoDense("its operands have different shapes")
    return tuple(
        reduce(Span.union, spans)
        for spans in zip(*(operand.spans for operand in boxed), strict=True)
    )


def _operand(
    run: Run, operand: Any, like: Boxed, spans: tuple[Span, ...], same_shape: bool = False
) -> tuple[Any, Any]:
    """An operand at the joined boxes, and for the unperturbed example."""
    if isinstance(operand, Boxed):
        return operand.at(spans), operand.base
    if not isinstance(operand, Tensor) or operand.dim() == 0:
        return operand, operand
    if run.leaked:
        raise GoDense("values left the tensors before, so its operand may depend on the input")
    n_dims = len(like.shape)
    if operand.dim() == n_dims and len(operand) > 1:
        if not host.is_true((operand == operand[:1]).all()):
            raise GoDense("its operand differs from copy to copy")
        operand = run.memory.constant(operand[:1])
    shape = (1,) * (n_dims - operand.dim()) + tuple(operand.shape)
    aligned = run.memory(torch.reshape, operand, shape)
    sizes = [aligned.shape[axis] for axis in like.space]
    if all(size == 1 for size in sizes) and not same_shape:
        return aligned, aligned
    if sizes != [span.size for span in spans]:
        raise GoDense("its operand has another extent")
    return read_boxes(aligned, spans, like.space), aligned
