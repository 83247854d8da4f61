"""Functions that ask a tensor for its kind alone: shape, type and device, never its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from captum_pda.engines.incremental.boxed import Boxed
from captum_pda.engines.incremental.pass_state import CHANNELS_LAST
from captum_pda.engines.incremental.rules.registry import named
from captum_pda.engines.incremental.tensor import PerturbedTensor
from captum_pda.engines.incremental.trees import find, replace

#: What can be asked of a tensor without reading its values.
PROPERTIES = (
    "device dtype grad grad_fn is_cpu is_cuda is_leaf is_meta is_mkldnn is_mps is_nested "
    "is_quantized is_sparse itemsize layout names nbytes ndim output_nr requires_grad "
    "retains_grad shape"
)
METHODS = (
    "dim element_size get_device has_names is_complex is_conj is_contiguous is_floating_point "
    "is_inference is_neg is_pinned is_same_size is_shared is_signed ndimension nelement numel "
    "size storage_offset stride __len__"
)
DESCRIPTIVE = {
    *(getattr(Tensor, name).__get__ for name in PROPERTIES.split() if hasattr(Tensor, name)),
    *named(METHODS),
}
#: Functions that make a tensor of the kind of their first argument.
FACTORIES = set(
    named(
        "zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros "
        "new_ones new_empty new_empty_strided new_full new_tensor"
    )
)
#: Functions of their first argument that take only the kind of the others.
OF_ANOTHER_KIND = set(named("to type_as expand_as view_as reshape_as"))


def describes(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether a function only tells of a perturbed tensor, its first argument."""
    return func in DESCRIPTIVE and bool(args) and isinstance(args[0], PerturbedTensor)


def describe(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function tells of a perturbed tensor, its first argument."""
    first: PerturbedTensor = args[0]
    rest = replace(args[1:], PerturbedTensor, _of_its_kind)
    # A tensor in boxes has the shape of its maps; one that is held may have changed it.
    return func(first if isinstance(first.held, Boxed) else first.held, *rest, **kwargs)


def needs_only_kinds(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the result does not depend on the values of any perturbed tensor."""
    if func in FACTORIES:
        others = (args[1:], {k: v for k, v in kwargs.items() if k not in ("input", "self")})
        return next(find(others, PerturbedTensor), None) is None
    first = args[0] if args else None
    return func in OF_ANOTHER_KIND and type(first) is not PerturbedTensor


def with_kinds(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function with ordinary tensors of the kinds of perturbed ones."""
    args, kwargs = replace((args, kwargs), PerturbedTensor, _of_its_kind)
    return func(*args, **kwargs)


def _of_its_kind(tensor: PerturbedTensor) -> Tensor:
    held = tensor.held
    if not isinstance(held, Boxed):
        return held
    layout = CHANNELS_LAST.get(len(held.shape)) if tensor.follower.channels_last else None
    return torch.empty(
        held.shape,
        dtype=held.dtype,
        device=held.device,
        memory_format=layout or torch.contiguous_format,
    )
