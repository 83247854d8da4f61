"""From evidence to what a page holds: a header of plain values, and typed arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captum_pda.basics.device_sync import in_double
from captum_pda.evidence.part import EvidencePart
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.prediction.measures import Measure, WeightOfEvidence
from captum_pda.priors import EmptyContext
from captum_pda.report.block import Block
from captum_pda.report.pictures import Explained, fills_sprite, jpeg

#: More values than these are kept with 16 bits each, exact to 0.05% down to a billionth of the
#: largest of their class.
MAX_FLOAT32_VALUES = 250_000


@dataclass(frozen=True)
class Classes:
    """The outputs that a page tells of.

    Args:
        columns: their numbers among the model's outputs, the most probable first.
        names: what they are called.
        first: the place of the one shown at first.
        second: the place of the one it is told apart from at first, if any.
        truth: the place of the true one, if it is known.
    """

    columns: tuple[int, ...]
    names: tuple[str, ...]
    first: int
    second: int | None = None
    truth: int | None = None


def add_methods(
    block: Block, methods: Mapping[str, WindowEvidence], explained: Explained, classes: Classes
) -> list[dict[str, Any]]:
    """Put the regions of each method into the block, in groups of one size and depth."""
    drawn: dict[Any, dict[str, Any]] = {}
    found = []
    for name, evidence in methods.items():
        own = replace(explained, prior=evidence.prior)
        adding = _Adding(block, own, classes, evidence, drawn)
        found.append({"name": name, "groups": adding.groups()})
    return found


def measure_header(measure: Measure) -> dict[str, Any]:
    """What the page needs to know of a measure."""
    return {
        "name": measure.name,
        "label": measure.label,
        "unit": measure.unit,
        "probabilities": measure.needs_probabilities,
        "contrasts": type(measure).contrast in (Measure.contrast, WeightOfEvidence.contrast),
    }


@dataclass(frozen=True, eq=False)
class _Adding:
    """Puts the evidence of one method into a block."""

    block: Block
    explained: Explained
    classes: Classes
    evidence: WindowEvidence
    drawn: dict[Any, dict[str, Any]]

    def groups(self) -> list[dict[str, Any]]:
        groups: dict[tuple[Any, ...], list[EvidencePart]] = {}
        for part in self.evidence.parts:
            groups.setdefault((part.depth, part.regions), []).append(part)
        return [self._group(parts) for parts in groups.values()]

    def _group(self, parts: Sequence[EvidencePart]) -> dict[str, Any]:
        """Regions of one size at one depth, and what they say in each context."""
        regions = parts[0].regions
        boxes = regions.boxes(self.explained.number)
        corners = np.concatenate([windows.corner_array for windows in boxes])
        shapes = np.concatenate([np.tile(windows.window, (len(windows), 1)) for windows in boxes])
        owner = None
        if any(windows.hidden is not None for windows in boxes):
            numbers = torch.arange(len(regions), dtype=torch.float64, device="cpu")
            rows = numbers.expand(len(self.evidence.scores), -1)
            owner = self.block.add(regions.average(rows)[self.explained.number], "int32")
        return {
            "depth": parts[0].depth,
            "size": list(parts[0].size),
            "space": list(regions.space),
            "boxes": self.block.add(np.hstack([corners, shapes]), "uint16"),
            "owner": owner,
            "parts": [self._part(part) for part in parts],
        }

    def _part(self, part: EvidencePart) -> dict[str, Any]:
        """What regions say in one context: scores as differences from those before the change."""
        example, columns = self.explained.number, list(self.classes.columns)
        reference = in_double(part.reference[example, columns])
        scores = in_double(part.scores[example][:, columns]).T
        measure = part.reading.measure
        known: dict[str, Any] = {
            "context": part.context,
            "reference": self.block.add(_plain(reference), "float64"),
            "changes": self._add_values(scores - reference.unsqueeze(1)),
            "values": None,
            "errors": None,
            "drawn": int(part.drawn.max()),
        }
        if not isinstance(measure, WeightOfEvidence):
            before = measure.value(reference.unsqueeze(1))
            gained = before - measure.value(scores)
            known["values"] = self._add_values(gained if part.context == "full" else -gained)
        if part.errors is not None:
            errors = in_double(part.errors[example][:, columns]).T
            known["errors"] = self._add_values(measure.error(errors, scores))
        return known | self._pictures(part)

    def _pictures(self, part: EvidencePart) -> dict[str, Any]:
        """What the model was shown in place of the regions, or around them."""
        if part.depth != "input":
            return {}
        empty = part.context == "empty"
        key = id(self.explained.prior), None if empty else part.regions
        if key not in self.drawn:
            self.drawn[key] = self._nothing_seen() if empty else self._fills(part)
        return self.drawn[key]

    def _fills(self, part: EvidencePart) -> dict[str, Any]:
        sprite = fills_sprite(part, self.explained)
        return {
            "fills": {
                "image": self.block.add_bytes(sprite.content),
                "tile": list(sprite.tile),
                "columns": sprite.columns,
            }
        }

    def _nothing_seen(self) -> dict[str, Any]:
        """What the model was shown where nothing was seen."""
        nothing = EmptyContext(self.explained.prior).nothing_seen(self.explained.values)
        content = jpeg(self.explained.display.bytes(nothing), 85)
        return {"nothing": self.block.add_bytes(content)}

    def _add_values(self, values: Tensor) -> int:
        """Values (classes, regions), as exactly as there is room for."""
        kind = "float32" if values.numel() <= MAX_FLOAT32_VALUES else "float16"
        return self.block.add(_plain(values), kind)


def _plain(values: Tensor) -> Any:
    return values.detach().cpu().numpy()
