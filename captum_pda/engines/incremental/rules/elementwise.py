"""Functions of single pixels, and arithmetic of several maps."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines.incremental.boxes import Boxed, Span, read_boxes
from captum_pda.engines.incremental.cache import Function, PassState, find
from captum_pda.engines.incremental.rules import NoRule, rule

#: Functions of single numbers, under all their names in PyTorch.
POINTWISE = (
    "abs atan ceil celu clamp clamp_max clamp_min clip cos elu erf exp expm1 floor gelu hardshrink "
    "hardsigmoid hardswish hardtanh leaky_relu log log1p logsigmoid mish nan_to_num neg negative "
    "reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin softplus softshrink softsign "
    "sqrt square tanh tanhshrink threshold trunc __neg__ __abs__"
)


@rule(POINTWISE, in_place=True)
def pointwise(state: PassState, func: Function, x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """Each number by itself."""
    if find((args, kwargs), Tensor):
        raise NoRule("an argument is a tensor")
    return per_pixel(state, func, x, *args, **kwargs)


def per_pixel(state: PassState, func: Function, x: Any, *args: Any, **kwargs: Any) -> Boxed:
    """A function of each pixel, with weights that do not depend on the input."""
    if not isinstance(x, Boxed) or find((args, kwargs), Boxed):
        raise NoRule("its weights depend on the input")
    base = None if x.is_whole else state.base(func, x.base, *args, **kwargs)
    return Boxed(func(x.values, *args, **kwargs), x.spans, base, x.space)


@rule("dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout", aliases=True)
def dropout(
    state: PassState, func: Function, x: Boxed, p: float = 0.5, training: bool = True
) -> Boxed:
    """The identity outside of training."""
    if training:
        raise NoRule("it is in training mode")
    return x


@rule("contiguous detach alias positive __pos__", aliases=True)
def unchanged(state: PassState, func: Function, x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """The same numbers, perhaps in other memory."""
    return x


@rule("clone")
def copied(state: PassState, func: Function, x: Boxed, **kwargs: Any) -> Boxed:
    """A copy, which shares memory here because boxes are never written."""
    return Boxed(x.values, x.spans, x.base, x.space)


@rule("linear", saves=True)
def linear(state: PassState, func: Function, x: Any, weight: Any, bias: Any = None) -> Boxed:
    """A product with the last dimension, if it holds a pixel's channels."""
    _check_last(x, 1)
    return per_pixel(state, func, x, weight, bias)


@rule("layer_norm")
def layer_norm(
    state: PassState, func: Function, x: Any, normalized_shape: Any, *args: Any, **kwargs: Any
) -> Boxed:
    """Norms of the last dimensions, if they hold a pixel's channels."""
    _check_last(x, len(normalized_shape))
    return per_pixel(state, func, x, normalized_shape, *args, **kwargs)


def _check_last(x: Any, count: int) -> None:
    if not isinstance(x, Boxed):
        raise NoRule("its weights depend on the input")
    n_dims = len(x.shape)
    if {0, *x.space}.intersection(range(n_dims - count, n_dims)):
        raise NoRule("it mixes places")


@rule("to cpu cuda type_as double float half bfloat16")
def convert(state: PassState, func: Function, x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """A change of type or device; a memory format is not changed."""
    memory_format = kwargs.pop("memory_format", None)
    if memory_format is not None and func is Tensor.to and not args and not kwargs:
        return x
    like, *args = (  # type: ignore[assignment]
        torch.empty((), dtype=given.dtype, device=given.device)
        if isinstance(given, Boxed)
        else given
        for given in (x, *args)
    )
    if func(like, *args, **kwargs) is like:
        return x
    return per_pixel(state, func, x, *args, **kwargs)


#: Functions of two maps, number by number.
ELEMENTWISE = (
    "add div divide eq ge gt le lt maximum minimum mul multiply ne pow rsub sub subtract "
    "true_divide __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ "
    "__rdiv__ __div__ __pow__ __rpow__"
)


@rule(ELEMENTWISE, in_place=True)
def elementwise(
    state: PassState, func: Function, one: Any, other: Any, *args: Any, **kwargs: Any
) -> Boxed:
    """Arithmetic of two maps, or of a map and constants."""
    if find((args, kwargs), (Tensor, Boxed)):
        raise NoRule("it has more than two operands")
    first, spans = _joined(one, other)
    base = None
    if not all(span.is_whole for span in spans):
        bases = [_unperturbed(state, operand, first) for operand in (one, other)]
        base = state.base(func, *bases, *args, **kwargs)
    operands = [_in_boxes(state, operand, first, spans) for operand in (one, other)]
    values = func(*operands, *args, **kwargs)
    return Boxed(values, spans, base, first.space)


@rule("cat concat concatenate")
def concatenate(state: PassState, func: Function, tensors: Any, dim: int = 0) -> Boxed:
    """Concatenate maps along a dimension that is neither spatial nor the batch."""
    first, spans = _joined(*tensors)
    if dim % len(first.shape) in (0, *first.space):
        raise NoRule("it joins copies or places")
    values = func([_in_boxes(state, operand, first, spans, True) for operand in tensors], dim)
    base = None
    if not all(span.is_whole for span in spans):
        base = state.base(func, [_unperturbed(state, part, first) for part in tensors], dim)
    return Boxed(values, spans, base, first.space)


def _joined(*operands: Any) -> tuple[Boxed, tuple[Span, ...]]:
    """The first perturbed operand, and the places where any of them can differ."""
    boxed = find(operands, Boxed)
    first = boxed[0]
    places = [(len(one.shape), one.space, *(span.size for span in one.spans)) for one in boxed]
    if places.count(places[0]) < len(places):
        raise NoRule("its operands have different shapes")
    spans = zip(*(operand.spans for operand in boxed), strict=True)
    return first, tuple(reduce(Span.union, along) for along in spans)


def _unperturbed(state: PassState, operand: Any, like: Boxed) -> Any:
    """An operand for the unperturbed example, with as many dimensions as the maps."""
    if isinstance(operand, Boxed):
        # Boxes that cover the map, joined with others: the union covers it too.
        return operand.base
    if not isinstance(operand, Tensor) or operand.dim() == 0:
        return operand
    if state.leaked:
        raise NoRule("values left the tensors before, so its operand may depend on the input")
    n_dims = len(like.shape)
    if operand.dim() > n_dims:
        raise NoRule("its operand has more dimensions")
    if operand.dim() == n_dims and len(operand) > 1:
        if not device_sync.is_true((operand == operand[:1]).all()):
            raise NoRule("its operand differs from copy to copy")
        operand = operand[:1]
    shape = (1,) * (n_dims - operand.dim()) + tuple(operand.shape)
    return state.cache(torch.reshape, operand, shape)


def _in_boxes(
    state: PassState, operand: Any, like: Boxed, spans: tuple[Span, ...], in_full: bool = False
) -> Any:
    """An operand at the joined boxes; ``in_full`` where it is not broadcast."""
    if isinstance(operand, Boxed):
        return operand.at(spans)
    aligned = _unperturbed(state, operand, like)
    if not isinstance(aligned, Tensor) or aligned.dim() == 0:
        return aligned
    sizes = [aligned.shape[axis] for axis in like.space]
    if all(size == 1 for size in sizes) and not in_full:
        return aligned
    if sizes != [span.size for span in spans]:
        raise NoRule("its operand has another extent")
    return read_boxes(aligned, spans, like.space)
