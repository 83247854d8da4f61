"""The empty context: what a model gets when nothing is seen, and when one region alone is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import gaussian_filter1d
from scipy.signal import fftconvolve
from torch import Tensor

from captum_pda import device_sync
from captum_pda.regions.protocol import PlacedWindows, Windows, box_values

Floats = npt.NDArray[np.float64]

#: The blur that leaves nothing to see, as a share of the shorter side: 20 of 224 pixels.
BLUR = 20 / 224
#: The blur around random sets of regions: 10 of 224 pixels. Half as much is more faithful there
#: (benchmarks/FAITHFULNESS.md).
BLUR_AROUND_SETS = 10 / 224
#: How soft the edges of a region are that is seen alone, as a share of its extent.
EDGE = 1 / 16
#: Where the soft edge ends, in standard deviations.
REACH = 3
#: How soft the edges of sets of regions are, as a share of the shorter side: 2 of 224 pixels.
SET_EDGE = 2 / 224
#: What is seen of a pixel up to this share is nothing, and all of it from one less this share on.
LEAST_SEEN = 1e-4


class EmptyContext:
    """What a prior has where nothing is seen, and where one region alone is seen.

    Args:
        prior: any prior; None is the default one. It needs a method ``nothing_seen(example)``.
            Without a method ``seen_alone(example, windows)`` regions are pasted with soft edges.
    """

    #: Raised whenever the same example and settings give other fills, so that results never mix.
    version = 2

    def __init__(self, prior: Any) -> None:
        self._prior = prior

    def nothing_seen(self, example: Tensor) -> Tensor:
        """An example (C, *space) with nothing seen of it, of the same shape."""
        if self._prior is None:
            return blurred(example)
        if isinstance(self._prior, type) or not hasattr(self._prior, "nothing_seen"):
            raise TypeError(
                f"prior={self._prior!r} has no method nothing_seen(example), which "
                "gives the input with nothing seen to contexts 'empty' and 'both'; write it as "
                "PatchPrior describes, use a GaussianPatchPrior, MarginalPrior or ConstantPrior, "
                "or ask for context='full'"
            )
        nothing = self._prior.nothing_seen(example)
        if not isinstance(nothing, Tensor) or nothing.shape != example.shape:
            given = getattr(nothing, "shape", type(nothing).__name__)
            raise ValueError(
                f"the prior's nothing_seen gave {given} for an example of shape "
                f"{tuple(example.shape)}; give a tensor of that shape"
            )
        return nothing.to(example.dtype)

    def seen_alone(self, example: Tensor, windows: Windows) -> tuple[Windows, Tensor]:
        """Each region with nothing else seen: the boxes that differ from ``nothing_seen``, and
        their contents (W, C, *box)."""
        if hasattr(self._prior, "seen_alone"):
            boxes, contents = self._prior.seen_alone(example, windows)
            expected = (len(windows), len(example), *boxes.window)
            if tuple(contents.shape) != expected:
                raise ValueError(
                    f"the prior's seen_alone gave contents of shape {tuple(contents.shape)}, where "
                    f"(windows, channels, *box) is {expected}"
                )
            return boxes, contents.to(example.dtype)
        return pasted(example, self.nothing_seen(example), windows)

    def around_sets(self, example: Tensor) -> Tensor:
        """What random sets of regions of an example (C, *space) are seen in, of the same shape: the
        example blurred half as much, or what a prior of another kind has where nothing is seen."""
        own = getattr(type(self._prior), "nothing_seen", None)
        if self._prior is None or own is BlurredContext.nothing_seen:
            return blurred(example, BLUR_AROUND_SETS)
        return self.nothing_seen(example)

    def seen_together(
        self, example: Tensor, windows: Windows, around: Tensor | None = None
    ) -> tuple[Windows, Tensor]:
        """What is not hidden of windows that are the whole input, with nothing else seen, or in
        what is ``around`` (C, *space): the boxes, and their contents (W, C, *space)."""
        if windows.hidden is None or windows.window != windows.space:
            raise ValueError("what is seen together needs windows of the whole input, with hidden")
        nothing = self.nothing_seen(example) if around is None else around
        dtype = torch.promote_types(example.dtype, torch.float32)
        share = device_sync.moved_like(seen_share(windows.hidden), example.to(dtype)).unsqueeze(1)
        contents = torch.lerp(nothing.to(example.device, dtype), example.to(dtype), share)
        boxes = PlacedWindows(
            windows.space, windows.window, windows.corner_array, first=windows.first
        )
        return boxes, contents.to(example.dtype)


class BlurredContext:
    """What priors of photos have in common: where nothing is seen stands the blurred example."""

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The example (C, *space) blurred until only its layout of colours is left, by a Gaussian
        of 20/224 of its shorter side: evidence is then about structure, not about colours."""
        return blurred(example)


def seen_share(hidden: Tensor) -> Tensor:
    """How much is seen of each pixel where some are hidden (sets, *space), with soft edges."""
    seen, space = (~hidden.cpu()).numpy().astype(np.float32), hidden.shape[1:]
    options: dict[str, Any] = {"sigma": SET_EDGE * min(space), "mode": "constant"}
    for axis, size in enumerate(space, start=1):
        whole = gaussian_filter1d(np.ones(size, dtype=np.float32), **options)
        shape = [-1 if other == axis else 1 for other in range(seen.ndim)]
        seen = gaussian_filter1d(seen, axis=axis, **options) / whole.reshape(shape)
    share = torch.from_numpy(seen)
    share = torch.where(share < LEAST_SEEN, 0, share)
    return torch.where(share > 1 - LEAST_SEEN, 1, share)


def blurred(example: Tensor, share: float = BLUR) -> Tensor:
    """A photo (C, *space) in which nothing can be made out but where which colours are.

    With g a Gaussian whose standard deviation is ``share`` of the shorter side, 20/224 of it,

        n(p) = sum_q g(p - q) x(q) / sum_q g(p - q)     over the pixels q of the photo.

    Why not the mean colour: what a region says by itself is then about its structure, not about
    its difference from grey. Maps of photos were about as good with either (benchmarks/SPEED.md).
    """
    space = tuple(example.shape[1:])
    smooth = device_sync.in_double(example.detach()).cpu().numpy().copy()
    for axis, size in enumerate(space):
        gaussian = np.exp(-0.5 * (np.arange(1 - size, size) / (share * min(space))) ** 2)
        shape = [-1 if other == axis else 1 for other in range(len(space))]
        total = fftconvolve(np.ones(size), gaussian, "same").reshape(shape)
        for channel in smooth:  # one at a time, since transforms take ten times their memory
            channel[:] = fftconvolve(channel, gaussian.reshape(shape), "same", axes=axis) / total
    return device_sync.moved_like(torch.from_numpy(smooth), example)


def pasted(example: Tensor, nothing: Tensor, windows: Windows) -> tuple[PlacedWindows, Tensor]:
    """Each region of an example (C, *space) by itself, in an input with nothing else seen.

    With n the input with nothing seen, and s in [0, 1] what is seen of each pixel,

        x_w = n + s (x - n),     s(p) = sum_{q in w} g(p - q) / sum_q g(p - q),

    where g is a Gaussian, cut at three standard deviations, whose standard deviation along an axis
    is 1/16 of the region's extent there: the window's width, or the mean length of the runs of
    pixels of a region of another shape. So no edge is seen around the region, and none where it
    ends with the input. It is n itself beyond a box: the window and a margin around it. Returns
    these boxes, and their contents (W, C, *box).
    """
    margin = _reach(np.array(windows.window))
    box = np.minimum(np.add(windows.window, 2 * margin), windows.space)
    corners = np.clip(windows.corner_array - margin, 0, np.subtract(windows.space, box))
    boxes = PlacedWindows(windows.space, tuple(box.tolist()), corners, first=windows.first)
    dtype = torch.promote_types(example.dtype, torch.float32)
    seen = device_sync.moved_like(_seen(windows, boxes), example.to(dtype)).unsqueeze(1)
    own, other = (
        box_values(values.detach().to(example.device, dtype), boxes)
        for values in (example, nothing)
    )
    return boxes, torch.lerp(other, own, seen).to(example.dtype)


def _seen(windows: Windows, boxes: PlacedWindows) -> Tensor:
    """How much is seen of each pixel of each box, (W, *box)."""
    seen = np.zeros((len(windows), *boxes.window))
    masks = np.ones((len(windows), *(1 for _ in windows.window)), dtype=np.bool_)
    if windows.hidden is not None:
        masks = windows.hidden.cpu().numpy()
    for soft, mask, corner, start in zip(
        seen, masks, boxes.corner_array, windows.corner_array - boxes.corner_array, strict=True
    ):
        soft[tuple(map(slice, start, start + windows.window))] = mask
        for axis, length in enumerate(_extents(mask, windows.window)):
            soft[:] = _softened(soft, length, axis)
            whole = _softened(np.ones(windows.space[axis]), length)
            shape = [-1 if other == axis else 1 for other in range(soft.ndim)]
            soft /= whole[corner[axis] :][: soft.shape[axis]].reshape(shape)
    return torch.from_numpy(seen)


def _softened(values: Floats, length: float, axis: int = 0) -> Floats:
    """Values with the soft edge of a region of this extent along an axis."""
    options = {"sigma": EDGE * length, "radius": int(_reach(length)), "mode": "constant"}
    found: Floats = gaussian_filter1d(values, axis=axis, **options)
    return found


def _extents(mask: npt.NDArray[np.bool_], window: tuple[int, ...]) -> list[float]:
    """The extent of a region along each axis: the window's, or the mean length of its runs of
    pixels (*window); 1 for a region without pixels."""
    if mask.size == 1:
        return [float(width) for width in window]
    runs = (np.diff(mask, axis=axis, prepend=False) & mask for axis in range(mask.ndim))
    return [max(int(mask.sum()), 1) / max(int(begins.sum()), 1) for begins in runs]


def _reach(length: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """How far the soft edge of a region of this extent reaches."""
    reach: npt.NDArray[np.int64] = np.ceil(REACH * EDGE * np.asarray(length)).astype(np.int64)
    return reach
