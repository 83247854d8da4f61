"""Maps of several sizes, contexts and depths as one map, still in bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: A spread of this share of the largest one is no more than rounding.
ROUNDING = 1e-4


def weights(maps: Sequence[Tensor]) -> Tensor:
    """How much each map (N, *space) counts, (maps, N); the weights of an example add up to 1.

    A map's weight is the inverse of its spread s_k, its standard deviation over the pixels: large
    windows change a prediction by more bits than small ones, and would drown them otherwise.
    A map whose spread is but rounding tells no pixel from another, and counts only where all maps
    are so.
    """
    spreads = torch.stack([_spread(values) for values in maps])
    flat = spreads <= ROUNDING * spreads.amax(dim=0)
    inverse = torch.where(flat, 0, 1 / spreads.where(~flat, 1))
    inverse = torch.where(flat.all(dim=0), 1, inverse)
    return inverse / inverse.sum(dim=0)


def weighted_mean(maps: Sequence[Tensor], unfinished: bool = False) -> Tensor:
    """M = sum_k (M_k / s_k) / sum_k (1 / s_k) of maps M_k (N, *space) with spreads s_k.

    Where one of them is NaN, so is M; of ``unfinished`` maps, the others are averaged alone.
    """
    if len(maps) == 1:
        return maps[0]
    total = torch.zeros_like(maps[0])
    counted = torch.zeros_like(maps[0])
    for values, weight in zip(maps, weights(maps), strict=True):
        known = values.isfinite() if unfinished else torch.ones_like(values, dtype=torch.bool)
        per_pixel = weight.reshape(-1, *[1] * (values.dim() - 1)) * known
        total += per_pixel * values.where(known, 0)
        counted += per_pixel
    return total / counted


def combined(groups: Sequence[Sequence[Tensor]], unfinished: bool = False) -> Tensor:
    """The weighted mean of each group of maps, and of those means."""
    return weighted_mean([weighted_mean(maps, unfinished) for maps in groups], unfinished)


def combined_weights(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """How much each map counts in ``combined``, (maps of the group, N) for each group."""
    between = weights([weighted_mean(maps) for maps in groups])
    return [weights(maps) * share for maps, share in zip(groups, between, strict=True)]


def _spread(values: Tensor) -> Tensor:
    """The standard deviation of each example's finite pixels, (N,)."""
    flat = values.flatten(1)
    known = flat.isfinite()
    count = known.sum(dim=1).clamp_min(1)
    mean = flat.where(known, 0).sum(dim=1, keepdim=True) / count.unsqueeze(1)
    squares = (flat - mean).square().where(known, 0).sum(dim=1)
    return (squares / count).sqrt()
