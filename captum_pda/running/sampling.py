"""Samples of regions: random numbers, standard errors, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from scipy.special import chdtri
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines import PreparedEngine
from captum_pda.engines.protocol import Advance, Read
from captum_pda.model.measures import Measure
from captum_pda.model.outputs import OutputKind
from captum_pda.regions.contexts import Context
from captum_pda.regions.protocol import Windows, drawing_numbers

#: After how many samples the error of a region is first checked, and by which factor this number
#: grows from check to check.
FIRST_CHECK, GROWTH = 5, 1.5
#: The confidence that a standard error is below the tolerance when sampling stops.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Sampling:
    """How regions are sampled."""

    n_samples: int = 1  #: With ``stopping``, at most.
    seed: int = 0  #: The same one gives the same draws.
    keep_errors: bool = False  #: Whether to keep the standard error of each score.
    stopping: StoppingRule | None = None  #: When a region has enough of them.
    part: int = 0  #: The number of the part of the plan whose regions are sampled.
    common_draws: bool = False  #: Whether all regions are drawn with the same random numbers.

    def in_context(self, context: Context) -> Sampling:
        """The same with one sample in a context without randomness."""
        return self if context.is_sampled else Sampling(1, self.seed, self.keep_errors)

    def generator(self, windows: Windows, device: torch.device) -> torch.Generator:
        """Random numbers for these windows, which depend on nothing drawn before."""
        first, place = (0, 0) if self.common_draws else drawing_numbers(windows)
        return device_sync.generator_for((self.seed, first, self.part, place), device)


@dataclass(frozen=True)
class StoppingRule:
    """Stops sampling a region once its standard error is below a bound with confidence.

    A standard error from few samples is too small now and then, and stopping at such a moment would
    favour wrong values. So errors are checked a few times only (after 5, 8, 12, 18, ... samples),
    and the upper 95% confidence limit must be below the bound, for normally distributed samples:
    error * sqrt((n - 1) / q), with q the 5% point of chi-squared with n - 1 degrees of freedom.
    """

    tolerance: float  #: The bound, in units of the measure.
    columns: list[int]  #: For each example the column whose error is bounded.
    kind: OutputKind
    measure: Measure

    def enough(self, example: int, scores: Tensor) -> Tensor:
        """Which regions need no more than these samples (n, W, columns), (W,)."""
        n, picked = len(scores), scores[..., self.columns[example]]
        error = self.measure.error(self.kind.average_error(picked), self.kind.average(picked))
        return error * math.sqrt((n - 1) / chdtri(n - 1, CONFIDENCE)) <= self.tolerance


def checks(n_samples: int) -> Iterator[int]:
    """The numbers of samples after which errors are checked; the last is ``n_samples``."""
    count = FIRST_CHECK
    while count < n_samples:
        yield count
        count = math.ceil(count * GROWTH)
    yield n_samples


@dataclass(frozen=True, eq=False)
class RegionScores:
    """The results of the regions of all examples, NaN for those still to come."""

    scores: Tensor  #: Averaged over the samples, (N, W, columns).
    errors: Tensor | None  #: Their standard errors, where they were asked for.
    n_drawn: Tensor  #: How many samples each region had, (N, W).

    @classmethod
    def unknown(cls, reference: Tensor, n_regions: int, keep_errors: bool) -> RegionScores:
        """No results yet, for scores like these (N, columns)."""
        n_examples, n_columns = reference.shape
        empty = reference.new_full((n_examples, n_regions, n_columns), math.nan)
        n_drawn = torch.zeros(n_examples, n_regions, dtype=torch.int64, device=reference.device)
        return cls(empty, empty.clone() if keep_errors else None, n_drawn)

    def put(self, example: int, regions: Tensor, samples: Tensor, kind: OutputKind) -> None:
        """Store all samples (S, W, columns) of some regions of an example."""
        self.scores[example, regions] = kind.average(samples)
        if self.errors is not None and len(samples) > 1:
            self.errors[example, regions] = kind.average_error(samples)
        self.n_drawn[example, regions] = len(samples)


def score_regions(
    prepared: PreparedEngine,
    windows: Windows,
    fills: Tensor,
    read: Read,
    advance: Advance,
    enough: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Run the model with each region replaced by its fills (S, W, C, *box); yields regions that are
    finished with their samples (n, regions, columns), and on an interruption those so far.
    ``enough`` says for samples (n, W, columns) which regions need no more, (W,)."""
    running = torch.arange(len(windows), device=fills.device)
    rounds: list[Tensor] = []
    done = 0
    for count in checks(len(fills)) if enough else [len(fills)]:
        some = windows.pick(running.tolist()) if done else windows
        try:
            new = fills[done:count, running] if done else fills[:count]
            rounds.append(prepared.scores(some, new, read, advance))
        except BaseException:
            unfinished = getattr(prepared, "unfinished", None)
            known = rounds if unfinished is None else [*rounds, unfinished]
            if known:
                yield from _finished_samples(running, torch.cat(known))
            raise
        samples, done = torch.cat(rounds), count
        if enough is None or done == len(fills):
            yield running, samples
            return
        ready = enough(samples)
        stopped = running[ready]
        if len(stopped):
            yield stopped, samples[:, ready]
            advance(len(stopped) * (len(fills) - done))  # samples that are not needed
        running, rounds = running[~ready], [samples[:, ~ready]]
        if not len(running):
            return


def _finished_samples(regions: Tensor, samples: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Regions with the samples (n, W, columns) that are not NaN, grouped by their number."""
    is_done = ~samples.isnan().all(dim=2)
    counts = is_done.sum(dim=0)
    for count in set(counts.tolist()) - {0}:
        some = counts == count
        first = is_done[:, some].int().argsort(dim=0, descending=True, stable=True)[:count]
        index = first[..., None].expand(-1, -1, samples.shape[2])
        yield regions[some], samples[:, some].gather(0, index)
