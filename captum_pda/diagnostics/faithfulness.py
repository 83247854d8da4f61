"""Deletion and insertion curves: does the model need what a map says it needs?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.basics import device_sync
from captum_pda.engines import BatchLoop, BatchSize
from captum_pda.prediction.inputs import check_choice, check_count, check_images
from captum_pda.prediction.measures import measure_for
from captum_pda.prediction.model_call import ModelCall, evaluation_mode
from captum_pda.prediction.readout import OUTPUTS, Readout
from captum_pda.prediction.targets import watched_columns


@dataclass(frozen=True, eq=False, repr=False)
class FaithfulnessCurves:
    """The prediction as pixels are taken away, or put in, in the order of a map.

    Args:
        fractions: which share of the pixels was changed, from 0 to 1, (steps + 1,).
        deletion: P(c) with the most important pixels taken away first, (N, steps + 1).
        insertion: P(c) with the most important pixels put in first, (N, steps + 1).
    """

    fractions: Tensor
    deletion: Tensor
    insertion: Tensor

    @property
    def deletion_area(self) -> Tensor:
        """The area under the deletion curve, (N,): small where the map is faithful."""
        return torch.trapezoid(self.deletion, self.fractions, dim=1)

    @property
    def insertion_area(self) -> Tensor:
        """The area under the insertion curve, (N,): large where the map is faithful."""
        return torch.trapezoid(self.insertion, self.fractions, dim=1)

    def __str__(self) -> str:
        return (
            f"{len(self.deletion)} examples: area under the deletion curve "
            f"{float(self.deletion_area.mean()):.3f} (smaller is better), under the insertion "
            f"curve {float(self.insertion_area.mean()):.3f} (larger is better)"
        )

    __repr__ = __str__


def faithfulness_curves(
    forward_func: Callable[..., Any],
    inputs: Tensor,
    attributions: Tensor,
    target: TargetType = None,
    additional_forward_args: object = None,
    baselines: Tensor | float = 0.0,
    n_steps: int = 50,
    output: str = "logits",
    perturbations_per_eval: int | None = None,
) -> FaithfulnessCurves:
    """Take pixels away (and put them in) in the order of a map, and watch the prediction.

    Works for a map of any method (Petsiuk et al. 2018). Pixels are ranked by the sum of their
    channels' attributions, from the strongest for the target to the strongest against it; all
    channels of a pixel go together.

    Args:
        forward_func: the model, or any function of the inputs.
        inputs: (N, C, *space).
        attributions: the map, of the inputs' shape or (N, 1, *space).
        target: as in ``attribute``; None takes the predicted class of each example.
        additional_forward_args: as in ``attribute``.
        baselines: what stands where a pixel is missing: a number, or a tensor that broadcasts to
            the inputs, such as a blurred copy of them.
        n_steps: in how many equal steps all pixels are changed.
        output: "logits", "probabilities" or "raw", as for EfficientPDA; raw curves are of the
            output itself.
        perturbations_per_eval: how many changed copies go through the model at once.

    Example::

        >>> curves = diagnostics.faithfulness_curves(model, image, attribution, target=3)
        >>> curves.deletion_area, curves.insertion_area
    """
    check_images("inputs", inputs)
    check_choice("output", output, OUTPUTS)
    n_steps = check_count("n_steps", n_steps)
    if perturbations_per_eval is not None:
        perturbations_per_eval = check_count("perturbations_per_eval", perturbations_per_eval)
    inputs = inputs.detach()
    absent = torch.as_tensor(baselines, dtype=inputs.dtype, device=inputs.device).expand_as(inputs)
    ranks = _ranks(attributions, inputs)
    n_pixels = ranks.shape[1]
    counts = torch.linspace(0, n_pixels, n_steps + 1, device=inputs.device).round()
    call = ModelCall(forward_func, (inputs,), additional_forward_args)
    batch_size = BatchSize(perturbations_per_eval, call.values_per_example)
    deletion, insertion = [], []
    with evaluation_mode(forward_func), torch.no_grad():
        outputs = call.unperturbed()
        readout = Readout.of(output, outputs)
        shape = tuple(outputs.shape[1:])
        columns = watched_columns(target, readout.every(outputs), shape, output, "target")
        for number, column in enumerate(columns):
            present, missing = inputs[number : number + 1], absent[number : number + 1]
            predict = _predictor(call.for_example(number, 0), readout, column)
            loop = BatchLoop(batch_size, present)
            deletion.append(_curve(loop, predict, _Path(present, missing, ranks[number]), counts))
            insertion.append(_curve(loop, predict, _Path(missing, present, ranks[number]), counts))
    fractions = (counts / n_pixels).to(deletion[0].dtype)
    return FaithfulnessCurves(fractions, torch.stack(deletion), torch.stack(insertion))


def _predictor(
    forward: Callable[[Tensor], Tensor], readout: Readout, column: int
) -> Callable[[Tensor], Tensor]:
    """From copies of an example to their predictions, (copies,)."""
    measure = measure_for(readout.output, "weight_of_evidence")
    return lambda copies: measure.prediction(readout.column(forward(copies), column)[:, 0])


@dataclass(frozen=True, eq=False)
class _Path:
    """From one image to another, pixel by pixel in the order of ``ranks`` (pixels,)."""

    start: Tensor
    end: Tensor
    ranks: Tensor

    def at(self, counts: Tensor) -> Tensor:
        """The images with so many pixels changed, (counts, C, *space)."""
        changed = (self.ranks < counts[:, None]).view(len(counts), 1, *self.start.shape[2:])
        return torch.where(changed, self.end, self.start)


def _curve(
    loop: BatchLoop, predict: Callable[[Tensor], Tensor], path: _Path, counts: Tensor
) -> Tensor:
    """The predictions along a path, for every count of changed pixels."""
    predictions = loop.run(
        len(counts), lambda rows: predict(path.at(counts[torch.from_numpy(rows)]))[:, None]
    )
    return predictions[:, 0]


def _ranks(attributions: Tensor, inputs: Tensor) -> Tensor:
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
