"""From the tensors and arrays that users have to a map (H, W) and a picture to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from captum_pda.device_sync import in_double

Floats: TypeAlias = npt.NDArray[np.float64]
#: A tensor (C, H, W), (1, C, H, W) or (H, W), or a NumPy array (H, W, C) or (H, W).
Image: TypeAlias = Tensor | npt.NDArray[Any]

#: How many channels an image can have for its first or last axis to be taken for them.
USUAL_CHANNELS = (1, 3, 4)


def evidence_scale(*attributions: Image) -> float:
    """The largest absolute value in any of the maps: a scale that they can share.

    1 where all of them are zero, so that they can be drawn.
    """
    values = [np.abs(evidence_map(attribution)) for attribution in attributions]
    largest = max((float(value[np.isfinite(value)].max(initial=0)) for value in values), default=0)
    return largest or 1.0


def evidence_map(attribution: Image) -> Floats:
    """The map of one image, (H, W).

    All channels of a pixel share one value in a PDA map, and that is the value drawn. Where
    channels differ, as in a pixelwise map, they are added up.
    """
    channels_last = to_channels_last("attribution", attribution)
    first = channels_last[..., :1]
    if np.array_equal(channels_last, np.broadcast_to(first, channels_last.shape), equal_nan=True):
        return channels_last[..., 0]
    total: Floats = channels_last.sum(axis=2)
    return total


def picture(
    image: Image,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
) -> Floats:
    """An image as it can be shown: (H, W, C) with values from 0 to 1.

    With ``mean`` and ``std``, x * std + mean. Bytes are divided by 255; other values that lie
    outside 0 to 1 are stretched so that the lowest is black and the highest white.
    """
    values = to_channels_last("image", image)
    if (mean is None) != (std is None):
        raise ValueError("mean and std undo a normalisation together; give both or neither")
    if mean is not None and std is not None:
        values = values * _each_channel("std", std, values) + _each_channel("mean", mean, values)
        return np.clip(values, 0, 1)
    if not _is_floating_point(image):
        return np.clip(values / 255, 0, 1) if values.max() > 1 else values
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        values = (values - low) / max(high - low, np.finfo(np.float64).tiny)
    return values


def to_channels_last(name: str, given: Image) -> Floats:
    """A tensor with channels first or an array with channels last, as (H, W, C)."""
    shape = tuple(getattr(given, "shape", ()))
    if isinstance(given, Tensor):
        if len(shape) == 4 and shape[0] != 1:
            raise ValueError(
                f"{name} is a batch of {shape[0]}, shape {shape}; draw one at a time, for example "
                f"{name}[0]"
            )
        if len(shape) == 5:
            raise ValueError(
                f"{name} has three spatial dimensions, shape {shape}; use visualize_volume, or "
                f"draw one slice, for example {name}[:, :, 0]"
            )
        values = in_double(given.detach()).cpu().numpy()
        if len(shape) == 4:
            values = values[0]
        if values.ndim == 3:
            values = np.moveaxis(values, 0, 2)
    elif isinstance(given, np.ndarray):
        if len(shape) == 3 and shape[0] in USUAL_CHANNELS and shape[2] not in USUAL_CHANNELS:
            raise ValueError(
                f"{name} is an array of shape {shape}; NumPy arrays have their channels last, as "
                f"for Captum's visualizers: use {name}.transpose(1, 2, 0)"
            )
        values = np.asarray(given, dtype=np.float64)
    else:
        raise TypeError(
            f"{name} must be a tensor (C, H, W) or a NumPy array (H, W, C), got "
            f"{type(given).__name__}"
        )
    if values.ndim not in (2, 3) or values.size == 0:
        raise ValueError(
            f"{name} has shape {shape}; expected one image: a tensor (C, H, W) or (1, C, H, W), or "
            "a NumPy array (H, W, C)"
        )
    return values if values.ndim == 3 else values[..., None]


def _each_channel(name: str, given: float | Sequence[float], values: Floats) -> Floats:
    """One number a channel."""
    numbers = np.asarray(given, dtype=np.float64).reshape(-1)
    if len(numbers) not in (1, values.shape[2]):
        raise ValueError(
            f"{name} has {len(numbers)} entries for an image of {values.shape[2]} channels; give "
            "one for all or one for each"
        )
    return numbers


def _is_floating_point(image: Image) -> bool:
    if isinstance(image, Tensor):
        return image.is_floating_point()
    return bool(np.issubdtype(image.dtype, np.floating))


def picture_of_map(
    image: Image,
    values: Floats,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
) -> Floats:
    """The image as it can be shown, if it has the size of its map."""
    shown = picture(image, mean, std)
    if shown.shape[:2] != values.shape:
        raise ValueError(
            f"image is {shown.shape[0]} x {shown.shape[1]} where its map is {values.shape[0]} x "
            f"{values.shape[1]}; pass the tensor that was explained"
        )
    return shown


def check_scale(scale: float | None, default: float) -> float:
    """The scale that was asked for, if it is one."""
    if scale is None:
        return default
    if not 0 < scale < math.inf:
        raise ValueError(f"scale={scale!r} must be a positive number, the value drawn fully red")
    return float(scale)
