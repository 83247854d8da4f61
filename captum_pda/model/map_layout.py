"""How a layer's output holds a feature map: channels first, channels last, or tokens of a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

#: A transformer has at most so many tokens (class token, registers) besides those of its patches.
MOST_EXTRA_TOKENS = 8


@dataclass(frozen=True)
class MapLayout:
    """Where channels and places of a feature map are in a tensor.

    Args:
        space: the map's spatial shape.
        extra: tokens before those of the places, which are left alone.
        kind: "channels first", "channels last" or "tokens" (N, tokens, channels).
    """

    space: tuple[int, ...]
    extra: int = 0
    kind: str = "channels first"

    def to_map(self, values: Tensor) -> Tensor:
        """The feature map (N, C, *space) of a layer's output."""
        if self.kind == "channels first":
            return values
        if self.kind == "channels last":
            return values.movedim(-1, 1)
        places = values[:, self.extra :].transpose(1, 2)
        return places.reshape(*places.shape[:2], *self.space)

    def put(self, maps: Tensor, values: Tensor) -> Tensor:
        """A layer's output for feature maps (rows, C, *space); ``values`` is its output for one of
        them or for all, whose extra tokens are kept."""
        if self.kind == "channels first":
            return maps
        if self.kind == "channels last":
            return maps.movedim(1, -1)
        places = maps.flatten(2).transpose(1, 2)
        if self.extra == 0:
            return places
        kept = values[:, : self.extra].expand(len(maps), -1, -1)
        return torch.cat([kept, places], dim=1)


def map_layout(shape: tuple[int, ...], space: tuple[int, ...]) -> MapLayout | None:
    """How a tensor of this shape holds a feature map of inputs with this spatial shape.

    A tensor with as many spatial dimensions as the input has its channels first, or last if only
    the dimensions in the middle have the input's proportions. For images, (N, tokens, channels) is
    the grid of a transformer's patches, after its class token and registers.

    Returns:
        None for a tensor that is no feature map, as pooled features are.
    """
    if len(shape) == len(space) + 2:
        first, last = shape[2:], shape[1:-1]
        if not _in_proportion(first, space) and _patch_grid(last, space):
            return MapLayout(last, kind="channels last")
        return MapLayout(first)
    if len(shape) == 3 and len(space) == 2:
        return _token_layout(shape[1], space)
    return None


def in_proportion(layout: MapLayout, space: tuple[int, ...]) -> bool:
    """Whether a map is a smaller picture of the input, which a table of attention is not."""
    return _in_proportion(layout.space, space)


def _token_layout(n_tokens: int, space: tuple[int, ...]) -> MapLayout | None:
    """The grid of patches of one side that gives so many tokens, with the fewest extra ones."""
    found = []
    for side in range(1, min(space) + 1):
        grid = tuple(size // side for size in space)
        extra = n_tokens - math.prod(grid)
        if 0 <= extra <= MOST_EXTRA_TOKENS and math.prod(grid) > 1:
            found.append(MapLayout(grid, extra, "tokens"))
    return min(found, key=lambda layout: layout.extra, default=None)


def _patch_grid(places: tuple[int, ...], space: tuple[int, ...]) -> bool:
    """Whether places are those of patches of one side."""
    sides = range(1, min(space) + 1)
    return any(tuple(size // side for size in space) == tuple(places) for side in sides)


def _in_proportion(places: tuple[int, ...], space: tuple[int, ...]) -> bool:
    """Whether sides are alike shares of the input's, within a factor of two."""
    shares = sorted(size / whole for size, whole in zip(places, space, strict=True))
    return all(large <= 2 * small for small, large in pairwise(shares)) and shares[-1] <= 2
