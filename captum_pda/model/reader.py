"""Which scores of a model's outputs are kept: one output per example, or all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.model.readout import Readout
from captum_pda.model.targets import masked_columns, target_columns


@dataclass(frozen=True)
class Reader:
    """Reads the scores that a task asks for.

    Args:
        readout: how the outputs are to be read.
        output_shape: the shape of one example's output.
        columns: each example's flat output column; None keeps all columns.
        region: flat output columns that are kept for all examples, to be summed; or None.
    """

    readout: Readout
    output_shape: tuple[int, ...]
    columns: tuple[int, ...] | None = None
    region: tuple[int, ...] | None = None

    @classmethod
    def of_target(
        cls, readout: Readout, target: TargetType, n_examples: int, output_shape: tuple[int, ...]
    ) -> Reader:
        """What reads the output that ``target`` means, or the region of outputs."""
        region = masked_columns(target, output_shape)
        if region is not None:
            return cls(readout, output_shape, region=tuple(region))
        columns = target_columns(target, n_examples, output_shape)
        return cls(readout, output_shape, tuple(columns))

    @property
    def n_columns(self) -> int:
        """How many scores are kept per example."""
        return math.prod(self.kept_shape)

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape of an example's scores as they are kept."""
        if self.region is not None:
            return (len(self.region),)
        return self.output_shape if self.columns is None else ()

    def for_example(self, number: int) -> Callable[[Tensor], Tensor]:
        """From outputs for copies of one example (rows, ...) to scores (rows, columns)."""
        if self.region is not None:
            kept = list(self.region)
            return lambda outputs: self.readout.every(outputs)[:, kept]
        if self.columns is None:
            return self.readout.every
        column = self.columns[number]
        return lambda outputs: self.readout.column(outputs, column)

    def read(self, outputs: Tensor) -> Tensor:
        """The scores of outputs for all examples, (N, columns)."""
        return torch.cat([self.for_example(n)(outputs[n : n + 1]) for n in range(len(outputs))])
