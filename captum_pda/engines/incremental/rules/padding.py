"""A constant around the map, which a convolution may add by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from captum_pda.engines.incremental.boxed import Boxed
from captum_pda.engines.incremental.no_rule import NoRule
from captum_pda.engines.incremental.pass_state import PassState
from captum_pda.engines.incremental.postponed import Postponed
from captum_pda.engines.incremental.rules.registry import rule
from captum_pda.engines.incremental.spans import Span


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
    func: Callable[..., Tensor],
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
    pairs = dict(
        zip(range(n_dims - 1, -1, -1), zip(amounts[::2], amounts[1::2], strict=True), strict=False)
    )
    if min(amounts, default=0) < 0 or pairs.get(0, (0, 0)) != (0, 0):
        raise NoRule("it cuts the map")
    if x.is_whole:
        return _pad_whole(state, func, x, pairs, (pad, mode, value))
    channels = [pairs.get(axis, (0, 0)) for axis in range(n_dims - 1, -1, -1)]
    spans = x.spans
    for number, axis in enumerate(x.space):
        before, after = pairs.get(axis, (0, 0))
        channels[n_dims - 1 - axis] = (0, 0)
        moved = spans[number].moved(before, spans[number].size + before + after)
        spans = (*spans[:number], moved, *spans[number + 1 :])
    values = x.values
    if any(pair != (0, 0) for pair in channels):
        values = F.pad(values, [amount for pair in channels for amount in pair], mode, value)
    return Boxed(values, spans, state.base(func, x.base, pad, mode, value), x.space)


def _pad_whole(
    state: PassState,
    func: Callable[..., Tensor],
    x: Boxed,
    pairs: dict[int, tuple[int, int]],
    arguments: tuple[Any, ...],
) -> Boxed:
    """Put a constant around maps that are held in full."""
    amounts = tuple(pairs.get(axis, (0, 0)) for axis in x.space)
    spans = tuple(
        Span.whole(span.size + sum(pair), x.n_copies)
        for span, pair in zip(x.spans, amounts, strict=True)
    )
    if not x.images or pairs.get(1, (0, 0)) != (0, 0) or arguments[2]:
        return Boxed(func(x.values, *arguments), spans, None, x.space)
    values = PostponedPadding(
        origin=state.origin(),
        shape=(*x.shape[:2], *(span.size for span in spans)),
        dtype=x.dtype,
        device=x.device,
        maps=x.values,
        amounts=amounts,
    )
    return Boxed(values, spans, None, x.space)
