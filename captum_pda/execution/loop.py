"""Fills, engine, read-out: the scores without each window, for every example and tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from captum_pda.distributed.ranks import Ranks
from captum_pda.engines import BatchSize, Engine, PreparedEngine
from captum_pda.engines.protocol import Advance, Read
from captum_pda.execution.progress import ProgressBar
from captum_pda.execution.rank_chunks import ChunkShare, share_windows
from captum_pda.execution.sampling_error import StoppingRule
from captum_pda.execution.window_scores import Enough, SampledScores, sample_scores
from captum_pda.prediction.model_call import ModelCall
from captum_pda.prediction.readout import Readout
from captum_pda.regions.window_grid import WindowGrid

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
    seconds_a_pass: float,
    keep_errors: bool = False,
    stopping: StoppingRule | None = None,
    ranks: Ranks | None = None,
) -> Iterator[tuple[int, SampledScores]]:
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
        seconds_a_pass: about how long the model takes for one copy.
        keep_errors: whether to keep the standard error of each score as well.
        stopping: when a window has fills enough; None runs all of them.
        ranks: the processes that share the windows; this one runs its own part only.

    Returns:
        Whenever some windows are finished, the number of their tensor and all that is known of it
        so far: the scores of every window marginalised over its fills, (N, W, columns), and NaN
        for those still to come. So nothing is lost when something stops the run.
    """
    n_examples = len(inputs[0])
    batch_size = BatchSize(perturbations_per_eval, call.values_per_example)
    # Before any batch is halved on one rank only: all must agree on who runs what.
    shares = [
        share_windows(
            fill_chunks(grid, tensor.shape[1], n_samples),
            max(1, VALUES_PER_CHUNK // (n_samples * n_columns)),
            max(1, batch_size.rows_for(tensor[:1]) // n_samples),
            ranks or Ranks(),
        )
        for tensor, grid in zip(inputs, grids, strict=True)
    ]
    total = n_examples * n_samples * sum(part.n_windows for share in shares for part in share)
    with ProgressBar(total, progress, seconds_a_pass) as bar:
        for position, (tensor, grid, share) in enumerate(zip(inputs, grids, shares, strict=True)):
            known: SampledScores | None = None
            for number in range(n_examples if share else 0):
                example = tensor[number : number + 1]
                fill = fill_for(example, grid)
                prepared = engine.prepare(call.for_example(number, position), example, batch_size)
                for windows, part in _example_scores(
                    prepared,
                    example,
                    share,
                    fill,
                    n_samples,
                    _reader(readout, columns, number),
                    bar.update,
                    readout.output,
                    keep_errors,
                    partial(stopping.enough, number) if stopping else None,
                ):
                    known = known or SampledScores.none_yet(part, n_examples, len(grid))
                    known.put(number, windows, part)
                    yield position, known


def _example_scores(
    prepared: PreparedEngine,
    example: Tensor,
    shares: list[ChunkShare],
    fill: Fill,
    n_samples: int,
    read: Read,
    advance: Advance,
    output: str,
    keep_errors: bool,
    enough: Enough | None,
) -> Iterator[tuple[Tensor, SampledScores]]:
    """The scores of this rank's windows of one example, some at a time, with their numbers."""
    for share in shares:
        chunk = share.chunk[:]  # what it works out about its windows goes with it
        fills = check_fills(fill(chunk), example, chunk, n_samples)
        for block in share.blocks:
            some = slice(block.start, block.stop)
            for windows, part in sample_scores(
                prepared,
                chunk[some],
                fills[:, some],
                read,
                advance,
                output,
                keep_errors,
                enough,
            ):
                yield windows + (share.first + block.start), part


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
