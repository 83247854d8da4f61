"""The engine that recomputes only what a window can change."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from captum_pda.engines.batch_size import BatchSize, is_out_of_memory
from captum_pda.engines.engine_protocol import Advance, Forward, Read
from captum_pda.engines.incremental.boxed import Boxed
from captum_pda.engines.incremental.no_rule import IncrementalError
from captum_pda.engines.incremental.pass_state import Run, channels_last
from captum_pda.engines.incremental.spans import Integers, Span
from captum_pda.engines.incremental.tensor import PerturbedTensor
from captum_pda.engines.incremental.window_order import order_of_windows
from captum_pda.engines.report import EngineReport
from captum_pda.regions.protocol import Windows


class IncrementalEngine:
    """Computes of every feature map only the box that a window can change.

    The result is that of the whole model, up to rounding. What the engine has no rule for is
    computed in full from there on.

    Args:
        receptive_field: None is exact. A share of the feature maps' extent, such as 0.5, keeps only
            the central part of boxes that are larger: faster, and close, since what is far from a
            window hardly depends on it. Maps of up to 8 places along an axis are not cut.
    """

    def __init__(self, receptive_field: float | None = None) -> None:
        if receptive_field is not None and not 0 < receptive_field <= 1:
            raise ValueError(
                f"receptive_field={receptive_field!r} must be a share of the feature maps above 0 "
                "and up to 1, or None for exact results"
            )
        self.receptive_field = receptive_field
        self._went_dense: dict[str, str] | None = None

    @property
    def report(self) -> EngineReport | None:
        """Where the last example went dense."""
        if self._went_dense is None:
            return None
        return EngineReport("incremental", "as asked", goes_dense=dict(self._went_dense))

    def settings(self) -> dict[str, object]:
        """What describes this engine, as plain values."""
        return {"kind": "IncrementalEngine", "receptive_field": self.receptive_field}

    def prepare(
        self, forward: Forward, example: Tensor, batch_size: BatchSize
    ) -> PreparedIncremental:
        prepared = PreparedIncremental(forward, example, batch_size, self.receptive_field)
        # Not the run itself, which holds the example's feature maps.
        self._went_dense = prepared.run.went_dense
        return prepared


class PreparedIncremental:
    """One example, with what was computed for it unperturbed."""

    def __init__(
        self, forward: Forward, example: Tensor, batch_size: BatchSize, share: float | None
    ) -> None:
        self._forward = forward
        self._example = channels_last(example)
        self._batch_size = batch_size
        self.run = Run(share)
        self.unfinished: Tensor | None = None

    @property
    def approximate(self) -> bool:
        """Whether boxes are cut, so that results differ from the dense engine's as asked."""
        return self.run.share is not None

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        n_samples, n_windows = fills.shape[:2]
        values = fills.flatten(0, 1)
        order = order_of_windows(grid, n_samples, self._rows())
        results: Tensor | None = None
        done = 0
        while done < len(order):
            batch = order[done : done + self._rows()]
            picked = torch.from_numpy(batch).to(values.device)
            corners = grid.corner_array[batch % n_windows]
            try:
                with torch.no_grad():
                    scores = read(self._outputs(corners, grid.window, values[picked]))
            except (RuntimeError, MemoryError) as error:
                if not self._can_go_on(error, len(batch)):
                    raise
                continue
            if results is None:
                results = scores.new_full((len(order), *scores.shape[1:]), math.nan)
                self.unfinished = results.view(n_samples, n_windows, -1)
            results[picked] = scores
            done += len(batch)
            advance(len(batch))
        if results is None:
            raise ValueError("the grid has no windows")
        self.unfinished = None
        return results.reshape(n_samples, n_windows, -1)

    def _outputs(self, corners: Integers, window: tuple[int, ...], values: Tensor) -> Tensor:
        """The model's outputs with windows at these corners replaced by values."""
        self.run.start()
        spans = tuple(
            Span.of(size, low, low + width, low + width / 2)
            for size, low, width in zip(self._example.shape[2:], corners.T, window, strict=True)
        )
        space = tuple(range(2, self._example.dim()))
        copies = PerturbedTensor(
            Boxed(channels_last(values), spans, self._example, space), self.run
        )
        outputs = self._forward(copies)
        if not isinstance(outputs, PerturbedTensor):
            raise IncrementalError(
                "engine='incremental' can't follow the model from its input to its output: "
                f"{self._where_dense() or 'the output does not depend on the input'}. Use "
                "engine='auto' or engine='dense'"
            )
        if not self.run.saved_work:
            raise IncrementalError(
                "engine='incremental' can't work here, since the model goes dense at its input: "
                f"{self._where_dense()}. Use engine='auto' or engine='dense'"
            )
        return outputs.dense()

    def _rows(self) -> int:
        """More copies than the dense engine's, since calls on boxes are over sooner."""
        return self._batch_size.rows_for(self._example, times=3 if self.run.share is None else 6)

    def _where_dense(self) -> str:
        return "; ".join(f"{name}: {reason}" for name, reason in self.run.went_dense.items())

    def _can_go_on(self, error: BaseException, rows: int) -> bool:
        """Whether the same copies can be tried again, in another way."""
        if is_out_of_memory(error) and rows > 1:
            self._batch_size.halve(rows)
            return True
        if self.run.channels_last and "view size is not compatible" in str(error):
            self.run.channels_last = False
            return True
        return False
