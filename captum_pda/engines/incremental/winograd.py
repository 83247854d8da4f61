"""Convolution with 3x3 kernels by Winograd's method, with 4 times fewer multiplications.

An output tile of 4x4 takes 36 multiplications a pair of channels in place of 144 (Lavin and Gray,
"Fast algorithms for convolutional neural networks", 2016). It is exact up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.engines.incremental.call_cache import CallCache
from captum_pda.engines.incremental.spans import per_axis

#: Channels, in and out, below which the change of basis costs more than it saves.
FEWEST_CHANNELS = 96
#: Numbers of the largest intermediate result; larger ones no longer fit into a processor's caches.
MOST_INTERMEDIATE_VALUES = 2**23

#: The change of basis of inputs (6 -> 6), kernels (3 -> 6) and outputs (6 -> 4), along one axis.
INPUT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
KERNEL = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
OUTPUT = (
    (1, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution of PyTorch's with all its arguments but the maps."""

    func: Callable[..., Tensor]
    weight: Tensor
    bias: Tensor | None
    stride: Any
    padding: Any
    dilation: Any
    groups: int

    def __call__(self, maps: Tensor) -> Tensor:
        """The convolution of maps, as PyTorch computes it."""
        further = (self.stride, self.padding, self.dilation, self.groups)
        return self.func(maps, self.weight, self.bias, *further)


class Convolver:
    """Convolves by the faster way.

    Args:
        cache: keeps the kernels whose basis was changed, as long as they are used.
    """

    def __init__(self, cache: CallCache) -> None:
        self._cache = cache

    def __call__(self, convolution: Convolution, maps: Tensor) -> Tensor:
        """``convolution(maps)``."""
        strides, dilation = per_axis(convolution.stride, 2), per_axis(convolution.dilation, 2)
        ordinary = convolution.groups == 1 and strides == dilation == (1, 1)
        # Autocast would round the changed basis to half precision.
        autocast = torch.is_autocast_enabled(maps.device.type)
        symmetric = not isinstance(convolution.padding, str)
        if autocast or not ordinary or not symmetric or not _pays(maps, convolution.weight):
            return convolution(maps)
        kernel = self._cache(change_kernel, convolution.weight)
        return convolve(maps, kernel, convolution.bias, per_axis(convolution.padding, 2))


def _pays(maps: Tensor, weight: Tensor) -> bool:
    if weight.shape[2:] != (3, 3) or maps.device.type != "cpu":
        return False
    if maps.dtype not in (torch.float32, torch.float64) or min(weight.shape[:2]) < FEWEST_CHANNELS:
        return False
    pixels = maps.shape[0] * maps.shape[2] * maps.shape[3]
    return pixels * max(weight.shape[:2]) * 36 // 16 <= MOST_INTERMEDIATE_VALUES


def change_kernel(weight: Tensor) -> Tensor:
    """Kernels (O, C, 3, 3) in the basis in which convolution is multiplication, (36, C, O)."""
    n_out, n_in = weight.shape[:2]
    return (_basis(KERNEL, weight) @ weight.permute(2, 3, 1, 0).reshape(9, -1)).view(
        36, n_in, n_out
    )


def convolve(maps: Tensor, kernel: Tensor, bias: Tensor | None, padding: tuple[int, ...]) -> Tensor:
    """The convolution of maps (rows, C, height, width) with a changed kernel."""
    rows, channels, height, width = maps.shape
    sizes = height + 2 * padding[0] - 2, width + 2 * padding[1] - 2
    tiles = -(-sizes[0] // 4), -(-sizes[1] // 4)
    after = 4 * tiles[0] + 2 - height - padding[0], 4 * tiles[1] + 2 - width - padding[1]
    padded = F.pad(maps.permute(0, 2, 3, 1), (0, 0, padding[1], after[1], padding[0], after[0]))
    # Tiles of 6x6 that overlap by 2, each place of a tile for all tiles together.
    overlapping = padded.unfold(1, 6, 4).unfold(2, 6, 4).permute(4, 5, 0, 1, 2, 3)
    inputs = _basis(INPUT, maps) @ overlapping.reshape(36, -1)
    products = torch.bmm(inputs.view(36, -1, channels), kernel)
    outputs = (_basis(OUTPUT, maps) @ products.view(36, -1)).view(4, 4, rows, *tiles, -1)
    joined = outputs.permute(2, 3, 0, 4, 1, 5).reshape(rows, 4 * tiles[0], 4 * tiles[1], -1)
    result = joined[:, : sizes[0], : sizes[1]]
    result = result.contiguous() if bias is None else result + bias
    return result.permute(0, 3, 1, 2)


def _basis(rows: tuple[tuple[float, ...], ...], like: Tensor) -> Tensor:
    """A change of basis along both axes of a tile."""
    basis = torch.tensor(rows, dtype=like.dtype, device=like.device)
    return torch.kron(basis, basis)
