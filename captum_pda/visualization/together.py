"""Pictures of interactions, as lines and as a matrix, and of the parts that decide an answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from captum_pda._captum import TargetType
from captum_pda.evidence.together import DecidingPart, Interactions
from captum_pda.visualization import drawing
from captum_pda.visualization.drawing import AGAINST, FOR, Floats, Image, Numbers

#: The colours of positive and negative interactions, different from those for and against a class.
COVER, TOGETHER = "#e08214", "#542788"
#: The width of the line of the strongest pair, and the share of it below which no line is drawn.
WIDEST, LEAST_SHARE = 6.0, 0.1


def visualize_interactions(
    interactions: Interactions,
    target: TargetType = None,
    image: Image | None = None,
    n: int = 8,
    mean: Numbers = None,
    std: Numbers = None,
    title: str | None = None,
    plt_fig_axis: tuple[Figure, Sequence[Axes]] | None = None,
    fig_size: tuple[float, float] = (9.5, 4.8),
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw the interactions of pairs of regions, as lines on the photo and as a matrix.

    A region is red if it has evidence for the class when it is hidden alone, and blue if against
    it. An orange line joins regions with a positive interaction (each covers for the other), and a
    purple one those with a negative interaction (they speak only together); for pairs against the
    class, it is the other way round.

    Args:
        interactions: the result of ``evidence.interactions`` of an image.
        target: the output. Default: that of the interactions.
        image: the image to show. Default: the explained input.
        n: the maximum number of lines; weak pairs have none.
        title: the title of the photo.
        plt_fig_axis: a figure and two axes to draw on.
        mean, std, fig_size, use_pyplot: as for ``visualize_evidence``.

    Returns:
        The figure and its axes: the photo and the matrix.
    """
    game = interactions.coalitions
    shown = _picture(game.evidence.inputs[0][game.example] if image is None else image, mean, std)
    figure, axes = drawing.panels_for(plt_fig_axis, 2, fig_size, use_pyplot)
    drawing.draw_picture(axes[0], 0.35 + 0.65 * shown)
    lost = interactions.lost(target).cpu().numpy()
    places = [drawing.innermost(pixels)[::-1] for pixels in interactions.pixels]
    colours = [FOR if value >= 0 else AGAINST for value in lost]
    for pixels, colour in zip(interactions.pixels, colours, strict=True):
        drawing.outline_pixels(axes[0], pixels, colour)
    pairs = interactions.pairs(target, n)
    strongest = max((abs(pair.value) for pair in pairs), default=0.0)
    for pair in reversed(pairs):
        share = abs(pair.value) / strongest if strongest else 0.0
        if share >= LEAST_SHARE:
            ends = np.array([places[pair.first], places[pair.second]])
            axes[0].plot(
                *ends.T,
                color=COVER if pair.value > 0 else TOGETHER,
                linewidth=WIDEST * share,
                solid_capstyle="round",
                path_effects=[
                    patheffects.withStroke(linewidth=WIDEST * share + 1.5, foreground="white")
                ],
            )
    for number, (place, colour) in enumerate(zip(places, colours, strict=True)):
        drawing.mark(axes[0], str(number), colour, place)
    drawing.finish(axes[0], title)
    axes[0].set_xlabel(
        "orange: each covers for the other; purple: they speak only together\n"
        "(against the class, the other way round)",
        fontsize=8,
    )
    values = interactions.values(target).cpu().double().numpy()
    np.fill_diagonal(values, np.nan)
    drawn = drawing.draw_map(axes[1], values, drawing.checked_scale(None, values), cmap="PuOr_r")
    axes[1].set_xticks(range(len(values)))
    axes[1].set_yticks(range(len(values)))
    axes[1].tick_params(labelsize=7, length=0)
    axes[1].set_title("interaction of each pair", fontsize=10)
    bar = figure.colorbar(drawn, ax=axes[1], shrink=0.8)
    bar.set_label(game.evidence.measure.label, fontsize=8)
    drawing.show(plt_fig_axis is None and use_pyplot)
    return figure, axes


def visualize_parts(
    parts: DecidingPart | Sequence[DecidingPart],
    image: Image,
    names: Sequence[str] | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw the parts that decide an answer, one on each axes: sufficient ones alone, necessary
    ones faded.

    Args:
        parts: the result of ``evidence.sufficient`` or ``evidence.necessary``.
        image: the explained image, (C, height, width).
        names: of the classes.
        mean, std, use_pyplot: as for ``visualize_evidence``.
    """
    several = [parts] if isinstance(parts, DecidingPart) else list(parts)
    if not several:
        raise ValueError("parts is empty: there is nothing to draw")
    shown = _picture(image, mean, std)
    size = 3.6 * len(several), 4.0
    figure, axes = drawing.panels_for(None, len(several), size, use_pyplot)
    for panel, part in zip(axes, several, strict=True):
        seen = part.pixels if part.alone else ~part.pixels
        drawing.draw_picture(panel, np.where(seen[..., None], shown, 0.8 + 0.2 * shown))
        drawing.outline_pixels(panel, part.pixels, FOR if part.alone else "0.2")
        drawing.finish(panel, None)
        words = part.described(names)
        panel.set_title(words.replace(": ", ":\n", 1).replace(", ", ",\n", 1), fontsize=9)
    drawing.show(use_pyplot)
    return figure, axes


def _picture(image: Image, mean: Numbers, std: Numbers) -> Floats:
    if image.ndim != 3:
        raise ValueError(
            f"the image has shape {tuple(image.shape)}; this draws images (C, height, width). "
            "interactions.values() has the numbers of other inputs"
        )
    return drawing.picture(image, mean, std)
