"""Samples of each region: draws, standard errors, and when there are enough of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from scipy.special import chdtri
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines import PreparedEngine
from captum_pda.engines.protocol import Advance, Read
from captum_pda.model.measures import Measure, marginalise
from captum_pda.regions.protocol import Windows

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


@dataclass(frozen=True)
class Sampling:
    """How many contents each region gets.

    Args:
        n_samples: how many; with ``stopping``, at most.
        seed: the same one gives the same draws.
        keep_errors: whether to keep the standard error of each score.
        stopping: when a region has contents enough; None runs all of them.
        part: the number of the part whose regions are sampled.
    """

    n_samples: int = 1
    seed: int = 0
    keep_errors: bool = False
    stopping: StoppingRule | None = None
    part: int = 0

    def in_context(self, context: str) -> Sampling:
        """In the empty context the true content is put in, which is one and certain."""
        return self if context == "full" else Sampling(1, self.seed, self.keep_errors)

    def generator(self, windows: Windows, device: torch.device) -> torch.Generator:
        """Draws for these windows, which depend on the seed and on nothing drawn before."""
        return device_sync.generator_for((self.seed, windows.first, self.part), device)


#: From samples (n, W, columns) to whether each window has enough of them, (W,).
Enough: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class WindowScores:
    """What is kept of the samples of windows.

    Args:
        scores: marginalised over the samples, (..., W, columns).
        errors: their standard errors, where they were asked for.
        n_drawn: how many samples each window had, (..., W).
    """

    scores: Tensor
    errors: Tensor | None
    n_drawn: Tensor

    @classmethod
    def of(cls, samples: Tensor, output: str, keep_errors: bool) -> WindowScores:
        """Marginalise samples (S, W, columns)."""
        scores = marginalise(samples, output)
        errors = None
        if keep_errors:
            several = len(samples) > 1
            errors = score_error(samples, output) if several else torch.full_like(scores, math.nan)
        n_drawn = torch.full(samples.shape[1:2], len(samples), device=samples.device)
        return cls(scores, errors, n_drawn)

    @classmethod
    def none_yet(cls, reference: Tensor, n_windows: int, keep_errors: bool) -> WindowScores:
        """Room for windows of all examples, for scores like these (N, columns)."""
        n_examples, n_columns = reference.shape
        empty = reference.new_full((n_examples, n_windows, n_columns), math.nan)
        n_drawn = torch.zeros(n_examples, n_windows, dtype=torch.int64, device=reference.device)
        return cls(empty, empty.clone() if keep_errors else None, n_drawn)

    def put(self, example: int, windows: Tensor, part: WindowScores) -> None:
        """Write what is known of some windows of an example."""
        self.scores[example, windows] = part.scores
        if self.errors is not None and part.errors is not None:
            self.errors[example, windows] = part.errors
        self.n_drawn[example, windows] = part.n_drawn


@dataclass(frozen=True, eq=False)
class Scoring:
    """How the fills of one example's windows are run and what is kept of them.

    Args:
        read: from outputs to scores, for every batch at once.
        advance: told how many copies have just gone through the model.
        output: "logits", "probabilities" or "raw".
        keep_errors: whether standard errors are kept.
        enough: says which windows need no more samples; None runs all of them.
    """

    read: Read
    advance: Advance
    output: str
    keep_errors: bool = False
    enough: Enough | None = None

    def keep(self, samples: Tensor) -> WindowScores:
        """What is kept of samples (S, W, columns)."""
        return WindowScores.of(samples, self.output, self.keep_errors)


def score_windows(
    prepared: PreparedEngine, windows: Windows, fills: Tensor, scoring: Scoring
) -> Iterator[tuple[Tensor, WindowScores]]:
    """Run the model with each window replaced by its fills (S, W, C, *window).

    With ``scoring.enough``, each window is run on more and more of its fills, until it has enough
    of them or there are no more.

    Returns:
        Windows that are finished, as their numbers and what is kept of them; when something stops
        the run, as far as they have come by then.
    """
    running = torch.arange(len(windows), device=fills.device)
    rounds: list[Tensor] = []
    done = 0
    for look in looks(len(fills)) if scoring.enough else [len(fills)]:
        some = windows.pick(device_sync.as_integers(running)) if done else windows
        try:
            new = fills[done:look, running] if done else fills[:look]
            rounds.append(prepared.scores(some, new, scoring.read, scoring.advance))
        except BaseException:
            yield from _as_far_as_done(prepared, rounds, running, scoring)
            raise
        samples = torch.cat(rounds)
        done = look
        if scoring.enough is None or done == len(fills):
            yield running, scoring.keep(samples)
            return
        ready = scoring.enough(samples)
        stopped = running[ready]
        if len(stopped):
            yield stopped, scoring.keep(samples[:, ready])
            scoring.advance(len(stopped) * (len(fills) - done))  # samples that are not needed
        running, rounds = running[~ready], [samples[:, ~ready]]
        if len(running) == 0:
            return


def _as_far_as_done(
    prepared: PreparedEngine, rounds: list[Tensor], windows: Tensor, scoring: Scoring
) -> Iterator[tuple[Tensor, WindowScores]]:
    """What can be said of windows whose samples were not all run."""
    unfinished = getattr(prepared, "unfinished", None)
    if unfinished is not None:
        rounds = [*rounds, unfinished]
    if not rounds:
        return
    samples = torch.cat(rounds)
    is_done = ~samples.isnan().all(dim=2)
    counts = is_done.sum(dim=0)
    for count in set(device_sync.as_integers(counts)) - {0}:
        some = counts == count
        first = is_done[:, some].int().argsort(dim=0, descending=True, stable=True)[:count]
        chosen = samples[:, some].gather(0, first[..., None].expand(-1, -1, samples.shape[2]))
        yield windows[some], scoring.keep(chosen)
