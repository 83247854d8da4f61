"""The report of a signal or a volume: its data, and a page to move through it."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from captum_pda.device_sync import in_double
from captum_pda.evidence import words
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.evidence.strongest import StrongRegion, strongest_regions
from captum_pda.report.page_file import Block, Page
from captum_pda.report.pictures import Bytes, map_over
from captum_pda.visualization.drawing import (
    Floats,
    checked_scale,
    new_figure,
    picture_of_map,
    strongest_place,
)
from captum_pda.visualization.space import MOST_CHANNELS, checked_spacing, draw_signal

PAGE = Page(
    "Evidence",
    "space.html",
    "base report space",
    "block elements numbers colours curves shared space",
)
#: Of larger volumes every second or third voxel is shown.
MOST_VOXELS = 2**21
#: The side of the small picture of a signal, in pixels.
SIGNAL_SIDE = 160


def space_header(
    block: Block,
    evidence: WindowEvidence,
    number: int,
    columns: list[int],
    mean: Any,
    std: Any,
    spacing: Any,
    n_listed: int,
) -> tuple[dict[str, Any], Bytes]:
    """The data of a signal or a volume for the page, and a small picture. Maps are those of all
    regions and questions, one for each class."""
    example = evidence.inputs[0][number].detach().cpu()
    dims, space = example.dim() - 1, tuple(example.shape[1:])
    step = 1
    while dims == 3 and math.prod(-(-size // step) for size in space) > MOST_VOXELS:
        step += 1
    thin = (slice(None, None, step),) * dims
    maps, marks = [], []
    lists: list[dict[str, list[dict[str, Any]]]] = []
    for column in columns:
        own_map = in_double(evidence.map(column, None, number)).detach().cpu().numpy()
        maps.append(own_map[thin])
        kinds = strongest_regions(evidence, column, n_listed, example=number)
        # The number of the region of each voxel, those against after those for.
        label = np.zeros(space, dtype=np.uint8)
        for against, regions in enumerate(kinds):
            for place, region in enumerate(regions):
                label[region.pixels] = 1 + place + n_listed * against
        marks.append(label[thin])

        def place_of(region: StrongRegion, own_map: Floats = own_map) -> dict[str, Any]:
            return {"place": [one // step for one in strongest_place(region, own_map)]}

        lists.append(told(kinds, place_of))
    shown = picture_of_map(example, space, mean, std)
    strongest = next((region for kind in lists[0].values() for region in kind), None)
    if dims == 1:
        small, shown = _small_signal(shown, maps[0]), shown.T[:MOST_CHANNELS]
        values, n_channels = block.add(shown, "float32"), len(shown)
    else:
        pixels = np.round(255 * shown[thin]).astype(np.uint8)
        values, n_channels = block.add(pixels, "uint8"), pixels.shape[-1]
        middle = strongest["place"][0] if strongest else len(pixels) // 2
        small = map_over(pixels[middle], maps[0][middle])
    header = {
        "space": list(maps[0].shape),
        "step": step,
        "spacing": None if spacing is None else checked_spacing(spacing, dims),
        "values": values,
        "channels": n_channels,
        "left_out": len(example) - n_channels if dims == 1 else 0,
        "maps": block.add(np.stack([one.reshape(-1) for one in maps]), "float32"),
        "marks": block.add(np.stack([one.reshape(-1) for one in marks]), "uint8"),
        "scale": checked_scale(None, *maps),
        "listed": lists,
        "n_listed": n_listed,
        "scale_words": words.scale_words(evidence.parts),
    }
    return header, small


def told(
    kinds: Sequence[Sequence[StrongRegion]], place_of: Callable[[StrongRegion], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """The texts about the regions for an output and against it, and their places."""
    return {
        kind: [
            {
                "value": region.value,
                "answers": region.answers(),
                "main": region.main_answer,
                **place_of(region),
            }
            for region in regions
        ]
        for kind, regions in zip(("for", "against"), kinds, strict=True)
    }


def _small_signal(shown: Floats, values: Floats) -> Bytes:
    figure = new_figure((SIGNAL_SIDE / 100, SIGNAL_SIDE / 100), use_pyplot=False)
    axes = figure.subplots()
    draw_signal(axes, shown, values, checked_scale(None, values))
    axes.axis("off")
    content = io.BytesIO()
    figure.savefig(content, dpi=100)
    pixels: Bytes = np.asarray(Image.open(content).convert("RGB"))
    return pixels
