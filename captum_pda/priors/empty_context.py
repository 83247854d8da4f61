"""The empty context: the model's input with everything hidden, or with only one region visible."""

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

#: The standard deviation of the blur that hides an image, as a share of the shorter side.
BLUR = 20 / 224
#: The blur around random sets of regions; half as strong is more faithful there
#: (benchmarks/FAITHFULNESS.md).
BLUR_AROUND_SETS = 10 / 224
#: The softness of the edges of a single visible region, as a share of its extent.
EDGE = 1 / 16
#: Where the soft edge ends, in standard deviations.
REACH = 3
#: The softness of the edges of sets of regions, as a share of the shorter side.
SET_EDGE = 2 / 224
#: Visible shares of a pixel are rounded to 0 or 1 if they differ from it by less than this.
LEAST_SEEN = 1e-4


class EmptyContext:
    """The inputs of the empty context for a prior.

    Args:
        prior: any prior with a method ``nothing_seen(example)``; None is the default one. Without a
            method ``seen_alone(example, windows)``, regions are pasted with soft edges.
    """

    #: Increase this whenever the same example and settings give other fills.
    version = 2

    def __init__(self, prior: Any) -> None:
        self._prior = prior
        #: By its share of the side, the example that was blurred last, and its blur.
        self._blurs: dict[float, tuple[Tensor, Tensor]] = {}

    def nothing_seen(self, example: Tensor) -> Tensor:
        """An example (C, *space) with everything hidden, of the same shape."""
        if self._prior is None:
            return self._blurred(example, BLUR)
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
        """Each region alone: boxes that differ from ``nothing_seen``, and their contents (W, C,
        *box)."""
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
        """The surroundings of random sets of regions of an example (C, *space): the example blurred
        half as much as in ``nothing_seen``, or ``nothing_seen`` of a prior that does not blur."""
        own = getattr(type(self._prior), "nothing_seen", None)
        if self._prior is None or own is BlurredContext.nothing_seen:
            return self._blurred(example, BLUR_AROUND_SETS)
        return self.nothing_seen(example)

    def _blurred(self, example: Tensor, share: float) -> Tensor:
        """The blur of an example, computed once for all chunks of its regions."""
        known = self._blurs.get(share)
        if known is None or known[0] is not example:
            known = self._blurs[share] = (example, blurred(example, share))
        return known[1].clone()  # models may write into their inputs

    def seen_together(
        self, example: Tensor, windows: Windows, around: Tensor | None = None
    ) -> tuple[Windows, Tensor]:
        """The visible pixels of windows that are the whole input, in ``nothing_seen`` or in
        ``around`` (C, *space): the boxes, and their contents (W, C, *space)."""
        if windows.hidden is None or windows.window != windows.space:
            raise ValueError("windows must be of the whole input, with hidden")
        nothing = self.nothing_seen(example) if around is None else around
        dtype = torch.promote_types(example.dtype, torch.float32)
        share = device_sync.moved_like(seen_share(windows.hidden), example.to(dtype)).unsqueeze(1)
        contents = torch.lerp(nothing.to(example.device, dtype), example.to(dtype), share)
        boxes = PlacedWindows(
            windows.space, windows.window, windows.corner_array, first=windows.first
        )
        return boxes, contents.to(example.dtype)


class BlurredContext:
    """Base class of priors for photos: with everything hidden, the input is blurred."""

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The example (C, *space) blurred by a Gaussian of 20/224 of its shorter side, so that only
        its layout of colours is left and evidence is about structure."""
        return blurred(example)


def seen_share(hidden: Tensor) -> Tensor:
    """The visible share of each pixel for hidden pixels (sets, *space), with soft edges."""
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
    """A photo (C, *space) blurred so much that only the layout of its colours remains.

    With g a Gaussian whose standard deviation is ``share`` of the shorter side,

        n(p) = sum_q g(p - q) x(q) / sum_q g(p - q)     over the pixels q of the photo.

    Evidence in the empty context is then about the structure of a region and not about its
    difference from grey. With the mean colour instead, maps were about equally good
    (benchmarks/SPEED.md).
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
    """Each region of an example (C, *space) as the only visible part of the input.

    With n the input with everything hidden, and s in [0, 1] the visible share of each pixel,

        x_w = n + s (x - n),     s(p) = sum_{q in w} g(p - q) / sum_q g(p - q),

    where g is a Gaussian, cut at three standard deviations, with a standard deviation of 1/16 of
    the region's extent along each axis: the window's width, or for other shapes the mean length of
    its runs of pixels. So the region has no visible edge, nor has one that ends at the border of
    the input. Returns boxes around the regions, beyond which the input is n, and their contents (W,
    C, *box).
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
    """The visible share of each pixel of each box, (W, *box)."""
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
    options = {"sigma": EDGE * length, "radius": int(_reach(length)), "mode": "constant"}
    found: Floats = gaussian_filter1d(values, axis=axis, **options)
    return found


def _extents(mask: npt.NDArray[np.bool_], window: tuple[int, ...]) -> list[float]:
    """The extent of a region along each axis: the window's width, or the mean length of the runs of
    pixels in a mask (*window); 1 without pixels."""
    if mask.size == 1:
        return [float(width) for width in window]
    runs = (np.diff(mask, axis=axis, prepend=False) & mask for axis in range(mask.ndim))
    return [max(int(mask.sum()), 1) / max(int(begins.sum()), 1) for begins in runs]


def _reach(length: npt.ArrayLike) -> npt.NDArray[np.int64]:
    reach: npt.NDArray[np.int64] = np.ceil(REACH * EDGE * np.asarray(length)).astype(np.int64)
    return reach
