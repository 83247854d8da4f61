"""The report of a signal or a volume: what Python worked out, and a page to move through it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from captum_pda.device_sync import in_double
from captum_pda.evidence import words
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.evidence.strongest import StrongRegion, strongest_regions
from captum_pda.report.page_file import Block, Page
from captum_pda.report.pictures import Bytes
from captum_pda.visualization.drawing import Floats, picture_of_map, strongest_place
from captum_pda.visualization.space import MOST_CHANNELS

PAGE = Page(
    "Evidence",
    "space.html",
    "base report space",
    "block elements numbers colours curves space",
)
#: Of larger volumes every second voxel is shown, or every third.
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
    """What the page shows of a signal or a volume, and a small picture. Maps are those of all
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
        # The page knows the voxels of a region by a number, those against behind those for.
        label = np.zeros(space, dtype=np.uint8)
        for against, regions in enumerate(kinds):
            for place, region in enumerate(regions):
                label[region.pixels] = 1 + place + n_listed * against
        marks.append(label[thin])

        def place_of(region: StrongRegion, own_map: Floats = own_map) -> dict[str, Any]:
            return {"place": [one // step for one in strongest_place(region, own_map)]}

        lists.append(told(kinds, place_of))
    if dims == 1:
        shown = picture_of_map(example, space, mean, std).T[:MOST_CHANNELS]
        values = block.add(shown, "float32")
        small, n_channels = _small_signal(shown), len(shown)
    else:
        pixels = np.round(255 * picture_of_map(example, space, mean, std)[thin]).astype(np.uint8)
        n_channels = pixels.shape[-1]
        values = block.add(pixels, "uint8")
        strongest = [*lists[0]["for"], *lists[0]["against"]]
        middle = strongest[0]["place"][0] if strongest else len(pixels) // 2
        small = np.broadcast_to(pixels[middle], (*pixels.shape[1:3], 3))
    sides = np.broadcast_to(np.asarray(1.0 if spacing is None else spacing, dtype=float), dims)
    finite = [np.abs(one[np.isfinite(one)]).max(initial=0) for one in maps]
    header = {
        "space": list(maps[0].shape),
        "step": step,
        "spacing": None if spacing is None else sides.tolist(),
        "values": values,
        "channels": n_channels,
        "left_out": len(example) - n_channels if dims == 1 else 0,
        "maps": block.add(np.stack([one.reshape(-1) for one in maps]), "float32"),
        "marks": block.add(np.stack([one.reshape(-1) for one in marks]), "uint8"),
        "scale": float(max(finite)) or 1.0,
        "listed": lists,
        "n_listed": n_listed,
        "scale_words": words.scale_words(evidence.parts),
    }
    return header, small


def told(
    kinds: Sequence[Sequence[StrongRegion]], place_of: Callable[[StrongRegion], dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """What a page says of the regions for an output and against it, and where they lie."""
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


def _small_signal(channels: Any) -> Bytes:
    """A small picture of a signal."""
    image = Image.new("RGB", (SIGNAL_SIDE, SIGNAL_SIDE), "white")
    pen = ImageDraw.Draw(image)
    for row, channel in enumerate(channels):
        low, high = float(channel.min()), float(channel.max())
        heights = (channel - low) / ((high - low) or 1)
        across = np.linspace(0, SIGNAL_SIDE - 1, len(channel))
        down = (row + 0.9 - 0.8 * heights) * SIGNAL_SIDE / len(channels)
        pen.line(list(zip(across.tolist(), down.tolist(), strict=True)), fill="#222222")
    pixels: Bytes = np.asarray(image)
    return pixels
