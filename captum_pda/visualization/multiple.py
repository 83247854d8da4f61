"""Several maps of one image side by side, on one scale or each on its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from captum_pda.prediction.inputs import check_choice, check_count
from captum_pda.prediction.measures import Measure
from captum_pda.visualization.arrays import (
    Image,
    check_scale,
    evidence_map,
    evidence_scale,
    picture_of_map,
)
from captum_pda.visualization.drawing import (
    check_panels,
    draw_colorbar,
    draw_map,
    draw_picture,
    finish,
    label_for,
    new_figure,
    show,
)

METHODS = ("heat_map", "blended_heat_map")
PANEL_WIDTH = 3.0


def visualize_evidence_multiple(
    attributions: Mapping[str, Image] | Sequence[Image],
    image: Image | None = None,
    method: str | None = None,
    titles: Sequence[str] | None = None,
    shared_scale: bool = True,
    scale: float | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    image_title: str | None = "image",
    measure: str | Measure = "weight_of_evidence",
    colorbar_label: str | None = None,
    show_colorbar: bool = True,
    cmap: str | Colormap | None = None,
    alpha_overlay: float = 0.6,
    n_columns: int | None = None,
    plt_fig_axis: tuple[Figure, Sequence[Axes]] | None = None,
    fig_size: tuple[float, float] | None = None,
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw the image, if given, and several maps of it side by side.

    Args:
        attributions: the maps, in a list or as a table of titles and maps; each as for
            ``visualize_evidence``.
        image: the explained image, drawn first. None leaves it out.
        method: "heat_map" or "blended_heat_map". Default: blended where there is an image.
        titles: a title for each map, where they come in a list.
        shared_scale: whether one scale and one colour bar serve all maps, so that colours can be
            compared; otherwise each map has its own.
        scale: the value that is drawn fully red in all maps. Default: the largest absolute value.
        image_title: what to write above the image.
        n_columns: how many to draw in a row. Default: all.
        plt_fig_axis: a figure and a list of axes to draw on, one for the image and one for each
            map.
        fig_size: the size of a new figure. Default: 3 inches wide a panel.
        mean, std, measure, colorbar_label, show_colorbar, cmap, alpha_overlay, use_pyplot: as for
            ``visualize_evidence``.

    Returns:
        The figure and its axes: that of the image, if given, then one for each map.

    Example::

        >>> evidence = EfficientPDA(model).evidence(image)
        >>> maps = {name: evidence.attribution(c) for c, name in enumerate(names)}
        >>> visualize_evidence_multiple(maps, image)
    """
    if isinstance(attributions, Mapping):
        if titles is not None:
            raise ValueError("titles come with the maps in a table; give one or the other")
        titles, attributions = list(attributions), list(attributions.values())
    if len(attributions) == 0:
        raise ValueError("attributions is empty; give at least one map")
    names = [None] * len(attributions) if titles is None else list(titles)
    if len(names) != len(attributions):
        raise ValueError(
            f"titles has {len(names)} entries for {len(attributions)} maps; give one for each"
        )
    if method is None:
        method = "heat_map" if image is None else "blended_heat_map"
    check_choice("method", method, METHODS)
    if image is None and method != "heat_map":
        raise ValueError(f"method={method!r} draws the image too; give image, or use 'heat_map'")
    label = label_for(measure, colorbar_label)
    maps = [evidence_map(attribution) for attribution in attributions]
    shown = [None if image is None else picture_of_map(image, one, mean, std) for one in maps]
    together = check_scale(scale, evidence_scale(*maps))
    one_scale = shared_scale or scale is not None

    with_image = int(image is not None)
    if plt_fig_axis is None:
        n_panels = len(maps) + with_image
        columns = n_panels if n_columns is None else check_count("n_columns", n_columns)
        rows = math.ceil(n_panels / columns)
        lines = max(str(name).count("\n") + 1 for name in [image_title, *names])
        figure = new_figure(
            fig_size or _size(rows, columns, maps[0].shape, lines, one_scale), use_pyplot
        )
        axes = _fill(figure, rows, columns, n_panels)
    else:
        figure, axes = plt_fig_axis[0], check_panels(plt_fig_axis[1], len(maps) + with_image)
    if shown[0] is not None:
        draw_picture(axes[0], shown[0])
        finish(axes[0], image_title)
    drawn = []
    for panel, values, below, name in zip(axes[with_image:], maps, shown, names, strict=True):
        grey = below if method == "blended_heat_map" else None
        one = together if one_scale else evidence_scale(values)
        drawn.append(draw_map(panel, values, one, grey, cmap, alpha_overlay))
        finish(panel, name)
        if show_colorbar and not one_scale:
            draw_colorbar(figure, [panel], drawn[-1:], label)
    if show_colorbar and one_scale:
        draw_colorbar(figure, axes, drawn, label)
    if plt_fig_axis is None and use_pyplot:
        show()
    return figure, axes


def _size(
    rows: int, columns: int, space: tuple[int, ...], title_lines: int, one_scale: bool
) -> tuple[float, float]:
    """Inches for panels of the map's shape, their titles and their colour bars."""
    height = min(max(space[0] / space[1], 0.3), 3) * PANEL_WIDTH + 0.25 * title_lines
    bars = 1 if one_scale else rows
    return columns * PANEL_WIDTH, rows * height + bars * 0.75


def _fill(figure: Figure, rows: int, columns: int, n: int) -> list[Axes]:
    """The first n axes of a grid; the others are left empty."""
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for empty in grid[n:]:
        empty.axis("off")
    return list(grid[:n])
