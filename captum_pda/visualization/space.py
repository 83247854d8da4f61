"""Pictures of inputs that are not images: signals of one dimension and volumes of three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from captum_pda.device_sync import in_double
from captum_pda.evidence.strongest import StrongRegion
from captum_pda.visualization.drawing import (
    AGAINST,
    FOR,
    Floats,
    check_scale,
    draw_colorbar,
    draw_map,
    draw_picture,
    evidence_colormap,
    finish,
    label_for,
    mark,
    new_figure,
    outline_pixels,
    picture,
    show,
    wrapped,
)

#: The most channels of a signal that are drawn.
MOST_CHANNELS = 16
#: Names of the axes of a volume, as they are titled.
AXES = ("slice", "row", "column")
Places = npt.NDArray[np.int64]


def visualize_signal(
    attribution: Tensor,
    signal: Tensor,
    scale: float | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    spacing: float | None = None,
    title: str | None = None,
    measure: str = "weight_of_evidence",
    plt_fig_axis: tuple[Figure, Axes] | None = None,
    fig_size: tuple[float, float] | None = None,
    use_pyplot: bool = True,
) -> tuple[Figure, Axes]:
    """Draw a signal with a line for each channel, over a background coloured by its evidence.

    Args:
        attribution: the map of one signal, (C, T) or (1, C, T).
        signal: the explained signal, in the same form.
        scale: the value that is drawn fully red. Default: the largest absolute value.
        mean, std: the normalisation of the signal, to be undone: x * std + mean.
        spacing: the time between two samples; the axis counts samples without it.
        title: what to write above.
        measure: the measure of the map; it labels the colour bar.
        plt_fig_axis, fig_size, use_pyplot: as for ``visualize_evidence``.

    Example::

        >>> attribution = EfficientPDA(model).attribute(ecg, target=3)
        >>> visualize_signal(attribution, ecg, spacing=1 / 500)
    """
    values, shown = spatial_map(attribution, 1), channels_of(signal, 1, mean, std)
    if plt_fig_axis is None:
        size = fig_size or (8, signal_height(len(shown)) + 1)
        figure = new_figure(size, use_pyplot)
        axes = figure.subplots()
    else:
        figure, axes = plt_fig_axis
    drawn = draw_signal(axes, shown, values, _scale(values, scale), spacing)
    draw_colorbar(figure, [axes], [drawn], label_for(measure, None))
    axes.set_title(title or "")
    if plt_fig_axis is None and use_pyplot:
        show()
    return figure, axes


def visualize_volume(
    attribution: Tensor,
    volume: Tensor,
    at: Sequence[int] | None = None,
    scale: float | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    spacing: Sequence[float] | None = None,
    title: str | None = None,
    measure: str = "weight_of_evidence",
    fig_size: tuple[float, float] | None = None,
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw three orthogonal slices of a volume: as they are, and below with their evidence.

    Args:
        attribution: the map of one volume, (C, D, H, W) or (1, C, D, H, W).
        volume: the explained volume, in the same form.
        at: the voxel (slice, row, column) that the slices meet in. Default: where the absolute
            evidence is largest.
        scale: the value that is drawn fully red. Default: the largest absolute value.
        mean, std: the normalisation of the volume, to be undone: x * std + mean.
        spacing: the extent of a voxel along each axis, such as (3.0, 0.7, 0.7) mm.
        title: what to write above all.
        measure: the measure of the map; it labels the colour bar.
        fig_size, use_pyplot: as for ``visualize_evidence``.

    Returns:
        The figure and its axes: three slices, and the same with their evidence.

    Example::

        >>> attribution = EfficientPDA(model).attribute(scan, target=1)
        >>> visualize_volume(attribution, scan, spacing=(3.0, 0.7, 0.7))
    """
    values = spatial_map(attribution, 3)
    shown = volume_picture(volume, mean, std)
    if at is None:
        known = np.where(np.isfinite(values), np.abs(values), 0)
        at = [int(one) for one in np.unravel_index(int(known.argmax()), values.shape)]
    place = _checked_place(at, values.shape)
    widths, heights = panel_sizes(values.shape, spacing)
    size = fig_size or (sum(widths) + 0.4, 2 * max(heights) + 1.4)
    figure = new_figure(size, use_pyplot)
    grid = figure.subplots(2, 3, squeeze=False, gridspec_kw={"width_ratios": widths})
    if title:
        figure.suptitle(title)
    draw_slices(list(grid[0]), shown, place, spacing)
    drawn = draw_slices(
        list(grid[1]), shown, place, spacing, values=values, scale=_scale(values, scale)
    )
    draw_colorbar(figure, list(grid[1]), drawn, label_for(measure, None))
    if use_pyplot:
        show()
    return figure, list(np.ravel(grid))


def draw_signal_explanation(
    signal: Tensor,
    own_map: Tensor,
    kinds: tuple[list[StrongRegion], list[StrongRegion]],
    name: str,
    label: str,
    words: Sequence[str],
    with_test: bool,
    scale: float | None,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    spacing: Any,
    use_pyplot: bool,
) -> tuple[Figure, list[Axes], Axes | None]:
    """A signal over its evidence with its strongest regions, and the words below; the figure, its
    axes, and those that are left for the test."""
    values, shown = spatial_map(own_map, 1), channels_of(signal, 1, mean, std)
    width = 8.0 + 3.6 * with_test
    lines = wrapped(words, int(12.5 * width))
    tall = max(signal_height(len(shown)), 2.4 if with_test else 0.0)
    above, below = 0.5, 1.05 + 0.18 * len(lines)
    height = above + tall + below
    figure = new_figure((width, height), use_pyplot, layout=None)
    axes = figure.add_axes((0.55 / width, below / height, 7.25 / width, tall / height))
    step = None if spacing is None else _spacing(spacing, 1)[0]
    drawn = draw_signal(axes, shown, values, _scale(values, scale), step)
    mark_spans(axes, *kinds, step)
    axes.set_title(f"{name}: red speaks for it, blue against it", fontsize=10, pad=14)
    bar = figure.add_axes((2.0 / width, (below - 0.6) / height, 4.0 / width, 0.1 / height))
    _colorbar(figure, drawn, bar, label)
    free = None
    if with_test:
        free = figure.add_axes((8.5 / width, below / height, 2.95 / width, tall / height))
    _words_below(figure, lines, height)
    return figure, [axes], free


def draw_volume_explanation(
    volume: Tensor,
    own_map: Tensor,
    kinds: tuple[list[StrongRegion], list[StrongRegion]],
    name: str,
    label: str,
    words: Sequence[str],
    with_test: bool,
    scale: float | None,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    spacing: Any,
    use_pyplot: bool,
) -> tuple[Figure, list[Axes], Axes | None]:
    """The slices of a volume that meet in its strongest region, outlined, and below them with
    their evidence; the figure, its axes, and those that are left for the test."""
    values, shown = spatial_map(own_map, 3), volume_picture(volume, mean, std)
    listed = sorted([*kinds[0], *kinds[1]], key=lambda one: -abs(one.value))
    place = inside_of(listed[0]) if listed else tuple(size // 2 for size in values.shape)
    widths, heights = panel_sizes(values.shape, spacing)
    gap, tallest = 0.2, max(heights)
    across = sum(widths) + 2 * gap
    width = 0.3 + across + (3.9 if with_test else 0.3)
    lines = wrapped(words, int(12.5 * width))
    above, below = 0.75, 0.85 + 0.18 * len(lines)
    height = above + 2 * tallest + gap + below
    figure = new_figure((width, height), use_pyplot, layout=None)
    figure.text(0.3 / width, 1 - 0.1 / height, name, fontsize=11, verticalalignment="top")

    def panels(bottom: float) -> list[Axes]:
        left, made = 0.3, []
        for wide in widths:
            made.append(
                figure.add_axes(
                    (left / width, bottom / height, wide / width, tallest / height), anchor="N"
                )
            )
            left += wide + gap
        return made

    upper, lower = panels(below + tallest + gap), panels(below)
    draw_slices(upper, shown, place, spacing, kinds)
    drawn = draw_slices(lower, shown, place, spacing, None, values, _scale(values, scale))
    bar_width = min(4.0, across)
    bar = figure.add_axes(
        (
            (0.3 + (across - bar_width) / 2) / width,
            (below - 0.2) / height,
            bar_width / width,
            0.1 / height,
        )
    )
    _colorbar(figure, drawn[0], bar, f"{label}; red speaks for it, blue against it")
    free = None
    if with_test:
        top = below + 2 * tallest + gap
        free = figure.add_axes(
            ((width - 3.1) / width, (top - 2.4) / height, 2.95 / width, 2.4 / height)
        )
    _words_below(figure, lines, height)
    return figure, [*upper, *lower], free


def _colorbar(figure: Figure, drawn: AxesImage, bar: Axes, label: str) -> None:
    figure.colorbar(drawn, cax=bar, orientation="horizontal")
    bar.tick_params(labelsize=7)
    bar.set_xlabel(label, fontsize=8)


def _words_below(figure: Figure, lines: Sequence[str], height: float) -> None:
    figure.text(0.02, 0.08 / height, "\n".join(lines), fontsize=8.5, verticalalignment="bottom")


def spatial_map(attribution: Tensor, dims: int) -> Floats:
    """The map (*space) of one example; channels that differ are added up."""
    values = _one_example("attribution", attribution, dims)
    if np.array_equal(values, np.broadcast_to(values[:1], values.shape), equal_nan=True):
        values = values[:1]
    total: Floats = values.sum(axis=0)
    return total


def channels_of(
    given: Tensor,
    dims: int,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
) -> Floats:
    """The channels of one example, (C, *space), without their normalisation."""
    values = _one_example("input", given, dims)
    if (mean is None) != (std is None):
        raise ValueError("mean and std undo a normalisation together; give both or neither")
    if mean is None or std is None:
        return values
    each = [np.asarray(one, dtype=np.float64).reshape(-1, *[1] * dims) for one in (std, mean)]
    if any(len(one) not in (1, len(values)) for one in each):
        raise ValueError(
            f"mean and std have {len(each[1])} and {len(each[0])} entries for {len(values)} "
            "channels; give one for all or one for each"
        )
    undone: Floats = values * each[0] + each[1]
    return undone


def volume_picture(
    volume: Tensor,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
) -> Floats:
    """A volume as it can be shown, (D, H, W, 1 or 3) with values from 0 to 1: three channels as
    colours, any other number as their mean in grey."""
    values = _one_example("volume", volume, 3)
    channels, depth, height, width = values.shape
    # As one tall image, so that all slices are stretched alike.
    tall = picture(np.moveaxis(values, 0, 3).reshape(depth * height, width, channels), mean, std)
    shown = tall.reshape(depth, height, width, channels)
    return shown if channels == 3 else shown.mean(axis=3, keepdims=True)


def draw_signal(
    axes: Axes, shown: Floats, values: Floats, scale: float, spacing: float | None = None
) -> AxesImage:
    """Draw channels (C, T) below each other over a background coloured by the map (T,)."""
    if shown.shape[1:] != values.shape:
        raise ValueError(
            f"signal has {shown.shape[1]} samples where its map has {len(values)}; pass the tensor "
            "that was explained"
        )
    some = shown[:MOST_CHANNELS]
    step = spacing or 1.0
    times = np.arange(len(values)) * step
    low, high = some.min(axis=1), some.max(axis=1)
    room = np.where(high > low, high - low, 1.0)
    offsets = -1.2 * np.arange(len(some))
    bottom, top = offsets[-1] - 0.15, 1.15
    background = axes.imshow(
        values[None],
        cmap=evidence_colormap(0.75),
        vmin=-scale,
        vmax=scale,
        extent=(-0.5 * step, (len(values) - 0.5) * step, bottom, top),
        aspect="auto",
        interpolation="nearest",
    )
    for channel, offset, least, extent in zip(some, offsets, low, room, strict=True):
        axes.plot(times, (channel - least) / extent + offset, color="0.1", linewidth=0.9)
    axes.set_yticks(offsets + 0.5, [str(number) for number in range(len(some))], fontsize=7)
    left = len(shown) - len(some)
    axes.set_ylabel("channel" if not left else f"channel (and {left} more)", fontsize=8)
    axes.set_xlabel("sample" if spacing is None else "time", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.set_xlim(-0.5 * step, (len(values) - 0.5) * step)
    axes.set_ylim(bottom, top)
    return background


def mark_spans(
    axes: Axes,
    speak_for: Sequence[StrongRegion],
    speak_against: Sequence[StrongRegion],
    spacing: float | None = None,
) -> None:
    """Mark where the strongest regions of a signal lie: a bar above it, and their borders."""
    step = spacing or 1.0
    for regions, colour in ((speak_for, FOR), (speak_against, AGAINST)):
        for number, region in enumerate(regions, start=1):
            inside = np.flatnonzero(np.diff(np.pad(region.pixels.astype(int), 1)))
            for start, stop in inside.reshape(-1, 2):
                ends = (start - 0.5) * step, (stop - 0.5) * step
                style = "--" if region.uncertain else "-"
                for end in ends:
                    axes.axvline(end, color=colour, linewidth=0.9, linestyle=style)
                above = {"xycoords": ("data", "axes fraction"), "annotation_clip": False}
                mark(axes, str(number), colour, (sum(ends) / 2, 1.0), **above)


def draw_slices(
    panels: Sequence[Axes],
    shown: Floats,
    place: Sequence[int],
    spacing: Sequence[float] | None = None,
    kinds: tuple[Sequence[StrongRegion], Sequence[StrongRegion]] | None = None,
    values: Floats | None = None,
    scale: float = 1.0,
) -> list[AxesImage]:
    """Draw the slices of a volume (D, H, W, C) that meet in a voxel, with cross-hairs.

    Args:
        panels: one for each axis that is cut across.
        shown: the volume from 0 to 1.
        place: the voxel.
        spacing: the extent of a voxel along each axis.
        kinds: regions for and against, to outline.
        values: the map (D, H, W), drawn over the volume in grey.
        scale: the value that is drawn fully red.
    """
    if values is not None and values.shape != shown.shape[:3]:
        raise ValueError(
            f"volume has {shown.shape[:3]} voxels where its map has {values.shape}; pass the "
            "tensor that was explained"
        )
    sides = _spacing(spacing, 3)
    drawn = []
    for axis, panel in enumerate(panels):
        flat = slice_of(shown, axis, place[axis])
        if values is None:
            draw_picture(panel, flat)
        else:
            drawn.append(draw_map(panel, slice_of(values, axis, place[axis]), scale, flat))
        down, across = (one for one in range(3) if one != axis)
        panel.set_aspect(sides[down] / sides[across])
        for regions, colour in zip(kinds or ((), ()), (FOR, AGAINST), strict=True):
            for number, region in enumerate(regions, start=1):
                pixels = slice_of(region.pixels, axis, place[axis])
                if pixels.any():
                    outline_pixels(panel, pixels, colour, region.uncertain, str(number))
        height, width = flat.shape[:2]
        panel.axhline(place[down], color="#111", linewidth=0.6, alpha=0.7)
        panel.axvline(place[across], color="#111", linewidth=0.6, alpha=0.7)
        panel.set_xlim(-0.5, width - 0.5)
        panel.set_ylim(height - 0.5, -0.5)
        finish(panel, None)
        if values is None:
            panel.set_title(f"{AXES[axis]} {place[axis]}", fontsize=9)
    return drawn


def slice_of(values: Any, axis: int, number: int) -> Any:
    """The slice of a volume across an axis."""
    return values[(slice(None),) * axis + (number,)]


def inside_of(region: StrongRegion) -> tuple[int, ...]:
    """A place inside a region, as far from its border as there is."""
    depth = distance_transform_edt(np.pad(region.pixels, 1))
    place = np.unravel_index(int(depth.argmax()), depth.shape)
    return tuple(int(one) - 1 for one in place)


def panel_sizes(
    shape: tuple[int, ...], spacing: Sequence[float] | None
) -> tuple[list[float], list[float]]:
    """Inches of the panels of three slices on one scale: their widths and heights."""
    extents = [size * side for size, side in zip(shape, _spacing(spacing, 3), strict=True)]
    inches = 2.6 / max(extents)
    pairs = [(extents[1], extents[2]), (extents[0], extents[2]), (extents[0], extents[1])]
    heights = [max(0.5, inches * one) for one, _ in pairs]
    return [max(0.9, inches * one) for _, one in pairs], heights


def signal_height(channels: int) -> float:
    """Inches for the channels of a signal."""
    return 0.8 + 0.45 * min(channels, MOST_CHANNELS)


def _spacing(spacing: Any, dims: int) -> tuple[float, ...]:
    """The extent of a voxel along each axis."""
    if spacing is None:
        return (1.0,) * dims
    given = np.asarray(spacing, dtype=np.float64).reshape(-1)
    if len(given) not in (1, dims) or not (np.isfinite(given) & (given > 0)).all():
        raise ValueError(
            f"spacing={spacing!r} must be {dims} positive numbers, the extent of a voxel along "
            "each axis"
        )
    return tuple(float(one) for one in np.broadcast_to(given, dims))


def _one_example(name: str, given: Tensor, dims: int) -> Floats:
    """One example (C, *space) as doubles, with or without its batch dimension."""
    if not isinstance(given, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(given).__name__}")
    kind = {1: "(C, T)", 3: "(C, D, H, W)"}[dims]
    if given.dim() == dims + 2 and len(given) != 1:
        raise ValueError(
            f"{name} is a batch of {len(given)}, shape {tuple(given.shape)}; draw one at a time, "
            f"for example {name}[0]"
        )
    if given.dim() not in (dims + 1, dims + 2) or given.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(given.shape)}; expected {kind}")
    values: Floats = in_double(given.detach()).cpu().numpy()
    return values[0] if given.dim() == dims + 2 else values


def _checked_place(at: Sequence[int], shape: tuple[int, ...]) -> list[int]:
    place = [int(one) for one in at]
    if len(place) != 3 or not all(0 <= one < size for one, size in zip(place, shape, strict=True)):
        raise ValueError(f"at={tuple(at)} is not a voxel of a volume of {shape}")
    return place


def _scale(values: Floats, scale: float | None) -> float:
    known = np.abs(values[np.isfinite(values)])
    return check_scale(scale, float(known.max(initial=0)) or 1.0)
