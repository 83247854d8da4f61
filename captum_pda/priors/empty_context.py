"""The empty context: what a model gets when nothing is seen, and when one region alone is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.regions.protocol import PlacedWindows, Windows

Floats = npt.NDArray[np.float64]

#: The blur that leaves nothing to see, as a share of the shorter side: 20 of 224 pixels.
BLUR = 20 / 224
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
    version = 1

    def __init__(self, prior: Any) -> None:
        self._prior = prior

    def nothing_seen(self, example: Tensor) -> Tensor:
        """An example (C, *space) with nothing seen of it, of the same shape."""
        if self._prior is None:
            return blurred(example)
        if isinstance(self._prior, type) or not _has(self._prior, "nothing_seen"):
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
        if _has(self._prior, "seen_alone"):
            boxes, contents = self._prior.seen_alone(example, windows)
            return boxes, contents
        return pasted(example, self.nothing_seen(example), windows)

    def seen_together(self, example: Tensor, windows: Windows) -> tuple[Windows, Tensor]:
        """What is not hidden of windows that are the whole input, with nothing else seen: the
        boxes, and their contents (W, C, *space)."""
        if windows.hidden is None or windows.window != windows.space:
            raise ValueError("what is seen together needs windows of the whole input, with hidden")
        nothing = self.nothing_seen(example)
        dtype = torch.promote_types(example.dtype, torch.float32)
        share = device_sync.moved_like(seen_share(windows.hidden), example.to(dtype)).unsqueeze(1)
        contents = torch.lerp(nothing.to(example.device, dtype), example.to(dtype), share)
        boxes = PlacedWindows(
            windows.space, windows.window, windows.corner_array, first=windows.first
        )
        return boxes, contents.to(example.dtype)


def seen_share(hidden: Tensor) -> Tensor:
    """How much is seen of each pixel where some are hidden (sets, *space), with soft edges."""
    share = blurred((~hidden).to(torch.float32), SET_EDGE)
    share = torch.where(share < LEAST_SEEN, 0, share)
    return torch.where(share > 1 - LEAST_SEEN, 1, share)


def blurred(example: Tensor, share: float = BLUR) -> Tensor:
    """A photo (C, *space) in which nothing can be made out but where which colours are.

    With g a Gaussian whose standard deviation is ``share`` of the shorter side, 20/224 of it,

        n(p) = sum_q g(p - q) x(q) / sum_q g(p - q)     over the pixels q of the photo.

    Why not the mean colour: what a region says by itself is then about its structure, not about
    its difference from grey. Maps of photos were about as good with either (benchmarks/SPEED.md).
    """
    sigma = share * min(example.shape[1:])
    dtype = torch.promote_types(example.dtype, torch.float32)
    smooth = example.detach().to(dtype)
    for axis, size in enumerate(example.shape[1:], start=1):
        places = np.arange(size)
        weights = _gauss(places[:, None] - places, sigma)
        weights /= weights.sum(axis=1, keepdims=True)
        matrix = device_sync.moved_like(torch.from_numpy(weights), smooth)
        smooth = (smooth.movedim(axis, -1) @ matrix.T).movedim(-1, axis)
    return smooth.to(example.dtype)


def pasted(example: Tensor, nothing: Tensor, windows: Windows) -> tuple[PlacedWindows, Tensor]:
    """Each region of an example (C, *space) by itself, in an input with nothing else seen.

    With n the input with nothing seen, and s in [0, 1] what is seen of each pixel,

        x_w = n + s (x - n),     s(p) = sum_{q in w} g(p - q) / sum_q g(p - q),

    where g is a Gaussian, cut at three standard deviations, whose standard deviation along an axis
    is 1/16 of the region's extent there: the window's width, or the mean length of the runs of
    pixels of a region of another shape. So no edge is seen around the region, and none where it
    ends with the input. It is n itself beyond a box: the window and a margin around it.

    Args:
        example: what is seen of the region.
        nothing: the input with nothing seen, (C, *space).
        windows: the regions; with ``windows.hidden`` those pixels of each box.

    Returns:
        The boxes, and their contents (W, C, *box).
    """
    margin = [_reach(EDGE * width) for width in windows.window]
    box = np.minimum(np.add(windows.window, 2 * np.array(margin)), windows.space)
    corners = np.clip(windows.corner_array - margin, 0, np.subtract(windows.space, box))
    shape = tuple(int(side) for side in box)
    boxes = PlacedWindows(windows.space, shape, corners, first=windows.first)
    dtype = torch.promote_types(example.dtype, torch.float32)
    seen = device_sync.moved_like(_seen(windows, boxes), example.to(dtype)).flatten(1)
    pixels = boxes.pixels(example.device)
    own, other = (
        values.detach().to(dtype).flatten(1)[:, pixels].transpose(0, 1)
        for values in (example, nothing.to(example.device))
    )
    contents = torch.lerp(other, own, seen.unsqueeze(1))
    return boxes, contents.reshape(len(windows), len(example), *shape).to(example.dtype)


def _seen(windows: Windows, boxes: PlacedWindows) -> Tensor:
    """How much is seen of each pixel of each box, (W, *box)."""
    hidden = windows.hidden
    if hidden is None:
        seen = torch.ones(
            (len(windows), *(1 for _ in boxes.space)), dtype=torch.float64, device="cpu"
        )
    else:
        seen = hidden.cpu().to(torch.float64)
    for axis in range(len(boxes.space)):
        if hidden is None:
            lengths = np.full(len(windows), float(windows.window[axis]))
        else:
            lengths = _run_lengths(hidden, axis)
        weights = torch.from_numpy(_edge_weights(windows, boxes, axis, lengths))
        if hidden is None:
            weights = weights.sum(dim=2, keepdim=True)
        moved = seen.movedim(axis + 1, -1)
        softened = torch.einsum("w...k,wbk->w...b", moved, weights)
        seen = softened.movedim(-1, axis + 1)
    return seen


def _edge_weights(windows: Windows, boxes: PlacedWindows, axis: int, lengths: Floats) -> Floats:
    """g(p - q) / sum_q g(p - q) for the places p of boxes and q of windows, (W, box, window)."""
    sigma = EDGE * lengths[:, None, None]
    reach = np.ceil(REACH * sigma)
    places = boxes.corner_array[:, axis, None, None] + np.arange(boxes.window[axis])[:, None]
    own = windows.corner_array[:, axis, None, None] + np.arange(windows.window[axis])
    steps = np.arange(-int(reach.max()), int(reach.max()) + 1)
    inside = (places + steps >= 0) & (places + steps < boxes.space[axis])
    near = np.where((np.abs(steps) <= reach) & inside, _gauss(steps, sigma), 0)
    far = np.abs(places - own) > reach
    weights: Floats = np.where(far, 0, _gauss(places - own, sigma)) / near.sum(-1, keepdims=True)
    return weights


def _run_lengths(hidden: Tensor, axis: int) -> Floats:
    """The mean length of each region's runs of pixels along an axis; 1 for one without pixels."""
    along = hidden.cpu().movedim(axis + 1, -1).reshape(len(hidden), -1, hidden.shape[axis + 1])
    begins = along.clone()
    begins[..., 1:] &= ~along[..., :-1]
    pixels, runs = (values.sum(dim=(1, 2)).numpy() for values in (along, begins))
    lengths: Floats = np.maximum(pixels, 1) / np.maximum(runs, 1)
    return lengths


def _gauss(distance: npt.NDArray[np.int64], sigma: float | Floats) -> Floats:
    values: Floats = np.exp(-0.5 * (distance / sigma) ** 2)
    return values


def _has(prior: Any, method: str) -> bool:
    return callable(getattr(prior, method, None))


def _reach(sigma: float) -> int:
    return math.ceil(REACH * sigma)
