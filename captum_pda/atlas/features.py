"""What regions are compared by: the model's own features, or colour and texture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda.evidence.strongest import StrongWindow
from captum_pda.prediction.evaluation_mode import evaluation_mode
from captum_pda.prediction.find_layer import NoFeatureMapError, last_feature_map
from captum_pda.prediction.model_call import ModelCall

Vector = npt.NDArray[np.float32]

#: Directions of edges that texture is told by.
DIRECTIONS = 8


def feature_map(model: Callable[..., Any], image: Tensor) -> Tensor | None:
    """The model's last spatial feature map of an image (1, C, H, W), (F, h, w); None without.

    Less its mean over the places: late features tell one photo from another more than one region
    from another, so groups would be photos otherwise.
    """
    try:
        with evaluation_mode(model), torch.no_grad():
            call = last_feature_map(model, ModelCall(model, (image,), None))
    except NoFeatureMapError:
        return None
    maps = call.inputs[0][0].float().cpu()
    return maps - maps.mean(dim=(1, 2), keepdim=True)


def features_in(
    maps: Tensor, space: tuple[int, ...], windows: Sequence[StrongWindow]
) -> list[Vector]:
    """The mean of a feature map (F, h, w) over each window, by the share of each place in it."""
    return [
        torch.einsum(
            "fyx,y,x->f",
            maps,
            *(
                _shares(window.corner[axis], window.shape[axis], space[axis], maps.shape[axis + 1])
                for axis in (0, 1)
            ),
        ).numpy()
        for window in windows
    ]


def _shares(start: int, width: int, size: int, places: int) -> Tensor:
    """How much of a window lies in each place along an axis; adds up to 1."""
    edges = torch.arange(places + 1, device="cpu") * (size / places)
    inside = edges[1:].clamp(max=start + width) - edges[:-1].clamp(min=start)
    return inside.clamp(min=0) / width


def colour_and_texture(crop: npt.NDArray[np.uint8]) -> Vector:
    """Mean and spread of each colour, and how strong edges of each direction are."""
    values = crop.astype(np.float32) / 255
    down, across = np.gradient(values.mean(axis=2))
    strength = np.hypot(down, across)
    direction = np.arctan2(down, across) % np.pi
    edges, _ = np.histogram(direction, DIRECTIONS, (0, np.pi), weights=strength)
    colours = np.concatenate([values.mean(axis=(0, 1)), values.std(axis=(0, 1))])
    # Edges are about a tenth as strong as colours; both should count.
    return np.concatenate([colours, 10 * edges / strength.size]).astype(np.float32)
