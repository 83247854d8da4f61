"""The engine that recomputes only what a window can change."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from captum_pda.engine.batch_size import BatchSize, is_out_of_memory
from captum_pda.engine.going_dense import IncrementalError
from captum_pda.engine.boxed import Boxed
from captum_pda.engine.perturbed_tensor import PerturbedTensor
from captum_pda.engine.protocol import Advance, Forward, Read
from captum_pda.engine.run import Run, channels_last
from captum_pda.engine.spans import Integers, Span
from captum_pda.windows import WindowGrid


class IncrementalEngine:
    """Computes of every feature map only the box that a window can change.

    The result is that of the whole model, up to rounding. What the engine has no rule for is
    computed in full from there on.

    Args:
        receptive_field: None is exact. A share of the feature maps' extent, such as 0.5, keeps only
            the central part of boxes that are larger: faster, and close, since what is far from a
            window hardly depends on it.
    """

    def __init__(self, receptive_field: float | None = None) -> None:
        if receptive_field is not None and not 0 < receptive_field <= 1:
            raise ValueError(
                f"receptive_field={receptive_field!r} must be a share of the feature maps above 0 "
                "and up to 1, or None for exact results"
            )
        self.receptive_field = receptive_field

    def prepare(
        self, forward: Forward, example: Tensor, batch_size: BatchSize
    ) -> PreparedIncremental:
        return PreparedIncremental(forward, example, batch_size, self.receptive_field)


class PreparedIncremental:
    """One example, with what was computed for it unperturbed."""

    def __init__(
        self, forward: Forward, example: Tensor, batch_size: BatchSize, share: float | None
    ) -> None:
        self._forward = forward
        self._example = channels_last(example)
        self._batch_size = batch_size
        self.run = Run(share)

    def scores(self, grid: WindowGrid, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        n_samples, n_windows = fills.shape[:2]
        values = fills.flatten(0, 1)
        order = np.arange(len(values))
        results: Tensor | None = None
        done = 0
        while done < len(order):
            rows = order[done : done + self._batch_size.rows_for(self._example)]
            try:
                with torch.no_grad():
                    picked = torch.from_numpy(rows).to(values.device)
                    scores = read(
                        self.outputs(
                            grid.corner_array[rows % n_windows], grid.window, values[picked]
                        )
                    )
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or len(rows) == 1:
                    raise
                self._batch_size.halve(len(rows))
                continue
            if results is None:
                results = scores.new_empty(len(order), *scores.shape[1:])
            results[picked] = scores
            done += len(rows)
            advance(len(rows))
        if results is None:
            raise ValueError("the grid has no windows")
        return results.reshape(n_samples, n_windows, -1)

    def outputs(self, corners: Integers, window: tuple[int, ...], values: Tensor) -> Tensor:
        """The model's outputs with windows at these corners replaced by values (rows, C, *window)."""
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
                "the model's output is not computed from the tensor it was given, by functions "
                "that PyTorch lets us see; use engine='dense'"
            )
        return outputs.dense()
