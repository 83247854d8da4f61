"""The one loop: fills, engine and scores for every region, and how ranks share them.

Regions go to ranks in whole batches, which are those of a single process: a model may round
differently in another batch, and the map should not depend on how many ranks there are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from tqdm.auto import tqdm

from captum_pda import device_sync
from captum_pda.distributed import Ranks
from captum_pda.engines import (
    Audit,
    BatchLoop,
    BatchSize,
    DenseEngine,
    EngineReport,
    PreparedEngine,
)
from captum_pda.engines.audit import audited, warn_of_disagreement
from captum_pda.engines.protocol import Advance, Read, Rows, audit_of
from captum_pda.errors import warn_user
from captum_pda.files import counted
from captum_pda.fingerprints import weights_checksum
from captum_pda.model.call import ModelCall
from captum_pda.model.measures import Measure
from captum_pda.priors import prior_settings
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.protocol import Integers, Regions, Windows
from captum_pda.running.plan import Place, Plan, groups, shared_labels
from captum_pda.running.sampling import RegionScores, Sampling, score_regions

#: Fill values held at once. Chunks depend on nothing but the plan, so that the same seed gives
#: the same draws whatever the batch size.
VALUES_PER_CHUNK = 2**22
#: By how much the same model's scores may differ on two kinds of processors, as a share of the
#: largest: half precision has three digits.
MODEL_ROUNDING = 1e-2


class Run:
    """A plan that is being run, and what is known so far, so that an interruption loses nothing.

    Args:
        plan: what to compute.
        sampling: how many contents each region gets.
        perturbations_per_eval: copies in a batch; None chooses by itself.
        ranks: the processes that share the regions.
        title: of the progress bar; None shows none.
    """

    def __init__(
        self,
        plan: Plan,
        sampling: Sampling,
        perturbations_per_eval: int | None,
        ranks: Ranks,
        title: str | None,
    ) -> None:
        self.plan = plan
        self.sampling = sampling
        self.perturbations_per_eval = perturbations_per_eval
        self.ranks = ranks
        self.title = title
        #: Whether the dense engine runs all, since another has failed its audit.
        self.densely = False
        #: How each engine that is not dense compares with the dense one.
        self.audits: list[Audit] = []
        #: Which engine ran, each time with the number of its regions.
        self.reports: list[tuple[int, EngineReport]] = []
        self.known = self._unknown()

    def _unknown(self) -> list[RegionScores]:
        """Of each part the scores of every region, NaN for those still to come."""
        return [
            RegionScores.unknown(reference, len(part.regions), self.sampling.keep_errors)
            for part, reference in zip(self.plan.parts, self.plan.references, strict=True)
        ]

    @property
    def has_begun(self) -> bool:
        """Whether anything is known."""
        return any(bool(part.n_drawn.any()) for part in self.known)

    @property
    def audit(self) -> Audit | None:
        """What the audits of this rank found."""
        return Audit.of(self.audits)

    @property
    def report(self) -> EngineReport | None:
        """Which engine ran the most regions, and why, with all audits."""
        if not self.reports:
            return None
        _, report = max(self.reports, key=itemgetter(0))
        return report.with_audit(self.audit)

    def known_by_all(self) -> list[RegionScores]:
        """What any rank knows of each part."""
        return [bring_together(part, self.ranks) for part in self.known]

    def finish(self) -> None:
        """Run the model without each region. Where an audit disagrees on any rank, all start again
        on the dense engine."""
        with self.ranks.failing_together():
            self._run_all()
        own = all(audit.agrees for audit in self.audits)
        if all(agrees for (agrees,) in self.ranks.gather([own])):
            return
        self.densely, self.known = True, self._unknown()
        self.audits.append(Audit(agrees=False))  # perhaps only another rank's audit has failed
        with self.ranks.failing_together():
            warn_of_disagreement(self.audit)
            self._run_all()

    def _run_all(self) -> None:
        """Run one example, tensor and context at a time, until an audit disagrees."""
        parts = self.plan.parts
        # One for each place, shared by all examples, so that memory runs out only once.
        batch_sizes = {
            part.place: BatchSize(self.perturbations_per_eval, part.place.call.values_per_example)
            for part in parts
        }
        # Before any batch is halved on one rank only: all must agree on who runs what.
        rows = [batch_sizes[part.place].rows_for(part.values[:1]) for part in parts]
        examples = range(self.plan.n_examples)
        n_passes: dict[Place, int] = {}
        for number, part in enumerate(parts):
            n_samples = self.sampling.in_context(part.context).n_samples
            n_passes[part.place] = n_passes.get(part.place, 0) + n_samples * sum(
                chunk.n_regions
                for example in examples
                for chunk in self._chunks(number, example, rows[number])
            )
        n_shared = len(self._own_shared()) * self.sampling.n_samples * self.plan.n_examples
        n_passes[parts[0].place] += n_shared
        begun = None
        with ProgressBar(sum(n_passes.values()), self.title, warns=self.ranks.rank == 0) as bar:
            for numbers in groups(parts):
                place = parts[numbers[0]].place
                if place is not begun:
                    begun = place
                    bar.begin(n_passes[place])
                for example in examples:
                    chunks = {n: self._chunks(n, example, rows[n]) for n in numbers}
                    n_regions = sum(chunk.n_regions for own in chunks.values() for chunk in own)
                    if n_regions == 0:
                        continue  # all of them are another rank's
                    try:
                        audit = self._run_example(example, chunks, batch_sizes[place], bar.update)
                    finally:
                        # A feature map that is asked beside the input runs from its layer on,
                        # whatever the engine.
                        report = getattr(place.engine, "report", None)
                        if place is parts[0].place and isinstance(report, EngineReport):
                            self.reports.append((n_regions, report))
                    self.audits.append(audit)
                    if not audit.agrees:
                        return
            for example in examples:
                self._run_shared(example, batch_sizes, bar.update)

    def _own_shared(self) -> list[int]:
        """This rank's share of the features that masks of several tensors have in common."""
        labels = {label for part in self.plan.parts for label in shared_labels(part)}
        return sorted(labels)[self.ranks.rank :: self.ranks.count]

    def _run_shared(
        self, example: int, batch_sizes: dict[Place, BatchSize], advance: Advance
    ) -> None:
        """Run features that masks of several tensors share, hidden in all of them at once."""
        parts = [(n, part) for n, part in enumerate(self.plan.parts) if shared_labels(part)]
        labels, n_samples = self._own_shared(), self.sampling.n_samples
        if not labels:
            return
        place, explained = parts[0][1].place, self.plan.explained
        call = cast(ModelCall, place.call)
        read = explained.for_example(example)
        loop = BatchLoop(batch_sizes[place], parts[0][1].values[:1])
        at_once = max(1, loop.at_once // n_samples)
        for some in (labels[start : start + at_once] for start in range(0, len(labels), at_once)):
            copies = {
                part.tensor: part.without(example, some, replace(self.sampling, part=number))
                for number, part in parts
            }
            run_batch = partial(_scores_of_rows, call, read, example, copies)
            scores = loop.run(len(some) * n_samples, run_batch, advance)
            samples = scores.reshape(len(some), n_samples, -1).transpose(0, 1)
            for number, part in parts:
                own_labels = cast(FeatureMaskRegions, part.regions).labels
                here = [n for n, label in enumerate(some) if label in own_labels]
                members = [own_labels.index(some[n]) for n in here]
                found = RegionScores.of(samples[:, here], explained.kind, self.sampling.keep_errors)
                self.known[number].put(example, torch.tensor(members, device=scores.device), found)

    def _run_example(
        self,
        example: int,
        chunks: dict[int, list[Chunk]],
        batch_size: BatchSize,
        advance: Advance,
    ) -> Audit:
        """Run this rank's regions of an example, all sizes on one prepared engine.

        Args:
            example: the number of the example.
            chunks: the regions of each part, by its number; of one place, tensor and context.
            batch_size: how many copies go through the model at once.
            advance: told how many copies have just gone through the model.
        """
        part = self.plan.parts[next(iter(chunks))]
        place, context, values = part.place, part.context, part.values[example]
        engine = DenseEngine() if self.densely else place.engine
        forward = partial(part.forward, example)
        arguments = (forward, context.before(place, values).unsqueeze(0), batch_size)
        prepared: PreparedEngine = engine.prepare(*arguments)
        if not isinstance(engine, DenseEngine):
            prepared = audited(prepared, *arguments)
        explained = self.plan.explained
        sampling = self.sampling.in_context(context)
        stopping = sampling.stopping
        for number, own in chunks.items():
            for chunk in own:
                boxes, fills = context.changed(
                    place, values, chunk.windows, replace(sampling, part=number)
                )
                members = torch.from_numpy(chunk.members).to(fills.device)
                for block in chunk.blocks:
                    some = slice(block.start, block.stop)
                    for finished, scores in score_regions(
                        prepared,
                        boxes[some],
                        fills[:, some],
                        explained.for_example(example),
                        advance,
                        explained.kind,
                        sampling.keep_errors,
                        partial(stopping.enough, example) if stopping else None,
                    ):
                        self.known[number].put(example, members[finished + block.start], scores)
        return audit_of(prepared)

    def _chunks(self, number: int, example: int, rows_in_batch: int) -> list[Chunk]:
        """This rank's regions of a part of one example."""
        part = self.plan.parts[number]
        n_samples = self.sampling.in_context(part.context).n_samples
        return rank_chunks(
            part.regions,
            example,
            values_per_pixel=n_samples * part.values.shape[1],
            at_once=max(1, VALUES_PER_CHUNK // (n_samples * self.plan.explained.n_columns)),
            in_batch=max(1, rows_in_batch // n_samples),
            ranks=self.ranks,
            left_out=shared_labels(part),
        )


def _scores_of_rows(
    call: ModelCall, read: Read, example: int, copies: Mapping[int, Tensor], rows: Rows
) -> Tensor:
    """The scores of some copies of an example whose tensors are changed together."""
    chosen = torch.from_numpy(rows)
    return read(call.with_copies(example, {n: own[chosen] for n, own in copies.items()}))


@dataclass(frozen=True, eq=False)
class Chunk:
    """Regions whose fills are made together, and those of them that this rank runs.

    Args:
        windows: the regions.
        members: their numbers among all.
        blocks: the regions of this rank, counted in the chunk; those of a block are run together.
    """

    windows: Windows
    members: Integers
    blocks: tuple[range, ...]

    @property
    def n_regions(self) -> int:
        """How many regions are this rank's."""
        return sum(map(len, self.blocks))


def rank_chunks(
    regions: Regions,
    example: int,
    values_per_pixel: int,
    at_once: int,
    in_batch: int,
    ranks: Ranks,
    left_out: frozenset[int] = frozenset(),
) -> list[Chunk]:
    """A rank's part of all regions of an example: as many batches as any other rank, or one fewer.

    The batches of a rank follow each other, so that it makes the fills of few chunks.

    Args:
        regions: all regions.
        example: the number of the example.
        values_per_pixel: numbers in each pixel of a fill, times samples.
        at_once: how many regions an engine is given at once.
        in_batch: how many of these it runs in a batch.
        ranks: the processes that share the regions.
        left_out: labels of a mask whose regions are run elsewhere.
    """
    groups_of_boxes = list(zip(regions.boxes(example), regions.members(example), strict=True))
    if left_out:
        labels = np.array(cast(FeatureMaskRegions, regions).labels)
        kept = [
            (windows, members, np.flatnonzero(~np.isin(labels[members], list(left_out))))
            for windows, members in groups_of_boxes
        ]
        groups_of_boxes = [(windows.pick(own), members[own]) for windows, members, own in kept]
    chunks = [
        Chunk(windows[start:stop], members[start:stop], _blocks(stop - start, at_once))
        for windows, members in groups_of_boxes
        for start, stop in fill_chunks(windows, values_per_pixel)
    ]
    if ranks.count > 1:
        chunks = _own_blocks(chunks, in_batch, ranks)
    return [chunk for chunk in chunks if chunk.blocks]


def fill_chunks(windows: Windows, values_per_pixel: int) -> Iterator[tuple[int, int]]:
    """Where parts of the windows begin and end whose fills fit in memory together."""
    size = max(1, VALUES_PER_CHUNK // (values_per_pixel * math.prod(windows.window)))
    for start in range(0, len(windows), size):
        yield start, min(start + size, len(windows))


def _blocks(n_windows: int, at_once: int) -> tuple[range, ...]:
    return tuple(
        range(start, min(start + at_once, n_windows)) for start in range(0, n_windows, at_once)
    )


def _own_blocks(chunks: list[Chunk], in_batch: int, ranks: Ranks) -> list[Chunk]:
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


def bring_together(part: RegionScores, ranks: Ranks) -> RegionScores:
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
    return RegionScores(scores, errors, n_drawn)


def agree_on_plan(
    plan: Plan,
    sampling: Sampling,
    perturbations_per_eval: int | None,
    measure: Measure,
    ranks: Ranks,
) -> Sampling:
    """The sampling with the first rank's seed, once all ranks were seen to ask the same."""
    if ranks.count == 1:
        return sampling
    explained = plan.explained
    call = plan.parts[0].place.call
    asked = (
        [
            (part.place.name, part.place.needs, part.tensor, part.context.name)
            for part in plan.parts
        ],
        [part.regions.settings() for part in plan.parts],
        (explained.output_shape, explained.columns, explained.region, explained.kind.settings()),
        (sampling.n_samples, sampling.stopping.tolerance if sampling.stopping else None),
        (perturbations_per_eval, call.given[0].device.type, measure.settings()),
    )
    contents = [device_sync.checksum(tensor) for tensor in call.given]
    told = ranks.gather([repr(asked), repr(contents), sampling.seed])
    for number, what in enumerate(("arguments", "inputs")):
        _check_same(told, number, what)
    return replace(sampling, seed=told[0][2])


def agree_on_model(modules: Iterable[Module], prior: object, seen: Tensor, ranks: Ranks) -> None:
    """Refuse ranks with different models or priors, which would each return another map.

    Args:
        modules: of the model; their weights must be the same bit by bit.
        prior: its settings must be the same.
        seen: the model's scores with everything seen, (N, columns), of one shape on all ranks; they
            may differ by rounding, since ranks may have different processors.
        ranks: the processes that share the work.
    """
    if ranks.count == 1:
        return
    with ranks.failing_together():
        settings = repr(prior_settings(prior))
        weights = weights_checksum(modules)
    first = ranks.from_rank(0, seen)
    largest = float(first.abs().nan_to_num(0, 0, 0).max()) if first.numel() else 0.0
    same = torch.isclose(seen, first, rtol=0, equal_nan=True, atol=MODEL_ROUNDING * largest)
    told = ranks.gather([weights, settings, bool(same.all())])
    _check_same(told, 0, "weights of the model")
    _check_same(told, 1, "priors (such as fitted to different data)")
    if not all(agrees for _, _, agrees in told):
        raise ValueError(
            "the ranks of the process_group get different outputs from their models for the same "
            "inputs; give all of them the same model in the same state, one that draws no random "
            "numbers"
        )


def _check_same(told: Sequence[Sequence[Any]], number: int, what: str) -> None:
    if len({numbers[number] for numbers in told}) > 1:
        raise ValueError(
            f"the ranks of the process_group were given different {what}; all of them explain "
            "the same inputs together, so give each the same ones (without a process_group, "
            "each rank explains its own)"
        )


#: A run without a bar is called long if it takes more seconds than this.
LONG_SECONDS = 60.0
#: Seconds over which passes are measured before their cost is told.
MEASURED_SECONDS = 1.0

#: Whether this process was told that a run is long; it needs to know only once.
_was_told = False


class ProgressBar(tqdm):  # type: ignore[misc]
    """Counts forward passes.

    Args:
        total: how many passes there are.
        title: the bar's title; None shows no bar.
        warns: whether to warn of a long run where no bar is shown.
        clock: tells the time in seconds.
    """

    def __init__(
        self,
        total: int,
        title: str | None,
        warns: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._title = title
        self._warns = warns and title is None
        self._clock = clock
        self._n_passes = total
        self._n_done = 0
        self._start = clock()
        self.begin(total)
        # No time yet: a model's first pass may take far longer than those that follow.
        described = None if title is None else f"{title}: {costs(total, 0)}"
        super().__init__(total=total, desc=described, disable=title is None, unit="pass")

    def begin(self, n_passes: int) -> None:
        """The next ``n_passes`` take about the same time each, and perhaps another than those
        before: what follows a layer is a shorter pass than the whole model."""
        self._last_alike = self._n_done + n_passes
        #: When the first batch was done, and its passes: it also does what is done only once.
        self._measured_from: tuple[float, int] | None = None

    def update(self, n: float | None = 1) -> bool | None:
        """Count passes that are done, and tell what all of them cost as soon as that is known."""
        self._n_done += int(n or 0)
        seconds = self._estimate()
        if seconds is not None and self._title is not None:
            self.set_description_str(f"{self._title}: {costs(self._n_passes, seconds)}: ", False)
        if seconds is not None and self._warns:
            self._warns = False
            _warn_if_long(self._n_passes, seconds)
        shown: bool | None = super().update(n)
        return shown

    def expect(self, seconds_per_pass: float) -> None:
        """Tell what all passes will cost, before the first one."""
        if self._title is not None:
            said = costs(self._n_passes, seconds_per_pass * self._n_passes)
            self.set_description_str(f"{self._title}: {said}")

    def _estimate(self) -> float | None:
        """How long all passes take, once some were measured for long enough. Passes from a layer
        on are short, and count from when they begin."""
        now = self._clock()
        if self._measured_from is None:
            self._measured_from = now, self._n_done
            return None
        start, first = self._measured_from
        if now - start < MEASURED_SECONDS or self._n_done <= first:
            return None
        seconds_per_pass = (now - start) / (self._n_done - first)
        return now - self._start + seconds_per_pass * (self._last_alike - self._n_done)


def costs(n_passes: int, seconds: float) -> str:
    """What a run costs, in words: "1,760 passes, about 25 s"."""
    passes = counted(n_passes, "pass", "passes")
    if seconds < 1:
        return passes
    if seconds < 2 * 60:
        return f"{passes}, about {seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{passes}, about {seconds / 60:.0f} min"
    return f"{passes}, about {seconds / 3600:.0f} h"


def _warn_if_long(n_passes: int, seconds: float) -> None:
    global _was_told
    if seconds <= LONG_SECONDS or _was_told:
        return
    _was_told = True
    warn_user(
        f"this will take a while: {costs(n_passes, seconds)}. Pass show_progress=True to watch it, "
        "and larger strides or fewer sizes for fewer passes. This is said once."
    )
