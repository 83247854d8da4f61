"""The strongest regions of photos: cut out, described by the model's features, stored (so that an
atlas of many photos can be continued), and grouped."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from captum_pda.files import counted, write_whole
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import check_count
from captum_pda.model.layers import NoFeatureMapError, last_feature_map
from captum_pda.model.measures import signed
from captum_pda.report.pictures import display_range, rgb_bytes

#: The side of a crop, in pixels.
CROP_SIDE = 96
#: The name of the entry in files that describes regions.
REGIONS = "regions"
#: The number of directions of edges that describe texture.
EDGE_DIRECTIONS = 8
#: The most groups that are tried, for the class and against it.
MAX_GROUPS = 10
#: Vectors of length 1 that are all closer than this to their mean form one group.
LEAST_DISTANCE = 0.1


@dataclass(frozen=True, eq=False)
class ClassRegion:
    """A region with evidence for a class, or against it.

    Args:
        photo: the name of the photo.
        bits: the mean of the map inside it, for or against the class.
        corner, shape: its box in the model's input.
        crop: its picture, (96, 96, 3) bytes.
        features: the features that are compared, (F,).
        link: the address of the photo's report, if there is one.
        label: the name of the class, if regions of several classes are stored together.
        place: the ninth of the photo that contains its centre, such as "upper left".
    """

    photo: str
    bits: float
    corner: tuple[int, int]
    shape: tuple[int, int]
    crop: npt.NDArray[np.uint8]
    features: npt.NDArray[np.float32]
    link: str = ""
    label: str = ""
    place: str = ""


def ninth(corner: Sequence[int], shape: Sequence[int], space: Sequence[int]) -> str:
    """The ninth of an image that contains the centre of a box: "upper left", ... or "centre"."""
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
) -> list[ClassRegion]:
    """Cut out the regions of a photo with the strongest evidence for a class and against it.

    Args:
        evidence: of one image with two spatial dimensions.
        target: the class.
        photo: the photo's name; groups count the photos of their regions.
        model: its last feature map describes the regions; without one, colour and texture do.
        mean, std: the normalisation of the image, to be undone for the crops.
        n: the maximum number of regions for the class, and against it.

    Returns:
        The strongest first, those for the class before those against it. ``replace(region,
        link="husky.html")`` links the region to the photo's report.

    Example::

        >>> regions = []
        >>> for name, image in photos.items():
        ...     evidence = PDA(model).evidence(image)
        ...     regions += cut_regions(evidence, husky, name, model)
        >>> atlas = make_atlas(regions, "husky")
    """
    image = evidence.inputs[0]
    if all(part.depth != "input" for part in evidence.parts) and image.shape[1] not in (1, 3):
        raise ValueError(
            f"evidence is of the feature map of {evidence.parts[0].depth!r}, which holds no crops "
            "of the photo; give that of PDA(model).evidence(image)"
        )
    kinds = strongest_regions(evidence, target, n)
    found = [region for kind in kinds for region in kind]
    values = image[0].cpu()
    pixels = rgb_bytes(values, *display_range(values, mean, std))
    maps = None if model is None or not found else _feature_map(model, image)
    regions = []
    for region in found:
        (top, left), (height, width) = region.corner, region.shape
        crop = _crop(pixels, region)
        features = _colour_and_texture(crop) if maps is None else _mean_inside(maps, region)
        where = (top, left), (height, width)
        place = ninth(*where, pixels.shape[:2])
        regions.append(ClassRegion(photo, region.value, *where, crop, features, place=place))
    return regions


def _crop(pixels: npt.NDArray[np.uint8], region: StrongRegion) -> npt.NDArray[np.uint8]:
    box = tuple(slice(a, a + b) for a, b in zip(region.corner, region.shape, strict=True))
    cut, inside = pixels[box].astype(np.float32), region.pixels[box][..., None]
    grey = 0.35 * cut.mean(axis=2, keepdims=True) + 0.6 * 255
    shown = np.where(inside, cut, grey).round().astype(np.uint8)
    resized = Image.fromarray(shown).resize((CROP_SIDE, CROP_SIDE), Image.Resampling.BICUBIC)
    return np.asarray(resized)


# Features


def _feature_map(model: Callable[..., Any], image: Tensor) -> Tensor | None:
    """The model's last spatial feature map of an image (1, C, H, W), (F, h, w); None without. Its
    mean is subtracted, because late features differ more between photos than between regions of one
    photo, and groups would be photos."""
    try:
        with evaluation_mode(model), torch.no_grad():
            call = last_feature_map(model, ModelCall(model, (image,), None))
    except NoFeatureMapError:
        return None
    maps = call.inputs[0][0].float().cpu()
    return maps - maps.mean(dim=(1, 2), keepdim=True)


def _mean_inside(maps: Tensor, region: StrongRegion) -> npt.NDArray[np.float32]:
    """The mean of a feature map (F, h, w) over a region, weighted by its share of each place."""
    pixels = torch.from_numpy(region.pixels).float()[None, None]
    shares = F.interpolate(pixels, maps.shape[1:], mode="area")[0, 0]
    return (torch.einsum("fyx,yx->f", maps, shares) / shares.sum()).numpy()


def _colour_and_texture(crop: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Mean and spread of each colour, and the strength of edges in each direction."""
    values = crop.astype(np.float32) / 255
    down, across = np.gradient(values.mean(axis=2))
    strength = np.hypot(down, across)
    direction = np.arctan2(down, across) % np.pi
    edges, _ = np.histogram(direction, EDGE_DIRECTIONS, (0, np.pi), weights=strength)
    colours = np.concatenate([values.mean(axis=(0, 1)), values.std(axis=(0, 1))])
    # Edges are scaled because they are about a tenth as strong as colours.
    return np.concatenate([colours, 10 * edges / strength.size]).astype(np.float32)


# Files


def write_regions(
    path: str | os.PathLike[str],
    regions: Sequence[ClassRegion],
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write the regions of a photo as safetensors, with their settings."""
    write_whole(Path(path), regions_in_file(regions, settings or {}, {}))


def regions_in_file(
    regions: Sequence[ClassRegion], settings: Mapping[str, Any], others: Mapping[str, Tensor]
) -> bytes:
    """The content of such a file, with other tensors to store."""
    table = [asdict(region) for region in regions]
    tensors = dict(others)
    for name, dtype in (("crop", np.uint8), ("features", np.float32)):
        tensors[name] = torch.from_numpy(np.array([row.pop(name) for row in table], dtype=dtype))
    header = {SETTINGS: json_text(dict(settings)), REGIONS: json_text(table)}
    return safetensors_file(tensors, header)


def read_regions(path: str | os.PathLike[str]) -> list[ClassRegion]:
    """Read regions that ``write_regions`` wrote."""
    with safe_open(path, framework="np") as file:
        table = json.loads(file.metadata()[REGIONS])
        crops, features = file.get_tensor("crop"), file.get_tensor("features")
    regions = []
    for row, crop, vector in zip(table, crops, features, strict=True):
        row |= {name: tuple(row[name]) for name in ("corner", "shape")}
        regions.append(ClassRegion(**row, crop=crop, features=vector))
    return regions


# Groups


class RegionGroup:
    """Regions that look alike to the model.

    Args:
        regions: the most typical ones first.
        n_photos_in_all: the number of photos of the atlas.

    ``photos`` are those of the regions, and ``share`` is their share of all photos. ``mean_bits``
    and ``spread`` are the mean and standard deviation over these photos of the mean evidence of
    their regions. ``name`` describes the regions: for or against what, and where most of them lie.
    """

    def __init__(self, regions: Sequence[ClassRegion], n_photos_in_all: int) -> None:
        self.regions, self.n_photos_in_all = tuple(regions), n_photos_in_all
        bits: dict[str, list[float]] = {}
        for region in regions:
            bits.setdefault(region.photo, []).append(region.bits)
        means = [np.mean(several) for several in bits.values()]
        self.photos, self.share = tuple(bits), len(bits) / n_photos_in_all
        self.mean_bits, self.spread = float(np.mean(means)), float(np.std(means))
        self.speaks_for = regions[0].bits > 0
        places = Counter(region.place for region in regions if region.place)
        common, count = places.most_common(1)[0] if places else ("", 0)
        where = f", mostly {common}" if 2 * count > len(regions) else ", anywhere"
        name = f"{'for' if self.speaks_for else 'against'} {regions[0].label}".strip()
        self.name = f"{name}{where if places else ''}"

    def examples(self, n: int) -> list[ClassRegion]:
        """The most typical regions, from as many different photos as possible."""
        seen: Counter[str] = Counter()
        rounds = []
        for region in self.regions:
            seen[region.photo] += 1
            rounds.append(seen[region.photo])
        return [self.regions[place] for place in np.argsort(rounds, kind="stable")[:n]]


@dataclass(frozen=True, eq=False)
class Atlas:
    """The groups of regions for and against a class, over many photos.

    Args:
        label: the name of the class.
        n_photos: the number of photos.
        groups: those for the class first, ordered by their total evidence.
        n_left_out: the number of regions without a group, because they occur in too few photos.
    """

    label: str
    n_photos: int
    groups: tuple[RegionGroup, ...]
    n_left_out: int = 0

    def __repr__(self) -> str:
        photos, groups = counted(self.n_photos, "photo"), counted(len(self.groups), "group")
        lines = [f"Atlas of {self.label!r}: {photos}, {groups}"]
        for group in self.groups:
            bits = f"{signed(group.mean_bits)} +- {group.spread:.2f} bits"
            lines.append(f"  {bits} in {counted(len(group.photos), 'photo')}: {group.name}")
        return "\n".join(lines)


def make_atlas(
    regions: Sequence[ClassRegion],
    label: str,
    n_photos: int | None = None,
    n_groups: int | None = None,
    min_photos: int = 2,
) -> Atlas:
    """Group similar regions, separately for those for the class and those against it.

    Vectors of length 1 are compared by their distance, and joined by Ward's criterion
    (scikit-learn). The default number of groups is the one with the best silhouette.

    Args:
        regions: of many photos, from ``cut_regions``.
        label: the name of the class.
        n_photos: the number of photos. Default: those of the regions.
        n_groups: the number of groups of each kind.
        min_photos: groups of fewer photos are left out.
    """
    check_count("min_photos", min_photos)
    photos = {region.photo for region in regions}
    count = len(photos) if n_photos is None else check_count("n_photos", n_photos)
    if count < len(photos):
        raise ValueError(f"n_photos={count}, and the regions come from {len(photos)} photos")
    found: list[RegionGroup] = []
    for sign in (1, -1):
        kind = [region for region in regions if sign * region.bits > 0]
        groups = [RegionGroup(one, count) for one in _grouped(kind, n_groups)] if kind else []
        kept = [group for group in groups if len(group.photos) >= min_photos]
        found += sorted(kept, key=lambda group: -abs(group.mean_bits) * len(group.photos))
    grouped = sum(len(group.regions) for group in found)
    return Atlas(label, count, tuple(found), len(regions) - grouped)


def _grouped(regions: list[ClassRegion], n_groups: int | None) -> Iterator[list[ClassRegion]]:
    lengths = {len(region.features) for region in regions}
    if len(lengths) > 1:
        raise ValueError(
            f"the regions have features of {sorted(lengths)} values; describe all of them by the "
            "same model"
        )
    vectors = np.array([region.features for region in regions], dtype=np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    numbers = _clusters(vectors, n_groups)
    for number in np.unique(numbers):
        members = np.flatnonzero(numbers == number)
        typical = vectors[members] @ vectors[members].mean(axis=0)
        yield [regions[members[place]] for place in np.argsort(-typical, kind="stable")]


def _clusters(vectors: npt.NDArray[np.float64], n_groups: int | None) -> npt.NDArray[np.int64]:
    try:
        from sklearn.cluster import AgglomerativeClustering
        from sklearn.metrics import silhouette_score
    except ImportError as error:
        raise ImportError(
            'an atlas groups regions with scikit-learn; pip install "captum_pda[atlas]"'
        ) from error
    tried = [min(check_count("n_groups", n_groups), len(vectors))] if n_groups is not None else []
    best, chosen = 0.0, np.zeros(len(vectors), dtype=np.int64)
    apart = np.linalg.norm(vectors - vectors.mean(axis=0), axis=1).max()
    if n_groups is None and apart >= LEAST_DISTANCE:
        tried = list(range(2, min(MAX_GROUPS, len(vectors) // 2) + 1))
    for n in tried:
        numbers = AgglomerativeClustering(n_clusters=n, linkage="ward").fit_predict(vectors)
        score = np.inf if n_groups is not None else silhouette_score(vectors, numbers)
        if score > best:
            best, chosen = float(score), numbers
    return chosen
