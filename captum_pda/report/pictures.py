"""The pictures of a page: the photo, a small one of it, and what the prior puts in regions."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from captum_pda.visualization.drawing import AGAINST, FOR, picture

Bytes = npt.NDArray[np.uint8]

#: A photo of more bytes as PNG is kept as JPEG.
MAX_PNG_BYTES = 400_000
#: Fills are kept in tiles of at most this side, and of at most this many pixels for each size.
MAX_TILE, MAX_SPRITE_PIXELS = 32, 700_000
#: How many values of fills are made at a time.
MAX_FILL_VALUES = 2**23
BLOCK = 8  # JPEG's own; a tile that is a multiple of it does not run into its neighbours


@dataclass(frozen=True)
class Display:
    """How a model's input becomes a picture: x * std + mean, in grey unless there are 3 channels.

    ``Display.of`` stretches values that lie outside 0 to 1 where no normalisation is given, as
    ``visualize_evidence`` does.
    """

    mean: float | Sequence[float]
    std: float | Sequence[float]

    @classmethod
    def of(
        cls,
        example: Tensor,
        mean: float | Sequence[float] | None,
        std: float | Sequence[float] | None,
    ) -> Display:
        """The display of an example (C, H, W)."""
        picture(example, mean, std)  # refuses what does not fit, in its own words
        if mean is not None and std is not None:
            return cls(mean, std)
        low, high = float(example.min()), float(example.max())
        return cls(0.0, 1.0) if low >= 0 and high <= 1 else cls(low, (high - low) or 1.0)

    def bytes(self, values: Tensor) -> Bytes:
        """Values (C, H, W) as RGB, (H, W, 3)."""
        shown = picture(values, self.mean, self.std)
        if shown.shape[2] != 3:
            shown = shown.mean(axis=2, keepdims=True).repeat(3, axis=2)
        rounded: Bytes = np.round(255 * shown).astype(np.uint8)
        return rounded


def photo_file(pixels: Bytes) -> bytes:
    """A photo as PNG, or as JPEG where that would be large."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG", optimize=True)
    if content.tell() <= MAX_PNG_BYTES:
        return content.getvalue()
    return jpeg(pixels, 90)


def jpeg(pixels: Bytes, quality: int) -> bytes:
    """Pixels as JPEG, with as many colours as pixels."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=quality, subsampling=0, optimize=True)
    return content.getvalue()


def map_over(pixels: Bytes, values: Tensor) -> Bytes:
    """A map (H, W) in its colours over a photo in pale grey, (H, W, 3)."""
    strength = values.detach().cpu().double().nan_to_num().numpy()[..., None]
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
) -> tuple[Tensor, tuple[int, int], int]:
    """What the prior puts in the place of each window: the mean that it expects there, or one draw
    where windows were sampled.

    Returns:
        All fills as tiles of one picture (C, H, W), the shape of a tile, and the tiles in a row.
    """
    sampled = int(part.drawn.max()) > 1
    tile = _tile(part.size, len(part.regions))
    sheet = example.new_zeros(len(part.regions), len(example), *tile, dtype=torch.float32)
    groups = zip(part.regions.boxes(number), part.regions.members(number), strict=True)
    for windows, members in groups:
        tiles = [_small(fills, tile) for _, fills in _fills(windows, example, prior, sampled)]
        sheet[torch.from_numpy(members)] = torch.cat(tiles)
    columns = math.ceil(math.sqrt(len(sheet) * tile[0] / tile[1]))
    rows = math.ceil(len(sheet) / columns)
    sheet = torch.cat([sheet, sheet.new_zeros(rows * columns - len(sheet), *sheet.shape[1:])])
    sheet = sheet.reshape(rows, columns, -1, *tile).permute(2, 0, 3, 1, 4)
    return sheet.reshape(-1, rows * tile[0], columns * tile[1]), tile, columns


def filled_photo(part: EvidencePart, example: Tensor, number: int, prior: Any) -> Tensor:
    """The example (C, H, W) with every region filled by itself, all in one picture: regions of
    shapes of their own do not overlap."""
    sampled = int(part.drawn.max()) > 1
    filled = example.clone()
    flat = filled.flatten(1)
    for windows in part.regions.boxes(number):
        for some, fills in _fills(windows, example, prior, sampled):
            if some.hidden is None:
                raise RuntimeError("windows may overlap, and are not drawn in one picture")
            hidden = some.hidden.flatten(1)
            values = fills.flatten(2).transpose(1, 2)[hidden.to(example.device)]
            flat[:, some.pixels(example.device)[hidden.to(example.device)]] = values.T
    return filled


def _fills(
    group: Windows, example: Tensor, prior: Any, sampled: bool
) -> Iterator[tuple[Windows, Tensor]]:
    """Regions, some at a time, and the contents of their boxes (W, C, *window)."""
    own = prior_for(prior, "sample" if sampled else "conditional_mean")
    at_once = max(1, MAX_FILL_VALUES // (len(example) * math.prod(group.window)))
    for start in range(0, len(group), at_once):
        windows = group[start : start + at_once]
        if sampled:
            fills = own.sample(example, windows, 1, torch.Generator().manual_seed(0))[0]
        else:
            fills = own.conditional_mean(example, windows)
        yield windows, fills.detach().to(example.dtype)


def _tile(size: tuple[int, ...], count: int) -> tuple[int, int]:
    """The shape of a tile for regions of this size, so that all of them fit."""
    most = min(MAX_TILE, max(2, int(math.sqrt(MAX_SPRITE_PIXELS / max(count, 1)))))
    height, width = (max(1, min(side, most)) for side in size)
    return _to_blocks(height), _to_blocks(width)


def _to_blocks(side: int) -> int:
    return side if side < BLOCK else side - side % BLOCK


def _small(fills: Tensor, tile: tuple[int, int]) -> Tensor:
    return F.adaptive_avg_pool2d(fills.float(), tile)
