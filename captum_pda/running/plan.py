"""The plan of a call: what is hidden, where, and which outputs are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType
from captum_pda.engines import DenseEngine, Engine
from captum_pda.model.call import ModelCall
from captum_pda.model.layers import Call
from captum_pda.model.measures import Measure
from captum_pda.model.outputs import ExplainedOutputs, OutputKind
from captum_pda.priors import EmptyContext, prior_for
from captum_pda.regions.choice import choose_regions
from captum_pda.regions.contexts import CONTEXTS, Context
from captum_pda.regions.protocol import Regions, Windows, box_values, inside_regions
from captum_pda.regions.random_sets import RandomSets
from captum_pda.running.sampling import Sampling, StoppingRule

#: From a prior, an example (C, *space), windows and the sampling to fills (S, W, C, *window).
Fill: TypeAlias = Callable[[Any, Tensor, Windows, Sampling], Tensor]


class Place(EmptyContext):
    """Where regions are hidden: the inputs or a layer's feature maps.

    Args:
        name: "input", or the name of the layer.
        call: the model as a function of the tensors that are changed here.
        engine: runs the copies.
        prior: predicts the content of regions; None is the default prior.
        needs: the prior's method that ``fill`` calls.
        fill: the method's way to fill regions from the prior.
    """

    def __init__(
        self, name: str, call: Call, engine: Engine, prior: Any, needs: str, fill: Fill
    ) -> None:
        super().__init__(prior)
        self.name, self.call, self.engine = name, call, engine
        self.prior, self.needs, self.fill = prior, needs, fill

    def drawn(self, example: Tensor, windows: Windows, sampling: Sampling) -> Tensor:
        """The contents that replace regions of an example (C, *space), (S, W, C, *window)."""
        fills = self.fill(prior_for(self.prior, self.needs), example, windows, sampling)
        return checked_fills(fills, example, windows, sampling.n_samples)

    def among_others(self, example: Tensor, windows: Windows) -> tuple[Windows, Tensor]:
        """Each random set of regions in blurred surroundings; see ``seen_together``."""
        return self.seen_together(example, windows, self.around_sets(example))


def checked_fills(fills: Tensor, example: Tensor, windows: Windows, n_samples: int) -> Tensor:
    """Fills (S, W, C, *window) inside each region, and the example (C, *space) in the rest of its
    box; refuses fills of another shape."""
    expected = (n_samples, len(windows), len(example), *windows.window)
    if tuple(fills.shape) != expected:
        raise ValueError(
            f"the prior gave fills of shape {tuple(fills.shape)} for one example, where "
            f"(samples, windows, channels, *window) is {expected}"
        )
    fills = fills.to(example.dtype)
    if windows.hidden is None:
        return fills
    return inside_regions(windows, fills, box_values(example, windows))


@dataclass(frozen=True, eq=False)
class Part:
    """Regions of one size, of one tensor in one place and context."""

    place: Place
    tensor: int  #: Its number among the tensors of that place.
    regions: Regions
    context: Context

    @property
    def values(self) -> Tensor:
        """The tensor that contains the regions, (N, C, *space)."""
        return self.place.call.inputs[self.tensor]

    def forward(self, example: int, copies: Tensor) -> Tensor:
        """The model's outputs for changed copies (rows, C, *space) of an example."""
        return self.place.call.for_example(example, self.tensor)(copies)

    @property
    def shared_labels(self) -> frozenset[int]:
        """Labels that masks of several tensors have in common: as in Captum, they are one feature,
        hidden in all tensors at once. In the empty context they are separate."""
        if not self.context.removes or not isinstance(self.place.call, ModelCall):
            return frozenset()
        shared: frozenset[int] = getattr(self.regions, "shared", frozenset())
        return shared

    def without(self, example: int, labels: Sequence[int], sampling: Sampling) -> Tensor:
        """Copies of an example without each of some features of a mask, (labels x S, C, *space)."""
        values = self.values[example]
        copies = values.expand(len(labels), sampling.n_samples, *values.shape).clone()
        regions: Any = self.regions
        known = np.array(regions.labels)
        for windows, members in zip(regions.boxes(example), regions.members(example), strict=True):
            for row, label in enumerate(labels):
                own = np.flatnonzero(known[members] == label)
                if len(own):
                    region = windows.pick(own)
                    _, fills = self.context.changed(self.place, values, region, sampling)
                    pixels = region.pixels(values.device)[0]
                    copies[row].flatten(2)[..., pixels] = fills[:, 0].flatten(2)
        return copies.flatten(0, 1)


def parts_of(place: Place, **arguments: Any) -> tuple[Part, ...]:
    """The regions of a place in each context; ``arguments`` are those of ``choose_regions``."""
    # Sets of regions change the whole input, where other engines save nothing.
    densely = copy(place)
    densely.engine = DenseEngine()
    return tuple(
        Part(densely if isinstance(each, RandomSets) else place, tensor, each, CONTEXTS[context])
        for context, sets in choose_regions(place.call.inputs, **arguments).items()
        for tensor, sizes in enumerate(sets)
        for each in sizes
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """What is hidden of a model's inputs or feature maps, and which outputs are kept."""

    parts: tuple[Part, ...]
    explained: ExplainedOutputs
    seen: Tensor  #: The scores with everything seen, (N, columns).
    references: tuple[Tensor, ...]  #: For each part those before a region is changed.


def make_plan(
    parts: tuple[Part, ...], target: TargetType, all_outputs: bool, kind: OutputKind
) -> Plan:
    """Run the model on the unperturbed inputs and on the starting inputs of the contexts, and keep
    the scores of the target or of all outputs."""
    # Not in inference mode: tensors that the model caches in its first pass must stay usable.
    with torch.no_grad():
        outputs = parts[0].place.call.unperturbed()
        if all_outputs:
            explained = ExplainedOutputs.all_of(kind, outputs)
        else:
            explained = ExplainedOutputs.of_target(kind, outputs, target)
        seen = explained.scores(outputs)
        references = [seen] * len(parts)
        for numbers in groups(parts):
            part = parts[numbers[0]]
            scores = []
            for n, values in enumerate(part.values):
                before = part.context.before(part.place, values)
                if before is values:
                    scores.append(seen[n : n + 1])
                else:
                    outputs = part.forward(n, before.unsqueeze(0).clone())
                    scores.append(explained.for_example(n)(outputs))
            before_change = torch.cat(scores)
            if part.context.starts_from_nothing and not device_sync.all_finite(before_change):
                raise ValueError(
                    f"context={part.context.name!r} starts from the input with nothing seen, for "
                    "which the model returned NaN or infinity; ask for context='full', or give a "
                    "prior whose nothing_seen the model can take"
                )
            for number in numbers:
                references[number] = before_change
    return Plan(parts, explained, seen, tuple(references))


def groups(parts: tuple[Part, ...]) -> list[list[int]]:
    """The numbers of the parts of each place, tensor and context, which share a prepared engine."""
    found: dict[tuple[Place, int, Context], list[int]] = {}
    for number, part in enumerate(parts):
        found.setdefault((part.place, part.tensor, part.context), []).append(number)
    return list(found.values())


def with_tolerance(
    plan: Plan, sampling: Sampling, tolerance: float | None, target: TargetType, measure: Measure
) -> Sampling:
    """The sampling, stopped when the error of ``target`` (or the top class) is below a
    tolerance."""
    if tolerance is None:
        return sampling
    explained, columns = plan.explained, [0] * len(plan.seen)
    if explained.region is not None:
        raise ValueError(
            "tolerance bounds the error of one output, and target is a mask of several; leave "
            "tolerance out, or explain one output"
        )
    if explained.columns is None:
        columns = explained.watched_columns(target, plan.seen, "tolerance_target")
    return replace(sampling, stopping=StoppingRule(tolerance, columns, explained.kind, measure))
