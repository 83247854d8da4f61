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
        self._forward = forward
        self._shape = example.shape[1:]
        # Channels last: the values of a pixel lie side by side in memory.
        self._example = example.flatten(2).transpose(1, 2).contiguous()

    def _batches(self, grid: Windows, fills: Tensor, read: Read) -> RunBatch:
        pixels, values = grid.pixels(fills.device), fills.flatten(2).transpose(1, 2)

        def run_batch(rows: range) -> Tensor:
            picked = torch.arange(rows.start, rows.stop, device=values.device)
            copies = self._perturb(pixels[picked % len(pixels)], values[picked])
            return read(self._forward(copies))

        return run_batch

    def _perturb(self, pixels: Tensor, values: Tensor) -> Tensor:
        rows, n_pixels, n_channels = len(pixels), *self._example.shape[1:]
        copies = self._example.repeat(rows, 1, 1)
        first = torch.arange(rows, device=pixels.device).unsqueeze(1) * n_pixels
        copies.view(-1, n_channels).index_copy_(
            0, (first + pixels).reshape(-1), values.reshape(-1, n_channels)
        )
        images = copies.view(rows, *self._shape[1:], n_channels).movedim(-1, 1)
        return images if self._loop.channels_last else images.contiguous()
