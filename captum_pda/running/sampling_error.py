"""How far a mean over samples is from what it estimates, and when there are samples enough."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.special import chdtri
from torch import Tensor

from captum_pda.model.measures import Measure, marginalise

#: A window is first looked at after so many draws, and then after half as many again each time.
FIRST_LOOK, GROWTH = 5, 1.5
#: With this confidence is a standard error under the bound once sampling stops.
CONFIDENCE = 0.95


def score_error(scores: Tensor, output: str) -> Tensor:
    """The standard error of ``marginalise(scores, output)``, from the samples in dimension 0.

    For raw outputs s / sqrt(S), with s the samples' standard deviation. For log-odds, by the
    delta method, s / sqrt(S) / (p (1 - p)) in nats, with s that of the probabilities p_s and p
    their mean. It is worked out from p_s / p, or from (1 - p_s) / (1 - p) where that is the rarer
    event, so that nothing is rounded to 0 or 1.
    """
    root = math.sqrt(len(scores))
    if output == "raw":
        return scores.std(dim=0) / root
    log_p, log_not_p = F.logsigmoid(scores), F.logsigmoid(-scores)
    mean_p, mean_not_p = _log_mean(log_p), _log_mean(log_not_p)
    ratios = torch.where(mean_p < mean_not_p, log_p - mean_p, log_not_p - mean_not_p).exp()
    return ratios.std(dim=0) / root / torch.maximum(mean_p, mean_not_p).exp()


def _log_mean(logarithms: Tensor) -> Tensor:
    return torch.logsumexp(logarithms, dim=0) - math.log(len(logarithms))


@dataclass(frozen=True)
class StoppingRule:
    """When a window has been sampled enough: once its standard error is surely under a bound.

    A standard error that is itself estimated from few draws is by chance too small now and then,
    and stopping at such a moment would favour wrong values. So windows are looked at only a few
    times (after 5, 8, 12, 18, ... draws), and what must be under the bound is the upper 95%
    confidence limit of the standard error, for normally distributed samples:
    error * sqrt((n - 1) / q), with q the 5% point of chi-squared with n - 1 degrees of freedom.

    Args:
        tolerance: the bound, in units of the measure.
        columns: for each example the column whose error is bounded.
        output: "logits", "probabilities" or "raw".
        measure: what evidence is measured in.
    """

    tolerance: float
    columns: list[int]
    output: str
    measure: Measure

    def enough(self, example: int, scores: Tensor) -> Tensor:
        """Which windows need no more than these samples (n, W, columns), (W,)."""
        picked = scores[..., self.columns[example]]
        error = self.measure.error(
            score_error(picked, self.output), marginalise(picked, self.output)
        )
        return error * _upper_limit(len(scores)) <= self.tolerance


def looks(n_samples: int) -> Iterator[int]:
    """After how many draws to look at a window's error; the last is ``n_samples``."""
    look = FIRST_LOOK
    while look < n_samples:
        yield look
        look = math.ceil(look * GROWTH)
    yield n_samples


def _upper_limit(n: int) -> float:
    """How many times its estimate a standard deviation is at most, for n normal samples."""
    return math.sqrt((n - 1) / chdtri(n - 1, CONFIDENCE))
