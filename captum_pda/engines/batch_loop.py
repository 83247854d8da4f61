"""The one loop that takes rows through a model in batches, for engines and diagnostics alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda.engines.batch_size import BatchSize, is_out_of_memory

#: The numbers of some rows.
Rows: TypeAlias = npt.NDArray[np.int64]
#: From the numbers of some rows to what is kept of each, (rows, columns).
RunBatch: TypeAlias = Callable[[Rows], Tensor]


def _nothing(rows: int = 0) -> None:
    """No progress is shown, nothing is held."""


class BatchLoop:
    """Takes rows through a model in batches; where one fails, tries the same rows in another way.

    - A batch that does not fit in memory is halved, for all that share the ``batch_size``.
    - A model that can't take images with their channels last gets them contiguous.

    There are no gradients. Inference mode would save no time that can be measured, and a tensor
    that the model keeps for later, such as a positional code, could not be used for training.

    Nothing that was computed is lost: while it runs, ``unfinished`` holds the results so far.

    Args:
        batch_size: how many rows at once.
        example: one row of what goes into the model, (1, C, *space).
        times: how many times an automatic batch size is multiplied, for rows that are not held in
            full.
        before_retry: called before rows are tried again, to let go of what was held for them.

    What runs a batch reads ``channels_last`` to lay out its rows.

    Example::

        >>> loop = BatchLoop(BatchSize(), image)
        >>> scores = loop.run(50, lambda rows: read(model(copies(rows))))
    """

    def __init__(
        self,
        batch_size: BatchSize,
        example: Tensor,
        times: int = 1,
        before_retry: Callable[[], object] = _nothing,
    ) -> None:
        self._batch_size = batch_size
        self._example = example
        self._times = times
        self._before_retry = before_retry
        #: Whether images and volumes have their channels last in memory; nothing else can.
        self.channels_last = example.dim() > 3
        #: While ``run`` goes on, what it will return, with NaN for the rows still to come.
        self.unfinished: Tensor | None = None

    @property
    def at_once(self) -> int:
        """How many rows go into a batch."""
        return self._batch_size.rows_for(self._example, self._times)

    def run(
        self,
        rows: int | Rows,
        run_batch: RunBatch,
        advance: Callable[[int], object] = _nothing,
    ) -> Tensor:
        """Run all rows, some at a time.

        Args:
            rows: how many there are, or the numbers 0, 1, ... of all of them in the order to run.
            run_batch: from the numbers of some rows to what is kept of each, (rows, columns); the
                model's outputs must be read in there.
            advance: told how many rows have just gone through the model.

        Returns:
            (rows, columns): what was kept, in the order of the rows' numbers.
        """
        order = np.arange(rows, dtype=np.int64) if isinstance(rows, int) else rows
        results: Tensor | None = None
        done = 0
        while done < len(order):
            some = order[done : done + self.at_once]
            try:
                with torch.no_grad():
                    found = run_batch(some)
            except (RuntimeError, MemoryError) as error:
                if not self._can_go_on(error, len(some)):
                    raise
                self._before_retry()
                continue
            if results is None:
                results = found.new_full((len(order), *found.shape[1:]), math.nan)
                self.unfinished = results
            results[torch.from_numpy(some).to(results.device)] = found
            done += len(some)
            advance(len(some))
        if results is None:
            raise ValueError("there are no rows to run")
        self.unfinished = None
        return results

    def _can_go_on(self, error: BaseException, n_rows: int) -> bool:
        """Whether the same rows can be tried again, in another way."""
        if is_out_of_memory(error) and n_rows > 1:
            self._batch_size.halve(n_rows)
        elif self.channels_last and "view size is not compatible" in str(error):
            self.channels_last = False
        else:
            return False
        return True


def by_sample(results: Tensor | None, n_samples: int) -> Tensor | None:
    """Results (samples x windows, columns) as (samples, windows, columns), while there are some."""
    if results is None:
        return None
    return results.reshape(n_samples, len(results) // n_samples, -1)
