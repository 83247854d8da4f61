"""The part of a page about the interactions of regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.evidence.together import Interactions, flat_target
from captum_pda.model.measures import signed
from captum_pda.report.page_file import Block
from captum_pda.visualization.drawing import innermost
from captum_pda.visualization.together import COVER, LEAST_SHARE, TOGETHER


def together_header(
    block: Block,
    interactions: Interactions | None,
    evidence: WindowEvidence,
    example: int,
    labels: Sequence[str] | None,
) -> dict[str, Any] | None:
    """The regions, what is lost without each, and all pairs; None without interactions."""
    if interactions is None:
        return None
    game = interactions.coalitions
    if game.pixels.shape[1:] != tuple(evidence.inputs[0].shape[2:]) or game.example != example:
        raise ValueError(
            "interactions are of another input than the evidence; make them with "
            "evidence.interactions(target), of the same example"
        )
    owners = np.full(game.pixels.shape[1:], -1, dtype=np.int32)
    places = []
    for number, pixels in enumerate(game.pixels):
        owners[pixels] = number
        places.append(list(innermost(pixels)[::-1]))
    target = flat_target(evidence, example, interactions.target)
    unit = f" {interactions.unit}" if interactions.unit else ""
    pairs = interactions.pairs()
    strongest = max((abs(pair.value) for pair in pairs), default=0.0)
    return {
        "name": f"output {target}" if labels is None else labels[target],
        "owners": block.add(owners, "int32"),
        "places": places,
        "lost": [
            "not asked"
            if math.isnan(one)
            else f"{signed(-one, interactions.unit)}{unit} without it alone"
            for one in interactions.lost().tolist()
        ],
        "colours": {"cover": COVER, "together": TOGETHER},
        "pairs": [
            {
                "regions": [pair.first, pair.second],
                "share": pair.value / strongest if strongest else 0.0,
                "is_strong": abs(pair.value) >= LEAST_SHARE * strongest > 0,
                "words": f"{signed(pair.value, pair.unit)}{unit}, {pair.meaning} (without both: "
                f"{signed(-pair.lost[0], pair.unit)}{unit})",
            }
            for pair in pairs
        ],
    }
