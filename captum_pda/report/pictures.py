"""The pictures of a page: the photo, a small one of it, and the fills of regions."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from matplotlib.colors import to_rgb
from PIL import Image
from torch import Tensor

from captum_pda.evidence.evidence import EvidencePart
from captum_pda.priors import prior_for
from captum_pda.regions.protocol import Windows
from captum_pda.running.run import fill_chunks
from captum_pda.visualization.drawing import AGAINST, FOR, picture

Bytes = npt.NDArray[np.uint8]
Numbers = float | Sequence[float]

#: Photos with more bytes as PNG are stored as JPEG.
MAX_PNG_BYTES = 400_000
#: The largest side of the tiles of fills, and their most pixels for each size.
MAX_TILE, MAX_SPRITE_PIXELS = 32, 700_000
#: The side of JPEG's blocks; tiles of a multiple of it do not affect their neighbours.
JPEG_BLOCK = 8


def display_range(
    example: Tensor, mean: Numbers | None, std: Numbers | None
) -> tuple[Numbers, Numbers]:
    """Mean and std with which x * std + mean displays an example (C, H, W) and its fills. Without a
    normalisation, values outside of 0 to 1 are stretched, as in ``visualize_evidence``."""
    picture(example, mean, std)  # refuses what does not fit, in its own words
    if mean is not None and std is not None:
        return mean, std
    low, high = float(example.min()), float(example.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    width = (high - low) or 1.0
    return -low / width, 1 / width


def rgb_bytes(values: Tensor, mean: Numbers, std: Numbers) -> Bytes:
    """Values (C, H, W) as RGB, (H, W, 3); in grey unless there are 3 channels."""
    shown = picture(values, mean, std)
    if shown.shape[2] != 3:
        shown = shown.mean(axis=2, keepdims=True).repeat(3, axis=2)
    rounded: Bytes = np.round(255 * shown).astype(np.uint8)
    return rounded


def photo_file(pixels: Bytes) -> bytes:
    """A photo as PNG, or as JPEG if that is too large."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG", optimize=True)
    return content.getvalue() if content.tell() <= MAX_PNG_BYTES else jpeg(pixels, 90)


def jpeg(pixels: Bytes, quality: int) -> bytes:
    """Pixels as JPEG, without chroma subsampling."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=quality, subsampling=0, optimize=True)
    return content.getvalue()


def map_over(pixels: Bytes, values: npt.NDArray[np.float64]) -> Bytes:
    """A map (H, W) in its colours over a photo in pale grey, (H, W, 3)."""
    strength = np.nan_to_num(values)[..., None]
    share = np.abs(strength) / max(float(np.abs(strength).max()), 1e-300)
    colours = np.where(strength > 0, to_rgb(FOR), to_rgb(AGAINST))
    grey = 0.4 + 0.6 * pixels.mean(axis=2, keepdims=True) / 255
    blended: Bytes = np.round(255 * (grey * (1 - share) + colours * share)).astype(np.uint8)
    return blended


def thumbnail(pixels: Bytes, side: int) -> bytes:
    """A small JPEG whose longer side is at most ``side``."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side))
    return jpeg(np.asarray(image), 75)


def fills_sprite(
    part: EvidencePart, example: Tensor, number: int, prior: Any
) -> tuple[Tensor, list[int], int]:
    """The fills of windows as tiles of one picture (C, H, W), the tile's shape, and tiles in a
    row."""
    count = len(part.regions)
    most = min(MAX_TILE, max(2, int(math.sqrt(MAX_SPRITE_PIXELS / max(count, 1)))))
    sides = [max(1, min(side, most)) for side in part.size]
    tile = [side if side < JPEG_BLOCK else side - side % JPEG_BLOCK for side in sides]
    columns = math.ceil(math.sqrt(count * tile[0] / tile[1]))
    rows = math.ceil(count / columns)
    sheet = example.new_zeros(rows * columns, len(example), *tile, dtype=torch.float32)
    for _, members, fills in _fills(part, example, number, prior):
        sheet[torch.from_numpy(members)] = F.adaptive_avg_pool2d(fills.float(), (tile[0], tile[1]))
    sheet = sheet.reshape(rows, columns, -1, *tile).permute(2, 0, 3, 1, 4)
    return sheet.reshape(-1, rows * tile[0], columns * tile[1]), tile, columns


def filled_photo(part: EvidencePart, example: Tensor, number: int, prior: Any) -> Tensor:
    """The example (C, H, W) with every region filled separately; such regions do not overlap."""
    filled = example.clone(memory_format=torch.contiguous_format)
    for windows, _, fills in _fills(part, example, number, prior):
        if windows.hidden is None:
            raise RuntimeError("windows may overlap, and are not drawn in one picture")
        hidden = windows.hidden.flatten(1)
        values = fills.flatten(2).transpose(1, 2)[hidden]
        filled.flatten(1)[:, windows.pixels(example.device)[hidden]] = values.T
    return filled


def has_shapes(part: EvidencePart, number: int) -> bool:
    """Whether regions have shapes other than boxes."""
    return any(windows.hidden is not None for windows in part.regions.boxes(number))


def _fills(
    part: EvidencePart, example: Tensor, number: int, prior: Any
) -> Iterator[tuple[Windows, npt.NDArray[np.int64], Tensor]]:
    """Groups of regions, their numbers, and the contents of their boxes (W, C, *window): the
    conditional mean, or one sample if windows were sampled."""
    sampled = int(part.drawn.max()) > 1
    own = prior_for(prior, "sample" if sampled else "conditional_mean")
    for group, members in zip(
        part.regions.boxes(number), part.regions.members(number), strict=True
    ):
        for start, stop in fill_chunks(group, len(example)):
            windows = group[start:stop]
            if sampled:
                fills = own.sample(example, windows, 1, torch.Generator().manual_seed(0))[0]
            else:
                fills = own.conditional_mean(example, windows)
            yield windows, members[start:stop], fills.detach().to(example.dtype)
