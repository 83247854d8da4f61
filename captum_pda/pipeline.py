"""Fills, engine, read-out: the scores without each window, for every example and tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from tqdm.auto import tqdm

from captum_pda.engine import BatchSize, Engine, PreparedEngine
from captum_pda.engine.protocol import Advance, Read
from captum_pda.model_call import ModelCall
from captum_pda.sampled_scores import Enough, SampledScores, sample_scores
from captum_pda.sampling_error import StoppingRule
from captum_pda.scores import Readout
from captum_pda.windows import WindowGrid

#: From some windows to what may stand there, (S, W, C, *window).
Fill: TypeAlias = Callable[[WindowGrid], Tensor]

#: Fill values held at once. Chunks depend on nothing but the task, so that the same seed gives
#: the same draws whatever the batch size.
VALUES_PER_CHUNK = 2**22


def scores_without_windows(
    call: ModelCall,
    inputs: tuple[Tensor, ...],
    grids: tuple[WindowGrid, ...],
    fill_for: Callable[[Tensor, WindowGrid], Fill],
    engine: Engine,
    readout: Readout,
    columns: list[int] | None,
    n_columns: int,
    n_samples: int,
    perturbations_per_eval: int | None,
    progress: str | None,
    keep_errors: bool = False,
    stopping: StoppingRule | None = None,
) -> tuple[SampledScores, ...]:
    """Run the model without each window, one example and one tensor at a time.

    Args:
        call: the model with its arguments.
        inputs: the tensors whose windows are replaced, one tensor at a time.
        grids: the windows of each tensor.
        fill_for: makes the source of fills for one example (1, C, *space).
        engine: how to run the model.
        readout: how to read its outputs.
        columns: each example's output column; None keeps all columns.
        n_columns: how many columns are kept.
        n_samples: how many fills a window has; with ``stopping``, at most.
        perturbations_per_eval: copies in a batch, None for an automatic choice.
        progress: the title of a progress bar, or None for no bar.
        keep_errors: whether to keep the standard error of each score as well.
        stopping: when a window has fills enough; None runs all of them.

    Returns:
        For each tensor the scores of every window marginalised over its fills, (N, W, columns).
    """
    n_examples = len(inputs[0])
    total = n_examples * n_samples * sum(len(grid) for grid in grids)
    batch_size = BatchSize(perturbations_per_eval, call.values_per_example)
    results = []
    with tqdm(total=total, desc=progress, disable=progress is None, unit="pass") as bar:
        for position, (tensor, grid) in enumerate(zip(inputs, grids, strict=True)):
            of_tensor = []
            for number in range(n_examples):
                example = tensor[number : number + 1]
                fill = fill_for(example, grid)
                prepared = engine.prepare(call.for_example(number, position), example, batch_size)
                parts = _example_scores(
                    prepared,
                    example,
                    grid,
                    fill,
                    n_samples,
                    _reader(readout, columns, number),
                    n_columns,
                    bar.update,
                    readout.output,
                    keep_errors,
                    partial(stopping.enough, number) if stopping else None,
                )
                of_tensor.append(SampledScores.joined(list(parts), torch.cat))
            results.append(SampledScores.joined(of_tensor, torch.stack))
    return tuple(results)


def _example_scores(
    prepared: PreparedEngine,
    example: Tensor,
    grid: WindowGrid,
    fill: Fill,
    n_samples: int,
    read: Read,
    n_columns: int,
    advance: Advance,
    output: str,
    keep_errors: bool,
    enough: Enough | None,
) -> Iterator[SampledScores]:
    """The scores of one example's windows, some windows at a time."""
    at_once = max(1, VALUES_PER_CHUNK // (n_samples * n_columns))
    for chunk in fill_chunks(grid, example.shape[1], n_samples):
        fills = check_fills(fill(chunk), example, chunk, n_samples)
        for start in range(0, len(chunk), at_once):
            some = slice(start, start + at_once)
            yield sample_scores(
                prepared,
                chunk[some],
                fills[:, some],
                read,
                advance,
                output,
                keep_errors,
                enough,
            )


def fill_chunks(grid: WindowGrid, n_channels: int, n_samples: int = 1) -> Iterator[WindowGrid]:
    """The grid in parts whose fills fit in memory together."""
    values = n_samples * n_channels * math.prod(grid.window)
    return grid.chunks(max(1, VALUES_PER_CHUNK // values))


def read_unperturbed(readout: Readout, outputs: Tensor, columns: list[int] | None) -> Tensor:
    """The scores with everything seen, (N, columns)."""
    return torch.cat(
        [
            _reader(readout, columns, number)(outputs[number : number + 1])
            for number in range(len(outputs))
        ]
    )


def _reader(readout: Readout, columns: list[int] | None, number: int) -> Callable[[Tensor], Tensor]:
    if columns is None:
        return readout.every
    return lambda outputs: readout.column(outputs, columns[number])


def check_fills(fills: Tensor, example: Tensor, grid: WindowGrid, n_samples: int) -> Tensor:
    """Refuse fills of another shape, and bring them to the dtype of the example."""
    expected = (n_samples, len(grid), example.shape[1], *grid.window)
    if tuple(fills.shape) != expected:
        raise ValueError(
            f"the prior gave fills of shape {tuple(fills.shape)} for one example, where "
            f"(samples, windows, channels, *window) is {expected}"
        )
    return fills.to(example.dtype)
