"""From evidence to what a page holds of it: plain values for its header, and typed arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captum_pda.basics.device_sync import in_double
from captum_pda.evidence.part import EvidencePart
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.prediction.measures import Measure, WeightOfEvidence
from captum_pda.priors import EmptyContext
from captum_pda.report.page_file import Block
from captum_pda.report.pictures import Display, fills_sheet, jpeg

#: More values than these are kept with 16 bits each, exact to 0.05% down to a billionth of the
#: largest of their class.
MAX_FLOAT32_VALUES = 250_000
FILL_QUALITY = 85


def measure_header(measure: Measure) -> dict[str, Any]:
    """What the page needs to know of a measure."""
    return {
        "name": measure.name,
        "label": measure.label,
        "unit": measure.unit,
        "probabilities": measure.needs_probabilities,
        "contrasts": type(measure).contrast in (Measure.contrast, WeightOfEvidence.contrast),
    }


@dataclass(eq=False)
class EvidenceValues:
    """Puts the evidence of one example into a block.

    Args:
        block: where arrays and pictures go.
        example: the model's input, (C, H, W).
        number: which example of the evidence it is.
        display: how it is shown.
        columns: the outputs that the page offers.
    """

    block: Block
    example: Tensor
    number: int
    display: Display
    columns: Sequence[int]
    #: Pictures that were added, by what they show: several methods may share them.
    _pictures: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def groups(self, evidence: WindowEvidence) -> list[dict[str, Any]]:
        """The regions of a method, in groups of one size and depth."""
        groups: dict[tuple[Any, ...], list[EvidencePart]] = {}
        for part in evidence.parts:
            groups.setdefault((part.depth, part.regions), []).append(part)
        return [self._group(parts, evidence) for parts in groups.values()]

    def _group(self, parts: Sequence[EvidencePart], evidence: WindowEvidence) -> dict[str, Any]:
        """Regions of one size at one depth, and what they say in each context."""
        regions = parts[0].regions
        boxes = regions.boxes(self.number)
        corners = np.concatenate([windows.corner_array for windows in boxes])
        shapes = np.concatenate([np.tile(windows.window, (len(windows), 1)) for windows in boxes])
        owner = None
        if any(windows.hidden is not None for windows in boxes):
            numbers = torch.arange(len(regions), dtype=torch.float64, device="cpu")
            rows = numbers.expand(len(evidence.scores), -1)
            owner = self.block.add(regions.average(rows)[self.number], "int32")
        return {
            "depth": parts[0].depth,
            "size": list(parts[0].size),
            "space": list(regions.space),
            "boxes": self.block.add(np.hstack([corners, shapes]), "uint16"),
            "owner": owner,
            "parts": [self._part(part, evidence.prior) for part in parts],
        }

    def _part(self, part: EvidencePart, prior: Any) -> dict[str, Any]:
        """What regions say in one context: scores as differences from those before the change."""
        columns = list(self.columns)
        reference = in_double(part.reference[self.number, columns])
        scores = in_double(part.scores[self.number][:, columns]).T
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
            errors = in_double(part.errors[self.number][:, columns]).T * measure.slope(scores)
            known["errors"] = self._add_values(errors)
        return known | self._pictures_of(part, prior)

    def _pictures_of(self, part: EvidencePart, prior: Any) -> dict[str, Any]:
        """What the model was shown in place of the regions, or around them."""
        if part.depth != "input":
            return {}
        empty = part.context == "empty"
        key = id(prior), None if empty else part.regions
        if key not in self._pictures:
            added = self._nothing_seen(prior) if empty else self._fills(part, prior)
            self._pictures[key] = added
        return self._pictures[key]

    def _fills(self, part: EvidencePart, prior: Any) -> dict[str, Any]:
        sheet, tile, columns = fills_sheet(part, self.number, self.example, prior)
        return {"fills": {"image": self._add_picture(sheet), "tile": tile, "columns": columns}}

    def _nothing_seen(self, prior: Any) -> dict[str, Any]:
        return {"nothing": self._add_picture(EmptyContext(prior).nothing_seen(self.example))}

    def _add_picture(self, values: Tensor) -> int:
        return self.block.add_bytes(jpeg(self.display.bytes(values), FILL_QUALITY))

    def _add_values(self, values: Tensor) -> int:
        """Values (classes, regions), as exactly as the size of the page allows."""
        kind = "float32" if values.numel() <= MAX_FLOAT32_VALUES else "float16"
        return self.block.add(_plain(values), kind)


def _plain(values: Tensor) -> Any:
    return values.detach().cpu().numpy()
