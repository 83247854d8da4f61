"""What a difference of predictions is measured in, and what a prediction is when averaged."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.prediction.inputs import check_choice

LN2 = math.log(2)

#: From log-odds in nats to the quantity whose difference is the evidence.
MEASURES: dict[str, Callable[[Tensor], Tensor]] = {
    "weight_of_evidence": lambda log_odds: log_odds / LN2,
    "probability_difference": torch.sigmoid,
    "information_difference": lambda log_odds: F.logsigmoid(log_odds) / LN2,
}

#: How fast each of them changes with the log-odds.
SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "weight_of_evidence": lambda log_odds: torch.full_like(log_odds, 1 / LN2),
    "probability_difference": lambda log_odds: torch.sigmoid(log_odds) * torch.sigmoid(-log_odds),
    "information_difference": lambda log_odds: torch.sigmoid(-log_odds) / LN2,
}


def measure_for(output: str, measure: str) -> Callable[[Tensor], Tensor]:
    """The measure to apply to scores; raw outputs are compared as they are."""
    return (lambda value: value) if output == "raw" else MEASURES[measure]


def slope_for(output: str, measure: str) -> Callable[[Tensor], Tensor]:
    """The derivative of ``measure_for(output, measure)``, by which small errors are multiplied."""
    return torch.ones_like if output == "raw" else SLOPES[measure]


def marginalise(scores: Tensor, output: str) -> Tensor:
    """Average predictions over the samples in dimension 0, and return the score of the average.

    Probabilities are averaged, in log space: log p = logsumexp_s(log p_s) - log S, and
    log(1 - p) in the same way. Raw outputs are averaged as they are.
    """
    if len(scores) == 1:
        return scores[0]
    if output == "raw":
        return scores.mean(dim=0)
    # The - log S of both terms cancels in the log-odds.
    return torch.logsumexp(F.logsigmoid(scores), dim=0) - torch.logsumexp(
        F.logsigmoid(-scores), dim=0
    )


def log_ratio(first: Tensor, second: Tensor, output: str, measure: str) -> Tensor:
    """What speaks for one output rather than another, from their scores.

    In bits it is log2 P(first) / P(second); otherwise the difference of what is measured.
    """
    if output == "raw" or measure == "probability_difference":
        value = measure_for(output, measure)
    else:
        value = MEASURES["information_difference"]
    return value(first) - value(second)


def check_measure(output: str, measure: str) -> None:
    """Refuse an unknown measure, or one that raw outputs cannot have."""
    check_choice("measure", measure, MEASURES)
    if output == "raw" and measure != "weight_of_evidence":
        raise ValueError(
            f"measure={measure!r} needs probabilities, and output='raw' has none; leave measure "
            "out to get the plain difference, or use output='logits'"
        )
