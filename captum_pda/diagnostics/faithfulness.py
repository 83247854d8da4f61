"""Deletion and insertion curves: does the model need what a map says it needs?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.diagnostics.removal import RemovalModel, pixel_ranks, step_counts
from captum_pda.model.inputs import check_count


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
    *,
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
    model = RemovalModel(
        forward_func, inputs, target, additional_forward_args, output, perturbations_per_eval
    )
    n_steps = check_count("n_steps", n_steps)
    inputs = inputs.detach()
    absent = torch.as_tensor(baselines, dtype=inputs.dtype, device=inputs.device).expand_as(inputs)
    ranks = pixel_ranks(attributions, inputs)
    counts = step_counts(ranks.shape[1], n_steps, inputs.device)
    deletion: list[Tensor] = []
    insertion: list[Tensor] = []
    with model.examples() as examples:
        for number, example in enumerate(examples):
            present, missing = inputs[number], absent[number]
            for curves, path in (
                (deletion, _Path(present, missing, ranks[number], counts)),
                (insertion, _Path(missing, present, ranks[number], counts)),
            ):
                curves.append(example.curve(len(counts), path.at))
    fractions = (counts / ranks.shape[1]).to(deletion[0].dtype)
    return FaithfulnessCurves(fractions, torch.stack(deletion), torch.stack(insertion))


@dataclass(frozen=True, eq=False)
class _Path:
    """From one image (C, *space) to another in the order of ``ranks`` (pixels,), with so many
    pixels changed at each step as ``counts`` (steps + 1,) says."""

    start: Tensor
    end: Tensor
    ranks: Tensor
    counts: Tensor

    def at(self, steps: Tensor) -> Tensor:
        """The images at some steps, (steps, C, *space)."""
        changed = self.ranks < self.counts[steps.to(self.counts.device), None]
        return torch.where(changed.view(-1, 1, *self.start.shape[1:]), self.end, self.start)
