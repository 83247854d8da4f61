"""Operations that act on every pixel alone: on a box as on a map."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.engines.incremental.boxed import Boxed
from captum_pda.engines.incremental.no_rule import GoDense
from captum_pda.engines.incremental.pass_state import Run

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


def pointwise(run: Run, func: Callable[..., Any], x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """Each number by itself."""
    if any(isinstance(argument, Tensor | Boxed) for argument in (*args, *kwargs.values())):
        raise GoDense("an argument is a tensor")
    if x.postponed is not None and func in OVERWRITING:
        base = None if x.is_whole else run.base(func, x.base, *args, **kwargs)
        overwrite = _with(OVERWRITING[func], args, kwargs)
        return Boxed(x.postponed.then(overwrite), x.spans, base, x.space)
    return per_pixel(run, func, x, *args, **kwargs)


def _with(
    func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Tensor], Tensor]:
    return lambda values: func(values, *args, **kwargs)


def per_pixel(run: Run, func: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Boxed:
    """The same function of every pixel, with weights that do not depend on the input."""
    if not isinstance(x, Boxed) or any(
        isinstance(argument, Boxed) for argument in (*args, *kwargs.values())
    ):
        raise GoDense("its weights depend on the input")
    base = None if x.is_whole else run.base(func, x.base, *args, **kwargs)
    return x.like(func(x.values, *args, **kwargs), base)


def dropout(
    run: Run,
    func: Callable[..., Tensor],
    x: Boxed,
    p: float = 0.5,
    training: bool = True,
) -> Boxed:
    """Nothing happens outside training."""
    if training:
        raise GoDense("it is in training mode")
    return x


def unchanged(run: Run, func: Callable[..., Any], x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """The same numbers, perhaps in another place of memory."""
    return x


def linear(run: Run, func: Callable[..., Tensor], x: Any, weight: Any, bias: Any = None) -> Boxed:
    """A product with the last dimension, where that holds a pixel's channels."""
    _check_last(x, 1)
    return per_pixel(run, func, x, weight, bias)


def layer_norm(
    run: Run,
    func: Callable[..., Tensor],
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Boxed:
    """Norms of the last dimensions, where these hold a pixel's channels."""
    _check_last(x, len(normalized_shape))
    return per_pixel(run, func, x, normalized_shape, weight, bias, eps)


def softmax(run: Run, func: Callable[..., Tensor], x: Boxed, dim: Any, **kwargs: Any) -> Boxed:
    """A softmax over channels."""
    if not isinstance(dim, int) or dim % len(x.shape) in (0, *x.space):
        raise GoDense("it mixes other dimensions than the channels")
    return per_pixel(run, func, x, dim=dim, **kwargs)


def channels_first(
    run: Run, func: Callable[..., Tensor], x: Boxed, *args: Any, **kwargs: Any
) -> Boxed:
    """A function of each pixel's channels, which it expects in dimension 1."""
    if not isinstance(x, Boxed) or not x.images:
        raise GoDense("its input is no batch of images")
    return per_pixel(run, func, x, *args, **kwargs)


def _check_last(x: Any, count: int) -> None:
    if not isinstance(x, Boxed):
        raise GoDense("its weights depend on the input")
    n_dims = len(x.shape)
    if {0, *x.space}.intersection(range(n_dims - count, n_dims)):
        raise GoDense("it mixes places")


def convert(run: Run, func: Callable[..., Tensor], x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """Another type or device; a memory format is not changed."""
    kwargs.pop("memory_format", None)
    if not args and not kwargs:
        return x
    if any(isinstance(argument, Boxed) for argument in args):
        raise GoDense("it follows another perturbed tensor")
    return per_pixel(run, func, x, *args, **kwargs)
