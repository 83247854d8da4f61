"""Operations on every pixel alone, on a box as on a map, and arithmetic of several maps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines.incremental.boxes import Boxed, Postponed, Span, postpone, read_boxes
from captum_pda.engines.incremental.cache import Function, PassState
from captum_pda.engines.incremental.rules import NoRule, rule

#: Functions of every number by itself, under all the names that PyTorch gives them.
POINTWISE = (
    "abs acos acosh asin asinh atan atanh ceil celu clamp clamp_max clamp_min clip cos cosh "
    "deg2rad elu erf erfc exp exp2 expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh "
    "leaky_relu log log10 log1p log2 logit logsigmoid mish nan_to_num neg negative rad2deg "
    "reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin sinc sinh softplus softshrink "
    "softsign sqrt square tan tanh tanhshrink threshold trunc __neg__ __abs__"
)
#: Activations that can overwrite values that nothing else reads.
OVERWRITING: dict[Callable[..., Any], Callable[..., Tensor]] = {
    **{
        func: partial(func, inplace=True)
        for func in (F.relu, F.relu6, F.hardtanh, F.silu, F.hardswish, F.hardsigmoid, F.elu)
    },
    torch.relu: torch.relu_,
    torch.Tensor.relu: torch.relu_,
    torch.sigmoid: torch.sigmoid_,
    torch.Tensor.sigmoid: torch.sigmoid_,
}


@rule(POINTWISE, in_place=True)
def pointwise(state: PassState, func: Function, x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """Each number by itself."""
    if any(isinstance(argument, Tensor | Boxed) for argument in (*args, *kwargs.values())):
        raise NoRule("an argument is a tensor")
    if x.postponed is not None and func in OVERWRITING:
        base = None if x.is_whole else state.base(func, x.base, *args, **kwargs)
        in_place = OVERWRITING[func]
        postponed = x.postponed.then(lambda values: in_place(values, *args, **kwargs))
        return Boxed(postponed, x.spans, base, x.space)
    return per_pixel(state, func, x, *args, **kwargs)


def per_pixel(state: PassState, func: Function, x: Any, *args: Any, **kwargs: Any) -> Boxed:
    """The same function of every pixel, with weights that do not depend on the input."""
    if not isinstance(x, Boxed) or any(
        isinstance(argument, Boxed) for argument in (*args, *kwargs.values())
    ):
        raise NoRule("its weights depend on the input")
    base = None if x.is_whole else state.base(func, x.base, *args, **kwargs)
    return x.like(func(x.values, *args, **kwargs), base)


@rule("dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout", aliases=True)
def dropout(
    state: PassState, func: Function, x: Boxed, p: float = 0.5, training: bool = True
) -> Boxed:
    """Nothing happens outside training."""
    if training:
        raise NoRule("it is in training mode")
    return x


@rule("contiguous detach alias positive __pos__", aliases=True)
def unchanged(state: PassState, func: Function, x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """The same numbers, perhaps in another place of memory."""
    return x


@rule("clone")
def copied(state: PassState, func: Function, x: Boxed, **kwargs: Any) -> Boxed:
    """The same numbers in memory of their own; shared here, since boxes are never written."""
    return x.like(x.postponed or x.values, x.base)


@rule("linear", saves=True)
def linear(state: PassState, func: Function, x: Any, weight: Any, bias: Any = None) -> Boxed:
    """A product with the last dimension, where that holds a pixel's channels."""
    _check_last(x, 1)
    return per_pixel(state, func, x, weight, bias)


@rule("layer_norm")
def layer_norm(
    state: PassState,
    func: Function,
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Boxed:
    """Norms of the last dimensions, where these hold a pixel's channels."""
    _check_last(x, len(normalized_shape))
    return per_pixel(state, func, x, normalized_shape, weight, bias, eps)


@rule("softmax log_softmax")
def softmax(state: PassState, func: Function, x: Boxed, dim: Any, **kwargs: Any) -> Boxed:
    """A softmax over channels."""
    if not isinstance(dim, int) or dim % len(x.shape) in (0, *x.space):
        raise NoRule("it mixes other dimensions than the channels")
    return per_pixel(state, func, x, dim=dim, **kwargs)


@rule("prelu local_response_norm")
def channels_first(state: PassState, func: Function, x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """A function of each pixel's channels, which it expects in dimension 1."""
    if not isinstance(x, Boxed) or not x.images:
        raise NoRule("its input is not a batch of images")
    return per_pixel(state, func, x, *args, **kwargs)


def _check_last(x: Any, count: int) -> None:
    if not isinstance(x, Boxed):
        raise NoRule("its weights depend on the input")
    n_dims = len(x.shape)
    if {0, *x.space}.intersection(range(n_dims - count, n_dims)):
        raise NoRule("it mixes places")


@rule("to cpu cuda type_as double float half bfloat16")
def convert(state: PassState, func: Function, x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """Another type or device; a memory format is not changed."""
    memory_format = kwargs.pop("memory_format", None)
    if memory_format is not None and func is Tensor.to and not args and not kwargs:
        return x
    like = torch.empty((), dtype=x.dtype, device=x.device)
    args = tuple(
        torch.empty((), dtype=argument.dtype, device=argument.device)
        if isinstance(argument, Boxed)
        else argument
        for argument in args
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
#: Functions that add two maps.
SUMS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}


@rule(ELEMENTWISE, in_place=True)
def elementwise(
    state: PassState, func: Function, one: Any, other: Any, *args: Any, **kwargs: Any
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
    same_shape = len(boxed) == 2 and boxed[0].shape == boxed[1].shape and _alike(boxed)
    if func in SUMS and not args and not kwargs and same_shape:
        return _sum(state, func, boxed[0], boxed[1], spans)
    pairs = [_operand(state, operand, boxed[0], spans) for operand in operands]
    values = func(*(pair[0] for pair in pairs), *args, **kwargs)
    if all(span.is_whole for span in spans):
        return Boxed(values, spans, None, boxed[0].space)
    base = state.base(func, *(pair[1] for pair in pairs), *args, **kwargs)
    return Boxed(values, spans, base, boxed[0].space)


def _sum(
    state: PassState, func: Function, one: Boxed, other: Boxed, spans: tuple[Span, ...]
) -> Boxed:
    """A sum, added in place to a convolution's result that nothing else has read."""
    for operand in (one, other):
        if type(operand.postponed) is Postponed:  # not a convolution or padding
            operand.values  # noqa: B018 - computed now, since it may be needed again
    whole = all(span.is_whole for span in spans)
    base = None if whole else state.base(func, one.base, other.base)
    return postpone(state.origin(), partial(_added, one, other, spans), one, spans, base)


def _added(one: Boxed, other: Boxed, spans: tuple[Span, ...]) -> Tensor:
    for into, added in ((one, other), (other, one)):
        if into.postponed is not None and into.lies_at(spans):
            return into.postponed.compute().add_(added.at(spans))
    return torch.add(one.at(spans), other.at(spans))


@rule("cat concat concatenate")
def concatenate(state: PassState, func: Function, maps: Any, dim: int = 0) -> Boxed:
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
