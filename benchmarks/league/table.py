"""The league table, from the scores that are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from league.scores import FILLS
from league.store import Store

HEAD = (
    "method",
    "photos",
    "SRG",
    *FILLS,
    "PDA less this one",
    "deletion",
    "insertion",
    "passes",
    "time",
)


@dataclass(frozen=True)
class Row:
    """A method's scores by photo, and its mean cost."""

    method: str
    gains: dict[str, dict[str, float]]
    passes: float
    time: float

    def gain(self, photo: str) -> float:
        """The mean over the fills."""
        return float(np.mean([self.gains[photo][fill] for fill in FILLS]))

    @property
    def mean(self) -> float:
        return float(np.mean([self.gain(photo) for photo in self.gains]))


def mean_and_error(values: list[float]) -> str:
    """A mean with its standard error over the photos."""
    if len(values) < 2:
        return f"{np.mean(values):.3f}"
    return f"{np.mean(values):.3f} +- {np.std(values, ddof=1) / math.sqrt(len(values)):.3f}"


def read_row(store: Store, method: str, photos: list[str]) -> Row | None:
    gains, costs = {}, []
    for photo in photos:
        scores = store.scores(photo, method)
        if all(fill in scores for fill in FILLS):
            gains[photo] = scores
            costs.append(store.load_map(photo, method)[1])
    if not gains:
        return None
    passes, times = ([getattr(cost, name) for cost in costs] for name in ("passes", "time"))
    return Row(method, gains, float(np.median(passes)), float(np.median(times)))


def table(store: Store, methods: list[str], photos: list[str], first: str = "PDA") -> str:
    """Methods from the best to the worst mean SRG, in Markdown."""
    rows = [row for row in (read_row(store, name, photos) for name in methods) if row]
    best = next((row for row in rows if row.method == first), None)
    lines = [" | ".join(HEAD), " | ".join("---" for _ in HEAD)]
    for row in sorted(rows, key=lambda row: -row.mean):
        scores = row.gains.values()
        cells = [
            row.method,
            str(len(row.gains)),
            mean_and_error([row.gain(photo) for photo in row.gains]),
            *(f"{np.mean([one[fill] for one in scores]):.3f}" for fill in FILLS),
            _difference(best, row),
            *(f"{np.mean([one[n] for one in scores]):.3f}" for n in ("deletion", "insertion")),
            f"{row.passes:.0f}",
            "" if math.isnan(row.time) else f"{row.time:.0f}",
        ]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def _difference(best: Row | None, row: Row) -> str:
    """How far the best is ahead, over the photos that both were scored on."""
    if best is None or best is row:
        return ""
    shared = [photo for photo in row.gains if photo in best.gains]
    if not shared:
        return ""
    return mean_and_error([best.gain(photo) - row.gain(photo) for photo in shared])
