"""The scores of windows marginalised over their samples: all samples, or until there are enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines import PreparedEngine
from captum_pda.engines.protocol import Advance, Read
from captum_pda.execution.sampling_error import looks, score_error
from captum_pda.prediction.measures import marginalise
from captum_pda.regions.window_grid import WindowGrid

#: From samples (n, W, columns) to whether each window has enough of them, (W,).
Enough: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class SampledScores:
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
    def of(cls, samples: Tensor, output: str, keep_errors: bool) -> SampledScores:
        """Marginalise samples (S, W, columns)."""
        scores = marginalise(samples, output)
        errors = None
        if keep_errors:
            several = len(samples) > 1
            errors = score_error(samples, output) if several else torch.full_like(scores, math.nan)
        n_drawn = torch.full(samples.shape[1:2], len(samples), device=samples.device)
        return cls(scores, errors, n_drawn)

    @classmethod
    def none_yet(cls, like: SampledScores, n_examples: int, n_windows: int) -> SampledScores:
        """Room for the windows of several examples: NaN, and no samples."""
        shape = (n_examples, n_windows, like.scores.shape[-1])
        return cls(
            like.scores.new_full(shape, math.nan),
            None if like.errors is None else like.errors.new_full(shape, math.nan),
            like.n_drawn.new_zeros(shape[:2]),
        )

    def put(self, example: int, windows: Tensor, part: SampledScores) -> None:
        """Write what is known of some windows of an example."""
        self.scores[example, windows] = part.scores
        if self.errors is not None and part.errors is not None:
            self.errors[example, windows] = part.errors
        self.n_drawn[example, windows] = part.n_drawn


def sample_scores(
    prepared: PreparedEngine,
    grid: WindowGrid,
    fills: Tensor,
    read: Read,
    advance: Advance,
    output: str,
    keep_errors: bool,
    enough: Enough | None,
) -> Iterator[tuple[Tensor, SampledScores]]:
    """Run the model with each window replaced by its fills (S, W, C, *window).

    With ``enough``, each window is run on more and more of its fills, until it has enough of them
    or there are no more.

    Returns:
        Windows that are finished, as their numbers in the grid and what is kept of them; when
        something stops the run, as far as they have come by then.
    """
    running = torch.arange(len(grid), device=fills.device)
    rounds: list[Tensor] = []
    done = 0
    for look in looks(len(fills)) if enough else [len(fills)]:
        windows = grid.pick(device_sync.as_integers(running)) if done else grid
        try:
            some = fills[done:look, running] if done else fills[:look]
            rounds.append(prepared.scores(windows, some, read, advance))
        except BaseException:
            yield from _as_far_as_done(prepared, rounds, running, output, keep_errors)
            raise
        samples = torch.cat(rounds)
        done = look
        if enough is None or done == len(fills):
            yield running, SampledScores.of(samples, output, keep_errors)
            return
        ready = enough(samples)
        stopped = running[ready]
        if len(stopped):
            yield stopped, SampledScores.of(samples[:, ready], output, keep_errors)
            advance(len(stopped) * (len(fills) - done))  # samples that are not needed
        running, rounds = running[~ready], [samples[:, ~ready]]
        if len(running) == 0:
            return


def _as_far_as_done(
    prepared: PreparedEngine, rounds: list[Tensor], windows: Tensor, output: str, keep_errors: bool
) -> Iterator[tuple[Tensor, SampledScores]]:
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
        yield windows[some], SampledScores.of(chosen, output, keep_errors)
