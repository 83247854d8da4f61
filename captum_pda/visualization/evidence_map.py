"""One map in its own units: red for, blue against, white at zero."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from captum_pda.prediction.inputs import check_choice
from captum_pda.prediction.measures import Measure
from captum_pda.visualization.arrays import (
    Image,
    check_scale,
    evidence_map,
    evidence_scale,
    picture_of_map,
)
from captum_pda.visualization.drawing import (
    draw_colorbar,
    draw_map,
    draw_picture,
    finish,
    label_for,
    new_figure,
    show,
)

METHODS = ("heat_map", "blended_heat_map", "original_image")


def visualize_evidence(
    attribution: Image,
    image: Image | None = None,
    method: str | None = None,
    scale: float | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    title: str | None = None,
    measure: str | Measure = "weight_of_evidence",
    colorbar_label: str | None = None,
    show_colorbar: bool = True,
    cmap: str | Colormap | None = None,
    alpha_overlay: float = 0.6,
    plt_fig_axis: tuple[Figure, Axes] | None = None,
    fig_size: tuple[float, float] = (5, 5),
    use_pyplot: bool = True,
) -> tuple[Figure, Axes]:
    """Draw a map as it is: red speaks for the class, blue against it, and zero is white.

    Args:
        attribution: a map of one image: a tensor (C, H, W) or (1, C, H, W), or a NumPy array
            (H, W, C) or (H, W). Channels that all agree, as in every PDA map, count once;
            others are added up.
        image: the explained image, in the same forms.
        method: "heat_map", "blended_heat_map" (over the grey image) or "original_image". Default:
            blended where there is an image.
        scale: the value that is drawn fully red, and its negative fully blue. Default: the
            largest absolute value. Values beyond it are cut, and the colour bar gets arrows.
        mean, std: the normalisation of the image, to be undone: x * std + mean. Without them,
            values outside 0 to 1 are stretched from black to white.
        title: what to write above.
        measure: the measure of the map, by name or as an object; it labels the colour bar.
        colorbar_label: a label of your own.
        show_colorbar: whether to draw the colour bar.
        cmap: a colour map of your own, with zero in its middle.
        alpha_overlay: how much the map covers the grey image, from 0 to 1.
        plt_fig_axis: a figure and axes to draw on, instead of new ones.
        fig_size: the size of a new figure.
        use_pyplot: whether a new figure is made by pyplot, and shown.

    Returns:
        The figure and its axes.

    Example::

        >>> attribution = EfficientPDA(model).attribute(image, target=3)
        >>> visualize_evidence(attribution, image, mean=[0.485, 0.456, 0.406],
        ...                    std=[0.229, 0.224, 0.225], title="husky")
    """
    if method is None:
        method = "heat_map" if image is None else "blended_heat_map"
    check_choice("method", method, METHODS)
    values = evidence_map(attribution)
    shown = None if image is None else picture_of_map(image, values, mean, std)
    if shown is None and method != "heat_map":
        raise ValueError(f"method={method!r} draws the image too; give image, or use 'heat_map'")
    label = label_for(measure, colorbar_label)
    scale = check_scale(scale, evidence_scale(values))
    if plt_fig_axis is None:
        figure = new_figure(fig_size, use_pyplot)
        axes = figure.subplots()
    else:
        figure, axes = plt_fig_axis
    if method == "original_image" and shown is not None:
        draw_picture(axes, shown)
    else:
        grey = shown if method == "blended_heat_map" else None
        heat_map = draw_map(axes, values, scale, grey, cmap, alpha_overlay)
        if show_colorbar:
            draw_colorbar(figure, [axes], [heat_map], label)
    finish(axes, title)
    if plt_fig_axis is None and use_pyplot:
        show()
    return figure, axes
