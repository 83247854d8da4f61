"""Compare by ratios: run the candidates in turn, several rounds, and keep the best of each."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds(run: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def best_times(candidates: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The shortest time of each candidate, in seconds; all run alternately in every round."""
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, run in candidates.items():
            best[name] = min(best[name], seconds(run))
    return best
