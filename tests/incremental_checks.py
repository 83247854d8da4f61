"""Compares the incremental engine with the dense one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from captum_pda import DenseEngine, IncrementalEngine, WindowGrid
from captum_pda.engines import BatchSize
from captum_pda.engines.incremental.engine import PreparedIncremental


def random_fills(grid: WindowGrid, example: Tensor, n_samples: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(len(grid))
    shape = (n_samples, len(grid), example.shape[1], *grid.window)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(example.dtype)


def outputs_of(prepared: object, grid: WindowGrid, example: Tensor, n_samples: int = 1) -> Tensor:
    fills = random_fills(grid, example, n_samples)
    return prepared.scores(grid, fills, lambda outputs: outputs.flatten(1), lambda rows: None)


def both_engines(
    forward: Callable[[Tensor], Tensor], example: Tensor, grid: WindowGrid, rows: int = 7
) -> tuple[Tensor, Tensor, PreparedIncremental]:
    """The outputs of the incremental and of the dense engine, and the former as it was prepared."""
    dense = DenseEngine().prepare(forward, example, BatchSize(rows))
    incremental = IncrementalEngine().prepare(forward, example, BatchSize(rows))
    return (
        outputs_of(incremental, grid, example),
        outputs_of(dense, grid, example),
        incremental,
    )


def assert_same(
    forward: Callable[[Tensor], Tensor], example: Tensor, grid: WindowGrid, stays: bool = True
) -> None:
    """The engines agree in float64, and (unless told otherwise) the model never goes dense."""
    found, expected, incremental = both_engines(forward, example, grid)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    if stays:
        assert incremental.went_dense == {}
