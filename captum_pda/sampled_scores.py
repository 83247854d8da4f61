"""The scores of windows marginalised over their samples: all samples, or until there are enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from captum_pda import host
from captum_pda.engine import PreparedEngine
from captum_pda.engine.protocol import Advance, Read
from captum_pda.measures import marginalise
from captum_pda.sampling_error import looks, score_error
from captum_pda.windows import WindowGrid

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
        return cls(
            marginalise(samples, output),
            score_error(samples, output) if keep_errors else None,
            torch.full(samples.shape[1:2], len(samples), device=samples.device),
        )

    @classmethod
    def joined(
        cls, parts: Sequence[SampledScores], how: Callable[[list[Tensor]], Tensor]
    ) -> SampledScores:
        """Several as one, by ``torch.cat`` (windows) or ``torch.stack`` (examples)."""
        errors = [part.errors for part in parts if part.errors is not None]
        return cls(
            how([part.scores for part in parts]),
            how(errors) if errors else None,
            how([part.n_drawn for part in parts]),
        )

    def in_order(self, order: Tensor) -> SampledScores:
        """The same windows in another order."""
        errors = None if self.errors is None else self.errors[order]
        return SampledScores(self.scores[order], errors, self.n_drawn[order])


def sample_scores(
    prepared: PreparedEngine,
    grid: WindowGrid,
    fills: Tensor,
    read: Read,
    advance: Advance,
    output: str,
    keep_errors: bool,
    enough: Enough | None,
) -> SampledScores:
    """Run the model with each window replaced by its fills (S, W, C, *window).

    With ``enough``, each window is run on more and more of its fills, until it has enough of them
    or there are no more.
    """
    if enough is None:
        samples = prepared.scores(grid, fills, read, advance)
        return SampledScores.of(samples, output, keep_errors)
    running = torch.arange(len(grid), device=fills.device)
    rounds: list[Tensor] = []
    parts, finished = [], []
    done = 0
    for look in looks(len(fills)):
        windows = grid.pick(host.as_integers(running))
        rounds.append(prepared.scores(windows, fills[done:look, running], read, advance))
        samples = torch.cat(rounds)
        done = look
        ready = enough(samples) if done < len(fills) else torch.ones_like(running, dtype=torch.bool)
        stopped = running[ready]
        if len(stopped):
            parts.append(SampledScores.of(samples[:, ready], output, keep_errors))
            finished.append(stopped)
            advance(len(stopped) * (len(fills) - done))  # samples that are not needed
        running, rounds = running[~ready], [samples[:, ~ready]]
        if len(running) == 0:
            break
    return SampledScores.joined(parts, torch.cat).in_order(torch.cat(finished).argsort())
