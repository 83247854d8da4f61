"""One photo at each size, in each context and at each depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.evidence.part import EvidencePart
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.visualization.arrays import (
    Floats,
    Image,
    evidence_map,
    evidence_scale,
    picture_of_map,
)
from captum_pda.visualization.drawing import (
    draw_colorbar,
    draw_map,
    draw_picture,
    finish,
    new_figure,
    show,
)

PANEL = 2.6  # inches
CONTEXT_WORDS = {"full": "all else seen", "empty": "seen by itself"}


def visualize_evidence_parts(
    evidence: WindowEvidence,
    target: TargetType,
    rather_than: TargetType = None,
    image: Image | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    title: str | None = None,
    shared_scale: bool = False,
    use_pyplot: bool = True,
) -> tuple[Figure, list[Axes]]:
    """Draw the map of each size, context and depth beside the photo and the map of them all.

    A row for each context and depth, a column for each size; each panel says what it shows.

    Args:
        evidence: the evidence of one image with two spatial dimensions.
        target: the output to ask about.
        rather_than: another output, to draw what speaks for ``target`` rather than for that.
        image: what to show below the maps. Default: the explained input.
        mean, std: the normalisation of the image, to be undone, as for ``visualize_evidence``.
        title: what to write above all.
        shared_scale: whether one scale and one colour bar serve all maps. Larger windows hold more
            bits, so each map has its own by default.
        use_pyplot: whether the figure is made by pyplot, and shown.

    Returns:
        The figure and its axes: the photo, the map of all parts, then one for each part.

    Example::

        >>> visualize_evidence_parts(PDA(model).evidence(image), husky)
    """
    if len(evidence.inputs) != 1 or len(evidence.scores) != 1 or evidence.inputs[0].dim() != 4:
        raise ValueError(
            f"evidence holds {len(evidence.scores)} examples with {len(evidence.inputs)} input "
            "tensors; explain a single image with two spatial dimensions to draw its parts"
        )
    rows: dict[tuple[str, str], list[EvidencePart]] = {}
    for part in evidence.parts:
        rows.setdefault((part.depth, part.context), []).append(part)
    each = [[replace(evidence, parts=(part,)) for part in parts] for parts in rows.values()]
    maps = [[_map(one, target, rather_than) for one in row] for row in each]
    whole = _map(evidence, target, rather_than)
    shown = picture_of_map(evidence.inputs[0] if image is None else image, whole, mean, std)
    scale = evidence_scale(whole, *(one for row in maps for one in row))

    columns = max(2, *(len(row) for row in maps))
    figure = new_figure((columns * PANEL, (1 + len(maps)) * (PANEL + 0.6)), use_pyplot)
    grid = figure.subplots(1 + len(maps), columns, squeeze=False)
    if title:
        figure.suptitle(title)
    draw_picture(grid[0, 0], shown)
    finish(grid[0, 0], "the photo")
    drawn: list[tuple[Axes, Floats, str]] = [(grid[0, 1], whole, "all together")]
    for number, (parts, row) in enumerate(zip(rows.values(), maps, strict=True), start=1):
        drawn += [
            (grid[number, place], values, part_words(part))
            for place, (part, values) in enumerate(zip(parts, row, strict=True))
        ]
    heat_maps = []
    for axes, values, words in drawn:
        own = scale if shared_scale else evidence_scale(values)
        heat_maps.append(draw_map(axes, values, own, shown))
        finish(axes, words)
        if not shared_scale:
            draw_colorbar(figure, [axes], heat_maps[-1:], evidence.measure.unit)
    used = [grid[0, 0], *(axes for axes, _, _ in drawn)]
    for axes in grid.ravel():
        if axes not in used:
            axes.axis("off")
    if shared_scale:
        draw_colorbar(figure, used, heat_maps, evidence.measure.label)
    if use_pyplot:
        show()
    return figure, used


def part_words(part: EvidencePart) -> str:
    """What a part's map shows, in two short lines."""
    size = "\u00d7".join(map(str, part.size))
    if part.depth != "input":
        return f"features of {part.depth}\n{size}, {CONTEXT_WORDS[part.context]}"
    return f"{size} pixels\n{CONTEXT_WORDS[part.context]}"


def _map(evidence: WindowEvidence, target: TargetType, rather_than: TargetType) -> Floats:
    found = (
        evidence.attribution(target)
        if rather_than is None
        else evidence.contrast(target, rather_than)
    )
    return evidence_map(cast(Tensor, found))
