"""Operations on several maps: their boxes are joined."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines.incremental.boxed import Boxed, postpone, read_boxes
from captum_pda.engines.incremental.no_rule import NoRule
from captum_pda.engines.incremental.pass_state import PassState
from captum_pda.engines.incremental.postponed import Fresh
from captum_pda.engines.incremental.rules.registry import rule
from captum_pda.engines.incremental.spans import Span

#: Functions of two maps, number by number.
ELEMENTWISE = (
    "add div divide eq ge gt le lt maximum minimum mul multiply ne pow rsub sub subtract "
    "true_divide __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ "
    "__rdiv__ __div__ __pow__ __rpow__"
)
#: Functions that add two maps.
SUMS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}


@rule(ELEMENTWISE, in_place=True)
def elementwise(
    state: PassState, func: Callable[..., Any], one: Any, other: Any, *args: Any, **kwargs: Any
) -> Boxed:
    """Arithmetic of two maps, or of a map and constants."""
    operands = [one, other]
    if any(isinstance(argument, Tensor | Boxed) for argument in (*args, *kwargs.values())):
        raise NoRule("it has more than two operands")
    boxed = [operand for operand in operands if isinstance(operand, Boxed)]
    n_dims = max(len(operand.shape) for operand in boxed)
    spans = _union(boxed)
    if any(isinstance(number, Tensor) and number.dim() > n_dims for number in operands):
        raise NoRule("its operand has more dimensions")
    if func in SUMS and not args and not kwargs and _same_shape(boxed):
        return _sum(state, func, boxed[0], boxed[1], spans)
    pairs = [_operand(state, operand, boxed[0], spans) for operand in operands]
    values = func(*(pair[0] for pair in pairs), *args, **kwargs)
    if all(span.is_whole for span in spans):
        return Boxed(values, spans, None, boxed[0].space)
    base = state.base(func, *(pair[1] for pair in pairs), *args, **kwargs)
    return Boxed(values, spans, base, boxed[0].space)


def _sum(
    state: PassState, func: Callable[..., Any], one: Boxed, other: Boxed, spans: tuple[Span, ...]
) -> Boxed:
    """A sum, added to a convolution's result while nobody else has seen that."""
    for operand in (one, other):
        if isinstance(operand.postponed, Fresh):
            operand.values  # noqa: B018, now, since it may be needed again
    whole = all(span.is_whole for span in spans)
    base = None if whole else state.base(func, one.base, other.base)

    return postpone(state.origin(), partial(_added, one, other, spans), one, spans, base)


def _added(one: Boxed, other: Boxed, spans: tuple[Span, ...]) -> Tensor:
    for into, added in ((one, other), (other, one)):
        if into.postponed is not None and into.lies_at(spans):
            return into.postponed.compute().add_(added.at(spans))
    return torch.add(one.at(spans), other.at(spans))


@rule("cat concat concatenate")
def concatenate(state: PassState, func: Callable[..., Tensor], maps: Any, dim: int = 0) -> Boxed:
    """Maps side by side along a dimension that is neither space nor the batch."""
    boxed = [operand for operand in maps if isinstance(operand, Boxed)]
    first = boxed[0]
    dim = dim % len(first.shape)
    if dim in (0, *first.space):
        raise NoRule("it joins copies or places")
    spans = _union(boxed)
    whole = all(span.is_whole for span in spans)
    if len(boxed) == len(maps) and _alike(boxed):
        base = None if whole else state.base(func, [operand.base for operand in boxed], dim)
        size = {dim: sum(operand.shape[dim] for operand in boxed)}
        join = partial(_joined, func, boxed, spans, dim)
        return postpone(state.origin(), join, first, spans, base, size)
    pairs = [_operand(state, operand, first, spans, same_shape=True) for operand in maps]
    values = func([pair[0] for pair in pairs], dim)
    base = None if whole else state.base(func, [pair[1] for pair in pairs], dim)
    return Boxed(values, spans, base, first.space)


def _joined(
    func: Callable[..., Tensor], boxed: list[Boxed], spans: tuple[Span, ...], dim: int
) -> Tensor:
    return func([operand.at(spans) for operand in boxed], dim)


def _same_shape(boxed: list[Boxed]) -> bool:
    return len(boxed) == 2 and boxed[0].shape == boxed[1].shape and _alike(boxed)


def _alike(boxed: list[Boxed]) -> bool:
    """Whether maps have one floating type, so that their sum or concatenation has it too."""
    dtype = boxed[0].dtype
    return dtype.is_floating_point and all(operand.dtype == dtype for operand in boxed)


def _union(boxed: list[Boxed]) -> tuple[Span, ...]:
    """Where any of the maps can differ."""
    first = boxed[0]
    for operand in boxed[1:]:
        sizes = [span.size for span in operand.spans]
        same = operand.space == first.space and sizes == [span.size for span in first.spans]
        if not same or len(operand.shape) != len(first.shape):
            raise NoRule("its operands have different shapes")
    return tuple(
        reduce(Span.union, spans)
        for spans in zip(*(operand.spans for operand in boxed), strict=True)
    )


def _operand(
    state: PassState, operand: Any, like: Boxed, spans: tuple[Span, ...], same_shape: bool = False
) -> tuple[Any, Any]:
    """An operand at the joined boxes, and for the unperturbed example."""
    if isinstance(operand, Boxed):
        return operand.at(spans), operand.base
    if not isinstance(operand, Tensor) or operand.dim() == 0:
        return operand, operand
    if state.leaked:
        raise NoRule("values left the tensors before, so its operand may depend on the input")
    n_dims = len(like.shape)
    if operand.dim() == n_dims and len(operand) > 1:
        if not device_sync.is_true((operand == operand[:1]).all()):
            raise NoRule("its operand differs from copy to copy")
        operand = state.cache.constant(operand[:1])
    shape = (1,) * (n_dims - operand.dim()) + tuple(operand.shape)
    aligned = state.cache(torch.reshape, operand, shape)
    sizes = [aligned.shape[axis] for axis in like.space]
    if all(size == 1 for size in sizes) and not same_shape:
        return aligned, aligned
    if sizes != [span.size for span in spans]:
        raise NoRule("its operand has another extent")
    return read_boxes(aligned, spans, like.space), aligned
