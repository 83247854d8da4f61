"""Which scores of a model's outputs are kept: one output per example, or all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_pda.prediction.readout import Readout


@dataclass(frozen=True)
class Reader:
    """Reads the scores that a task asks for.

    Args:
        readout: how the outputs are to be read.
        output_shape: the shape of one example's output.
        columns: each example's flat output column; None keeps all columns.
    """

    readout: Readout
    output_shape: tuple[int, ...]
    columns: tuple[int, ...] | None = None

    @property
    def n_columns(self) -> int:
        """How many scores are kept per example."""
        return math.prod(self.output_shape) if self.columns is None else 1

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape of an example's scores as they are kept."""
        return self.output_shape if self.columns is None else ()

    def for_example(self, number: int) -> Callable[[Tensor], Tensor]:
        """From outputs for copies of one example (rows, ...) to scores (rows, columns)."""
        if self.columns is None:
            return self.readout.every
        column = self.columns[number]
        return lambda outputs: self.readout.column(outputs, column)

    def read(self, outputs: Tensor) -> Tensor:
        """The scores of outputs for all examples, (N, columns)."""
        return torch.cat([self.for_example(n)(outputs[n : n + 1]) for n in range(len(outputs))])
