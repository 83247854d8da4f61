"""Operations that act on every pixel alone: on a box as on a map."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.engines.incremental.boxed import Boxed
from captum_pda.engines.incremental.no_rule import NoRule
from captum_pda.engines.incremental.pass_state import PassState
from captum_pda.engines.incremental.rules.registry import rule

#: Functions of every number by itself, under all the names that PyTorch gives them.
POINTWISE = (
    "abs acos acosh asin asinh atan atanh ceil celu clamp clamp_max clamp_min clip cos cosh "
    "deg2rad elu erf erfc exp exp2 expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh "
    "leaky_relu log log10 log1p log2 logit logsigmoid mish nan_to_num neg negative rad2deg "
    "reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin sinc sinh softplus softshrink "
    "softsign sqrt square tan tanh tanhshrink threshold trunc __neg__ __abs__"
)
#: Activations that can overwrite what nobody else has seen.
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
def pointwise(
    state: PassState, func: Callable[..., Any], x: Boxed, *args: Any, **kwargs: Any
) -> Boxed:
    """Each number by itself."""
    if any(isinstance(argument, Tensor | Boxed) for argument in (*args, *kwargs.values())):
        raise NoRule("an argument is a tensor")
    if x.postponed is not None and func in OVERWRITING:
        base = None if x.is_whole else state.base(func, x.base, *args, **kwargs)
        overwrite = _with(OVERWRITING[func], args, kwargs)
        return Boxed(x.postponed.then(overwrite), x.spans, base, x.space)
    return per_pixel(state, func, x, *args, **kwargs)


def _with(
    func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Tensor], Tensor]:
    return lambda values: func(values, *args, **kwargs)


def per_pixel(
    state: PassState, func: Callable[..., Any], x: Any, *args: Any, **kwargs: Any
) -> Boxed:
    """The same function of every pixel, with weights that do not depend on the input."""
    if not isinstance(x, Boxed) or any(
        isinstance(argument, Boxed) for argument in (*args, *kwargs.values())
    ):
        raise NoRule("its weights depend on the input")
    base = None if x.is_whole else state.base(func, x.base, *args, **kwargs)
    return x.like(func(x.values, *args, **kwargs), base)


@rule("dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout", aliases=True)
def dropout(
    state: PassState,
    func: Callable[..., Tensor],
    x: Boxed,
    p: float = 0.5,
    training: bool = True,
) -> Boxed:
    """Nothing happens outside training."""
    if training:
        raise NoRule("it is in training mode")
    return x


@rule("contiguous detach alias positive __pos__", aliases=True)
def unchanged(
    state: PassState, func: Callable[..., Any], x: Boxed, *args: Any, **kwargs: Any
) -> Boxed:
    """The same numbers, perhaps in another place of memory."""
    return x


@rule("clone")
def copied(state: PassState, func: Callable[..., Any], x: Boxed, **kwargs: Any) -> Boxed:
    """The same numbers in memory of their own; since none is ever written, one will do here."""
    return x.copy()


@rule("linear", saves=True)
def linear(
    state: PassState, func: Callable[..., Tensor], x: Any, weight: Any, bias: Any = None
) -> Boxed:
    """A product with the last dimension, where that holds a pixel's channels."""
    _check_last(x, 1)
    return per_pixel(state, func, x, weight, bias)


@rule("layer_norm")
def layer_norm(
    state: PassState,
    func: Callable[..., Tensor],
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
def softmax(
    state: PassState, func: Callable[..., Tensor], x: Boxed, dim: Any, **kwargs: Any
) -> Boxed:
    """A softmax over channels."""
    if not isinstance(dim, int) or dim % len(x.shape) in (0, *x.space):
        raise NoRule("it mixes other dimensions than the channels")
    return per_pixel(state, func, x, dim=dim, **kwargs)


@rule("prelu local_response_norm")
def channels_first(
    state: PassState, func: Callable[..., Tensor], x: Boxed, *args: Any, **kwargs: Any
) -> Boxed:
    """A function of each pixel's channels, which it expects in dimension 1."""
    if not isinstance(x, Boxed) or not x.images:
        raise NoRule("its input is no batch of images")
    return per_pixel(state, func, x, *args, **kwargs)


def _check_last(x: Any, count: int) -> None:
    if not isinstance(x, Boxed):
        raise NoRule("its weights depend on the input")
    n_dims = len(x.shape)
    if {0, *x.space}.intersection(range(n_dims - count, n_dims)):
        raise NoRule("it mixes places")


@rule("to cpu cuda type_as double float half bfloat16")
def convert(
    state: PassState, func: Callable[..., Tensor], x: Boxed, *args: Any, **kwargs: Any
) -> Boxed:
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
