"""Boxes under a kernel that slides: for convolution and pooling."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from captum_pda.engines.incremental.boxed import Boxed
from captum_pda.engines.incremental.spans import Slide, Span, per_axis

#: The part of a map from which it is cheaper to have all of it than to look after its rim.
WHOLE_FROM_FRACTION = 0.75


def slides_for(x: Boxed, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[Slide]:
    """How a kernel with these arguments slides along each axis."""
    n_axes = len(x.spans)
    kernels = per_axis(kernel, n_axes)
    dilations = per_axis(dilation, n_axes)
    if padding == "same":
        paddings = tuple(d * (k - 1) // 2 for k, d in zip(kernels, dilations, strict=True))
    else:
        paddings = per_axis(0 if padding == "valid" else padding, n_axes)
    strides = per_axis(stride, n_axes)
    return [Slide(*numbers) for numbers in zip(kernels, strides, paddings, dilations, strict=True)]


def whole_sizes(x: Boxed, slides: list[Slide], padding: Any) -> tuple[Span, ...]:
    """The spans after a convolution of maps that are held in full."""
    return tuple(
        Span.whole(
            span.size
            if padding == "same"
            else (span.size + 2 * slide.padding - slide.reach) // slide.stride + 1,
            x.n_copies,
        )
        for span, slide in zip(x.spans, slides, strict=True)
    )


def spans_after(x: Boxed, slides: list[Slide], sizes: tuple[int, ...]) -> tuple[Span, ...]:
    """Where the boxes of the output lie, on maps of these sizes."""
    spans = tuple(map(Slide.after, slides, x.spans, sizes))
    fraction = math.prod(span.length / span.size for span in spans)
    if fraction >= WHOLE_FROM_FRACTION:
        return tuple(Span.whole(size, x.n_copies) for size in sizes)
    return spans


def slide_boxes(
    x: Boxed, slides: list[Slide], sizes: tuple[int, ...], outside: float
) -> tuple[Tensor, tuple[Span, ...]]:
    """What the kernel reads for the boxes of its output, and where those lie.

    The places read outside the map are ``outside``, so the kernel itself needs no padding.
    """
    after = spans_after(x, slides, sizes)
    reads = [slide.reads(span) for slide, span in zip(slides, after, strict=True)]
    return x.take(reads, outside), after
