"""What is asked: from arguments to what is hidden, where, and which outputs are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.distributed import Ranks
from captum_pda.engines import Engine
from captum_pda.model.call import Call
from captum_pda.model.inputs import check_choice
from captum_pda.model.outputs import ExplainedOutputs, OutputKind
from captum_pda.priors import EmptyContext, prior_for
from captum_pda.regions.choice import RegionChoice
from captum_pda.regions.protocol import Regions, Windows
from captum_pda.running.sampling import Sampling

#: From a prior, an example (C, *space), windows and the sampling to fills (S, W, C, *window).
Draw: TypeAlias = Callable[[Any, Tensor, Windows, Sampling], Tensor]


def conditional_mean(prior: Any, example: Tensor, windows: Windows, sampling: Sampling) -> Tensor:
    """The conditional mean of each window, as the only fill, (1, W, C, *window)."""
    means: Tensor = prior.conditional_mean(example, windows)
    return means.unsqueeze(0)


@dataclass(frozen=True, eq=False)
class Contents:
    """How a method fills regions.

    Args:
        prior: the user's prior; None is the default one.
        needs: the prior's method that is called in the full context.
        draw: makes the fills of windows in the full context.
    """

    prior: Any
    needs: str
    draw: Draw

    def of(self, example: Tensor, context: str) -> ExampleContents:
        """The contents for one example (1, C, *space)."""
        return ExampleContents(self, example, context)


@dataclass(frozen=True, eq=False)
class ExampleContents:
    """What is put in the place of one example's regions.

    Args:
        contents: how they are filled.
        example: the example, (1, C, *space).
        context: "full" or "empty".
    """

    contents: Contents
    example: Tensor
    context: str

    def unchanged(self) -> Tensor:
        """What the model gets before a region is changed, (1, C, *space)."""
        if self.context == "full":
            return self.example
        return EmptyContext(self.contents.prior).nothing_seen(self.example[0]).unsqueeze(0)

    def fills(self, windows: Windows, sampling: Sampling) -> tuple[Windows, Tensor]:
        """The boxes that change, and what is put there, (S, W, C, *box)."""
        if self.context == "empty":
            empty = EmptyContext(self.contents.prior)
            boxes, contents = empty.seen_alone(self.example[0], windows)
            return boxes, check_fills(contents.unsqueeze(0), self.example, boxes, 1)
        prior = prior_for(self.contents.prior, self.contents.needs)
        fills = self.contents.draw(prior, self.example[0], windows, sampling)
        fills = check_fills(fills, self.example, windows, sampling.n_samples)
        return windows, _only_where_hidden(fills, self.example, windows)


def check_fills(fills: Tensor, example: Tensor, windows: Windows, n_samples: int) -> Tensor:
    """Refuse fills of another shape, and bring them to the dtype of the example."""
    expected = (n_samples, len(windows), example.shape[1], *windows.window)
    if tuple(fills.shape) != expected:
        raise ValueError(
            f"the prior gave fills of shape {tuple(fills.shape)} for one example, where "
            f"(samples, windows, channels, *window) is {expected}"
        )
    return fills.to(example.dtype)


def _only_where_hidden(fills: Tensor, example: Tensor, windows: Windows) -> Tensor:
    """The fills where the windows are hidden, and the example where they are seen."""
    if windows.hidden is None:
        return fills
    seen = example[0].flatten(1)[:, windows.pixels(example.device)]
    seen = seen.transpose(0, 1).reshape(fills.shape[1:])
    return torch.where(windows.hidden.to(example.device).unsqueeze(1), fills, seen)


CONTEXTS = ("full", "empty", "both")


@dataclass(frozen=True, eq=False)
class Depth:
    """Where regions are hidden: in the inputs, or in a layer's feature maps.

    Args:
        name: "input", or the name of the layer.
        call: the model as a function of the tensors that are changed here.
        contents: what is put in the place of regions.
        engine: runs the copies.
    """

    name: str
    call: Call
    contents: Contents
    engine: Engine


@dataclass(frozen=True, eq=False)
class Part:
    """Regions of one size, of one tensor at one depth, in one context.

    Args:
        depth: where they are hidden.
        tensor: the number of the tensor among those of that depth.
        regions: where they lie.
        context: "full" (all else is seen) or "empty" (nothing else is seen).
    """

    depth: Depth
    tensor: int
    regions: Regions
    context: str = "full"

    @property
    def values(self) -> Tensor:
        """The tensor that the regions lie in, (N, C, *space)."""
        return self.depth.call.inputs[self.tensor]


@dataclass(frozen=True, eq=False)
class Scene:
    """One example with one tensor to change in one context.

    Args:
        example: the number of the example.
        first: a part that says the depth, the tensor and the context.
        parts: the numbers of all parts whose regions are changed here.
    """

    example: int
    first: Part
    parts: tuple[int, ...]

    @property
    def values(self) -> Tensor:
        """The example as it is, (1, C, *space)."""
        return self.first.values[self.example : self.example + 1]

    def forward(self, copies: Tensor) -> Tensor:
        """The model's outputs for copies of the example, (rows, C, *space)."""
        return self.first.depth.call.for_example(self.example, self.first.tensor)(copies)


@dataclass(frozen=True, eq=False)
class Task:
    """What is hidden of a model's inputs or feature maps, and what is read.

    Args:
        parts: what is hidden.
        explained: which outputs are explained, as which scores.
        seen: the scores with everything seen, (N, columns).
        references: for each part the scores before a region is changed, (N, columns).
    """

    parts: tuple[Part, ...]
    explained: ExplainedOutputs
    seen: Tensor
    references: tuple[Tensor, ...]

    @property
    def n_examples(self) -> int:
        """The batch size N."""
        return len(self.seen)

    def scenes(self) -> Iterator[Scene]:
        """Each tensor and context of each example, with its parts: they share what is prepared."""
        found: dict[tuple[Depth, int, str], list[int]] = {}
        for number, part in enumerate(self.parts):
            found.setdefault((part.depth, part.tensor, part.context), []).append(number)
        for numbers in found.values():
            for example in range(self.n_examples):
                yield Scene(example, self.parts[numbers[0]], tuple(numbers))


@dataclass(frozen=True, eq=False)
class Execution:
    """How the model is run.

    Args:
        perturbations_per_eval: copies in a batch; None chooses by itself.
        ranks: the processes that share the regions.
        title: of the progress bar; None shows none.
        densely: whether the dense engine runs all, since another has failed its audit.
    """

    perturbations_per_eval: int | None
    ranks: Ranks
    title: str | None
    densely: bool = False


@dataclass(frozen=True, eq=False)
class Request:
    """What a user asks, as it was given.

    Args:
        inputs: the tensors to explain.
        target: the output to explain.
        additional_forward_args: further arguments of the model.
        regions: what is hidden.
        context: "full", "empty" or "both".
        all_outputs: whether all outputs are explained, in place of the target.
    """

    inputs: Tensor | tuple[Tensor, ...]
    target: TargetType = None
    additional_forward_args: object = None
    regions: RegionChoice = field(default_factory=RegionChoice)
    context: str = "full"
    all_outputs: bool = False


@dataclass(frozen=True)
class Tolerance:
    """When to stop sampling a region: the bound, and the output that it bounds."""

    bound: float | None = None
    target: TargetType = None


def plan_parts(depth: Depth, choice: RegionChoice, context: str) -> tuple[Part, ...]:
    """The regions that were chosen of each tensor of a depth, in each context."""
    check_choice("context", context, CONTEXTS)
    contexts = ("full", "empty") if context == "both" else (context,)
    return tuple(
        Part(depth, tensor, regions, each)
        for each, sets in choice.resolve(depth.call.inputs, contexts).items()
        for tensor, several in enumerate(sets)
        for regions in several
    )


def resolve_task(parts: tuple[Part, ...], request: Request, kind: OutputKind) -> Task:
    """Look at what the model says when all is seen, and when nothing is."""
    # Not in inference mode: what a model caches in its first pass must stay usable.
    with torch.no_grad():
        outputs = parts[0].depth.call.unperturbed()
        if request.all_outputs:
            explained = ExplainedOutputs.all_of(kind, outputs)
        else:
            explained = ExplainedOutputs.of_target(kind, outputs, request.target)
    seen = explained.scores(outputs)
    task = Task(parts, explained, seen, (seen,) * len(parts))
    return replace(task, references=_references(task))


def _references(task: Task) -> tuple[Tensor, ...]:
    """For each part, the scores before a region is changed: all is seen, or nothing."""
    references = [task.seen if part.context == "full" else task.seen.clone() for part in task.parts]
    for scene in task.scenes():
        if scene.first.context == "full":
            continue
        contents = scene.first.depth.contents.of(scene.values, scene.first.context)
        nothing = contents.unchanged()
        with torch.no_grad():
            outputs = scene.forward(nothing.clone())
        scores = task.explained.for_example(scene.example)(outputs)[0]
        for number in scene.parts:
            references[number][scene.example] = scores
    return tuple(references)
