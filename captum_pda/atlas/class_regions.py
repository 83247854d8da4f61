"""The strongest regions of one photo: cut out, described by the model's own features, and stored.

Stored regions let an atlas of many photos go on where it was stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

from captum_pda.datasets.result_folder import SETTINGS, json_text, safetensors_file
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.evidence.strongest import StrongRegion, strongest_regions
from captum_pda.files import write_whole
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.layers import NoFeatureMapError, last_feature_map
from captum_pda.report.pictures import display_range, rgb_bytes

Vector = npt.NDArray[np.float32]

#: The side of a crop, in pixels.
CROP_SIDE = 96
#: The name under which a file says what its regions are, apart from their crops and features.
REGIONS = "regions"
#: Into how many directions edges are sorted, to describe texture.
EDGE_DIRECTIONS = 8


@dataclass(frozen=True, eq=False)
class ClassRegion:
    """A region that speaks for a class, or against it.

    Args:
        photo: the name of the photo.
        bits: its evidence for the class.
        corner, shape: where it lies in the model's input.
        crop: what it looks like, (96, 96, 3) bytes.
        features: what it is compared by, (F,).
        link: the address of the photo's report, if there is one.
        label: the name of the class, where regions of several classes are kept together.
        space: the shape of the model's input, where it is known.
    """

    photo: str
    bits: float
    corner: tuple[int, int]
    shape: tuple[int, int]
    crop: npt.NDArray[np.uint8]
    features: Vector
    link: str = ""
    label: str = ""
    space: tuple[int, int] = (0, 0)

    @property
    def place(self) -> str:
        """The ninth of the photo that holds its middle, as "upper left"; "" where unknown."""
        return "" if 0 in self.space else ninth(self.corner, self.shape, self.space)


def ninth(corner: Sequence[int], shape: Sequence[int], space: Sequence[int]) -> str:
    """The ninth of an image that holds the middle of a box: "upper left", ... or "centre"."""
    middles = zip(corner, shape, space, strict=True)
    row, column = (min(int(3 * (a + b / 2) / size), 2) for a, b, size in middles)
    words = ("upper", "middle", "lower")[row], ("left", "middle", "right")[column]
    return "centre" if row == column == 1 else " ".join(words)


def cut_regions(
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
        ...     regions += cut_regions(evidence, husky, name, model)
        >>> atlas = make_atlas(regions, "husky")
    """
    is_feature_map = all(part.depth != "input" for part in evidence.parts)
    if is_feature_map and evidence.inputs[0].shape[1] not in (1, 3):
        raise ValueError(
            f"evidence is of the feature map of {evidence.parts[0].depth!r}, which holds no crops "
            "of the photo; give that of PDA(model).evidence(image)"
        )
    image = evidence.inputs[0]
    kinds = strongest_regions(evidence, target, n)
    found = [region for kind in kinds for region in kind if abs(region.value) >= min_bits]
    if not found:
        return []
    photo_pixels = image[0].cpu()
    pixels = rgb_bytes(photo_pixels, *display_range(photo_pixels, mean, std))
    maps = None if model is None else _feature_map(model, image)
    regions = []
    for region in found:
        crop = _crop(pixels, region)
        regions.append(
            ClassRegion(
                photo,
                region.value,
                (region.corner[0], region.corner[1]),
                (region.shape[0], region.shape[1]),
                crop,
                _colour_and_texture(crop) if maps is None else _mean_inside(maps, region),
                space=(image.shape[2], image.shape[3]),
            )
        )
    return regions


def _crop(pixels: npt.NDArray[np.uint8], region: StrongRegion) -> npt.NDArray[np.uint8]:
    """The region's box, with what does not belong to the region in pale grey."""
    box = tuple(slice(a, a + b) for a, b in zip(region.corner, region.shape, strict=True))
    cut, inside = pixels[box].astype(np.float32), region.pixels[box][..., None]
    grey = 0.35 * cut.mean(axis=2, keepdims=True) + 0.6 * 255
    shown = np.where(inside, cut, grey).round().astype(np.uint8)
    resized = Image.fromarray(shown).resize((CROP_SIDE, CROP_SIDE), Image.Resampling.BICUBIC)
    return np.asarray(resized)


# What regions are compared by


def _feature_map(model: Callable[..., Any], image: Tensor) -> Tensor | None:
    """The model's last spatial feature map of an image (1, C, H, W), (F, h, w); None without.

    Less its mean over the places: late features differ more between photos than between regions of
    one photo, so groups would be photos otherwise.
    """
    try:
        with evaluation_mode(model), torch.no_grad():
            call = last_feature_map(model, ModelCall(model, (image,), None))
    except NoFeatureMapError:
        return None
    maps = call.inputs[0][0].float().cpu()
    return maps - maps.mean(dim=(1, 2), keepdim=True)


def _mean_inside(maps: Tensor, region: StrongRegion) -> Vector:
    """The mean of a feature map (F, h, w) over a region, by its share of each place."""
    pixels = torch.from_numpy(region.pixels).float()[None, None]
    shares = F.interpolate(pixels, maps.shape[1:], mode="area")[0, 0]
    return (torch.einsum("fyx,yx->f", maps, shares) / shares.sum()).numpy()


def _colour_and_texture(crop: npt.NDArray[np.uint8]) -> Vector:
    """Mean and spread of each colour, and how strong edges of each direction are."""
    values = crop.astype(np.float32) / 255
    down, across = np.gradient(values.mean(axis=2))
    strength = np.hypot(down, across)
    direction = np.arctan2(down, across) % np.pi
    edges, _ = np.histogram(direction, EDGE_DIRECTIONS, (0, np.pi), weights=strength)
    colours = np.concatenate([values.mean(axis=(0, 1)), values.std(axis=(0, 1))])
    # Edges are about a tenth as strong as colours; both should count.
    return np.concatenate([colours, 10 * edges / strength.size]).astype(np.float32)


# Files


def write_regions(
    path: str | os.PathLike[str],
    regions: Sequence[ClassRegion],
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write the regions of a photo as safetensors, with what they were made with."""
    write_whole(Path(path), regions_in_file(regions, settings or {}, {}))


def regions_in_file(
    regions: Sequence[ClassRegion], settings: Mapping[str, Any], others: Mapping[str, Tensor]
) -> bytes:
    """The content of such a file, with other tensors that are to be kept with the regions."""
    table = [asdict(region) for region in regions]
    tensors = dict(others)
    for name, dtype in (("crop", np.uint8), ("features", np.float32)):
        tensors[name] = torch.from_numpy(np.array([row.pop(name) for row in table], dtype=dtype))
    header = {SETTINGS: json_text(dict(settings)), REGIONS: json_text(table)}
    return safetensors_file(tensors, header)


def read_regions(path: str | os.PathLike[str]) -> list[ClassRegion]:
    """The regions that ``write_regions`` wrote."""
    with safe_open(path, framework="np") as file:
        table = json.loads(file.metadata()[REGIONS])
        crops, features = file.get_tensor("crop"), file.get_tensor("features")
    regions = []
    for row, crop, vector in zip(table, crops, features, strict=True):
        row |= {name: tuple(row[name]) for name in ("corner", "shape", "space")}
        regions.append(ClassRegion(**row, crop=crop, features=vector))
    return regions
