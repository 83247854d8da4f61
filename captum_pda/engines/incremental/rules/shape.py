"""Operations that rename, split, reorder or pad dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.engines.incremental.boxes import Boxed, Postponed, Span
from captum_pda.engines.incremental.cache import Function, PassState
from captum_pda.engines.incremental.rules import NoRule, rule


@rule("permute", aliases=True)
def permute(state: PassState, func: Function, x: Boxed, *dims: Any) -> Boxed:
    """The dimensions in another order; the batch stays first."""
    order = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    order = [dim % len(x.shape) for dim in order]
    if order[0] != 0:
        raise NoRule("the batch is no longer first")
    space = tuple(order.index(axis) for axis in x.space)
    base = None if x.base is None else state.cache(torch.permute, x.base, order)
    return x.like(x.values.permute(order), base, space)


@rule("transpose swapaxes swapdims", aliases=True)
def transpose(state: PassState, func: Function, x: Boxed, dim0: int, dim1: int) -> Boxed:
    """Two dimensions exchanged."""
    order = list(range(len(x.shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(state, func, x, order)


@rule("movedim moveaxis", aliases=True)
def movedim(state: PassState, func: Function, x: Boxed, source: Any, target: Any) -> Boxed:
    """Dimensions moved elsewhere."""
    order = torch.empty(tuple(range(len(x.shape))), device="meta")
    moved = torch.movedim(order, source, target)
    return permute(state, func, x, [int(size) for size in moved.shape])


@rule("view reshape", aliases=True)
def reshape(state: PassState, func: Function, x: Boxed, *shape: Any) -> Boxed:
    """Channels split or merged, with batch and space as they are."""
    wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if isinstance(wanted, torch.dtype):
        raise NoRule("it reads the numbers as another type")
    sizes = list(torch.empty(x.shape, device="meta").reshape(tuple(wanted)).shape)
    return _regroup(state, x, sizes)


@rule("flatten", aliases=True)
def flatten(
    state: PassState, func: Function, x: Boxed, start_dim: int = 0, end_dim: int = -1
) -> Boxed:
    """Dimensions merged, as long as these are only channels."""
    sizes = list(torch.empty(x.shape, device="meta").flatten(start_dim, end_dim).shape)
    return _regroup(state, x, sizes)


@rule("unsqueeze", aliases=True)
def unsqueeze(state: PassState, func: Function, x: Boxed, dim: int) -> Boxed:
    """A new dimension of one."""
    sizes = list(torch.empty(x.shape, device="meta").unsqueeze(dim).shape)
    return _regroup(state, x, sizes)


def _regroup(state: PassState, x: Boxed, sizes: list[int]) -> Boxed:
    """Give the dimensions between batch and space other sizes."""
    n_axes = len(x.space)
    n_dims = len(x.shape)
    kept = [span.size for span in x.spans]
    if x.space != tuple(range(n_dims - n_axes, n_dims)):
        raise NoRule("it merges channels that are last")
    if len(sizes) <= n_axes or sizes[-n_axes:] != kept or sizes[0] != x.n_copies:
        raise NoRule("it merges places or copies")
    middle = sizes[1:-n_axes]
    space = tuple(range(len(sizes) - n_axes, len(sizes)))
    boxes = x.values.reshape(x.n_copies, *middle, *(span.length for span in x.spans))
    base = None if x.base is None else state.cache(torch.reshape, x.base, (1, *sizes[1:]))
    return x.like(boxes, base, space)


@rule("chunk split split_with_sizes tensor_split", aliases=True)
def split(state: PassState, func: Function, x: Boxed, sizes: Any, dim: int = 0) -> Any:
    """The channels in parts (``chunk``, ``split`` and the like)."""
    if dim % len(x.shape) in (0, *x.space):
        raise NoRule("it splits copies or places")
    parts = func(x.values, sizes, dim)
    bases = [None] * len(parts) if x.base is None else state.cache(func, x.base, sizes, dim)
    return tuple(x.like(part, base) for part, base in zip(parts, bases, strict=True))


@rule("__getitem__", aliases=True)
def index(state: PassState, func: Function, x: Boxed, key: Any) -> Boxed:
    """Some channels: ``x[:, 3]``, ``x[:, :8]`` and the like."""
    keys = list(key) if isinstance(key, tuple) else [key]
    plain = (isinstance(part, int | slice) or part is Ellipsis for part in keys)
    # True and False are integers to Python, and masks to PyTorch.
    if not all(plain) or any(isinstance(part, bool) for part in keys):
        raise NoRule("it picks by more than numbers and slices")
    if keys.count(Ellipsis) > 1:
        raise NoRule("it picks by more than numbers and slices")
    missing = len(x.shape) - len([part for part in keys if part is not Ellipsis])
    place = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
    keys[place : place + 1] = [slice(None)] * missing
    if any(keys[axis] != slice(None) for axis in (0, *x.space)):
        raise NoRule("it picks copies or places")
    dropped = [axis for axis, part in enumerate(keys) if isinstance(part, int)]
    space = tuple(axis - sum(drop < axis for drop in dropped) for axis in x.space)
    base = None if x.base is None else state.cache(func, x.base, tuple(keys))
    return x.like(func(x.values, tuple(keys)), base, space)


@dataclass(frozen=True, kw_only=True)
class PostponedPadding(Postponed):
    """Maps with zeros around them, which a convolution can add by itself.

    ``amounts`` are the zeros before and after the map along each spatial axis.
    """

    maps: Tensor
    amounts: tuple[tuple[int, int], ...]

    def make(self) -> Tensor:
        flat = [amount for pair in reversed(self.amounts) for amount in pair]
        return F.pad(self.maps, flat)


@rule("pad")
def pad(
    state: PassState,
    func: Function,
    x: Boxed,
    pad: Any,
    mode: str = "constant",
    value: float | None = None,
) -> Boxed:
    """A constant around the map moves the boxes and leaves what is in them."""
    if mode != "constant":
        raise NoRule(f"its mode is {mode!r}")
    amounts = list(pad)
    n_dims = len(x.shape)
    # PyTorch gives the last dimension first.
    pairs = dict.fromkeys(range(n_dims), (0, 0))
    for number, pair in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        pairs[n_dims - 1 - number] = pair
    if min(amounts, default=0) < 0 or pairs[0] != (0, 0):
        raise NoRule("it cuts the map")
    around = tuple(pairs[axis] for axis in x.space)
    sizes = [span.size + sum(pair) for span, pair in zip(x.spans, around, strict=True)]
    if not x.is_whole:
        base = state.base(func, x.base, pad, mode, value)
        before = [pair[0] for pair in around]
        spans = tuple(map(Span.moved, x.spans, before, sizes))
        pairs |= dict.fromkeys(x.space, (0, 0))
        channels = [amount for axis in reversed(range(n_dims)) for amount in pairs[axis]]
        values = F.pad(x.values, channels, mode, value) if any(channels) else x.values
        return Boxed(values, spans, base, x.space)
    spans = tuple(Span.whole(size, x.n_copies) for size in sizes)
    if not x.images or pairs[1] != (0, 0) or value:
        return Boxed(func(x.values, pad, mode, value), spans, None, x.space)
    postponed = PostponedPadding(
        origin=state.origin(),
        shape=(*x.shape[:2], *sizes),
        dtype=x.dtype,
        device=x.device,
        maps=x.values,
        amounts=around,
    )
    return Boxed(postponed, spans, None, x.space)
