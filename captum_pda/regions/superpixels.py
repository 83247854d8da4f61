"""Superpixels: regions that follow the image, at several granularities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.windows import is_integer

#: One or several approximate numbers of superpixels.
Granularities: TypeAlias = int | Sequence[int] | None

#: SLIC's weight of distance against colour, for channels from 0 to 1; multiplied by 100 for Lab.
COMPACTNESS = 0.1
#: Volumes are divided at half resolution if regions still have this many voxels, 6 along each axis:
#: it takes a sixth of the time, and the regions explain the values equally well.
FEWEST_VOXELS = 6**3


class Superpixels(FeatureMaskRegions):
    """The regions that SLIC (Achanta et al. 2012) finds in each example.

    The channels are first scaled to 0...1, so that the regions do not depend on the normalisation.
    Three channels of an image are read as RGB and compared in Lab. Outlines are those of the image,
    also of the parts that will be hidden.

    Args:
        images: the inputs, (N, C, *space) with two or three spatial dimensions.
        granularity: the approximate number of regions in each.
        roi: a region of interest, (*space): nothing outside of it is hidden, and maps are 0 there.

    Example::

        >>> Superpixels(images, 60).numbers.shape
        torch.Size([8, 224, 224])
    """

    def __init__(self, images: Tensor, granularity: int, roi: Tensor | None = None) -> None:
        self.granularity = granularity
        if roi is not None and (tuple(roi.shape) != tuple(images.shape[2:]) or not roi.any()):
            raise ValueError(
                f"roi has shape {tuple(roi.shape)}; mark some pixels of {tuple(images.shape[2:])}"
            )
        super().__init__(torch.stack([_slic(image, granularity, roi) for image in images]))
        self.n_unasked = int(self.labels[0] < 0)

    @property
    def size(self) -> tuple[int, ...]:
        return (self.granularity,)

    @property
    def title(self) -> str:
        return f"{self.granularity} superpixels"

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "granularity": self.granularity}


def _slic(image: Tensor, granularity: int, roi: Tensor | None = None) -> Tensor:
    """The superpixels of an image (C, *space), (*space); -1 outside of a region of interest."""
    # Imported here because it is slow and windows do not need it.
    from skimage.segmentation import slic

    values = stretched(image, to_lab=False)
    space = values.shape[:-1]
    is_colour = values.shape[-1] == 3 and len(space) == 2
    n_pixels = values[..., 0].size
    is_halved = roi is None and len(space) == 3 and n_pixels >= 8 * FEWEST_VOXELS * granularity
    if is_halved:
        values = np.pad(values, [*((0, size % 2) for size in space), (0, 0)], mode="edge")
        halves = [number for size in values.shape[:-1] for number in (size // 2, 2)]
        values = values.reshape(*halves, -1).mean(axis=(1, 3, 5))
    labels = slic(
        values,
        n_segments=granularity,
        compactness=100 * COMPACTNESS if is_colour else COMPACTNESS,
        sigma=0.5 if is_halved else 1,
        convert2lab=is_colour,
        start_label=1,
        channel_axis=-1,
        mask=None if roi is None else roi.cpu().numpy().astype(bool),
    )
    if is_halved:
        labels = labels.repeat(2, 0).repeat(2, 1).repeat(2, 2)[tuple(map(slice, space))]
    return torch.from_numpy(labels.astype(np.int64)) - 1


def stretched(image: Tensor, to_lab: bool = True) -> npt.NDArray[np.float64]:
    """An image (C, *space) with channels scaled to 0...1, (*space, C); three channels of an image
    are read as RGB and converted to Lab, from -1 to 1."""
    from skimage.color import rgb2lab

    values: npt.NDArray[np.float64] = image.detach().cpu().double().numpy()
    space = tuple(range(1, values.ndim))
    low, high = (f(values, axis=space, keepdims=True) for f in (np.min, np.max))
    values = np.moveaxis((values - low) / np.where(high > low, high - low, 1), 0, -1)
    if to_lab and values.shape[-1] == 3 and values.ndim == 3:
        values = rgb2lab(values) / 100
    return values


def check_granularities(
    sizes: object, shape: tuple[int, ...], kind: str = "superpixels"
) -> tuple[int, ...]:
    """Check the requested numbers of regions for an input of shape (N, C, *space)."""
    given = [sizes] if is_integer(sizes) else sizes
    if not isinstance(given, Sequence) or not (
        given and all(is_integer(number) and number > 0 for number in given)
    ):
        raise TypeError(
            f"{kind}={sizes!r} must be about how many regions there are, such as {kind}=60 or "
            f"{kind}=(25, 60, 120)"
        )
    if len(set(given)) < len(given):
        raise ValueError(f"{kind}={sizes!r} holds a number twice; give each once")
    if kind == "superpixels" and len(shape) < 4:
        raise ValueError(
            f"superpixels are for images and volumes, and the input has shape {shape}; use "
            "sliding_window_shapes or scales for one dimension"
        )
    return tuple(int(number) for number in given)
