"""Which regions a rank runs, and how all ranks come to know them all.

Regions go to ranks in whole batches, which are those of a single process: a model may round
differently in another batch, and the map should not depend on how many ranks there are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.distributed.ranks import Ranks
from captum_pda.fingerprints import weights_checksum
from captum_pda.priors import prior_settings
from captum_pda.regions.protocol import Integers, Regions, Windows
from captum_pda.running.window_scores import WindowScores

#: Fill values held at once. Chunks depend on nothing but the task, so that the same seed gives
#: the same draws whatever the batch size.
VALUES_PER_CHUNK = 2**22
#: By how much the same model's scores may differ on two kinds of processors, as a share of the
#: largest: half precision has three digits.
MODEL_ROUNDING = 1e-2


@dataclass(frozen=True, eq=False)
class RankChunk:
    """Regions whose fills are made together, and those of them that this rank runs.

    Args:
        windows: the regions.
        members: their numbers among all.
        blocks: the regions of this rank, counted in the chunk, as many at once as are to be run
            together.
    """

    windows: Windows
    members: Integers
    blocks: tuple[range, ...] = ()

    @property
    def n_windows(self) -> int:
        """How many regions are this rank's."""
        return sum(map(len, self.blocks))


@dataclass(frozen=True)
class ChunkSizes:
    """How many regions are taken together.

    Args:
        values_per_fill: values of one fill's pixel, times samples.
        at_once: how many regions an engine is given at once.
        in_batch: how many of these it runs in a batch.
    """

    values_per_pixel: int
    at_once: int
    in_batch: int


def rank_chunks(regions: Regions, example: int, sizes: ChunkSizes, ranks: Ranks) -> list[RankChunk]:
    """A rank's part of all regions of an example: as many batches as any other rank, or one fewer.

    The batches of a rank follow each other, so that it makes the fills of few chunks.
    """
    chunks = [
        replace(chunk, blocks=_blocks(len(chunk.windows), sizes.at_once))
        for chunk in _chunks(regions, example, sizes.values_per_pixel)
    ]
    if ranks.count > 1:
        chunks = _own_blocks(chunks, sizes.in_batch, ranks)
    return [chunk for chunk in chunks if chunk.blocks]


def fill_chunks(windows: Windows, values_per_pixel: int) -> Iterator[tuple[int, int]]:
    """Where parts of the windows begin and end whose fills fit in memory together."""
    size = max(1, VALUES_PER_CHUNK // (values_per_pixel * math.prod(windows.window)))
    for start in range(0, len(windows), size):
        yield start, min(start + size, len(windows))


def _chunks(regions: Regions, example: int, values_per_pixel: int) -> Iterator[RankChunk]:
    groups = zip(regions.boxes(example), regions.members(example), strict=True)
    for windows, members in groups:
        for start, stop in fill_chunks(windows, values_per_pixel):
            yield RankChunk(windows[start:stop], members[start:stop])


def _blocks(n_windows: int, at_once: int) -> tuple[range, ...]:
    return tuple(
        range(start, min(start + at_once, n_windows)) for start in range(0, n_windows, at_once)
    )


def _own_blocks(chunks: list[RankChunk], in_batch: int, ranks: Ranks) -> list[RankChunk]:
    """The chunks with the batches of this rank only."""
    total = sum(math.ceil(len(block) / in_batch) for chunk in chunks for block in chunk.blocks)
    low, high = (total * rank // ranks.count for rank in (ranks.rank, ranks.rank + 1))
    own, seen = [], 0
    for chunk in chunks:
        blocks = []
        for block in chunk.blocks:
            start, stop = (max(0, batch - seen) * in_batch for batch in (low, high))
            seen += math.ceil(len(block) / in_batch)
            blocks.append(block[start:stop])
        own.append(replace(chunk, blocks=tuple(block for block in blocks if block)))
    return own


def bring_together(part: WindowScores, ranks: Ranks) -> WindowScores:
    """What any rank knows of the regions, NaN for those that none has run."""
    if ranks.count == 1:
        return part
    done = (part.n_drawn > 0).unsqueeze(-1)
    n_drawn = ranks.sum(part.n_drawn)
    known = (n_drawn > 0).unsqueeze(-1)
    # One rank has run a region, and the others add nothing: the sum is exact.
    scores = ranks.sum(part.scores.where(done, 0)).where(known, math.nan)
    errors = part.errors
    if errors is not None:
        errors = ranks.sum(errors.where(done, 0)).where(known, math.nan)
    return WindowScores(scores, errors, n_drawn)


def agree(task: Sequence[object], inputs: Sequence[Tensor], seed: int, ranks: Ranks) -> int:
    """The first rank's seed, once all ranks were seen to have the same task and inputs."""
    if ranks.count == 1:
        return seed
    contents = [device_sync.checksum(tensor) for tensor in inputs]
    told = ranks.gather(
        [zlib.crc32(repr(task).encode()), zlib.crc32(repr(contents).encode()), seed]
    )
    for number, what in enumerate(("arguments", "inputs")):
        _check_same(told, number, what)
    return told[0][2]


def agree_on_model(model: object, prior: object, seen: Tensor, ranks: Ranks) -> None:
    """Refuse ranks with different models or priors, which would each return another map.

    Args:
        model: what is explained; the weights that it holds must be the same bit by bit.
        prior: its settings must be the same.
        seen: the model's scores with everything seen, (N, columns), of one shape on all ranks; they
            may differ by rounding, since ranks may have different processors.
        ranks: the processes that share the work.
    """
    if ranks.count == 1:
        return
    with ranks.failing_together():
        settings = zlib.crc32(repr(prior_settings(prior)).encode())
        weights = weights_checksum(model)
    first = ranks.from_rank(0, seen)
    same = torch.isclose(seen, first, rtol=0, equal_nan=True, atol=MODEL_ROUNDING * _size(first))
    told = ranks.gather([weights, settings, int(same.all())])
    _check_same(told, 0, "weights of the model")
    _check_same(told, 1, "priors (such as fitted to different data)")
    if not all(agrees for _, _, agrees in told):
        raise ValueError(
            "the ranks of the process_group get different outputs from their models for the same "
            "inputs; give all of them the same model in the same state, one that draws no random "
            "numbers"
        )


def _check_same(told: Sequence[Sequence[int]], number: int, what: str) -> None:
    if len({numbers[number] for numbers in told}) > 1:
        raise ValueError(
            f"the ranks of the process_group were given different {what}; all of them explain "
            "the same inputs together, so give each the same ones (without a process_group, "
            "each rank explains its own)"
        )


def _size(values: Tensor) -> float:
    """The largest finite number, by size."""
    return float(values.abs().nan_to_num(0, 0, 0).max()) if values.numel() else 0.0
