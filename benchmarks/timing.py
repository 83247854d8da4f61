"""Compare by ratios: run the candidates in turn, several rounds."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


def seconds(run: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """How long one call takes."""
    start = clock()
    run()
    return clock() - start


def all_times(
    candidates: dict[str, Callable[[], object]], rounds: int, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """The time of each candidate in each round, in seconds; all run alternately."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            taken[name].append(seconds(run, clock))
    return taken


def best_times(
    candidates: dict[str, Callable[[], object]], rounds: int, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """The shortest time of each candidate, in seconds; all run alternately in every round."""
    return {name: min(times) for name, times in all_times(candidates, rounds, clock).items()}
