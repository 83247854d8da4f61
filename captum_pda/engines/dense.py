"""The reference engine: a full forward pass for every perturbed copy, in large batches."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from captum_pda.engines.batch_size import BatchSize, is_out_of_memory
from captum_pda.engines.protocol import Advance, Forward, Read
from captum_pda.engines.report import EngineReport
from captum_pda.regions.window_grid import WindowGrid


class DenseEngine:
    """Runs the whole model on every perturbed copy. Works for any model."""

    report = EngineReport("dense", "as asked")

    def prepare(self, forward: Forward, example: Tensor, batch_size: BatchSize) -> PreparedDense:
        return PreparedDense(forward, example, batch_size)


class PreparedDense:
    """One example, with the buffer in which its perturbed copies are built."""

    def __init__(self, forward: Forward, example: Tensor, batch_size: BatchSize) -> None:
        self._forward = forward
        self._batch_size = batch_size
        self._shape = example.shape[1:]
        # Pixels first, channels last: a window's pixel is then one run of memory.
        self._example = example.flatten(2).transpose(1, 2).contiguous()
        self._buffer = self._example[:0]
        # channels_last exists for images and volumes only.
        self._channels_last = example.dim() > 3
        self._inference = True
        self.unfinished: Tensor | None = None

    def scores(self, grid: WindowGrid, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        n_samples, n_windows = fills.shape[:2]
        n_rows = n_samples * n_windows
        pixels = grid.pixels(fills.device)
        values = fills.flatten(0, 1).flatten(2).transpose(1, 2)
        results: Tensor | None = None
        done = 0
        while done < n_rows:
            rows = min(self._batch_size.rows_for(self._example), n_rows - done)
            window = torch.arange(done, done + rows, device=fills.device) % n_windows
            try:
                with self._no_gradients():
                    copies = self._perturb(pixels[window], values[done : done + rows])
                    scores = read(self._forward(copies))
            except (RuntimeError, MemoryError) as error:
                if not self._can_go_on(error, rows):
                    raise
                continue
            if results is None:
                results = scores.new_full((n_rows, *scores.shape[1:]), math.nan)
                self.unfinished = results.view(n_samples, n_windows, -1)
            results[done : done + rows] = scores
            done += rows
            advance(rows)
        if results is None:
            raise ValueError("the grid has no windows")
        self.unfinished = None
        return results.reshape(n_samples, n_windows, -1)

    def _perturb(self, pixels: Tensor, values: Tensor) -> Tensor:
        """Copies of the example with these pixels (rows, P) replaced by values (rows, P, C)."""
        rows, n_pixels, n_channels = len(pixels), *self._example.shape[1:]
        if len(self._buffer) < rows:
            self._buffer = self._example.new_empty(rows, n_pixels, n_channels)
        copies = self._buffer[:rows]
        copies.copy_(self._example.expand_as(copies))
        first = torch.arange(rows, device=pixels.device).unsqueeze(1) * n_pixels
        copies.view(-1, n_channels).index_copy_(
            0, (first + pixels).reshape(-1), values.reshape(-1, n_channels)
        )
        images = copies.view(rows, *self._shape[1:], n_channels).movedim(-1, 1)
        return images if self._channels_last else images.contiguous()

    def _no_gradients(self) -> AbstractContextManager[object]:
        return torch.inference_mode() if self._inference else torch.no_grad()

    def _can_go_on(self, error: BaseException, rows: int) -> bool:
        """Whether the same copies can be tried again, in another way."""
        text = str(error)
        if is_out_of_memory(error) and rows > 1:
            self._buffer = self._example[:0]
            self._batch_size.halve(rows)
            return True
        if self._channels_last and "view size is not compatible" in text:
            self._channels_last = False
            return True
        if self._inference and "nference tensor" in text:
            self._inference = False
            self._buffer = self._example[:0]
            return True
        return False
