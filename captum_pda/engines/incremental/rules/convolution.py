"""Convolution on boxes, with what follows it (batch-norm, activation) folded into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.engines.incremental.boxed import Boxed, postpone, read_boxes
from captum_pda.engines.incremental.call_cache import Snapshot
from captum_pda.engines.incremental.no_rule import NoRule
from captum_pda.engines.incremental.pass_state import PassState
from captum_pda.engines.incremental.postponed import Postponed
from captum_pda.engines.incremental.rules.padding import PostponedPadding
from captum_pda.engines.incremental.rules.registry import rule
from captum_pda.engines.incremental.sliding import slide_boxes, slides_for, spans_after, whole_sizes
from captum_pda.engines.incremental.spans import Slide, Span, per_axis
from captum_pda.engines.incremental.winograd import Convolution, Convolver

#: Channels from which convolving differences pays.
FEWEST_CHANNELS_FOR_DIFFERENCES = 16


@dataclass(frozen=True)
class Onto:
    """An unperturbed result, to which a convolution of differences is added.

    ``reached`` are the places that the differences can reach, some of them outside the map, and
    ``spans`` those that are wanted.
    """

    base: Tensor
    reached: tuple[Span, ...]
    spans: tuple[Span, ...]

    def add(self, differences: Tensor) -> Tensor:
        """The perturbed result; overwrites the differences."""
        space = tuple(range(2, differences.dim()))
        values = differences.add_(read_boxes(self.base, self.reached, space))
        return Boxed(values, self.reached, self.base, space).at(self.spans)


@dataclass(frozen=True, kw_only=True)
class PostponedConvolution(Postponed):
    """A convolution that waits for what follows it, so that batch-norm costs nothing.

    With ``onto`` it is a convolution of differences, whose bias is part of what it is added to.
    """

    convolve: Convolver
    convolution: Convolution
    maps: Tensor
    #: The weights as they were at the time of the call; None if nothing tells of a change.
    snapshot: Snapshot | None
    onto: Onto | None = None

    def make(self) -> Tensor:
        if self.snapshot is not None:
            self.snapshot.check()
        if self.onto is None:
            return self.convolve(self.convolution, self.maps)
        return self.onto.add(self.convolve(replace(self.convolution, bias=None), self.maps))


@rule("conv1d conv2d conv3d", saves=True)
def convolution(
    state: PassState,
    func: Callable[..., Tensor],
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
        raise NoRule("its input is no batch of images")
    slides = slides_for(x, weight.shape[2:], stride, padding, dilation)
    # Autocast chooses the type at the time of the call.
    autocast = torch.is_autocast_enabled(x.device.type)
    base, onto = None, None
    if x.is_whole:
        spans = whole_sizes(x, slides, padding)
        maps, padding = _with_its_padding(x, padding)
    else:
        base = state.base(func, x.base, weight, bias, stride, padding, dilation, groups)
        if _by_differences(slides, weight) and not autocast:
            spans = spans_after(x, slides, base.shape[2:])
            reached = tuple(map(Slide.reached, slides, x.spans, spans))
            maps, onto = x.differences, Onto(base, reached, spans)
            padding = [slide.reach - 1 for slide in slides]
        else:
            maps, spans = slide_boxes(x, slides, base.shape[2:], outside=0.0)
            padding = 0
    snapshot = state.cache.snapshot(weight, bias)
    values = PostponedConvolution(
        origin=state.origin(),
        shape=(x.n_copies, weight.shape[0], *(span.length for span in spans)),
        dtype=maps.dtype,
        device=maps.device,
        convolve=state.convolve,
        convolution=Convolution(func, weight, bias, stride, padding, dilation, groups),
        maps=maps,
        snapshot=snapshot,
        onto=onto,
    )
    wait = values.origin.can_wait and not autocast and snapshot is not None
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

    Kernels skip padding, so this costs what the box costs without its halo. The unperturbed
    result must be added to it, which does not pay where there is little to compute a number.
    """
    moves = all(slide.stride == 1 for slide in slides)
    return (
        moves
        and any(slide.reach > 1 for slide in slides)
        and weight.shape[1] >= FEWEST_CHANNELS_FOR_DIFFERENCES
    )


@rule(F.batch_norm)
def batch_norm(
    state: PassState,
    func: Callable[..., Tensor],
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
        raise NoRule("its input is no batch of images")
    arguments = (running_mean, running_var, weight, bias, False, momentum, eps)
    base = None if x.base is None else state.base(func, x.base, *arguments)
    postponed = x.postponed
    if isinstance(postponed, PostponedConvolution) and _can_fold(postponed, running_mean):
        plain = postponed.convolution
        folded = state.cache(
            fold, plain.weight, plain.bias, running_mean, running_var, weight, bias, eps
        )
        onto = postponed.onto
        if onto is not None and base is not None:
            onto = replace(onto, base=base)
        values = replace(
            postponed,
            convolution=replace(plain, weight=folded[0], bias=folded[1]),
            snapshot=state.cache.snapshot(*folded),
            onto=onto,
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
    normalise = partial(_normalised, x, scale, shift)
    return postpone(state.origin(), normalise, x, x.spans, base)


def _can_fold(postponed: PostponedConvolution, running_mean: Tensor) -> bool:
    """Whether a convolution has weights of batch-norm's type, still as they were when called."""
    if postponed.overwrites or postponed.snapshot is None:
        return False
    postponed.snapshot.check()
    return postponed.dtype == postponed.convolution.weight.dtype == running_mean.dtype


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
    """Batch-norm as one product and one sum a channel."""
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
