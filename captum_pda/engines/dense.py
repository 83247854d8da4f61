"""The reference engine: a full forward pass for every perturbed copy, in large batches."""

from __future__ import annotations

import torch
from torch import Tensor

from captum_pda.engines.protocol import (
    BatchLoop,
    BatchSize,
    EngineReport,
    Forward,
    PreparedBatches,
    Read,
    RunBatch,
    channels_last,
)
from captum_pda.regions.protocol import Windows


class DenseEngine:
    """Runs the whole model on every perturbed copy. Works for any model.

    Example::

        >>> EfficientPDA(model, engine=DenseEngine()).attribute(image, target=3)  # or "dense"
    """

    report = EngineReport("dense", "as asked")

    def settings(self) -> dict[str, object]:
        return {"kind": "DenseEngine"}

    def prepare(self, forward: Forward, example: Tensor, batch_size: BatchSize) -> PreparedDense:
        return PreparedDense(forward, example, batch_size)


class PreparedDense(PreparedBatches):
    """One example, of which perturbed copies are made."""

    def __init__(self, forward: Forward, example: Tensor, batch_size: BatchSize) -> None:
        super().__init__(BatchLoop(batch_size, example))
        self._forward, self._example = forward, example

    def _batches(self, grid: Windows, fills: Tensor, read: Read) -> RunBatch:
        pixels, values = grid.pixels(fills.device), fills.flatten(2)

        def run_batch(rows: range) -> Tensor:
            own = values[rows.start : rows.stop]
            places = pixels[torch.arange(rows.start, rows.stop, device=own.device) % len(pixels)]
            copies = self._example.repeat(len(rows), *(1 for _ in self._example.shape[1:]))
            copies.view(*own.shape[:2], -1).scatter_(2, places.unsqueeze(1).expand_as(own), own)
            copies = channels_last(copies) if self._loop.channels_last else copies
            return read(self._forward(copies))

        return run_batch
