"""From what a user asks to a frozen Task."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.execution.contents import Contents
from captum_pda.execution.rank_chunks import agree
from captum_pda.execution.sampling_error import StoppingRule
from captum_pda.execution.task import CONTEXTS, Execution, Part, Sampling, Task
from captum_pda.prediction.inputs import check_choice, check_inputs
from captum_pda.prediction.measures import Measure
from captum_pda.prediction.model_call import ModelCall
from captum_pda.prediction.reader import Reader
from captum_pda.prediction.readout import Readout
from captum_pda.prediction.targets import target_columns, watched_columns
from captum_pda.regions.arguments import RegionChoice, RegionSets


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


def resolve_task(
    forward_func: Callable[..., Any], request: Request, output: str, contents: Contents
) -> Task:
    """Check the request, look at the unperturbed inputs, and plan the parts."""
    inputs = check_inputs(request.inputs)
    check_choice("context", request.context, CONTEXTS)
    regions = request.regions.resolve(inputs)
    call = ModelCall(forward_func, inputs, request.additional_forward_args)
    start = time.perf_counter()
    # Not in inference mode: what a model caches in its first pass must stay usable.
    with torch.no_grad():
        outputs = call.unperturbed()
        shape = tuple(outputs.shape[1:])
        columns = None
        if not request.all_outputs:
            columns = tuple(target_columns(request.target, len(outputs), shape))
        readout = Readout.of(output, outputs)
    # Reading the outputs has waited for the device.
    seconds_per_pass = (time.perf_counter() - start) / len(outputs)
    reader = Reader(readout, shape, columns)
    seen = reader.read(outputs)
    parts = _parts(regions, request.context)
    task = Task(call, inputs, parts, reader, seen, (seen,) * len(parts), seconds_per_pass)
    return _with_nothing_seen(task, contents)


def resolve_sampling(
    task: Task, sampling: Sampling, tolerance: Tolerance, execution: Execution, measure: Measure
) -> Sampling:
    """The sampling with its stopping rule, and a seed that all ranks agree on."""
    reader, ranks = task.reader, execution.ranks
    stopping = None
    if tolerance.bound is not None:
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
    plan = [(part.tensor, part.context, part.regions) for part in task.parts]
    device = task.inputs[0].device.type
    asked = (plan, reader.output_shape, reader.columns, sampling.n_samples, tolerance.bound)
    how = (execution.perturbations_per_eval, reader.readout.output, device)
    seed = agree((*asked, *how), task.inputs, sampling.seed, ranks)
    return Sampling(sampling.n_samples, seed, sampling.keep_errors, stopping)


def _parts(regions: RegionSets, context: str) -> tuple[Part, ...]:
    contexts = ("full", "empty") if context == "both" else (context,)
    return tuple(
        Part(tensor, some, each)
        for tensor, several in enumerate(regions)
        for each in contexts
        for some in several
    )


def _with_nothing_seen(task: Task, contents: Contents) -> Task:
    """The task with the scores of what the model says when nothing is seen."""
    references = list(task.references)
    for scene in task.scenes():
        if scene.context == "full":
            continue
        example = task.inputs[scene.tensor][scene.example : scene.example + 1]
        unchanged = contents.of(example, scene.context).unchanged()
        with torch.no_grad():
            outputs = task.call.for_example(scene.example, scene.tensor)(unchanged.clone())
        for number in scene.parts:
            if references[number] is task.references[number]:
                references[number] = references[number].clone()
            references[number][scene.example] = task.reader.for_example(scene.example)(outputs)[0]
    return replace(task, references=tuple(references))
