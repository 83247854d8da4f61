"""Pictures of maps: one, several side by side, or the parts of an explanation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from captum_pda._captum import TargetType
from captum_pda.evidence.evidence import WindowEvidence, questions_of
from captum_pda.model.inputs import check_choice, check_count
from captum_pda.model.measures import Measure, find_measure
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.visualization import drawing
from captum_pda.visualization.drawing import Image, Numbers

METHODS = ("heat_map", "blended_heat_map", "original_image")
#: The width of a panel in inches, and the number of maps of parts in a row.
PANEL_WIDTH, PARTS_IN_ROW = 3.0, 4


def visualize_evidence(
    attribution: Image,
    image: Image | None = None,
    method: str | None = None,
    scale: float | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    title: str | None = None,
    measure: str | Measure = "weight_of_evidence",
    show_colorbar: bool = True,
    cmap: str | Colormap | None = None,
    alpha_overlay: float = 0.85,
    plt_fig_axis: tuple[Figure, Axes] | None = None,
    fig_size: tuple[float, float] = (5, 5),
    use_pyplot: bool = True,
) -> tuple[Figure, Axes]:
    """Draw a map, red for the class and blue against it; returns the figure and its axes.

    Args:
        attribution: a map of one image: a tensor (C, H, W) or (1, C, H, W), or a NumPy array (H, W,
            C) or (H, W). Equal channels, as in every PDA map, count once; others are summed.
        image: the explained image, in the same forms.
        method: "heat_map", "blended_heat_map" (over the grey image) or "original_image". Default:
            blended if there is an image.
        scale: the value that is fully red, and its negative fully blue. Default: the largest
            absolute value. Larger values are cut, and the colour bar gets arrows.
        mean, std: the normalisation of the image, to be undone: x * std + mean. Without them,
            values outside of 0 to 1 are stretched from black to white.
        title: the title.
        measure: the measure of the map, by name or as an object, for the label of the colour bar.
        show_colorbar: whether to draw the colour bar.
        cmap: another colour map, with zero in its middle.
        alpha_overlay: the opacity of the strongest evidence over the grey image, from 0 to 1.
        plt_fig_axis: a figure and axes to draw on, instead of new ones.
        fig_size: the size of a new figure.
        use_pyplot: whether a new figure is made by pyplot, and shown.

    Example::

        >>> attribution = EfficientPDA(model).attribute(image, target=3)
        >>> visualize_evidence(attribution, image, mean=[0.485, 0.456, 0.406],
        ...                    std=[0.229, 0.224, 0.225], title="husky")
    """
    method = _checked_method(method, image, METHODS)
    values = drawing.evidence_map(attribution)
    shown = None if image is None else drawing.picture_of_map(image, values.shape, mean, std)
    label = find_measure(measure).label
    scale = drawing.checked_scale(scale, values)
    figure, (axes,) = drawing.panels_for(plt_fig_axis, 1, fig_size, use_pyplot)
    if method == "original_image" and shown is not None:
        drawing.draw_picture(axes, shown)
    else:
        grey = shown if method == "blended_heat_map" else None
        heat_map = drawing.draw_map(axes, values, scale, grey, cmap, alpha_overlay)
        if show_colorbar:
            drawing.draw_colorbar(figure, [axes], [heat_map], label)
    drawing.finish(axes, title)
    drawing.show(plt_fig_axis is None and use_pyplot)
    return figure, axes


def _checked_method(method: str | None, image: Image | None, methods: Sequence[str]) -> str:
    if method is None:
        method = "heat_map" if image is None else "blended_heat_map"
    check_choice("method", method, methods)
    if image is None and method != "heat_map":
        raise ValueError(f"method={method!r} draws the image too; give image, or use 'heat_map'")
    return method


def visualize_evidence_multiple(
    attributions: Mapping[str, Image] | Sequence[Image],
    image: Image | None = None,
    method: str | None = None,
    titles: Sequence[str] | None = None,
    shared_scale: bool = True,
    scale: float | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    image_title: str | None = "image",
    measure: str | Measure = "weight_of_evidence",
    show_colorbar: bool = True,
    cmap: str | Colormap | None = None,
    alpha_overlay: float = 0.85,
    n_columns: int | None = None,
    plt_fig_axis: tuple[Figure, Sequence[Axes]] | None = None,
    fig_size: tuple[float, float] | None = None,
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw the image, if given, and several maps of it side by side.

    Args:
        attributions: the maps, as a list or a dict by title; each as for ``visualize_evidence``.
        image: the explained image, drawn first. None leaves it out.
        method: "heat_map" or "blended_heat_map". Default: blended if there is an image.
        titles: the titles of a list of maps.
        shared_scale: whether all maps have one scale and one colour bar, so that colours can be
            compared; otherwise each has its own.
        scale: the value that is fully red in all maps. Default: the largest absolute value.
        image_title: the title of the image.
        n_columns: the number of panels in a row. Default: all.
        plt_fig_axis: a figure and a list of axes to draw on, one for the image and one for each
            map.
        fig_size: the size of a new figure. Default: 3 inches per panel.
        mean, std, measure, show_colorbar, cmap, alpha_overlay, use_pyplot: as for
            ``visualize_evidence``.

    Returns:
        The figure and its axes: that of the image, if given, then one for each map.
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
    method = _checked_method(method, image, METHODS[:2])
    label = find_measure(measure).label
    maps = [drawing.evidence_map(attribution) for attribution in attributions]
    shown = [
        None if image is None else drawing.picture_of_map(image, one.shape, mean, std)
        for one in maps
    ]
    one_scale = shared_scale or scale is not None
    scales = [drawing.checked_scale(scale, *(maps if one_scale else [one])) for one in maps]

    with_image = int(image is not None)
    n_panels = len(maps) + with_image
    columns = n_panels if n_columns is None else check_count("n_columns", n_columns)
    rows = math.ceil(n_panels / columns)
    lines = max(str(name).count("\n") + 1 for name in [image_title, *names])
    height = min(max(maps[0].shape[0] / maps[0].shape[1], 0.3), 3) * PANEL_WIDTH + 0.25 * lines
    size = columns * PANEL_WIDTH, rows * height + (1 if one_scale else rows) * 0.75
    figure, axes = drawing.panels_for(plt_fig_axis, n_panels, fig_size or size, use_pyplot, columns)
    if shown[0] is not None:
        drawing.draw_picture(axes[0], shown[0])
        drawing.finish(axes[0], image_title)
    drawn = []
    for n, panel in enumerate(axes[with_image:]):
        grey = shown[n] if method == "blended_heat_map" else None
        drawn.append(drawing.draw_map(panel, maps[n], scales[n], grey, cmap, alpha_overlay))
        drawing.finish(panel, names[n])
        if show_colorbar and not one_scale:
            drawing.draw_colorbar(figure, [panel], drawn[-1:], label)
    if show_colorbar and one_scale:
        drawing.draw_colorbar(figure, axes, drawn, label)
    drawing.show(plt_fig_axis is None and use_pyplot)
    return figure, axes


def visualize_evidence_parts(
    evidence: WindowEvidence,
    target: TargetType,
    rather_than: TargetType = None,
    image: Image | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    title: str = "the photo",
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw the image, the combined map, and the map of each size, context and depth.

    Each map has its own scale, because larger regions have more bits. Titles name the parts.

    Args:
        evidence: the evidence of one image with two spatial dimensions.
        target: the output.
        rather_than: another output, to draw the evidence for ``target`` rather than it.
        image: the image below the maps. Default: the explained input.
        title: the title of the image.
        mean, std, use_pyplot: as for ``visualize_evidence``.

    Returns:
        The figure and its axes: the image, the combined map, then one for each part.
    """
    if len(evidence.inputs) != 1 or len(evidence.scores) != 1 or evidence.inputs[0].dim() != 4:
        raise ValueError(
            f"evidence holds {len(evidence.scores)} examples with {len(evidence.inputs)} input "
            "tensors; explain a single image with two spatial dimensions to draw its parts"
        )
    maps, titles = [evidence.map(target, rather_than)], ["all together"]
    for part in (part for question in questions_of(evidence.parts) for part in question):
        maps.append(replace(evidence, parts=(part,)).map(target, rather_than))
        titles.append(f"{part.title}\n{CONTEXTS[part.context].each}")
    return visualize_evidence_multiple(
        maps,
        evidence.inputs[0] if image is None else image,
        titles=titles,
        shared_scale=False,
        mean=mean,
        std=std,
        image_title=title,
        measure=evidence.measure,
        n_columns=min(PARTS_IN_ROW, len(maps) + 1),
        use_pyplot=use_pyplot,
    )
