"""Convolution on boxes, and batch-norm.

Kernels of 3x3 are convolved by Winograd's method: an output tile of 4x4 takes 36 multiplications
for each pair of channels instead of 144 (Lavin and Gray, "Fast algorithms for convolutional neural
networks", 2016), and the result is exact up to rounding. With 512 channels, on maps of 7x7 to
14x14, it is 2.6 to 1.3 times as fast as PyTorch's convolution (benchmarks/SPEED.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.engines.incremental.boxes import Boxed, per_axis, slide_boxes, slides_for
from captum_pda.engines.incremental.cache import CallCache, Function, PassState
from captum_pda.engines.incremental.rules import NoRule, check_images, rule
from captum_pda.engines.incremental.rules.pooling import whole_maps

#: The number of channels, in and out, from which Winograd's method is faster.
FEWEST_CHANNELS_FOR_WINOGRAD = 384
#: The most numbers in its intermediate results, so that they fit into a processor's caches.
MOST_INTERMEDIATE_VALUES = 2**23


@rule("conv1d conv2d conv3d", saves=True)
def convolution(
    state: PassState,
    func: Function,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Boxed:
    """Convolve each box with the margin that the kernel reads."""
    check_images(x)
    if isinstance(weight, Boxed) or isinstance(bias, Boxed):
        raise NoRule("its weights depend on the input")
    cache, options = state.cache, (dilation, groups)
    if x.is_whole:
        if isinstance(padding, str):
            maps = x.values
        else:
            maps, zeros = x.unpadded()
            own = per_axis(padding, len(zeros))
            padding = tuple(map(sum, zip(own, zeros, strict=True)))
        return whole_maps(
            state, convolve(cache, func, maps, weight, bias, stride, padding, *options), x
        )
    base = state.base(func, x.base, weight, bias, stride, padding, *options)
    slides = slides_for(x, weight.shape[2:], stride, padding, dilation)
    maps, spans = slide_boxes(x, slides, base.shape[2:], outside=0.0)
    values = convolve(cache, func, maps, weight, bias, stride, 0, *options)
    return Boxed(values, spans, base, x.space)


@rule("batch_norm")
def batch_norm(
    state: PassState,
    func: Function,
    x: Boxed,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Boxed:
    """With running statistics batch-norm acts on every pixel separately."""
    check_images(x)
    if training or running_mean is None:
        raise NoRule("it uses the statistics of the batch")
    arguments = (running_mean, running_var, weight, bias, False, momentum, eps)
    base = None if x.base is None else state.base(F.batch_norm, x.base, *arguments)
    if running_mean.dtype != x.dtype:
        values = F.batch_norm(x.values, *arguments)
    else:
        shape = (-1, *(1,) * len(x.spans))
        scale, shift = state.cache(
            _scale_and_shift, running_mean, running_var, weight, bias, eps, shape
        )
        values = torch.addcmul(shift, x.values, scale)
    return Boxed(values, x.spans, base, x.space)


def _scale_and_shift(
    mean: Tensor,
    var: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
    shape: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Batch-norm as one product and one sum per channel."""
    scale = torch.rsqrt(var + eps)
    if gamma is not None:
        scale = scale * gamma
    shift = -mean * scale
    if beta is not None:
        shift = shift + beta
    return scale.reshape(shape), shift.reshape(shape)


# Winograd's method

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
OUTPUT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))


def convolve(
    cache: CallCache,
    func: Callable[..., Tensor],
    maps: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    """Convolve by the faster method; changed kernels are cached."""
    pixels = maps.numel() // maps.shape[1]
    if (
        weight.shape[2:] == (3, 3)
        and groups == 1
        and per_axis(stride, 2) == per_axis(dilation, 2) == (1, 1)
        and not isinstance(padding, str)
        and maps.device.type == "cpu"
        and maps.dtype in (torch.float32, torch.float64)
        and min(weight.shape[:2]) >= FEWEST_CHANNELS_FOR_WINOGRAD
        and pixels * max(weight.shape[:2]) * 36 // 16 <= MOST_INTERMEDIATE_VALUES
        # Autocast would round the changed basis to half precision.
        and not torch.is_autocast_enabled("cpu")
    ):
        return winograd(maps, cache(change_kernel, weight), bias, per_axis(padding, 2))
    return func(maps, weight, bias, stride, padding, dilation, groups)


def change_kernel(weight: Tensor) -> Tensor:
    """Kernels (O, C, 3, 3) in the basis in which convolution is multiplication, (36, C, O)."""
    n_out, n_in = weight.shape[:2]
    kernels = weight.permute(2, 3, 1, 0).reshape(9, -1)
    return (_basis(KERNEL, weight) @ kernels).view(36, n_in, n_out)


def winograd(maps: Tensor, kernel: Tensor, bias: Tensor | None, padding: tuple[int, ...]) -> Tensor:
    """The convolution of maps (rows, C, height, width) with a changed kernel."""
    rows, channels, height, width = maps.shape
    sizes = height + 2 * padding[0] - 2, width + 2 * padding[1] - 2
    tiles = -(-sizes[0] // 4), -(-sizes[1] // 4)
    after = 4 * tiles[0] + 2 - height - padding[0], 4 * tiles[1] + 2 - width - padding[1]
    padded = F.pad(maps.permute(0, 2, 3, 1), (0, 0, padding[1], after[1], padding[0], after[0]))
    # Tiles of 6x6 that overlap by 2, ordered by their places.
    overlapping = padded.unfold(1, 6, 4).unfold(2, 6, 4).permute(4, 5, 0, 1, 2, 3)
    inputs = _basis(INPUT, maps) @ overlapping.reshape(36, -1)
    products = torch.bmm(inputs.view(36, -1, channels), kernel)
    outputs = (_basis(OUTPUT, maps) @ products.view(36, -1)).view(4, 4, rows, *tiles, -1)
    joined = outputs.permute(2, 3, 0, 4, 1, 5).reshape(rows, 4 * tiles[0], 4 * tiles[1], -1)
    result = joined[:, : sizes[0], : sizes[1]]
    result = result.contiguous() if bias is None else result + bias
    return result.permute(0, 3, 1, 2)


def _basis(rows: tuple[tuple[float, ...], ...], like: Tensor) -> Tensor:
    basis = torch.tensor(rows, dtype=like.dtype, device=like.device)
    return torch.kron(basis, basis)
