"""Pixels taken away in the order of a map, and what a model predicts then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType
from captum_pda.engines import BatchLoop, BatchSize
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import check_choice, check_count, check_images, watched_columns
from captum_pda.model.measures import measure_for
from captum_pda.model.outputs import OUTPUTS, Readout


@dataclass(frozen=True, eq=False)
class RemovalModel:
    """A model that is asked about copies of examples.

    Args:
        forward_func: the model, or any function of the inputs.
        inputs: (N, C, *space).
        target: what to predict of each example; None is the predicted class.
        additional_forward_args: as in ``attribute``.
        output: "logits", "probabilities" or "raw".
        perturbations_per_eval: how many copies go through the model at once.
    """

    forward_func: Callable[..., Any]
    inputs: Tensor
    target: TargetType
    additional_forward_args: object
    output: str
    perturbations_per_eval: int | None

    def __post_init__(self) -> None:
        check_images("inputs", self.inputs)
        check_choice("output", self.output, OUTPUTS)
        if self.perturbations_per_eval is not None:
            check_count("perturbations_per_eval", self.perturbations_per_eval)

    @contextmanager
    def examples(self) -> Iterator[list[RemovalExample]]:
        """Every example, while the model is in evaluation mode."""
        inputs = self.inputs.detach()
        call = ModelCall(self.forward_func, (inputs,), self.additional_forward_args)
        batch_size = BatchSize(self.perturbations_per_eval, call.values_per_example)
        with evaluation_mode(self.forward_func), torch.no_grad():
            outputs = call.unperturbed()
            readout = Readout.of(self.output, outputs)
            shape = tuple(outputs.shape[1:])
            columns = watched_columns(
                self.target, readout.every(outputs), shape, self.output, "target"
            )
            yield [
                RemovalExample(
                    inputs[number],
                    BatchLoop(batch_size, inputs[number : number + 1]),
                    _predictor(call.for_example(number, 0), readout, column),
                )
                for number, column in enumerate(columns)
            ]


@dataclass(frozen=True, eq=False)
class RemovalExample:
    """One example (C, *space), the loop that takes its copies through the model, and what the
    model predicts of copies (copies, C, *space), (copies,)."""

    image: Tensor
    loop: BatchLoop
    predict: Callable[[Tensor], Tensor]

    def unchanged(self) -> Tensor:
        """The prediction of the example as it is, (1,)."""
        return self.curve(1, lambda rows: self.image.unsqueeze(0).clone())

    def curve(self, n_copies: int, copies: Callable[[Tensor], Tensor]) -> Tensor:
        """The predictions of copies 0, 1, ..., which are made a batch at a time, (n_copies,)."""
        found = self.loop.run(
            n_copies, lambda rows: self.predict(copies(torch.from_numpy(rows)))[:, None]
        )
        return found[:, 0]


def _predictor(
    forward: Callable[[Tensor], Tensor], readout: Readout, column: int
) -> Callable[[Tensor], Tensor]:
    measure = measure_for(readout.output, "weight_of_evidence")
    return lambda copies: measure.prediction(readout.column(forward(copies), column)[:, 0])


def pixel_ranks(attributions: Tensor, inputs: Tensor) -> Tensor:
    """Each pixel's place in the order from most to least important, (N, pixels)."""
    expected = (inputs.shape, (len(inputs), 1, *inputs.shape[2:]))
    if tuple(attributions.shape) not in (tuple(shape) for shape in expected):
        raise ValueError(
            f"attributions have shape {tuple(attributions.shape)}, where the inputs have "
            f"{tuple(inputs.shape)}; give a map of that shape or with one channel"
        )
    if not device_sync.all_finite(attributions):
        raise ValueError("attributions hold NaN or infinite values, which have no order")
    importance = attributions.detach().to(inputs.device).sum(dim=1).flatten(1)
    order = importance.argsort(dim=1, descending=True, stable=True)
    return order.argsort(dim=1)


def step_counts(n_pixels: int, n_steps: int, device: torch.device) -> Tensor:
    """How many pixels are changed after 0, 1, ... of equal steps, (steps + 1,)."""
    return torch.linspace(0, n_pixels, n_steps + 1, device=device).round()
