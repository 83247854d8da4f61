"""The windows that say most: where they lie, and a close look at each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from captum_pda._captum import TargetType
from captum_pda.evidence.strongest import StrongWindow, strongest_windows
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.visualization.arrays import Floats, Image, picture
from captum_pda.visualization.drawing import check_panels, draw_picture, finish, new_figure, show

FOR, AGAINST = "#c00000", "#0000c8"


def visualize_strongest_windows(
    evidence: WindowEvidence,
    target: TargetType,
    image: Image | None = None,
    n: int = 3,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    title: str | None = None,
    plt_fig_axis: tuple[Figure, Sequence[Axes]] | None = None,
    fig_size: tuple[float, float] | None = None,
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw the windows with the strongest evidence for a class (red) and against it (blue).

    The first panel shows where they lie; the others look at each closely with its surroundings,
    those that speak for the class above and those against it below, the strongest first.

    Args:
        evidence: the evidence of one example with two spatial dimensions.
        target: the output to ask about.
        image: what to show. Default: the explained input.
        n: how many windows of each kind; fewer are drawn where fewer say anything.
        mean, std: the normalisation of the image, to be undone, as for ``visualize_evidence``.
        title: what to write above the first panel.
        plt_fig_axis: a figure and 1 + 2 n axes to draw on.
        fig_size: the size of a new figure.
        use_pyplot: whether a new figure is made by pyplot, and shown.

    Returns:
        The figure and its axes: the whole image, n windows for the class, n against it.

    Example::

        >>> evidence = EfficientPDA(model).evidence(image)
        >>> visualize_strongest_windows(evidence, target=3, mean=0.5, std=0.5)
    """
    kinds = strongest_windows(evidence, target, n)
    shown = picture(evidence.inputs[0] if image is None else image, mean, std)
    space = tuple(evidence.inputs[0].shape[2:])
    if shown.shape[:2] != space:
        raise ValueError(
            f"image is {shown.shape[0]} x {shown.shape[1]} where the windows lie in {space}; pass "
            "the tensor that was explained"
        )
    if plt_fig_axis is None:
        figure = new_figure(fig_size or (4 + 2 * n, 4.2), use_pyplot)
        axes = _fill(figure, n)
    else:
        figure, axes = plt_fig_axis[0], check_panels(plt_fig_axis[1], 1 + 2 * n)
    draw_windows(axes[0], shown, *kinds)
    finish(axes[0], title)
    for panel in axes[1:]:
        panel.axis("off")
    for row, (windows, colour) in enumerate(zip(kinds, (FOR, AGAINST), strict=True)):
        for number, window in enumerate(windows):
            panel = axes[1 + row * n + number]
            panel.axis("on")
            _look_closely(panel, shown, window, colour)
            finish(panel, f"{number + 1}: {window.value:+.2f} {evidence.measure.unit}")
    if plt_fig_axis is None and use_pyplot:
        show()
    return figure, axes


def draw_windows(
    axes: Axes,
    shown: Floats,
    speak_for: Sequence[StrongWindow],
    speak_against: Sequence[StrongWindow],
) -> None:
    """Draw an image with numbered windows, red for and blue against."""
    draw_picture(axes, shown)
    finish(axes, None)
    for windows, colour in ((speak_for, FOR), (speak_against, AGAINST)):
        for number, window in enumerate(windows, start=1):
            _frame(axes, window, colour, str(number))


def _frame(axes: Axes, window: StrongWindow, colour: str, number: str | None = None) -> None:
    """The window's outline, around its outermost pixels, and its number."""
    (top, left), (height, width) = window.corner, window.shape
    axes.add_patch(
        Rectangle((left - 0.5, top - 0.5), width, height, fill=False, color=colour, linewidth=2)
    )
    if number:
        low, high = axes.get_xlim()
        room = left - low > 0.08 * (high - low)
        axes.annotate(
            number,
            (left - 0.5 if room else left + width - 0.5, top + height / 2 - 0.5),
            xytext=(-3 if room else 3, 0),
            textcoords="offset points",
            horizontalalignment="right" if room else "left",
            verticalalignment="center",
            color="white",
            bbox={"boxstyle": "round,pad=0.15", "facecolor": colour, "edgecolor": "none"},
        )


def _look_closely(axes: Axes, shown: Floats, window: StrongWindow, colour: str) -> None:
    """Draw a window and as much again on every side."""
    draw_picture(axes, shown)
    _frame(axes, window, colour)
    for first, width, size, limit, turned in (
        (window.corner[1], window.shape[1], shown.shape[1], axes.set_xlim, False),
        (window.corner[0], window.shape[0], shown.shape[0], axes.set_ylim, True),
    ):
        span = min(3 * width, size)
        start = int(np.clip(first - width, 0, size - span))
        ends = start - 0.5, start + span - 0.5
        limit(*(ends[::-1] if turned else ends))


def _fill(figure: Figure, n: int) -> list[Axes]:
    """A large panel for the image, and two rows of n small ones."""
    grid = figure.add_gridspec(2, 2 + n)
    whole = figure.add_subplot(grid[:, :2])
    close = [figure.add_subplot(grid[row, 2 + place]) for row in range(2) for place in range(n)]
    return [whole, *close]
