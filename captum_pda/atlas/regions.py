"""The strongest regions of one photo, cut out and described by the model's own features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from captum_pda.atlas.features import colour_and_texture, feature_map, features_in
from captum_pda.evidence.strongest import StrongWindow, strongest_windows
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.report.pictures import Display

#: The side of a crop, in pixels.
CROP = 96


@dataclass(frozen=True, eq=False)
class ClassRegion:
    """A region that speaks for a class, or against it.

    Args:
        photo: the name of the photo.
        bits: its evidence for the class.
        corner, shape: where it lies in the model's input.
        crop: what it looks like, (96, 96, 3) bytes.
        features: what it is compared by, (F,).
        link: the address of the photo's report, where there is one.
        label: the name of the class, where regions of several classes are kept together.
    """

    photo: str
    bits: float
    corner: tuple[int, int]
    shape: tuple[int, int]
    crop: npt.NDArray[np.uint8]
    features: npt.NDArray[np.float32]
    link: str = ""
    label: str = ""


def strongest_regions(
    evidence: WindowEvidence,
    target: int,
    photo: str,
    model: Callable[..., Any] | None = None,
    *,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    n: int = 4,
    min_bits: float = 0.1,
) -> list[ClassRegion]:
    """The regions of a photo that say most for a class and against it.

    Args:
        evidence: of one image with two spatial dimensions.
        target: the class.
        photo: the photo's name; a group counts the photos that its regions come from.
        model: its last feature map describes the regions; without one, or where it has none,
            colour and texture do.
        mean, std: the normalisation of the image, to be undone for the crops.
        n: how many regions for the class, and how many against it, at most.
        min_bits: regions that say less are left out.

    Returns:
        The strongest first, those for the class before those against it.
        ``replace(region, link="husky.html")`` lets the atlas lead to the photo's report.

    Example::

        >>> regions = []
        >>> for name, image in photos.items():
        ...     evidence = PDA(model).evidence(image)
        ...     regions += strongest_regions(evidence, husky, name, model)
        >>> atlas = make_atlas(regions, "husky")
    """
    image = evidence.inputs[0]
    windows = [
        window
        for kind in strongest_windows(evidence, target, n)
        for window in kind
        if abs(window.value) >= min_bits
    ]
    if not windows:
        return []
    pixels = Display.of(image[0].cpu(), mean, std).bytes(image[0].cpu())
    crops = [_crop(pixels, window) for window in windows]
    maps = None if model is None else feature_map(model, image)
    features = (
        [colour_and_texture(crop) for crop in crops]
        if maps is None
        else features_in(maps, tuple(image.shape[2:]), windows)
    )
    return [
        ClassRegion(
            photo,
            window.value,
            (window.corner[0], window.corner[1]),
            (window.shape[0], window.shape[1]),
            crop,
            vector,
        )
        for window, crop, vector in zip(windows, crops, features, strict=True)
    ]


def _crop(pixels: npt.NDArray[np.uint8], window: StrongWindow) -> npt.NDArray[np.uint8]:
    (top, left), (height, width) = window.corner, window.shape
    cut = Image.fromarray(pixels[top : top + height, left : left + width])
    return np.asarray(cut.resize((CROP, CROP), Image.Resampling.BICUBIC))
