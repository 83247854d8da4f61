"""What all pictures share: conversions of maps and images, colours and figures."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib import patheffects
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from captum_pda.device_sync import in_double
from captum_pda.evidence.strongest import StrongRegion

Floats: TypeAlias = npt.NDArray[np.float64]
#: A tensor (C, H, W), (1, C, H, W) or (H, W), or a NumPy array (H, W, C) or (H, W).
Image: TypeAlias = Tensor | npt.NDArray[Any]
#: A mean or std: one number for all channels or one for each.
Numbers: TypeAlias = float | Sequence[float] | None

#: The numbers of channels by which the first or last axis of an image is identified.
USUAL_CHANNELS = (1, 3, 4)


def evidence_scale(*attributions: Image) -> float:
    """The largest absolute value in any of the maps, as a common scale; 1 if all are 0."""
    return checked_scale(None, *(evidence_map(attribution) for attribution in attributions))


def checked_scale(scale: float | None, *maps: Floats) -> float:
    """The given scale, or the largest absolute value in any of the maps."""
    if scale is not None:
        if not 0 < scale < math.inf:
            raise ValueError(
                f"scale={scale!r} must be a positive number, the value drawn fully red"
            )
        return float(scale)
    known = [float(np.abs(one[np.isfinite(one)]).max(initial=0)) for one in maps]
    return max(known, default=0) or 1.0


def evidence_map(attribution: Image, dims: int = 2) -> Floats:
    """The map of one example, (*space): the common value of all channels, or their sum."""
    values = to_channels_last("attribution", attribution, dims)
    first = values[..., :1]
    if np.array_equal(values, np.broadcast_to(first, values.shape), equal_nan=True):
        return values[..., 0]
    total: Floats = values.sum(axis=-1)
    return total


def picture(image: Image, mean: Numbers = None, std: Numbers = None, dims: int = 2) -> Floats:
    """An image for display, (*space, C) with values from 0 to 1.

    With ``mean`` and ``std``, x * std + mean. Bytes are divided by 255; other values outside of 0
    to 1 are stretched from black to white.
    """
    values = unnormalised(to_channels_last("image", image, dims), mean, std)
    if mean is not None:
        return np.clip(values, 0, 1)
    if not getattr(image.dtype, "is_floating_point", getattr(image.dtype, "kind", "") == "f"):
        return np.clip(values / 255, 0, 1) if values.max() > 1 else values
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        values = (values - low) / max(high - low, np.finfo(np.float64).tiny)
    return values


def unnormalised(values: Floats, mean: Numbers, std: Numbers) -> Floats:
    """Values (*space, C) without their normalisation: x * std + mean, if both are given."""
    if mean is None and std is None:
        return values
    if mean is None or std is None:
        raise ValueError("mean and std undo a normalisation together; give both or neither")
    for name, given in (("std", std), ("mean", mean)):
        if np.size(given) not in (1, values.shape[-1]):
            raise ValueError(
                f"{name} has {np.size(given)} entries for an image of {values.shape[-1]} "
                "channels; give one for all or one for each"
            )
    return np.asarray(values * np.ravel(std) + np.ravel(mean), dtype=np.float64)


def to_channels_last(name: str, given: Image, dims: int = 2) -> Floats:
    """A tensor with channels first or, of an image, an array with channels last, as (*space, C)."""
    shape = tuple(getattr(given, "shape", ()))
    space = {1: "T", 2: "H, W", 3: "D, H, W"}[dims]
    wanted = f"a tensor (C, {space}) or (1, C, {space})"
    wanted += ", or a NumPy array (H, W, C)" if dims == 2 else ""
    if isinstance(given, Tensor):
        if len(shape) == dims + 2 and shape[0] != 1:
            raise ValueError(
                f"{name} is a batch of {shape[0]}, shape {shape}; draw one at a time, for example "
                f"{name}[0]"
            )
        if dims == 2 and len(shape) == 5:
            raise ValueError(
                f"{name} has three spatial dimensions, shape {shape}; use visualize_volume, or "
                f"draw one slice, for example {name}[:, :, 0]"
            )
        values = in_double(given.detach()).cpu().numpy()
        values = values[0] if len(shape) == dims + 2 else values
        values = np.moveaxis(values, 0, -1) if values.ndim == dims + 1 else values
    elif isinstance(given, np.ndarray) and dims == 2:
        if len(shape) == 3 and shape[0] in USUAL_CHANNELS and shape[2] not in USUAL_CHANNELS:
            raise ValueError(
                f"{name} is an array of shape {shape}; NumPy arrays have their channels last, as "
                f"for Captum's visualizers: use {name}.transpose(1, 2, 0)"
            )
        values = np.asarray(given, dtype=np.float64)
    else:
        raise TypeError(f"{name} must be {wanted}, got {type(given).__name__}")
    if dims == 2 and values.ndim == 2:
        values = values[..., None]
    if values.ndim != dims + 1 or values.size == 0:
        raise ValueError(f"{name} has shape {shape}; expected one image: {wanted}")
    return values


def picture_of_map(image: Image, space: Sequence[int], mean: Numbers, std: Numbers) -> Floats:
    """The image for display, if it has the shape of its map: for one dimension the values of each
    channel, for three in grey unless there are 3 channels."""
    dims = len(space)
    if dims == 1:
        shown = unnormalised(to_channels_last("signal", image, 1), mean, std)
    else:
        shown = picture(image, mean, std, dims)
    if shown.shape[:dims] != tuple(space):
        own, wanted = (" x ".join(map(str, one)) for one in (shown.shape[:dims], space))
        raise ValueError(
            f"image is {own} where its map is {wanted}; pass the tensor that was explained"
        )
    if dims == 3 and shown.shape[3] != 3:
        return np.asarray(shown.mean(axis=3, keepdims=True))
    return shown


#: The colours of evidence for a class, and against it.
FOR, AGAINST = "#b2182b", "#2166ac"


def evidence_colormap(opacity: float | None = None) -> Colormap:
    """Blue through white to red, which is safe for colour-blind readers, and grey for NaN. With an
    opacity, colours are transparent at zero and reach it at the ends."""
    strength = np.abs(np.linspace(-1, 1, 257))[:, None]
    ends = np.where(np.arange(257)[:, None] < 128, to_rgb(AGAINST), to_rgb(FOR))
    if opacity is None:
        colours = 1 - strength**0.8 * (1 - ends)
    else:
        colours = np.hstack([ends, opacity * strength])
    return ListedColormap(colours, name="evidence").with_extremes(bad="0.5")


def draw_map(
    axes: Axes,
    values: Floats,
    scale: float,
    grey: Floats | None = None,
    cmap: str | Colormap | None = None,
    alpha_overlay: float = 0.85,
) -> AxesImage:
    """Draw a map from -scale to scale, over the grey image if there is one."""
    if grey is not None:
        # Between dark and light grey, so that colours are visible on black and on white.
        axes.imshow(0.15 + 0.8 * grey.mean(axis=2), cmap="gray", vmin=0, vmax=1)
    own = evidence_colormap(None if grey is None else alpha_overlay)
    return axes.imshow(
        values,
        cmap=own if cmap is None else cmap,
        vmin=-scale,
        vmax=scale,
        alpha=None if grey is None or cmap is None else alpha_overlay,
        # Smoothing would mix evidence for and against.
        interpolation="nearest",
    )


def draw_picture(axes: Axes, shown: Floats) -> None:
    """Draw an image of values from 0 to 1."""
    channels = shown.shape[2]
    if channels not in (1, 3, 4):
        raise ValueError(
            f"image has {channels} channels; only 1, 3 or 4 can be shown in colours. Use "
            "method='blended_heat_map' for their mean in grey, or pick channels to show"
        )
    if channels == 1:
        axes.imshow(shown[..., 0], cmap="gray", vmin=0, vmax=1)
    else:
        axes.imshow(shown)


def draw_colorbar(
    figure: Figure,
    axes: Sequence[Axes],
    heat_maps: Sequence[AxesImage],
    label: str,
    own_axes: Axes | None = None,
) -> Colorbar:
    """A colour bar below the axes, or in its own; with arrows if values were cut."""
    low, high = heat_maps[0].get_clim()
    data = np.concatenate(
        [np.ma.getdata(np.ma.asarray(drawn.get_array())).ravel() for drawn in heat_maps]
    )
    ends = ("neither", "max", "min", "both")[2 * (data < low).any() + (data > high).any()]
    place: dict[str, Any] = {"cax": own_axes, "orientation": "horizontal"}
    if own_axes is None:
        shrink = 0.8 if len(axes) == 1 else 0.5
        # A long bar may be thin.
        place = {"ax": list(axes), "location": "bottom", "shrink": shrink}
        place["aspect"] = 20 * min(len(axes), 3)
    # There is room for few numbers under one panel.
    ticks = MaxNLocator(4 if own_axes is None and len(axes) == 1 else 8)
    return figure.colorbar(heat_maps[0], label=label, extend=ends, ticks=ticks, **place)


def finish(axes: Axes, title: str | None) -> None:
    """Remove ticks, and add a title."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    if title:
        axes.set_title(title)


def new_figure(fig_size: tuple[float, float], use_pyplot: bool) -> Figure:
    """A figure with room for its colour bars and titles."""
    make = plt.figure if use_pyplot else Figure
    return make(figsize=fig_size, layout="compressed")


def panels_for(
    plt_fig_axis: tuple[Figure, Any] | None,
    n: int,
    fig_size: tuple[float, float],
    use_pyplot: bool,
    n_columns: int | None = None,
) -> tuple[Figure, list[Axes]]:
    """The given figure and its axes, or a new one with n axes."""
    if plt_fig_axis is not None:
        given = list(np.ravel(np.asarray(plt_fig_axis[1], dtype=object)))
        if len(given) != n:
            raise ValueError(
                f"plt_fig_axis has {len(given)} axes for {n} panels; give one for each"
            )
        return plt_fig_axis[0], given
    figure, columns = new_figure(fig_size, use_pyplot), n_columns or n
    grid = figure.subplots(math.ceil(n / columns), columns, squeeze=False).ravel()
    for empty in grid[n:]:
        empty.axis("off")
    return figure, list(grid[:n])


def wrapped(words: Sequence[str], width: int, indent: str = "  ") -> list[str]:
    """Words in lines of limited length."""
    return [line for each in words for line in textwrap.wrap(each, width, subsequent_indent=indent)]


def outline_pixels(
    axes: Axes,
    pixels: npt.NDArray[np.bool_],
    colour: str,
    uncertain: bool = False,
    number: str | None = None,
) -> None:
    """An outline with a white rim around pixels (H, W), and a number in the middle."""
    inside = np.pad(pixels, 1).astype(float)
    height, width = inside.shape
    lines = axes.contour(
        np.arange(width) - 1,
        np.arange(height) - 1,
        inside,
        levels=[0.5],
        colors=[colour],
        linewidths=1.8,
        linestyles="--" if uncertain else "-",
    )
    lines.set_path_effects([patheffects.withStroke(linewidth=3.2, foreground="white")])
    axes.set_xlim(-0.5, width - 2.5)
    axes.set_ylim(height - 2.5, -0.5)
    if number:
        mark(axes, number, colour, innermost(pixels)[::-1])


def innermost(pixels: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    """The place inside a region (*space) that is farthest from its border."""
    depth = distance_transform_edt(np.pad(pixels, 1))
    place = np.unravel_index(int(depth.argmax()), depth.shape)
    return tuple(int(one) - 1 for one in place)


def strongest_place(region: StrongRegion, values: Floats) -> tuple[int, ...]:
    """The place inside a region with the strongest map (*space), far from the border."""
    strength = np.where(region.pixels, np.copysign(1, region.value) * values, -np.inf)
    return innermost(strength >= strength.max())


def mark(axes: Axes, number: str, colour: str, place: Sequence[float], **options: Any) -> None:
    """A white number on a colour."""
    axes.annotate(
        number,
        (place[0], place[1]),
        horizontalalignment="center",
        verticalalignment="center",
        fontsize=8,
        color="white",
        bbox={"boxstyle": "round,pad=0.15", "facecolor": colour, "edgecolor": "white"},
        **options,
    )


def show(wanted: bool = True) -> None:
    """Show pyplot's figures, if there is a display."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*non-(interactive|GUI)")
        if wanted:
            plt.show()
