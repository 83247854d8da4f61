"""A few of the copies that an engine runs, picked before anything of them is known."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda.regions.protocol import Windows

#: At most so many copies are kept, and so many scores of theirs.
MOST_COPIES, MOST_SCORES = 16, 2**22
SEED = 20170205


@dataclass(order=True)
class PickedCopy:
    """One copy of the example, with one window replaced by one fill.

    Args:
        key: the copies with the largest random keys are kept.
        windows: the window alone.
        fill: what stands in it, (1, 1, C, *window).
        scores: what the engine said, (1, columns).
        kind: which copies it is compared with.
        place: where its window lies, and how far from the border, in shares of the input.
    """

    key: float
    windows: Windows = field(compare=False)
    fill: Tensor = field(compare=False)
    scores: Tensor = field(compare=False)
    kind: Hashable = field(compare=False)
    place: npt.NDArray[np.float64] = field(compare=False)


class PickedCopies:
    """Copies picked at random from all of a kind that come by, each as likely as any other.

    The picks depend on how many copies come and in which order, and on nothing else.
    """

    def __init__(self) -> None:
        self._random = np.random.default_rng(SEED)
        self._kept: dict[Hashable, list[PickedCopy]] = {}

    def offer(self, windows: Windows, fills: Tensor, scores: Tensor) -> None:
        """Copies that were run: fills (S, W, C, *window) and scores (S, W, columns)."""
        keys = self._random.random(fills.shape[0] * fills.shape[1])
        most = max(2, min(MOST_COPIES, MOST_SCORES // scores.shape[2]))
        kept = self._kept.setdefault(kind_of(windows), [])
        for number in np.argsort(-keys)[:most].tolist():
            if len(kept) >= most and keys[number] <= kept[0].key:
                break
            sample, window = divmod(number, fills.shape[1])
            copy = PickedCopy(
                keys[number],
                windows.pick([window]),
                fills[sample : sample + 1, window : window + 1].clone(),
                scores[sample, window].clone()[None],
                kind_of(windows),
                _place(windows, window),
            )
            heapq.heappush(kept, copy)
            if len(kept) > most:
                heapq.heappop(kept)

    @property
    def n_kinds(self) -> int:
        """How many kinds of copies came by."""
        return len(self._kept)

    def spread_out(self) -> list[PickedCopy]:
        """The copies in an order of which any beginning is spread over the input and over kinds.

        The first is random, and each that follows is the furthest from all before it.
        """
        waiting = sorted((copy for kept in self._kept.values() for copy in kept), reverse=True)
        ordered: list[PickedCopy] = []
        while waiting:
            furthest = max(waiting, key=lambda copy: _from_the_nearest(copy, ordered))
            waiting.remove(furthest)
            ordered.append(furthest)
        return ordered


def _from_the_nearest(copy: PickedCopy, others: list[PickedCopy]) -> tuple[bool, float]:
    """Whether a copy is the first of its kind, and how far the others are from it."""
    is_first = copy.kind not in {other.kind for other in others}
    distances = [float(np.linalg.norm(copy.place - other.place)) for other in others]
    return is_first, min(distances, default=np.inf)


def kind_of(windows: Windows) -> Hashable:
    """Windows of one size have effects of one size; regions of any shape are one kind together."""
    return windows.window if windows.hidden is None else None


def _place(windows: Windows, number: int) -> npt.NDArray[np.float64]:
    space, size = np.array(windows.space), np.array(windows.window)
    corner = windows.corner_array[number]
    slack = np.maximum(space - size, 1)
    # How far from the border counts as much as where, since boxes are cut there.
    border = 2 * np.minimum(corner, slack - corner).min() / slack.min()
    return np.array([*(corner / slack), border])


class Spread:
    """The standard deviation of scores, column by column, as they come."""

    def __init__(self) -> None:
        self._count: Tensor | None = None
        self._mean: Tensor
        self._squares: Tensor

    def add(self, scores: Tensor) -> None:
        """More rows, (n, columns); what is not finite does not count."""
        finite = torch.isfinite(scores)
        count = finite.sum(dim=0)
        mean = torch.where(finite, scores, 0).sum(dim=0) / count.clamp_min(1)
        squares = torch.where(finite, scores - mean, 0).square().sum(dim=0)
        if self._count is None:
            self._count, self._mean, self._squares = count, mean, squares
            return
        total = (self._count + count).clamp_min(1)
        step = mean - self._mean
        self._squares += squares + step.square() * self._count * count / total
        self._mean += step * count / total
        self._count = self._count + count

    def value(self) -> Tensor:
        """The standard deviation of each column, 0 where there is one row only."""
        if self._count is None:
            raise ValueError("there are no scores yet")
        return (self._squares / self._count.clamp_min(1)).sqrt()
