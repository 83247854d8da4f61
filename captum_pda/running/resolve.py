"""From what a user asks to a frozen Task."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.model.inputs import check_choice, watched_columns
from captum_pda.model.measures import Measure
from captum_pda.model.outputs import Reader, Readout
from captum_pda.regions.choice import RegionChoice
from captum_pda.running.rank_chunks import agree
from captum_pda.running.sampling import Sampling
from captum_pda.running.sampling_error import StoppingRule
from captum_pda.running.task import CONTEXTS, Depth, Execution, Part, Task


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


def resolve_task(parts: tuple[Part, ...], request: Request, output: str) -> Task:
    """Look at what the model says when all is seen, and when nothing is."""
    # Not in inference mode: what a model caches in its first pass must stay usable.
    with torch.no_grad():
        outputs = parts[0].depth.call.unperturbed()
        shape = tuple(outputs.shape[1:])
        readout = Readout.of(output, outputs)
        reader = Reader(readout, shape)
        if not request.all_outputs:
            reader = Reader.of_target(readout, request.target, len(outputs), shape)
    seen = reader.read(outputs)
    task = Task(parts, reader, seen, (seen,) * len(parts))
    return replace(task, references=_references(task))


def resolve_sampling(
    task: Task, sampling: Sampling, tolerance: Tolerance, execution: Execution, measure: Measure
) -> Sampling:
    """The sampling with its stopping rule, and a seed that all ranks agree on."""
    reader, ranks = task.reader, execution.ranks
    stopping = None
    if tolerance.bound is not None:
        if reader.region is not None:
            raise ValueError(
                "tolerance bounds the error of one output, and target is a mask of several; leave "
                "tolerance out, or explain one output"
            )
        bounded = [0] * task.n_examples
        if reader.columns is None:
            bounded = watched_columns(
                tolerance.target,
                task.seen,
                reader.output_shape,
                reader.readout.output,
                "tolerance_target",
            )
        stopping = StoppingRule(tolerance.bound, bounded, reader.readout.output, measure)
    plan = [
        (part.depth.name, part.tensor, part.context, part.regions.settings()) for part in task.parts
    ]
    call = task.parts[0].depth.call
    device = call.given[0].device.type
    asked = (
        plan,
        reader.output_shape,
        reader.columns,
        reader.region,
        sampling.n_samples,
        tolerance.bound,
    )
    needs = [part.depth.contents.needs for part in task.parts]
    read = (reader.readout.output, measure.settings())
    how = (execution.perturbations_per_eval, device, needs, *read)
    seed = agree((*asked, *how), call.given, sampling.seed, ranks)
    return Sampling(sampling.n_samples, seed, sampling.keep_errors, stopping)


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
        scores = task.reader.for_example(scene.example)(outputs)[0]
        for number in scene.parts:
            references[number][scene.example] = scores
    return tuple(references)
