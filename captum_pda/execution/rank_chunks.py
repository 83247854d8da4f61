"""Which windows a rank runs, and how all ranks come to know them all.

Windows go to ranks in whole batches, which are those of a single process: a model may round
differently in another batch, and the map should not depend on how many ranks there are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_pda.distributed.ranks import Ranks
from captum_pda.execution.window_scores import SampledScores
from captum_pda.regions.window_grid import WindowGrid


@dataclass(frozen=True)
class ChunkShare:
    """Windows whose fills are made together, and those of them that this rank runs.

    Args:
        chunk: the windows.
        first: the number of the first of them.
        blocks: the windows of this rank, counted in the chunk, as many at once as are to be run
            together.
    """

    chunk: WindowGrid
    first: int
    blocks: tuple[range, ...]

    @property
    def n_windows(self) -> int:
        """How many windows are this rank's."""
        return sum(map(len, self.blocks))


def share_windows(
    chunks: Iterable[WindowGrid], at_once: int, in_batch: int, ranks: Ranks
) -> list[ChunkShare]:
    """A rank's part of all windows: as many batches as any other rank has, or one fewer.

    The batches of a rank follow each other, so that it makes the fills of few chunks.

    Args:
        chunks: all windows.
        at_once: how many windows an engine is given at once.
        in_batch: how many of these it runs in a batch.
        ranks: the processes that share the windows.
    """
    grids = list(chunks)
    blocks = [
        [range(start, min(start + at_once, len(grid))) for start in range(0, len(grid), at_once)]
        for grid in grids
    ]
    if ranks.count > 1:
        total = sum(math.ceil(len(block) / in_batch) for part in blocks for block in part)
        low, high = (total * rank // ranks.count for rank in (ranks.rank, ranks.rank + 1))
        seen = 0
        for part in blocks:
            for number, block in enumerate(part):
                start, stop = (max(0, batch - seen) * in_batch for batch in (low, high))
                seen += math.ceil(len(block) / in_batch)
                part[number] = block[start:stop]
    shares, first = [], 0
    for grid, part in zip(grids, blocks, strict=True):
        shares.append(ChunkShare(grid, first, tuple(block for block in part if block)))
        first += len(grid)
    return [share for share in shares if share.blocks]


def bring_together(part: SampledScores, ranks: Ranks) -> SampledScores:
    """What any rank knows of the windows, NaN for those that none has run."""
    if ranks.count == 1:
        return part
    done = (part.n_drawn > 0).unsqueeze(-1)
    n_drawn = ranks.sum(part.n_drawn)

    def together(values: Tensor) -> Tensor:
        # One rank has run a window, and the others add nothing: the sum is exact.
        summed = ranks.sum(values.where(done, 0))
        return summed.where((n_drawn > 0).unsqueeze(-1), math.nan)

    errors = None if part.errors is None else together(part.errors)
    return SampledScores(together(part.scores), errors, n_drawn)


def agree(task: Sequence[object], inputs: Sequence[Tensor], seed: int, ranks: Ranks) -> int:
    """The first rank's seed, once all ranks were seen to have the same task and inputs."""
    if ranks.count == 1:
        return seed
    contents = [zlib.crc32(_bytes(tensor)) for tensor in inputs]
    told = ranks.gather(
        [zlib.crc32(repr(task).encode()), zlib.crc32(repr(contents).encode()), seed]
    )
    for number, what in enumerate(("arguments", "inputs")):
        if len({numbers[number] for numbers in told}) > 1:
            raise ValueError(
                f"the ranks of the process_group were given different {what}; all of them explain "
                "the same inputs together, so give each the same ones (without a process_group, "
                "each rank explains its own)"
            )
    return told[0][2]


def _bytes(tensor: Tensor) -> memoryview:
    plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return plain.numpy().data
