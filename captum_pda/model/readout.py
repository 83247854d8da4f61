"""From a model's outputs to one score per output: log-odds in nats, or the raw value.

Log-odds say everything about a class's probability without rounding it to 0 or 1:
log p = logsigmoid(log-odds) and log(1 - p) = logsigmoid(-log-odds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.errors import warn_user

OUTPUTS = ("logits", "multilabel", "probabilities", "raw")

#: How far a row of outputs that look like probabilities may be from a sum of 1.
SUM_TOLERANCE = 1e-2
#: So many logits do not all lie between 0 and 1 by chance.
MANY = 8


@dataclass(frozen=True)
class Readout:
    """How to read a model's outputs.

    Args:
        output: "logits", "multilabel" (a sigmoid logit for each label), "probabilities" or "raw".
        softmax: whether the outputs are logits of classes (dimension 1) that compete, so that the
            odds of one are against all the others. Otherwise each logit or probability is a
            yes-or-no question of its own; where probabilities do compete that makes no
            difference.
        dtype: the outputs' dtype, which says how they were rounded.
    """

    output: str
    softmax: bool
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, output: str, outputs: Tensor) -> Readout:
        """Choose the reading from the outputs for the unperturbed inputs, and check that they do
        not contradict ``output``."""
        if not device_sync.all_finite(outputs):
            raise ValueError(
                "the model returned NaN or infinity for the unperturbed inputs; check the "
                "model and its input scaling"
            )
        several = _are_several(outputs)
        if output == "raw":
            return cls(output, False, outputs.dtype)
        within = device_sync.is_true(((outputs >= -1e-6) & (outputs <= 1 + 1e-3)).all())
        if output == "probabilities":
            if not within:
                raise ValueError(
                    "output='probabilities' but the model returned values outside [0, 1]; if they "
                    "are scores before a softmax or sigmoid, use output='logits'"
                )
            return cls(output, False, outputs.dtype)
        if outputs.dim() == 1:
            warn_user(
                f"output={output!r} reads the model's one number per example as the logit of a "
                "yes-or-no question; for a similarity, a distance or a regression use "
                "output='raw'. A logit of shape (N, 1) says so without this warning"
            )
        if several and within:
            apart = (outputs.float().sum(1) - 1).abs()
            if outputs.numel() >= MANY or device_sync.is_true((apart < SUM_TOLERANCE).all()):
                warn_user(
                    f"output={output!r} but the model's outputs all lie between 0 and 1, as "
                    "probabilities do; if it ends in a softmax or sigmoids, use "
                    "output='probabilities'"
                )
        return cls(output, several and output == "logits", outputs.dtype)

    def every(self, outputs: Tensor) -> Tensor:
        """The scores of all outputs, (rows, columns)."""
        values = _widened(outputs)
        if self.softmax:
            values = _softmax_odds(values)
        elif self.output == "probabilities":
            others = _sum_of_others(values) if _are_several(values) else None
            values = _probability_odds(values, others, outputs.dtype)
        return values.reshape(len(outputs), -1)

    def column(self, outputs: Tensor, column: int) -> Tensor:
        """The score of one flat output column, (rows, 1)."""
        # The classes at the column's place: all that its score depends on.
        places = math.prod(outputs.shape[2:])
        target, place = divmod(column, places)
        classes = _widened(outputs.reshape(len(outputs), -1, places)[..., place])
        value = classes[:, target : target + 1]
        others = torch.cat([classes[:, :target], classes[:, target + 1 :]], dim=1)
        if self.softmax:
            return value - torch.logsumexp(others, dim=1, keepdim=True)
        if self.output == "probabilities":
            total = others.sum(dim=1, keepdim=True) if _are_several(classes) else None
            return _probability_odds(value, total, outputs.dtype)
        return value

    def check_saturation(self, *scores: Tensor) -> None:
        """Warn where a probability was too close to 0 or 1 for its dtype to say how close."""
        if self.output != "probabilities":
            return
        if any(device_sync.is_true(self._saturated(values).any()) for values in scores):
            warn_user(
                "some probabilities were rounded to exactly 0 or 1, so the weight of evidence "
                "there is only a bound; return logits and use output='logits' for the full value"
            )

    def _saturated(self, scores: Tensor) -> Tensor:
        smallest, half_a_unit = _smallest(self.dtype), torch.finfo(self.dtype).eps / 2
        beyond = scores.abs() >= -math.log(smallest) - 1e-3
        rounded_to_one = (scores + math.log(half_a_unit)).abs() < 1e-3
        return beyond | rounded_to_one


def _widened(outputs: Tensor) -> Tensor:
    """Outputs in single precision or wider."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def _softmax_odds(logits: Tensor) -> Tensor:
    """Log-odds of every class against the others, without losing 1 - p to rounding."""
    log_probability = torch.log_softmax(logits, dim=1)
    # At most one class can be above a half: only its 1 - p needs the sum of the others.
    top, best = logits.max(dim=1, keepdim=True)
    others = torch.logsumexp(logits.scatter(1, best, -math.inf), dim=1, keepdim=True)
    odds = log_probability - torch.log1p(-log_probability.exp())
    return odds.scatter(1, best, top - others)


def _probability_odds(probability: Tensor, others: Tensor | None, dtype: torch.dtype) -> Tensor:
    """log p - log(1 - p), where 1 - p is the sum of the others if they compete.

    Whether they do is seen from their sum, row by row: where it is 1 but for rounding in
    ``dtype``, both readings agree, and the sum of the others has kept what 1 - p has lost.
    """
    eps, smallest = torch.finfo(dtype).eps, _smallest(dtype)
    complement = (1 - probability).clamp_min(eps / 2)
    if others is not None:
        # Values rounded to half precision sum to 1 within one unit; summing adds some at most.
        tolerance = max(eps, 16 * torch.finfo(probability.dtype).eps)
        competing = (probability + others - 1).abs() <= tolerance
        complement = torch.where(competing, others.clamp_min(smallest), complement)
    return probability.clamp_min(smallest).log() - complement.log()


def _smallest(dtype: torch.dtype) -> float:
    """The smallest positive probability that outputs of a dtype can have, at least normal when
    read in single precision."""
    info = torch.finfo(dtype)
    normal = torch.finfo(torch.promote_types(dtype, torch.float32)).tiny
    return max(info.tiny * info.eps, normal)


def _sum_of_others(values: Tensor) -> Tensor:
    """The sum over dimension 1 without each value, exact also beside a value near 1."""
    best = values.argmax(dim=1, keepdim=True)
    without_best = values.scatter(1, best, 0).sum(dim=1, keepdim=True)
    others = values.sum(dim=1, keepdim=True) - values
    return others.scatter(1, best, without_best)


def _are_several(values: Tensor) -> bool:
    return values.dim() > 1 and values.shape[1] > 1
