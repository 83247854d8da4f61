"""Windows that are run piece by piece, each on an engine of its own."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from captum_pda.engines.engine_protocol import Advance, PreparedEngine, Read
from captum_pda.regions.protocol import Windows


class Pieces:
    """The windows of one call of ``scores``, with what is known of them so far.

    Args:
        grid: W windows.
        fills: what to put there, (S, W, C, *window).
        read: from outputs to what is kept.
        advance: told how many copies have gone through the model.
    """

    def __init__(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> None:
        self.grid = grid
        self.fills = fills
        self._read = read
        self._advance = advance
        self._scores: Tensor | None = None
        self._is_done = np.zeros(len(grid), dtype=bool)
        self._running: tuple[PreparedEngine, Tensor] | None = None
        self._n_advanced = 0

    @property
    def n_samples(self) -> int:
        """How many fills each window has."""
        return len(self.fills)

    @property
    def n_copies(self) -> int:
        """How many copies of the example there are in all."""
        return self.n_samples * len(self.grid)

    @property
    def middle(self) -> int:
        """The number of the window in the middle."""
        return len(self.grid) // 2

    def some(self, n_copies: int, start: int = 0) -> list[int]:
        """The numbers of windows for so many copies that are still to be run, from one on."""
        n_windows = -(-n_copies // self.n_samples)
        waiting = np.flatnonzero(~self._is_done)
        later = waiting[waiting >= start]
        numbers: list[int] = (later if len(later) >= n_windows else waiting)[:n_windows].tolist()
        return numbers

    def run(self, engine: PreparedEngine, numbers: list[int]) -> Tensor:
        """Run some windows, and keep what is found, (S, windows, columns)."""
        if not numbers:
            return self.fills.new_zeros(self.n_samples, 0, 1)
        picked = torch.tensor(numbers, device=self.fills.device)
        all_at_once = len(numbers) == len(self.grid)
        grid = self.grid if all_at_once else self.grid.pick(numbers)
        fills = self.fills if all_at_once else self.fills[:, picked]
        self._running = engine, picked
        self._n_advanced = 0
        try:
            found = engine.scores(grid, fills, self._read, self._count)
        except Exception:
            self._advance(-self._n_advanced)  # another engine may run them again
            raise
        self._running = None
        self._put(picked, found)
        self._is_done[numbers] = True
        return found

    def finish(self, engine: PreparedEngine) -> Tensor:
        """Run what is left, and return the scores of all windows, (S, W, columns)."""
        self.run(engine, np.flatnonzero(~self._is_done).tolist())
        if self._scores is None:
            raise ValueError("the grid has no windows")
        return self._scores

    @property
    def unfinished(self) -> Tensor | None:
        """What is known, with NaN for what is still to come."""
        if self._running is not None:
            engine, picked = self._running
            found = getattr(engine, "unfinished", None)
            if found is not None:
                self._put(picked, found)
        return self._scores

    def _count(self, n_copies: int) -> None:
        self._n_advanced += n_copies
        self._advance(n_copies)

    def _put(self, picked: Tensor, found: Tensor) -> None:
        if self._scores is None:
            shape = (self.n_samples, len(self.grid), found.shape[2])
            self._scores = found.new_full(shape, math.nan)
        self._scores[:, picked] = found
