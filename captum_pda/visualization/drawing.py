"""What every picture is drawn with: maps, images, colour bars and figures."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib import patheffects
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from scipy.ndimage import distance_transform_edt

from captum_pda.model.measures import Measure, find_measure
from captum_pda.visualization.arrays import Floats

#: The colours of what speaks for a class, and against it.
FOR, AGAINST = "#b2182b", "#2166ac"


def label_for(measure: str | Measure, label: str | None) -> str:
    """What the colour bar says."""
    return find_measure(measure).label if label is None else label


def evidence_colormap(opacity: float | None = None) -> Colormap:
    """Blue through white to red, which colour-blind eyes tell apart too, and grey for NaN.

    With an opacity, colours are transparent at zero and reach it at the ends, so that an image
    below is seen wherever nothing is said.
    """
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
        # Between dark and light grey, so that colours stand out from black and from white.
        axes.imshow(0.15 + 0.8 * grey.mean(axis=2), cmap="gray", vmin=0, vmax=1)
    own = evidence_colormap(None if grey is None else alpha_overlay)
    return axes.imshow(
        values,
        cmap=own if cmap is None else cmap,
        vmin=-scale,
        vmax=scale,
        alpha=None if grey is None or cmap is None else alpha_overlay,
        # Smoothing would mix evidence for and against into evidence for nothing.
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
    figure: Figure, axes: Sequence[Axes], heat_maps: Sequence[AxesImage], label: str
) -> None:
    """A colour bar below the axes for maps of one scale, with arrows where values were cut."""
    low, high = heat_maps[0].get_clim()
    data = np.concatenate(
        [np.ma.getdata(np.ma.asarray(drawn.get_array())).ravel() for drawn in heat_maps]
    )
    below, above = bool((data < low).any()), bool((data > high).any())
    extend = "both" if below and above else "min" if below else "max" if above else "neither"
    # A long bar need not be thick.
    aspect = 20 * len(axes)
    figure.colorbar(
        heat_maps[0],
        ax=list(axes),
        location="bottom",
        shrink=0.8 if len(axes) == 1 else 0.5,
        aspect=aspect,
        label=label,
        extend=extend,
    )


def finish(axes: Axes, title: str | None) -> None:
    """No ticks, and a title."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    if title:
        axes.set_title(title)


def check_panels(given: Sequence[Axes], n: int) -> list[Axes]:
    """The given axes in one list, if there are enough of them."""
    panels = list(np.ravel(np.asarray(given, dtype=object)))
    if len(panels) != n:
        raise ValueError(f"plt_fig_axis has {len(panels)} axes for {n} panels; give one for each")
    return panels


def new_figure(
    fig_size: tuple[float, float],
    use_pyplot: bool,
    layout: Literal["compressed"] | None = "compressed",
) -> Figure:
    """A figure that makes room for its colour bars and titles."""
    if use_pyplot:
        return plt.figure(figsize=fig_size, layout=layout)
    return Figure(figsize=fig_size, layout=layout)


def wrapped(words: Sequence[str], width: int) -> list[str]:
    """Words in lines of at most this many letters."""
    return [line for each in words for line in textwrap.wrap(each, width, subsequent_indent="  ")]


def outline_pixels(
    axes: Axes,
    pixels: npt.NDArray[np.bool_],
    colour: str,
    uncertain: bool = False,
    number: str | None = None,
) -> None:
    """An outline with a white rim around pixels (H, W), and a number where there is most room."""
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
        mark(axes, number, colour, roomiest_place(pixels))


def roomiest_place(pixels: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """The column and the row of the pixel of (H, W) with most room around it."""
    depth = distance_transform_edt(np.pad(pixels, 1))
    row, column = np.unravel_index(int(depth.argmax()), depth.shape)
    return float(column - 1), float(row - 1)


def mark(axes: Axes, number: str, colour: str, place: tuple[float, float], **options: Any) -> None:
    """A white number on a colour."""
    axes.annotate(
        number,
        place,
        horizontalalignment="center",
        verticalalignment="center",
        fontsize=8,
        color="white",
        bbox={"boxstyle": "round,pad=0.15", "facecolor": colour, "edgecolor": "white"},
        **options,
    )


def show() -> None:
    """Show pyplot's figures, where there is something to show them on."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*non-(interactive|GUI)")
        plt.show()
