"""Convolution on boxes, with what follows it (batch-norm, activation) folded into it.

Kernels of 3x3 are convolved by Winograd's method: an output tile of 4x4 takes 36 multiplications
for each pair of channels in place of 144 (Lavin and Gray, "Fast algorithms for convolutional neural
networks", 2016). It is exact up to rounding. It pays: ResNet18 at 224x224 is 1.4 times faster than
with PyTorch's own convolutions (benchmarks/SPEED.md).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.engines.incremental.boxes import (
    Boxed,
    Postponed,
    Slide,
    Span,
    per_axis,
    postpone,
    read_boxes,
    slide_boxes,
    slides_for,
    spans_after,
)
from captum_pda.engines.incremental.cache import CallCache, Function, PassState
from captum_pda.engines.incremental.rules import NoRule, rule
from captum_pda.engines.incremental.rules.shape import PostponedPadding
from captum_pda.engines.protocol import IncrementalError

#: Channels from which convolving differences pays.
FEWEST_CHANNELS_FOR_DIFFERENCES = 16
#: Channels, in and out, from which Winograd's method pays for its changes of basis.
FEWEST_CHANNELS_FOR_WINOGRAD = 96
#: The most numbers in its intermediate results, so that they fit into a processor's caches.
MOST_INTERMEDIATE_VALUES = 2**23


@dataclass(frozen=True, kw_only=True)
class PostponedConvolution(Postponed):
    """A convolution that waits for what follows it, so that batch-norm costs nothing.

    With a ``base`` it is a convolution of differences, and is added to that unperturbed result,
    which contains the bias. ``reached`` are the places that the differences can reach, some of them
    outside the map, and ``spans`` those that are wanted.
    """

    cache: CallCache
    func: Function
    maps: Tensor
    weight: Tensor
    bias: Tensor | None
    options: tuple[Any, Any, Any, int]  # stride, padding, dilation, groups
    #: The state of the weights at the time of the call; None if a change can't be noticed.
    states: tuple[Hashable, ...] | None
    base: Tensor | None = None
    reached: tuple[Span, ...] = ()
    spans: tuple[Span, ...] = ()

    def make(self) -> Tensor:
        self.check_weights()
        bias = self.bias if self.base is None else None
        found = convolve(self.cache, self.func, self.maps, self.weight, bias, *self.options)
        if self.base is None:
            return found
        space = tuple(range(2, found.dim()))
        values = found.add_(read_boxes(self.base, self.reached, space))
        return Boxed(values, self.reached, self.base, space).at(self.spans)

    def check_weights(self) -> None:
        """Refuse to compute with weights that were changed since the call."""
        if self.states is not None and self.cache.states(self.weight, self.bias) != self.states:
            raise IncrementalError(
                "the model changes the weights of a convolution between the call and the use of "
                "its result, which engine='incremental' can't follow; use engine='dense'"
            )


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
    """Each box with the halo that the kernel reads, or the differences alone."""
    if not isinstance(x, Boxed) or isinstance(weight, Boxed) or isinstance(bias, Boxed):
        raise NoRule("its weights depend on the input")
    if not x.images or weight.dim() != 2 + len(x.spans):
        raise NoRule("its input is not a batch of images")
    slides = slides_for(x, weight.shape[2:], stride, padding, dilation)
    # Autocast chooses the type at the time of the call.
    autocast = torch.is_autocast_enabled(x.device.type)
    base: Any = None
    reached: tuple[Span, ...] = ()
    if x.is_whole:
        sizes = [
            span.size
            if padding == "same"
            else (span.size + 2 * slide.padding - slide.reach) // slide.stride + 1
            for span, slide in zip(x.spans, slides, strict=True)
        ]
        spans = tuple(Span.whole(size, x.n_copies) for size in sizes)
        maps, padding = _with_its_padding(x, padding)
    else:
        base = state.base(func, x.base, weight, bias, stride, padding, dilation, groups)
        if _by_differences(slides, weight) and not autocast:
            spans = spans_after(x, slides, base.shape[2:])
            reached = tuple(map(Slide.reached, slides, x.spans, spans))
            maps, padding = x.differences, [slide.reach - 1 for slide in slides]
        else:
            maps, spans = slide_boxes(x, slides, base.shape[2:], outside=0.0)
            padding = 0
    values = PostponedConvolution(
        origin=state.origin(),
        shape=(x.n_copies, weight.shape[0], *(span.length for span in spans)),
        dtype=maps.dtype,
        device=maps.device,
        cache=state.cache,
        func=func,
        maps=maps,
        weight=weight,
        bias=bias,
        options=(stride, padding, dilation, groups),
        states=state.cache.states(weight, bias),
        base=base if reached else None,
        reached=reached,
        spans=spans,
    )
    wait = values.origin.can_wait and not autocast and values.states is not None
    return Boxed(values if wait else values.compute(), spans, base, x.space)


def _with_its_padding(x: Boxed, padding: Any) -> tuple[Tensor, Any]:
    """Maps held in full, and the padding that the convolution is to add to them."""
    padded = x.postponed
    if not isinstance(padded, PostponedPadding) or padded.overwrites or isinstance(padding, str):
        return x.values, padding
    if any(before != after for before, after in padded.amounts):
        return x.values, padding
    own = per_axis(padding, len(x.spans))
    return padded.maps, [pair[0] + zeros for pair, zeros in zip(padded.amounts, own, strict=True)]


def _by_differences(slides: list[Slide], weight: Tensor) -> bool:
    """Whether to convolve differences, which are zero around the box.

    Kernels skip padding, so this costs what the box costs without its halo. The unperturbed result
    must be added, which does not pay where each output takes little computation.
    """
    return (
        all(slide.stride == 1 for slide in slides)
        and any(slide.reach > 1 for slide in slides)
        and weight.shape[1] >= FEWEST_CHANNELS_FOR_DIFFERENCES
    )


@rule(F.batch_norm)
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
    """With running statistics batch-norm acts on every pixel alone."""
    if training or running_mean is None:
        raise NoRule("it uses the statistics of the batch")
    if not x.images:
        raise NoRule("its input is not a batch of images")
    arguments = (running_mean, running_var, weight, bias, False, momentum, eps)
    base = None if x.base is None else state.base(func, x.base, *arguments)
    postponed = x.postponed
    if isinstance(postponed, PostponedConvolution) and _can_fold(postponed, running_mean):
        folded = state.cache(
            fold, postponed.weight, postponed.bias, running_mean, running_var, weight, bias, eps
        )
        values = replace(
            postponed,
            weight=folded[0],
            bias=folded[1],
            states=state.cache.states(*folded),
            base=None if postponed.base is None else base,
        )
        return Boxed(values, x.spans, base, x.space)
    if running_mean.dtype != x.dtype or torch.is_autocast_enabled(x.device.type):
        return x.like(func(x.values, *arguments), base)
    scale, shift = state.cache(
        scale_and_shift, running_mean, running_var, weight, bias, eps, len(x.spans)
    )
    if postponed is not None:
        overwrite = postponed.then(lambda maps: torch.addcmul(shift, maps, scale, out=maps))
        return Boxed(overwrite, x.spans, base, x.space)
    normalised = partial(_normalised, x, scale, shift)
    return postpone(state.origin(), normalised, x, x.spans, base)


def _can_fold(postponed: PostponedConvolution, running_mean: Tensor) -> bool:
    """Whether a convolution has weights of batch-norm's type, unchanged since the call."""
    if postponed.overwrites or postponed.states is None:
        return False
    postponed.check_weights()
    return postponed.dtype == postponed.weight.dtype == running_mean.dtype


def _normalised(x: Boxed, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, x.values, scale)


def scale_and_shift(
    mean: Tensor,
    var: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
    n_axes: int = 0,
) -> tuple[Tensor, Tensor]:
    """Batch-norm as one product and one sum per channel."""
    scale = torch.rsqrt(var + eps)
    if gamma is not None:
        scale = scale * gamma
    shift = -mean * scale
    if beta is not None:
        shift = shift + beta
    shape = (-1, *(1,) * n_axes)
    return scale.reshape(shape), shift.reshape(shape)


def fold(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Weights and bias of one convolution that does what a convolution and a batch-norm do."""
    scale, shift = scale_and_shift(mean, var, gamma, beta, eps)
    if bias is not None:
        shift = shift + bias * scale
    return weight * scale.reshape(-1, *(1,) * (weight.dim() - 1)), shift


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
    """A convolution by the faster way; the cache keeps changed kernels as long as they are used."""
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
