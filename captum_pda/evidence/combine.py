"""Maps of several sizes, contexts and depths as one map, still in bits.

A question is a context and a depth: what is lost without a region, what it says by itself, what a
feature map says. Maps of several sizes answer one question, and their mean is its map. Questions
differ in how many bits they have by nature, so they are weighted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: A spread of this share of the largest one is no more than rounding.
ROUNDING = 1e-4


def weights(maps: Sequence[Tensor]) -> Tensor:
    """How much each map (N, *space) counts, (maps, N); the weights of an example add up to 1.

    A map's weight is the inverse of its spread s_k, its standard deviation over the pixels: a
    region says several times as many bits by itself as are lost without it, and these would drown
    the others.
    A map whose spread is but rounding tells no pixel from another, and counts only where all maps
    are so.
    """
    spreads = torch.stack([_spread(values) for values in maps])
    flat = spreads <= ROUNDING * spreads.amax(dim=0)
    inverse = torch.where(flat, 0, 1 / spreads.where(~flat, 1))
    inverse = torch.where(flat.all(dim=0), 1, inverse)
    return inverse / inverse.sum(dim=0)


def mean_map(maps: Sequence[Tensor], unfinished: bool = False) -> Tensor:
    """The mean of maps (N, *space) that answer one question; of ``unfinished`` ones, of those that
    know a pixel."""
    n_maps = maps[0].new_full((len(maps), len(maps[0])), 1 / len(maps))
    return _average(maps, n_maps, unfinished)


def weighted_mean(maps: Sequence[Tensor], unfinished: bool = False) -> Tensor:
    """M = sum_k (M_k / s_k) / sum_k (1 / s_k) of maps M_k (N, *space) with spreads s_k.

    Where one of them is NaN, so is M; of ``unfinished`` maps, the others are averaged alone.
    """
    return _average(maps, weights(maps), unfinished)


def _average(maps: Sequence[Tensor], shares: Tensor, unfinished: bool) -> Tensor:
    if len(maps) == 1:
        return maps[0]
    total = torch.zeros_like(maps[0])
    counted = torch.zeros_like(maps[0])
    for values, share in zip(maps, shares, strict=True):
        known = values.isfinite() if unfinished else torch.ones_like(values, dtype=torch.bool)
        per_pixel = share.reshape(-1, *[1] * (values.dim() - 1)) * known
        total += per_pixel * values.where(known, 0)
        counted += per_pixel
    return total / counted


def combined(questions: Sequence[Sequence[Tensor]], unfinished: bool = False) -> Tensor:
    """The weighted mean over questions of the mean map of each question."""
    return weighted_mean([mean_map(maps, unfinished) for maps in questions], unfinished)


def combined_weights(questions: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """How much each map counts in ``combined``, (maps of the question, N) for each question."""
    between = weights([mean_map(maps) for maps in questions])
    return [
        (share / len(maps)).expand(len(maps), -1)
        for maps, share in zip(questions, between, strict=True)
    ]


def _spread(values: Tensor) -> Tensor:
    """The standard deviation of each example's finite pixels, (N,)."""
    flat = values.flatten(1)
    known = flat.isfinite()
    count = known.sum(dim=1).clamp_min(1)
    mean = flat.where(known, 0).sum(dim=1, keepdim=True) / count.unsqueeze(1)
    squares = (flat - mean).square().where(known, 0).sum(dim=1)
    return (squares / count).sqrt()
