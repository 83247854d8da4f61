"""The regions of one photo in a file, so that an atlas of many goes on where it was stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open

from captum_pda.atlas.regions import CROP, ClassRegion
from captum_pda.basics.files import write_whole
from captum_pda.datasets.result_folder import SETTINGS, json_text, safetensors_file


def write_regions(
    path: str | os.PathLike[str],
    regions: Sequence[ClassRegion],
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write the regions of a photo as safetensors, with what they were made with."""
    write_whole(Path(path), regions_in_file(regions, settings or {}, {}))


def regions_in_file(
    regions: Sequence[ClassRegion],
    settings: Mapping[str, Any],
    others: Mapping[str, npt.NDArray[Any]],
) -> bytes:
    """The content of such a file, with other arrays that are to be kept with the regions."""
    arrays = {
        "bits": np.array([region.bits for region in regions], dtype=np.float64),
        "corners": _whole([region.corner for region in regions], (2,)),
        "shapes": _whole([region.shape for region in regions], (2,)),
        "crops": _whole([region.crop for region in regions], (CROP, CROP, 3)).astype(np.uint8),
        "features": np.array([region.features for region in regions], dtype=np.float32),
    }
    names = [[region.photo, region.link, region.label] for region in regions]
    header = {SETTINGS: json_text(dict(settings)), "names": json_text(names)}
    whole = {**arrays, **others}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in whole.items()}
    return safetensors_file(tensors, header)


def read_regions(path: str | os.PathLike[str]) -> list[ClassRegion]:
    """The regions that ``write_regions`` wrote."""
    with safe_open(path, framework="np") as file:
        names = json.loads(file.metadata()["names"])
        bits, corners, shapes, crops, features = (
            file.get_tensor(name) for name in ("bits", "corners", "shapes", "crops", "features")
        )
    return [
        ClassRegion(
            photo,
            float(bits[number]),
            (int(corners[number][0]), int(corners[number][1])),
            (int(shapes[number][0]), int(shapes[number][1])),
            crops[number],
            features[number],
            link,
            label,
        )
        for number, (photo, link, label) in enumerate(names)
    ]


def _whole(values: Sequence[Any], shape: tuple[int, ...]) -> Any:
    return np.array(values, dtype=np.int64).reshape(len(values), *shape)
