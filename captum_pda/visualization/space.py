"""Pictures of signals and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from captum_pda.evidence.strongest import StrongRegion
from captum_pda.model.measures import find_measure
from captum_pda.visualization import drawing
from captum_pda.visualization.drawing import AGAINST, FOR, Floats, Numbers

#: The most channels of a signal that are drawn.
MOST_CHANNELS = 16
#: The names of a volume's axes in titles.
AXES = ("slice", "row", "column")


def visualize_signal(
    attribution: Tensor,
    signal: Tensor,
    scale: float | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    spacing: float | None = None,
    title: str | None = None,
    measure: str = "weight_of_evidence",
    plt_fig_axis: tuple[Figure, Axes] | None = None,
    fig_size: tuple[float, float] | None = None,
    use_pyplot: bool = True,
) -> tuple[Figure, Axes]:
    """Draw a signal with a line for each channel, over a background coloured by its evidence.

    Args:
        attribution, signal: the map of one signal, (C, T) or (1, C, T), and the signal.
        spacing: the time between two samples. Default: the axis counts samples.
        scale, mean, std, title, measure, plt_fig_axis, fig_size, use_pyplot: as for
            ``visualize_evidence``.
    """
    values = drawing.evidence_map(attribution, 1)
    shown = drawing.picture_of_map(signal, values.shape, mean, std)
    size = fig_size or (8, signal_height(shown) + 1)
    figure, (axes,) = drawing.panels_for(plt_fig_axis, 1, size, use_pyplot)
    drawn = draw_signal(axes, shown, values, drawing.checked_scale(scale, values), spacing)
    drawing.draw_colorbar(figure, [axes], [drawn], find_measure(measure).label)
    axes.set_title(title or "")
    drawing.show(plt_fig_axis is None and use_pyplot)
    return figure, axes


def visualize_volume(
    attribution: Tensor,
    volume: Tensor,
    at: Sequence[int] | None = None,
    scale: float | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    spacing: Sequence[float] | None = None,
    title: str | None = None,
    measure: str = "weight_of_evidence",
    fig_size: tuple[float, float] | None = None,
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw three orthogonal slices of a volume, without and with their evidence.

    Args:
        attribution, volume: the map of one volume, (C, D, H, W) or (1, C, D, H, W), and the volume.
        at: the voxel (slice, row, column) in which the slices meet. Default: the one with the
            largest absolute evidence.
        spacing: the extent of a voxel along each axis, such as (3.0, 0.7, 0.7) mm.
        scale, mean, std, title, measure, fig_size, use_pyplot: as for ``visualize_evidence``.

    Returns:
        The figure and its axes: three slices, and the same with their evidence.
    """
    values = drawing.evidence_map(attribution, 3)
    shown = drawing.picture_of_map(volume, values.shape, mean, std)
    if at is None:
        strength = np.nan_to_num(np.abs(values), posinf=0)
        at = [int(one) for one in np.unravel_index(strength.argmax(), values.shape)]
    if len(at) != 3 or not all(0 <= a < b for a, b in zip(at, values.shape, strict=True)):
        raise ValueError(f"at={tuple(at)} is not a voxel of a volume of {values.shape}")
    widths, height = panel_sizes(values.shape, spacing)
    figure = drawing.new_figure(fig_size or (sum(widths) + 0.4, 2 * height + 1.4), use_pyplot)
    grid = figure.subplots(2, 3, squeeze=False, gridspec_kw={"width_ratios": widths})
    figure.suptitle(title or "")
    draw_slices(grid[0], shown, at, spacing)
    scale = drawing.checked_scale(scale, values)
    drawn = draw_slices(grid[1], shown, at, spacing, values=values, scale=scale)
    drawing.draw_colorbar(figure, grid[1], drawn, find_measure(measure).label)
    drawing.show(use_pyplot)
    return figure, list(np.ravel(grid))


def draw_signal(
    axes: Axes, shown: Floats, values: Floats, scale: float, spacing: Any = None
) -> AxesImage:
    """Draw channels (T, C) below each other over a background coloured by the map (T,)."""
    (step,) = checked_spacing(spacing, 1)
    some = shown.T[:MOST_CHANNELS]
    low, high = some.min(axis=1, keepdims=True), some.max(axis=1, keepdims=True)
    offsets = -1.2 * np.arange(len(some))
    ends = -0.5 * step, (len(values) - 0.5) * step
    background = axes.imshow(
        values[None],
        cmap=drawing.evidence_colormap(0.75),
        vmin=-scale,
        vmax=scale,
        extent=(*ends, offsets[-1] - 0.15, 1.15),
        aspect="auto",
        interpolation="nearest",
    )
    heights = (some - low) / np.where(high > low, high - low, 1.0) + offsets[:, None]
    axes.plot(np.arange(len(values)) * step, heights.T, color="0.1", linewidth=0.9)
    axes.set_yticks(offsets + 0.5, [str(number) for number in range(len(some))], fontsize=7)
    left = shown.shape[1] - len(some)
    axes.set_ylabel("channel" if not left else f"channel (and {left} more)", fontsize=8)
    axes.set_xlabel("sample" if spacing is None else "time", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.set_xlim(*ends)
    return background


def mark_spans(axes: Axes, kinds: Sequence[Sequence[StrongRegion]], spacing: Any = None) -> None:
    """Mark the strongest regions of a signal: a number above each, and its borders."""
    (step,) = checked_spacing(spacing, 1)
    above: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "annotation_clip": False}
    for regions, colour in zip(kinds, (FOR, AGAINST), strict=True):
        for number, region in enumerate(regions, start=1):
            borders = np.flatnonzero(np.diff(np.pad(region.pixels.astype(int), 1)))
            style = "--" if region.uncertain else "-"
            for ends in (borders.reshape(-1, 2) - 0.5) * step:
                for end in ends:
                    axes.axvline(end, color=colour, linewidth=0.9, linestyle=style)
                drawing.mark(axes, str(number), colour, (float(ends.mean()), 1.0), **above)


def draw_slices(
    panels: Sequence[Axes],
    shown: Floats,
    place: Sequence[int],
    spacing: Any = None,
    kinds: Sequence[Sequence[StrongRegion]] = (),
    values: Floats | None = None,
    scale: float = 1.0,
) -> list[AxesImage]:
    """Draw the slices of a volume (D, H, W, C) that meet in a voxel, with cross-hairs; with
    outlines of regions, or with a map (D, H, W) over the grey volume."""
    sides = checked_spacing(spacing, 3)
    drawn = []
    for axis, panel in enumerate(panels):
        flat = np.moveaxis(shown, axis, 0)[place[axis]]
        if values is None:
            drawing.draw_picture(panel, flat)
        else:
            own = np.moveaxis(values, axis, 0)[place[axis]]
            drawn.append(drawing.draw_map(panel, own, scale, flat))
        down, across = (one for one in range(3) if one != axis)
        for regions, colour in zip(kinds, (FOR, AGAINST), strict=False):
            for number, region in enumerate(regions, start=1):
                pixels = np.moveaxis(region.pixels, axis, 0)[place[axis]]
                if pixels.any():
                    drawing.outline_pixels(panel, pixels, colour, region.uncertain, str(number))
        panel.axhline(place[down], color="#111", linewidth=0.6, alpha=0.7)
        panel.axvline(place[across], color="#111", linewidth=0.6, alpha=0.7)
        panel.set_xlim(-0.5, flat.shape[1] - 0.5)
        panel.set_ylim(flat.shape[0] - 0.5, -0.5)
        panel.set_aspect(sides[down] / sides[across])
        drawing.finish(panel, None)
        if values is None:
            panel.set_title(f"{AXES[axis]} {place[axis]}", fontsize=9)
    return drawn


def panel_sizes(shape: tuple[int, ...], spacing: Any) -> tuple[list[float], float]:
    """The sizes of the panels of three slices on one scale in inches: widths and largest height."""
    extents = np.multiply(shape, checked_spacing(spacing, 3))
    depth, height, width = 2.6 * extents / extents.max()
    return [max(0.9, one) for one in (width, width, height)], max(0.5, depth, height)


def signal_height(shown: Floats) -> float:
    """The height of a signal (T, C) in inches."""
    return 0.8 + 0.45 * min(int(shown.shape[1]), MOST_CHANNELS)


def checked_spacing(spacing: Any, dims: int) -> tuple[float, ...]:
    """The extent of a voxel along each axis."""
    given = np.asarray(1.0 if spacing is None else spacing, dtype=np.float64).reshape(-1)
    if len(given) not in (1, dims) or not (np.isfinite(given) & (given > 0)).all():
        raise ValueError(
            f"spacing={spacing!r} must be {dims} positive numbers, the extent of a voxel along "
            "each axis"
        )
    return tuple(float(one) for one in np.broadcast_to(given, dims))
