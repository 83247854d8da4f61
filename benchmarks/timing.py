"""Compare by ratios: run the candidates in turn, several rounds, and keep the best of each."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


def seconds(run: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """How long one call takes."""
    start = clock()
    run()
    return clock() - start


def best_times(
    candidates: dict[str, Callable[[], object]], rounds: int, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """The shortest time of each candidate, in seconds; all run alternately in every round."""
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, run in candidates.items():
            best[name] = min(best[name], seconds(run, clock))
    return best
