"""How many perturbed copies go through the model at once."""

from __future__ import annotations

import torch
from torch import Tensor

from captum_pda.errors import warn_user

#: Input values in a batch. Small enough for a processor's caches, large enough to keep a graphics
#: card busy; measured with ResNet18 at 224x224 (benchmarks/core.py batch-sizes).
VALUES_PER_BATCH = {"cpu": 2**21, "other": 2**24}
LARGEST = 1024


class BatchSize:
    """A batch size that is chosen automatically, and halved when memory runs out.

    Args:
        rows: the most copies at once; None chooses by the size of an example.
        values: how many numbers go into the model with each copy, if more than the perturbed
            tensor's.

    It is shared by all examples of one call, so that memory runs out only once.
    """

    def __init__(self, rows: int | None = None, values: int = 1) -> None:
        self._rows = rows
        self._values = values

    def rows_for(self, example: Tensor, times: int = 1) -> int:
        """The number of copies of this example to run at once.

        An automatic choice is multiplied by ``times``, for copies that are not held in full.
        """
        if self._rows is not None:
            return self._rows
        in_batch = VALUES_PER_BATCH["cpu" if example.device.type == "cpu" else "other"]
        return max(1, min(LARGEST, times * in_batch // max(self._values, example.numel())))

    def halve(self, failed: int) -> None:
        """Go on with half of a batch that did not fit."""
        self._rows = failed // 2
        warn_user(
            f"out of memory with {failed} perturbed copies at once; going on with {self._rows}. "
            f"Pass perturbations_per_eval={self._rows} to start there."
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on any device."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text or "alloc_failed" in text
    )
