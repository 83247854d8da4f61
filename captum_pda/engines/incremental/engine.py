"""The engine that recomputes only what a window can change."""

from __future__ import annotations

from functools import partial

import numpy as np
from torch import Tensor

from captum_pda._torch import without_compiler
from captum_pda.engines.audit import AuditedBatches
from captum_pda.engines.incremental.boxes import Boxed, Span
from captum_pda.engines.incremental.cache import PassState
from captum_pda.engines.incremental.tensor import PassFollower, PerturbedTensor
from captum_pda.engines.protocol import (
    BatchSize,
    EngineReport,
    Forward,
    IncrementalError,
    Read,
    RunBatch,
    channels_last,
    is_out_of_memory,
)
from captum_pda.regions.protocol import Windows

#: The size of batches, in multiples of dense ones, because copies take less time and memory.
BATCHES_OF_DENSE = 6


class IncrementalEngine:
    """Computes only the box of every feature map that a window can change.

    The result is that of the whole model, up to rounding. From a function without a rule on, maps
    are computed in full.

    Example::

        >>> EfficientPDA(model, engine=IncrementalEngine()).attribute(image, target=3)
    """

    def __init__(self) -> None:
        self._went_dense: dict[str, str] | None = None

    @property
    def report(self) -> EngineReport | None:
        """Where the last example went dense."""
        if self._went_dense is None:
            return None
        return EngineReport("incremental", "as asked", goes_dense=dict(self._went_dense))

    def settings(self) -> dict[str, object]:
        return {"kind": "IncrementalEngine"}

    def prepare(
        self, forward: Forward, example: Tensor, batch_size: BatchSize
    ) -> PreparedIncremental:
        state = PassState()
        # Not the state itself, which holds the example's feature maps.
        self._went_dense = state.went_dense
        return PreparedIncremental(forward, example, batch_size, state)


class PreparedIncremental(AuditedBatches):
    """One example, with what was computed for it unperturbed."""

    def __init__(
        self, forward: Forward, example: Tensor, batch_size: BatchSize, state: PassState
    ) -> None:
        super().__init__(forward, example, batch_size, BATCHES_OF_DENSE)
        self._unperturbed = state.cache.own_copy(channels_last(example))
        self._state = state

    @property
    def went_dense(self) -> dict[str, str]:
        """The functions at which maps were computed in full, and why."""
        return self._state.went_dense

    def _batches(self, grid: Windows, fills: Tensor, read: Read) -> RunBatch:
        return partial(self._run_batch, grid, fills, read)

    def _run_batch(self, grid: Windows, values: Tensor, read: Read, rows: range) -> Tensor:
        corners = grid.corner_array[np.arange(rows.start, rows.stop) % len(grid)]
        spans = tuple(
            Span.of(size, low, low + width)
            for size, low, width in zip(grid.space, corners.T, grid.window, strict=True)
        )
        space, own = tuple(range(2, values.dim())), values[rows.start : rows.stop]
        boxes = Boxed(channels_last(own), spans, self._unperturbed, space)
        state = self._state
        state.start()
        state.channels_last = self._loop.channels_last
        follower = PassFollower(state)
        try:
            scores = read(self._outputs(follower, boxes))
        except BaseException as error:
            follower.finish(complete=not is_out_of_memory(error))
            if follower.refusal is not None and isinstance(error, Exception):
                raise follower.refusal from None
            raise
        follower.finish()
        if follower.refusal is not None:
            raise follower.refusal
        return scores

    def _outputs(self, follower: PassFollower, boxes: Boxed) -> Tensor:
        # The compiler would trace this engine.
        with without_compiler():
            outputs = self._forward(follower.perturbed(boxes))
        where = "; ".join(f"{name}: {why}" for name, why in self.went_dense.items())
        followed = isinstance(outputs, PerturbedTensor)
        what = None
        # An ordinary tensor that perturbed values were written into holds the values of every copy.
        if not followed and not (self._state.leaked and self._state.saved_work):
            where = where or "the output does not depend on the input"
            what = "follow the model from its input to its output"
        elif not self._state.saved_work:
            what = "work here, since the model goes dense at its input"
        if what is not None:
            raise IncrementalError(
                f"engine='incremental' can't {what}: {where}. Use engine='auto' or engine='dense'"
            )
        return outputs.own() if isinstance(outputs, PerturbedTensor) else outputs
