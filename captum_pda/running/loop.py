"""The one loop: fills, engine and read-out for every part of a task, example by example."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter

import torch

from captum_pda.distributed import Ranks
from captum_pda.engines import Audit, BatchSize, DenseEngine, EngineReport, PreparedEngine
from captum_pda.engines.audit import audit_of, audited
from captum_pda.engines.engine_protocol import Advance
from captum_pda.running.contents import ExampleContents
from captum_pda.running.progress import ProgressBar
from captum_pda.running.rank_chunks import (
    VALUES_PER_CHUNK,
    ChunkSizes,
    RankChunk,
    bring_together,
    rank_chunks,
)
from captum_pda.running.sampling import Sampling
from captum_pda.running.task import Execution, Part, Scene, Task
from captum_pda.running.window_scores import Scoring, WindowScores, score_windows


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
