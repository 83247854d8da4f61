"""The one loop: fills, engine and scores for every region, and how ranks share them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.distributed import Ranks
from captum_pda.engines import Audit, BatchSize, DenseEngine, EngineReport, PreparedEngine
from captum_pda.engines.audit import audit_of, audited
from captum_pda.engines.protocol import Advance
from captum_pda.fingerprints import weights_checksum
from captum_pda.model.inputs import watched_columns
from captum_pda.model.measures import Measure
from captum_pda.priors import prior_settings
from captum_pda.regions.protocol import Integers, Regions, Windows
from captum_pda.running.plan import ExampleContents, Execution, Part, Scene, Task, Tolerance
from captum_pda.running.progress import ProgressBar
from captum_pda.running.sampling import Sampling, Scoring, StoppingRule, WindowScores, score_windows


@dataclass(frozen=True, eq=False)
class Run:
    """A task that is being run, and what is known of it so far.

    Args:
        task: what to compute.
        sampling: how many contents each region gets.
        execution: how to run the model.
        known: of each part the scores of every region, marginalised over its fills, and NaN for
            those still to come. So nothing is lost when something stops the run.
        audits: how each scene compares with the dense engine, where another has run it.
        reports: which engine ran each scene, with the number of its regions here.
    """

    task: Task
    sampling: Sampling
    execution: Execution
    known: tuple[WindowScores, ...]
    audits: list[Audit] = field(default_factory=list)
    reports: list[tuple[int, EngineReport]] = field(default_factory=list)

    @classmethod
    def of(cls, task: Task, sampling: Sampling, execution: Execution) -> Run:
        """A run of which nothing is known yet."""
        known = tuple(
            WindowScores.none_yet(reference, len(part.regions), sampling.keep_errors)
            for part, reference in zip(task.parts, task.references, strict=True)
        )
        return cls(task, sampling, execution, known)

    def alone(self) -> Run:
        """The same run as this process knows it, without the other ranks."""
        return replace(self, execution=replace(self.execution, ranks=Ranks()))

    def densely(self) -> Run:
        """The same run anew, on the dense engine; what it found before counts for nothing."""
        execution = replace(self.execution, densely=True)
        anew = Run.of(self.task, self.sampling, execution)
        # An audit of another rank may have failed, and none of this one.
        anew.audits.extend([*self.audits, Audit(agrees=False)])
        anew.reports.extend(self.reports)
        return anew

    @property
    def has_begun(self) -> bool:
        """Whether anything is known."""
        return any(bool(part.n_drawn.any()) for part in self.known)

    def together(self) -> tuple[WindowScores, ...]:
        """What is known of each part by any rank."""
        return tuple(bring_together(part, self.execution.ranks) for part in self.known)

    @property
    def audit(self) -> Audit | None:
        """What the audits of this rank found."""
        return Audit.of(self.audits)

    @property
    def report(self) -> EngineReport | None:
        """Which engine ran, and why: of the scene with the most regions, with all audits."""
        if not self.reports:
            return None
        _, report = max(self.reports, key=itemgetter(0))
        return report.with_audit(self.audit)

    def agrees(self) -> bool:
        """Whether the audits of all ranks found what the dense engine finds."""
        own = all(audit.agrees for audit in self.audits)
        return all(agrees for (agrees,) in self.execution.ranks.gather([own]))

    def finish(self) -> None:
        """Run the model without each region, one example, tensor and context at a time.

        It ends early where an audit fails, since then all is to be run again.
        """
        execution, task = self.execution, self.task
        # One for each depth, shared by all its examples, so that memory runs out only once.
        batch_sizes = {
            part.depth: BatchSize(
                execution.perturbations_per_eval, part.depth.call.values_per_example
            )
            for part in task.parts
        }
        # Before any batch is halved on one rank only: all must agree on who runs what.
        in_batch = [batch_sizes[part.depth].rows_for(part.values[:1]) for part in task.parts]
        total = sum(
            chunk.n_windows * self.sampling.in_context(part.context).n_samples
            for part, rows in zip(task.parts, in_batch, strict=True)
            for example in range(task.n_examples)
            for chunk in self._chunks(part, example, rows)
        )
        warns = execution.ranks.rank == 0
        bar_of_all = ProgressBar(total, execution.title, warns)
        with bar_of_all as bar:
            for scene in task.scenes():
                chunks = {
                    number: self._chunks(task.parts[number], scene.example, in_batch[number])
                    for number in scene.parts
                }
                own = {number: some for number, some in chunks.items() if some}
                if not own:
                    continue
                batch_size = batch_sizes[scene.first.depth]
                try:
                    self.audits.append(self._run_scene(scene, own, batch_size, bar.update))
                finally:
                    self._note_report(scene, own)
                if not self.audits[-1].agrees:
                    return

    def _note_report(self, scene: Scene, chunks: dict[int, list[RankChunk]]) -> None:
        """Keep what the engine of a scene says of itself, finished or not."""
        depth = self.task.parts[0].depth
        report = getattr(depth.engine, "report", None)
        # Features that are asked beside the input run from their layer on, whatever the engine.
        if scene.first.depth == depth and isinstance(report, EngineReport):
            n_windows = sum(chunk.n_windows for own in chunks.values() for chunk in own)
            self.reports.append((n_windows, report))

    def _chunks(self, part: Part, example: int, rows_in_batch: int) -> list[RankChunk]:
        """This rank's regions of a part of one example."""
        n_samples = self.sampling.in_context(part.context).n_samples
        sizes = ChunkSizes(
            values_per_pixel=n_samples * part.values.shape[1],
            at_once=max(1, VALUES_PER_CHUNK // (n_samples * self.task.reader.n_columns)),
            in_batch=max(1, rows_in_batch // n_samples),
        )
        return rank_chunks(part.regions, example, sizes, self.execution.ranks)

    def _run_scene(
        self,
        scene: Scene,
        chunks: dict[int, list[RankChunk]],
        batch_size: BatchSize,
        advance: Advance,
    ) -> Audit:
        """Run this rank's regions of one scene, all sizes on one prepared engine."""
        depth, context = scene.first.depth, scene.first.context
        contents = depth.contents.of(scene.values, context)
        unchanged = contents.unchanged()
        engine = DenseEngine() if self.execution.densely else depth.engine
        arguments = (scene.forward, unchanged, batch_size)
        prepared = audited(engine.prepare(*arguments), *arguments)
        sampling = self.sampling.in_context(context)
        stopping = sampling.stopping
        reader = self.task.reader
        scoring = Scoring(
            read=reader.for_example(scene.example),
            advance=advance,
            output=reader.readout.output,
            keep_errors=sampling.keep_errors,
            enough=partial(stopping.enough, scene.example) if stopping else None,
        )
        for number, own in chunks.items():
            filling = PartFills(contents, replace(sampling, part=number), scene.example)
            for chunk in own:
                self._run_chunk(number, chunk, filling, prepared, scoring)
        return audit_of(prepared)

    def _run_chunk(
        self,
        number: int,
        chunk: RankChunk,
        filling: PartFills,
        prepared: PreparedEngine,
        scoring: Scoring,
    ) -> None:
        """Run this rank's regions of a chunk, and keep what is finished."""
        boxes, fills = filling.contents.fills(chunk.windows, filling.sampling)
        members = torch.from_numpy(chunk.members).to(fills.device)
        for block in chunk.blocks:
            some = slice(block.start, block.stop)
            for finished, scores in score_windows(prepared, boxes[some], fills[:, some], scoring):
                regions = members[finished + block.start]
                self.known[number].put(filling.example, regions, scores)


@dataclass(frozen=True, eq=False)
class PartFills:
    """What the regions of a part of one example are filled with."""

    contents: ExampleContents
    sampling: Sampling
    example: int


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


def resolve_sampling(
    task: Task, sampling: Sampling, tolerance: Tolerance, execution: Execution, measure: Measure
) -> Sampling:
    """The sampling with its stopping rule, and a seed that all ranks agree on."""
    reader, ranks = task.reader, execution.ranks
    stopping = None
    if tolerance.bound is not None:
        if reader.region is not None:
            raise ValueError(
                "tolerance bounds the error of one output, and target is a mask of several; leave "
                "tolerance out, or explain one output"
            )
        bounded = [0] * task.n_examples
        if reader.columns is None:
            bounded = watched_columns(
                tolerance.target,
                task.seen,
                reader.output_shape,
                reader.readout.output,
                "tolerance_target",
            )
        stopping = StoppingRule(tolerance.bound, bounded, reader.readout.output, measure)
    plan = [
        (part.depth.name, part.tensor, part.context, part.regions.settings()) for part in task.parts
    ]
    call = task.parts[0].depth.call
    device = call.given[0].device.type
    asked = (
        plan,
        reader.output_shape,
        reader.columns,
        reader.region,
        sampling.n_samples,
        tolerance.bound,
    )
    needs = [part.depth.contents.needs for part in task.parts]
    read = (reader.readout.output, measure.settings())
    how = (execution.perturbations_per_eval, device, needs, *read)
    seed = agree((*asked, *how), call.given, sampling.seed, ranks)
    return Sampling(sampling.n_samples, seed, sampling.keep_errors, stopping)
