"""Functions that rename, split, reorder or pad dimensions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.engines.incremental.boxes import Boxed, Span, whole_maps
from captum_pda.engines.incremental.cache import Function, PassState
from captum_pda.engines.incremental.rules import NoRule, rule

#: Strides of a probe without memory: primes that identify its axes in a view of it.
LABELS = (1000000007, 1000000009, 1000000021, 1000000033, 1000000087, 1000000093, 1000000097)

VIEWS = (
    "permute transpose swapaxes swapdims movedim moveaxis unsqueeze chunk split split_with_sizes "
    "tensor_split __getitem__"
)


@rule(VIEWS, aliases=True)
def view(state: PassState, func: Function, x: Boxed, *args: Any, **kwargs: Any) -> Any:
    """Dimensions in another order, or some of the channels."""
    labels = LABELS[: len(x.shape)]
    probe = torch.empty_strided(x.shape, labels, dtype=x.dtype, device="meta")
    views = func(probe, *args, **kwargs)
    spaces = [_space_in(part, probe, x) for part in _as_list(views)]
    parts = _as_list(func(x.values, *args, **kwargs))
    bases = [None] * len(parts)
    if x.base is not None:
        bases = _as_list(state.cache(func, x.base, *args, **kwargs))
    boxed = tuple(
        Boxed(part, x.spans, base, space)
        for part, base, space in zip(parts, bases, spaces, strict=True)
    )
    return boxed[0] if isinstance(views, Tensor) else boxed


def _as_list(views: Any) -> list[Any]:
    return [views] if isinstance(views, Tensor) else list(views)


def _space_in(part: Tensor, probe: Tensor, x: Boxed) -> tuple[int, ...]:
    """The dimensions of a view that are the spatial axes; copies and places must not change."""
    strides = part.stride()
    found = []
    for axis in (0, *x.space):
        label, size = probe.stride(axis), probe.shape[axis]
        if strides.count(label) != 1 or part.shape[strides.index(label)] != size:
            raise NoRule("it picks or joins copies or places")
        found.append(strides.index(label))
    if found[0] != 0:
        raise NoRule("the batch is no longer first")
    return tuple(found[1:])


@rule("view reshape flatten", aliases=True)
def reshape(state: PassState, func: Function, x: Boxed, *args: Any, **kwargs: Any) -> Boxed:
    """Channels split or merged, with the same batch and space."""
    n_axes, n_dims = len(x.space), len(x.shape)
    after = func(torch.empty(x.shape, dtype=x.dtype, device="meta"), *args, **kwargs)
    sizes = tuple(after.shape)
    if after.dtype != x.dtype:
        raise NoRule("it reads the numbers as another type")
    if x.space != tuple(range(n_dims - n_axes, n_dims)):
        raise NoRule("it merges channels that are last")
    if len(sizes) <= n_axes or (sizes[0], *sizes[-n_axes:]) != (x.n_copies, *x.shape[-n_axes:]):
        raise NoRule("it merges places or copies")
    lengths = (span.length for span in x.spans)
    boxes = x.values.reshape(*sizes[:-n_axes], *lengths)
    base = None if x.base is None else state.cache(torch.reshape, x.base, (1, *sizes[1:]))
    return Boxed(boxes, x.spans, base, tuple(range(len(sizes) - n_axes, len(sizes))))


@rule("pad")
def pad(
    state: PassState,
    func: Function,
    x: Boxed,
    pad: Any,
    mode: str = "constant",
    value: float | None = None,
) -> Boxed:
    """A constant around the map moves the boxes without changing their contents."""
    n_dims = len(x.shape)
    # PyTorch starts with the last dimension.
    pairs = [tuple(pad[number : number + 2]) for number in range(0, len(pad), 2)]
    pairs = [(0, 0)] * (n_dims - len(pairs)) + pairs[::-1]
    if mode != "constant" or min(pad, default=0) < 0:
        raise NoRule("it does not pad with a constant")
    if any(pair != (0, 0) for axis, pair in enumerate(pairs) if axis not in x.space):
        raise NoRule("it pads other dimensions than space")
    around = [pairs[axis] for axis in x.space]
    sizes = [span.size + sum(pair) for span, pair in zip(x.spans, around, strict=True)]
    if not x.is_whole:
        base = state.base(F.pad, x.base, pad, mode, value)
        spans = tuple(map(Span.moved, x.spans, [pair[0] for pair in around], sizes))
        return Boxed(x.values, spans, base, x.space)
    return whole_maps(F.pad(x.values, pad, mode, value), x)
