"""From a model's outputs to one score an output: log-odds in nats, or the raw value.

Log-odds say everything about a class's probability without rounding it to 0 or 1:
log p = logsigmoid(log-odds) and log(1 - p) = logsigmoid(-log-odds).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_pda import host

OUTPUTS = ("logits", "probabilities", "raw")

#: How far the sum of a row of probabilities may be from 1 (half-precision models round).
SUM_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Readout:
    """How to read a model's outputs.

    Args:
        output: "logits", "probabilities" or "raw".
        exclusive: whether the classes (dimension 1) compete, so that the odds of one are against
            all the others; otherwise each output is a yes-or-no question of its own.
    """

    output: str
    exclusive: bool

    @classmethod
    def of(cls, output: str, outputs: Tensor) -> Readout:
        """Choose the reading from the outputs for the unperturbed inputs, and check that they do
        not contradict ``output``."""
        if not host.all_finite(outputs):
            raise ValueError(
                "the model returned NaN or infinity for the unperturbed inputs; check the "
                "model and its input scaling"
            )
        several = outputs.dim() > 1 and outputs.shape[1] > 1
        if output == "raw":
            return cls(output, exclusive=False)
        within = host.is_true(((outputs >= -1e-6) & (outputs <= 1 + 1e-3)).all())
        sums_to_one = (
            several
            and within
            and host.is_true(((outputs.float().sum(1) - 1).abs() < SUM_TOLERANCE).all())
        )
        if output == "probabilities":
            if not within:
                raise ValueError(
                    "output='probabilities' but the model returned values outside [0, 1]; if they "
                    "are scores before a softmax or sigmoid, use output='logits'"
                )
            return cls(output, exclusive=sums_to_one)
        if sums_to_one:
            warnings.warn(
                "output='logits' but the model's outputs are positive and sum to 1, as "
                "probabilities do; if it ends in a softmax, use output='probabilities'",
                stacklevel=5,
            )
        return cls(output, exclusive=several)

    def every(self, outputs: Tensor) -> Tensor:
        """The scores of all outputs, (rows, columns)."""
        values = self._values(outputs)
        return self._all_odds(values).flatten(1) if self.exclusive else values.flatten(1)

    def column(self, outputs: Tensor, column: int) -> Tensor:
        """The score of one flat output column, (rows, 1)."""
        if not self.exclusive:
            return self._values(outputs.reshape(len(outputs), -1)[:, column : column + 1])
        places = math.prod(outputs.shape[2:])
        target, place = divmod(column, places)
        values = self._values(outputs.flatten(2)[..., place] if places > 1 else outputs.flatten(1))
        rest = torch.cat([values[:, :target], values[:, target + 1 :]], dim=1)
        return values[:, target : target + 1] - torch.logsumexp(rest, dim=1, keepdim=True)

    def check_saturation(self, scores: Tensor) -> None:
        """Warn where a probability was too close to 0 or 1 for its dtype to say how close."""
        if self.output != "probabilities":
            return
        info = torch.finfo(scores.dtype)
        zero = -math.log(info.tiny) - (12 if self.exclusive else 1e-3)
        one = zero if self.exclusive else -math.log(info.eps / 2) - 1e-3
        if host.is_true(((scores >= one) | (scores <= -zero)).any()):
            warnings.warn(
                "some probabilities were rounded to exactly 0 or 1, so the weight of evidence "
                "there is only a bound; return logits and use output='logits' for the "
                "full value",
                stacklevel=5,
            )

    def _values(self, outputs: Tensor) -> Tensor:
        """Logits, or raw values, in single precision or wider."""
        values = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        if self.output != "probabilities":
            return values
        info = torch.finfo(values.dtype)
        log_probability = values.clamp_min(info.tiny).log()
        if self.exclusive:
            return log_probability
        return log_probability - (1 - values).clamp_min(info.eps / 2).log()

    @staticmethod
    def _all_odds(logits: Tensor) -> Tensor:
        """Log-odds of every class against the others, without losing 1 - p to rounding."""
        log_probability = torch.log_softmax(logits, dim=1)
        # At most one class can be above a half: only its 1 - p needs the sum of the others.
        top, best = logits.max(dim=1, keepdim=True)
        others = torch.logsumexp(logits.scatter(1, best, -math.inf), dim=1, keepdim=True)
        odds = log_probability - torch.log1p(-log_probability.exp())
        return odds.scatter(1, best, top - others)
