"""Pictures of the strongest regions, of the test of the map, and of both with the map."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from captum_pda._captum import TargetType
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.evidence.self_test import SelfTest
from captum_pda.evidence.strongest import LEAST_BITS, StrongRegion, strongest_regions
from captum_pda.evidence.words import scale_words, total_words
from captum_pda.model.measures import Measure
from captum_pda.visualization import drawing
from captum_pda.visualization.drawing import AGAINST, FOR, USUAL_CHANNELS, Floats, Image, Numbers
from captum_pda.visualization.space import (
    draw_signal,
    draw_slices,
    mark_spans,
    panel_sizes,
    signal_height,
)

#: The number of letters of a title above a panel, and of letters per inch.
TITLE_LETTERS, LETTERS_PER_INCH = 40, 14.5
#: The height of the colour bar below the maps, in inches.
BAR_HEIGHT = 0.12


def visualize_strongest_regions(
    evidence: WindowEvidence,
    target: TargetType,
    image: Image | None = None,
    n: int = 3,
    mean: Numbers = None,
    std: Numbers = None,
    title: str | None = None,
    example: int | None = None,
    fig_size: tuple[float, float] | None = None,
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw the regions with the strongest evidence for a class (red) and against it (blue).

    The first panel shows their places; the others show each with its surroundings, those for the
    class above and those against it below, the strongest first.

    Args:
        evidence: of images with two spatial dimensions.
        target: the output.
        image: the image to show. Default: the explained input.
        n: the number of regions of each kind; there may be fewer.
        title: the title of the first panel.
        example: the number of an example in a batch.
        mean, std, fig_size, use_pyplot: as for ``visualize_evidence``.

    Returns:
        The figure and its axes: the whole image, n regions for the class, n against it.

    Example::

        >>> evidence = PDA(model).evidence(image)
        >>> visualize_strongest_regions(evidence, target=3, mean=0.5, std=0.5)
    """
    if evidence.inputs[0].dim() != 4:
        raise ValueError(
            f"the input has shape {tuple(evidence.inputs[0].shape)}; this draws images with two "
            "spatial dimensions. visualize_explanation draws signals and volumes"
        )
    kinds = strongest_regions(evidence, target, n, example=example)
    image = evidence.inputs[0][example or 0] if image is None else image
    shown = drawing.picture_of_map(image, evidence.inputs[0].shape[2:], mean, std)
    heights = [1 if regions or not any(kinds) else 0.01 for regions in kinds]
    figure = drawing.new_figure(fig_size or (4 + 2 * n, 1.2 + 2.2 * sum(heights)), use_pyplot)
    grid = figure.add_gridspec(2, 2 + n, height_ratios=heights)
    axes = [figure.add_subplot(grid[:, :2])]
    drawing.draw_picture(axes[0], shown)
    draw_outlines(axes[0], *kinds)
    drawing.finish(axes[0], title)
    for row, (regions, colour) in enumerate(zip(kinds, (FOR, AGAINST), strict=True)):
        for number in range(n):
            axes.append(panel := figure.add_subplot(grid[row, 2 + number]))
            if number >= len(regions):
                panel.axis("off")
                continue
            region = regions[number]
            _look_closely(panel, shown, region, colour)
            drawing.finish(panel, f"{('for', 'against')[row]} {number + 1}")
            words = "\n".join(region.answers()).replace(": ", ":\n").replace(" (", "\n(")
            narrow = "\n".join(fill(line, 18) for line in words.splitlines())
            panel.set_xlabel(narrow, fontsize=6.5)
    drawing.show(use_pyplot)
    return figure, axes


def visualize_self_test(
    test: SelfTest,
    plt_fig_axis: tuple[Figure, Axes] | None = None,
    fig_size: tuple[float, float] = (4, 3),
    use_pyplot: bool = True,
) -> tuple[Figure, Axes]:
    """Draw the prediction with the strongest pixels hidden, and with only them shown.

    Args:
        test: the result of ``evidence.self_test(target)``.
        plt_fig_axis, fig_size, use_pyplot: as for ``visualize_evidence``.
    """
    figure, (axes,) = drawing.panels_for(plt_fig_axis, 1, fig_size, use_pyplot)
    shares = 100 * test.shares.cpu().numpy()
    probabilities = test.measure.needs_probabilities
    hidden, shown = (
        (100 if probabilities else 1) * curve.cpu().numpy() for curve in (test.hidden, test.shown)
    )
    axes.fill_between(shares, hidden, shown, color="0.92")
    axes.plot(shares, shown, color=FOR, label="only the strongest shown")
    axes.plot(shares, hidden, color="0.25", linestyle="--", label="the strongest hidden")
    axes.axvline(100 * test.share, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_xlabel("share of the input, strongest first (%)")
    axes.set_ylabel("probability (%)" if probabilities else "output")
    axes.set_xlim(0, 100)
    if probabilities:
        axes.set_ylim(0, 102)
    axes.legend(fontsize=7, frameon=False, loc="best")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"the map's test: gain {test.gain:.2f} (random map: 0)", fontsize=10)
    drawing.show(plt_fig_axis is None and use_pyplot)
    return figure, axes


def visualize_explanation(
    evidence: WindowEvidence,
    target: TargetType = None,
    rather_than: TargetType = None,
    name: str | None = None,
    mean: Numbers = None,
    std: Numbers = None,
    n: int = 3,
    test: SelfTest | bool = True,
    example: int | None = None,
    scale: float | None = None,
    spacing: Numbers = None,
    note: str | None = None,
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw one explanation: the input with its strongest regions, the map, and the map's test.

    A signal has a line for each channel over a background coloured by its evidence, a volume the
    three slices that meet in its strongest region.

    Args:
        evidence: of images, signals or volumes.
        target: the output. Default: the most probable one.
        rather_than: another output, to draw the evidence for ``target`` rather than it.
        name: the name of the output. Default: its number and its probability.
        n: the number of outlined regions of each kind.
        test: the map's test; True makes it, with about 40 passes, if the evidence has a model, and
            False leaves it out. There is none for one output rather than another.
        example: the number of an example in a batch.
        spacing: the extent of a voxel along each axis of a volume, such as (3.0, 0.7, 0.7) mm, or
            the time between two samples of a signal.
        note: a last line below the picture, such as the settings.
        mean, std, scale, use_pyplot: as for ``visualize_evidence``.

    Returns:
        The figure and its axes: input, map and, if there is one, test.

    Example::

        >>> visualize_explanation(PDA(model).evidence(image), husky, name="husky")
    """
    number = evidence.checked_example(example)
    if target is None and not evidence.outputs.summed and evidence.scores.shape[1] > 1:
        target = evidence.top(number)
        prediction = evidence.measure.prediction(evidence.scores[number, target])
        said = evidence.measure.in_words(float(prediction))
        name = name or f"most probable: output {target} ({said})"
    name = name or "the input"
    kinds = strongest_regions(evidence, target, n, rather_than, number)
    if test is True and rather_than is None and evidence.ask is not None:
        test = evidence.self_test(target, number)
    tests = [test] if isinstance(test, SelfTest) and rather_than is None else []
    total = total_words(evidence, number, target) if rather_than is None else None
    if rather_than is not None:
        both = (
            float(evidence.outputs.prediction(one)(evidence.scores.unsqueeze(1))[number])
            for one in (target, rather_than)
        )
        said = " : ".join(map(evidence.measure.in_words, both))
        total = f"with everything seen: {said} (this output : the other)"
    listed = regions_in_words(evidence.measure, *kinds)
    said_of_test = [f"the map's test: {one}" for one in tests]
    words = [one for one in (total, *said_of_test, *listed, note) if one]
    image = evidence.inputs[0][number]
    dims = image.dim() - 1
    values = drawing.evidence_map(evidence.map(target, rather_than, number)[None], dims)
    scale = drawing.checked_scale(scale, values)
    shown = drawing.picture_of_map(image, values.shape, mean, std)
    if dims == 2:
        if (channels := shown.shape[2]) not in USUAL_CHANNELS:
            shown = shown.mean(2, keepdims=True)
            words.append(f"Drawn: mean of {channels} channels")
        widths, height = [3.4, 3.4], 3.4 * min(max(shown.shape[0] / shown.shape[1], 0.5), 2)
    elif dims == 1:
        widths, height = [7.6], max(signal_height(shown), 2.4 * len(tests))
    else:
        widths, height = panel_sizes(values.shape, spacing)
    rows = 2 if dims == 3 else 1
    widths += [3.4] * len(tests)
    width = sum(widths) + 0.3 * len(widths)
    lines = drawing.wrapped(words, int(LETTERS_PER_INCH * width))
    title = drawing.wrapped(
        name.splitlines(), int(LETTERS_PER_INCH * width) if rows > 1 else TITLE_LETTERS
    )
    columns = len(widths) - len(tests)
    label = [evidence.measure.label, scale_words(evidence.parts)]
    if dims == 3:
        label.append("red speaks for it, blue against it")
    label = drawing.wrapped(label, int(LETTERS_PER_INCH * sum(widths[:columns])), indent="")
    inches = rows * (height + 0.3) + 0.5 + 0.17 * (len(title) + len(lines) + len(label))
    figure = drawing.new_figure((width, inches), use_pyplot)
    figure.set_layout_engine("constrained")
    figure.supxlabel("\n".join(lines), x=0.01, fontsize=8.5, horizontalalignment="left")
    heights = [*[height] * rows, BAR_HEIGHT]
    grid = figure.add_gridspec(rows + 1, len(widths), width_ratios=widths, height_ratios=heights)
    axes = [figure.add_subplot(grid[row, k]) for row in range(rows) for k in range(columns)]
    if dims == 2:
        drawing.draw_picture(axes[0], shown)
        draw_outlines(axes[0], *kinds)
        heat_map = drawing.draw_map(axes[1], values, scale, shown)
        drawing.finish(axes[0], "\n".join(title))
        drawing.finish(axes[1], "red for, blue against")
    elif dims == 1:
        heat_map = draw_signal(axes[0], shown, values, scale, spacing)
        mark_spans(axes[0], kinds, spacing)
        axes[0].set_title(f"{name}: red speaks for it, blue against it", pad=14)
    else:
        strongest = max([*kinds[0], *kinds[1]], key=lambda one: abs(one.value), default=None)
        middle = tuple(size // 2 for size in values.shape)
        place = drawing.strongest_place(strongest, values) if strongest else middle
        draw_slices(axes[:3], shown, place, spacing, kinds)
        heat_map = draw_slices(axes[3:], shown, place, spacing, (), values, scale)[0]
        figure.suptitle("\n".join(title), x=0.01, fontsize=11, horizontalalignment="left")
    for panel in axes:
        panel.title.set_fontsize(10 if dims < 3 else 9)
    own_axes = figure.add_subplot(grid[rows, :columns])
    bar = drawing.draw_colorbar(figure, axes, [heat_map], "\n".join(label), own_axes)
    bar.ax.tick_params(labelsize=7)
    bar.ax.xaxis.label.set_fontsize(8)
    for tested in tests:
        axes.append(figure.add_subplot(grid[:, columns]))
        visualize_self_test(tested, (figure, axes[-1]))
        if dims == 3:
            axes[-1].set_box_aspect(1)
    drawing.show(use_pyplot)
    return figure, axes


def regions_in_words(
    measure: Measure, speak_for: Sequence[StrongRegion], speak_against: Sequence[StrongRegion]
) -> list[str]:
    """A line for each region: number, kind and answers; or a line that there is none."""
    within = f", to within {LEAST_BITS} bits" if measure.unit == "bits" else ""
    return [
        f"{number} ({kind}) {region}"
        for kind, regions in (("for", speak_for), ("against", speak_against))
        for number, region in enumerate(regions, start=1)
    ] or [f"no region says anything{within}"]


def draw_outlines(
    axes: Axes, speak_for: Sequence[StrongRegion], speak_against: Sequence[StrongRegion]
) -> None:
    """Outline regions in their own shape, red for the class and blue against it."""
    for regions, colour in ((speak_for, FOR), (speak_against, AGAINST)):
        for number, region in enumerate(regions, start=1):
            drawing.outline_pixels(axes, region.pixels, colour, region.uncertain, str(number))


def _look_closely(axes: Axes, shown: Floats, region: StrongRegion, colour: str) -> None:
    drawing.draw_picture(axes, shown)
    drawing.outline_pixels(axes, region.pixels, colour, region.uncertain)
    ends = []
    for first, width, size in zip(region.corner, region.shape, shown.shape[:2], strict=True):
        span = min(2 * width, size)
        start = int(np.clip(first - width // 2, 0, size - span))
        ends.append((start - 0.5, start + span - 0.5))
    axes.set_xlim(ends[1])
    axes.set_ylim(ends[0][::-1])
