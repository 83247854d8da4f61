"""How scores become evidence: which output, and in what measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.prediction.measures import Measure
from captum_pda.prediction.targets import target_columns

#: From scores (N, W, columns) to the quantity whose difference is the evidence, (N, W).
Quantity: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Reading:
    """How to read scores of (N, W, columns).

    Args:
        output_shape: the shape of one example's output, whose flat columns these are.
        output: "logits", "probabilities" or "raw".
        measure: what differences are measured in.
    """

    output_shape: tuple[int, ...]
    output: str
    measure: Measure

    def quantity(self, target: TargetType, name: str = "target") -> Quantity:
        """What is measured of ``target``."""
        return lambda scores: self.measure.value(self.pick(scores, target, name))

    def rather(self, first: TargetType, second: TargetType) -> Quantity:
        """What speaks for ``first`` rather than ``second``."""
        return lambda scores: self.measure.contrast(
            self.pick(scores, first, "first"), self.pick(scores, second, "second")
        )

    def prediction(self, target: TargetType) -> Quantity:
        """The probability of ``target``, or its raw output."""
        return lambda scores: self.measure.prediction(self.pick(scores, target))

    def slope(self, target: TargetType) -> Quantity:
        """How fast the measured quantity changes with the score."""
        return lambda scores: self.measure.slope(self.pick(scores, target))

    def pick(self, scores: Tensor, target: TargetType, name: str = "target") -> Tensor:
        """Each example's own column of (N, W, columns) scores, (N, W)."""
        columns = target_columns(target, len(scores), self.output_shape, name)
        index = torch.tensor(columns, device=scores.device)[:, None, None]
        return scores.gather(2, index.expand(-1, scores.shape[1], 1)).squeeze(2)
