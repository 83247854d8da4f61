"""The league table, from the scores that are kept, and its place in a page."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    def all_gains(self) -> list[float]:
        return [self.gain(photo) for photo in self.gains]

    @property
    def mean(self) -> float:
        return float(np.mean(self.all_gains))

    def less(self, other: Row) -> list[float]:
        """How far this method is ahead of another, on each photo that both were scored on."""
        return [self.gain(p) - other.gain(p) for p in self.gains if p in other.gains]


def mean_and_error(values: list[float]) -> str:
    """A mean with its standard error over the photos."""
    if len(values) < 2:
        return f"{np.mean(values):.3f}"
    return f"{np.mean(values):.3f} +- {standard_error(values):.3f}"


def standard_error(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


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


def read_rows(store: Store, methods: Iterable[str], photos: list[str]) -> dict[str, Row]:
    """The methods that have scores, by name."""
    rows = {name: read_row(store, name, photos) for name in methods}
    return {name: row for name, row in rows.items() if row is not None}


def table(
    store: Store,
    methods: Sequence[str],
    photos: list[str],
    first: str = "PDA",
    groups: Mapping[str, str] | None = None,
) -> str:
    """Methods from the best to the worst mean SRG, in Markdown.

    Of ``groups``, from a method's name to its group, "ours" are bold and a "control" is italic.
    """
    rows = read_rows(store, methods, photos)
    best = rows.get(first)
    marks = {"ours": "**", "control": "*"}
    cells = []
    for row in sorted(rows.values(), key=lambda row: -row.mean):
        mark = marks.get((groups or {}).get(row.method, ""), "")
        scores = row.gains.values()
        shared = best.less(row) if best is not None and best is not row else []
        cells.append(
            [
                f"{mark}{row.method}{mark}",
                str(len(row.gains)),
                mean_and_error(row.all_gains),
                *(f"{np.mean([one[fill] for one in scores]):.3f}" for fill in FILLS),
                mean_and_error(shared) if shared else "",
                *(f"{np.mean([one[n] for one in scores]):.3f}" for n in ("deletion", "insertion")),
                f"{row.passes:.0f}",
                "" if math.isnan(row.time) else f"{row.time:.0f}",
            ]
        )
    return _markdown(HEAD, cells)


def differences(rows: Mapping[str, Mapping[str, Row]], first: str, others: Sequence[str]) -> str:
    """How far one method is ahead of others: a row for each of them, a column for each network.

    Args:
        rows: by network and method.
        first: the method that is ahead, one hopes.
        others: those it is compared with.
    """
    networks = [name for name, found in rows.items() if first in found]
    cells = []
    for other in others:
        line = [other]
        for network in networks:
            found = rows[network]
            shared = found[first].less(found[other]) if other in found else []
            line.append(f"{mean_and_error(shared)} ({len(shared)})" if shared else "")
        if any(line[1:]):
            cells.append(line)
    return _markdown((f"{first} less", *networks), cells)


def efforts(rows: Mapping[str, Mapping[str, Row]], methods: Sequence[str]) -> str:
    """SRG against passes of some settings of one method: a row for each network and setting."""
    cells = []
    for network, found in rows.items():
        for method in methods:
            if method in found:
                row = found[method]
                passes, srg = f"{row.passes:.0f}", mean_and_error(row.all_gains)
                cells.append([network, method, str(len(row.gains)), passes, srg])
    return _markdown(("network", "setting", "photos", "passes", "SRG"), cells)


def put_into_page(page: Path, parts: Mapping[str, str]) -> list[str]:
    """Replace what stands between ``<!-- league: NAME -->`` and ``<!-- end -->`` in a page.

    Returns the names of parts for which the page has no place.
    """
    text, missing = page.read_text(), []
    for name, part in parts.items():
        place = re.compile(rf"(<!-- league: {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        if not place.search(text):
            missing.append(name)
        text = place.sub(lambda found, part=part: f"{found[1]}{part}\n{found[2]}", text)
    page.write_text(text)
    return missing


def _markdown(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
