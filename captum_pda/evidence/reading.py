"""How scores become evidence: which output, and in what measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.model.inputs import masked_columns, target_columns
from captum_pda.model.measures import Measure

#: From scores (N, W, columns) to the quantity whose difference is the evidence, (N, W).
Quantity: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Reading:
    """How to read scores of (N, W, columns).

    Args:
        output_shape: the shape of one example's output, whose flat columns these are.
        output: "logits", "probabilities" or "raw".
        measure: what differences are measured in.
        summed: whether the columns are those of a region, which is explained as a whole: as the
            sum over its columns.
    """

    output_shape: tuple[int, ...]
    output: str
    measure: Measure
    summed: bool = False

    def quantity(self, target: TargetType, name: str = "target") -> Quantity:
        """What is measured of ``target``."""
        return lambda scores: self.measure.value(self.pick(scores, target, name)).sum(dim=2)

    def rather(self, first: TargetType, second: TargetType) -> Quantity:
        """What speaks for ``first`` rather than ``second``."""
        return lambda scores: self.measure.contrast(
            self.pick(scores, first, "first"), self.pick(scores, second, "second")
        ).sum(dim=2)

    def prediction(self, target: TargetType) -> Quantity:
        """The probability of ``target``, or its raw output; the mean of those of a region."""
        return lambda scores: self.measure.prediction(self.pick(scores, target)).mean(dim=2)

    def errors(self, errors: Tensor, scores: Tensor, target: TargetType) -> Tensor:
        """The standard errors of the measured quantity, from those of the scores, (N, W)."""
        picked = self.pick(errors, target)
        if picked.shape[2] > 1:
            raise ValueError(
                "a sum over a region has no standard error here: its outputs err together; ask for "
                "one output of it"
            )
        return self.measure.error(picked, self.pick(scores, target)).squeeze(2)

    def pick(self, scores: Tensor, target: TargetType, name: str = "target") -> Tensor:
        """The columns of (N, W, columns) scores that are explained: one, or those of a region."""
        if self.summed and target is None:
            return scores
        region = masked_columns(target, self.output_shape, name)
        if region is not None:
            return scores[..., region]
        columns = target_columns(target, len(scores), self.output_shape, name)
        index = torch.tensor(columns, device=scores.device)[:, None, None]
        return scores.gather(2, index.expand(-1, scores.shape[1], 1))
