"""The loop over all regions: fills, engine, scores, and how ranks share them.

Ranks get whole batches, the same as those of a single process, because a model may round
differently in other batches and maps should not depend on the number of ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple, cast

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
)
from captum_pda.engines.audit import warn_of_disagreement
from captum_pda.engines.protocol import Advance
from captum_pda.errors import warn_user
from captum_pda.files import counted
from captum_pda.fingerprints import weights_checksum
from captum_pda.model.call import ModelCall
from captum_pda.model.measures import Measure
from captum_pda.priors import prior_settings
from captum_pda.regions.protocol import Integers, Regions, Windows
from captum_pda.running.plan import Place, Plan, groups
from captum_pda.running.sampling import RegionScores, Sampling, score_regions

#: The fill values in memory at once. Chunks depend on the plan only, so that the same seed gives
#: the same samples for any batch size.
VALUES_PER_CHUNK = 2**22
#: The tolerated difference of a model's scores on two kinds of processors, as a share of the
#: largest: half precision has three digits.
MODEL_ROUNDING = 1e-2


class Run:
    """A plan that is being run, and the results so far, which an interruption keeps.

    ``rows`` is the number of copies in a batch (None chooses it), ``title`` that of a progress bar.
    """

    def __init__(
        self, plan: Plan, sampling: Sampling, rows: int | None, ranks: Ranks, title: str | None
    ) -> None:
        self.plan = plan
        self.sampling = sampling
        self.rows = rows
        self.ranks = ranks
        self.title = title
        #: Whether everything is run by the dense engine because another one failed its audit.
        self.densely = False
        #: The audits of engines that are not dense.
        self.audits: list[Audit] = []
        #: The engine of each run, with its number of regions.
        self.reports: list[tuple[int, EngineReport]] = []
        self.known = self._unknown()

    def _unknown(self) -> list[RegionScores]:
        return [
            RegionScores.unknown(reference, len(part.regions), self.sampling.keep_errors)
            for part, reference in zip(self.plan.parts, self.plan.references, strict=True)
        ]

    @property
    def audit(self) -> Audit | None:
        """The audits of this rank as one."""
        return Audit.of(self.audits)

    @property
    def report(self) -> EngineReport | None:
        """The report of the engine that ran the most regions, with all audits."""
        if not self.reports:
            return None
        return max(self.reports, key=itemgetter(0))[1].with_audit(self.audit)

    def known_by_all(self) -> list[RegionScores]:
        """The results of all ranks for each part, NaN for regions that no rank has run."""
        if self.ranks.count == 1:
            return self.known
        found = []
        for part in self.known:
            done = (part.n_drawn > 0).unsqueeze(-1)
            n_drawn = self.ranks.sum(part.n_drawn)
            # Only one rank has run a region and the others add 0, so the sum is exact.
            scores, errors = (
                None
                if values is None
                else self.ranks.sum(values.where(done, 0)).where((n_drawn > 0)[..., None], math.nan)
                for values in (part.scores, part.errors)
            )
            found.append(RegionScores(cast(Tensor, scores), errors, n_drawn))
        return found

    def finish(self) -> None:
        """Run the model without each region; densely again if an audit fails on any rank."""
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
        """Run one example, tensor and context at a time, until an audit fails."""
        parts, examples = self.plan.parts, range(len(self.plan.seen))
        # One for each place, shared by all examples, so that memory runs out only once.
        batch_sizes = {
            part.place: BatchSize(self.rows, part.place.call.values_per_example) for part in parts
        }
        # Before any rank halves its batches: all must agree on who runs what.
        chunks = {
            (number, example): self._chunks(number, example, batch_sizes[part.place])
            for number, part in enumerate(parts)
            for example in examples
        }
        n_regions = {key: sum(len(chunk.own) for chunk in own) for key, own in chunks.items()}
        # This rank's share of the features that masks of several tensors have in common.
        shared = sorted({label for part in parts for label in part.shared_labels})
        labels = shared[self.ranks.rank :: self.ranks.count]
        n_passes = len(labels) * self.sampling.n_samples * len(examples)
        n_short = 0  # what follows a layer takes little time beside the whole model
        for (number, _), n_own in n_regions.items():
            n_passes += self.sampling.in_context(parts[number].context).n_samples * n_own
            if parts[number].place.name != "input" and parts[0].place.name == "input":
                n_short += n_own
        with ProgressBar(n_passes, self.title, self.ranks.rank == 0, n_short=n_short) as bar:
            # Random sets first: each takes a whole pass, so the remaining time is not
            # underestimated from windows that are computed in part.
            in_order = sorted(groups(parts), key=lambda own: not parts[own[0]].context.in_sets)
            for numbers, example in product(in_order, examples):
                place = parts[numbers[0]].place
                n_own = sum(n_regions[number, example] for number in numbers)
                if n_own == 0:
                    continue  # all of them are another rank's
                of_part = {number: chunks[number, example] for number in numbers}
                try:
                    audit = self._run_example(example, of_part, batch_sizes[place], bar.update)
                finally:
                    # A feature map that is explained beside the input always runs from its layer
                    # on.
                    report = getattr(place.engine, "report", None)
                    if place is parts[0].place and isinstance(report, EngineReport):
                        self.reports.append((n_own, report))
                self.audits.append(audit)
                if not audit.agrees:
                    return
            for example in examples if labels else ():
                self._run_shared(example, labels, batch_sizes, bar.update)

    def _chunks(self, number: int, example: int, batch_size: BatchSize) -> list[Chunk]:
        part = self.plan.parts[number]
        n_samples = self.sampling.in_context(part.context).n_samples
        return rank_chunks(
            part.regions,
            example,
            values_per_pixel=n_samples * part.values.shape[1],
            in_batch=max(1, batch_size.rows_for(part.values[:1]) // n_samples),
            ranks=self.ranks,
            left_out=part.shared_labels,
        )

    def _run_example(
        self, example: int, chunks: dict[int, list[Chunk]], batch_size: BatchSize, advance: Advance
    ) -> Audit:
        """Run this rank's regions of an example on one prepared engine: ``chunks`` of parts of one
        place, tensor and context, by their numbers."""
        part = self.plan.parts[next(iter(chunks))]
        place, context, values = part.place, part.context, part.values[example]
        engine = DenseEngine() if self.densely else place.engine
        before = context.before(place, values).unsqueeze(0)
        prepared = engine.prepare(partial(part.forward, example), before, batch_size)
        explained = self.plan.explained
        sampling = self.sampling.in_context(context)
        enough = partial(sampling.stopping.enough, example) if sampling.stopping else None
        read = explained.for_example(example)
        # Whole batches, whose scores fit in memory together.
        in_batch = max(1, batch_size.rows_for(part.values[:1]) // sampling.n_samples)
        n_scores = sampling.n_samples * explained.n_columns
        at_once = in_batch * max(1, VALUES_PER_CHUNK // (n_scores * in_batch))
        for number, own_chunks in chunks.items():
            for windows, members, own in own_chunks:
                boxes, fills = context.changed(
                    place, values, windows, replace(sampling, part=number)
                )
                numbers = torch.from_numpy(members).to(fills.device)
                for first in own[::at_once]:
                    some = slice(first, min(first + at_once, own.stop))
                    for finished, samples in score_regions(
                        prepared, boxes[some], fills[:, some], read, advance, enough
                    ):
                        regions = numbers[finished + first]
                        self.known[number].put(example, regions, samples, explained.kind)
        audit: Audit = getattr(prepared, "audit", Audit)()
        return audit

    def _run_shared(
        self, example: int, labels: list[int], batch_sizes: dict[Place, BatchSize], advance: Advance
    ) -> None:
        """Run the labels that masks of several tensors share, hidden in all of them at once."""
        parts = [(n, part) for n, part in enumerate(self.plan.parts) if part.shared_labels]
        n_samples, explained = self.sampling.n_samples, self.plan.explained
        first = parts[0][1]
        call = cast(ModelCall, first.place.call)
        loop = BatchLoop(batch_sizes[first.place], first.values[:1])
        at_once = max(1, loop.at_once // n_samples)
        for start in range(0, len(labels), at_once):
            some = labels[start : start + at_once]
            copies = {
                part.tensor: part.without(example, some, replace(self.sampling, part=number))
                for number, part in parts
            }

            def run_batch(rows: range, copies: dict[int, Tensor] = copies) -> Tensor:
                chosen = {n: own[rows.start : rows.stop] for n, own in copies.items()}
                return explained.for_example(example)(call.with_copies(example, chosen))

            scores = loop.run(len(some) * n_samples, run_batch, advance)
            samples = scores.reshape(len(some), n_samples, -1).transpose(0, 1)
            for number, part in parts:
                own_labels: Any = part.regions.labels  # type: ignore[attr-defined]
                here = [n for n, label in enumerate(some) if label in own_labels]
                members = [own_labels.index(some[n]) for n in here]
                regions = torch.tensor(members, device=scores.device)
                self.known[number].put(example, regions, samples[:, here], explained.kind)


class Chunk(NamedTuple):
    """Regions whose fills are made together: windows, their numbers among all, and this rank's
    regions, counted in the chunk."""

    windows: Windows
    members: Integers
    own: range


def rank_chunks(
    regions: Regions,
    example: int,
    values_per_pixel: int,
    in_batch: int,
    ranks: Ranks,
    left_out: frozenset[int] = frozenset(),
) -> list[Chunk]:
    """This rank's share of the regions of an example: consecutive batches, as many as any other
    rank has, or one less, so that it fills few chunks.

    ``values_per_pixel`` are the numbers in each pixel of a fill, times samples, and ``in_batch``
    the regions in a batch. Regions of a mask with the labels ``left_out`` are run elsewhere.
    """
    chunks = []
    for windows, members in zip(regions.boxes(example), regions.members(example), strict=True):
        if left_out:
            labels = np.array(regions.labels)  # type: ignore[attr-defined]
            kept = np.flatnonzero(~np.isin(labels[members], list(left_out)))
            windows, members = windows.pick(kept), members[kept]
        for start, stop in fill_chunks(windows, values_per_pixel):
            chunks.append(Chunk(windows[start:stop], members[start:stop], range(stop - start)))
    n_batches = [math.ceil(len(chunk.own) / in_batch) for chunk in chunks]
    low, high = (sum(n_batches) * rank // ranks.count for rank in (ranks.rank, ranks.rank + 1))
    found = []
    for chunk, count in zip(chunks, n_batches, strict=True):
        if own := chunk.own[max(0, low) * in_batch : max(0, high) * in_batch]:
            found.append(chunk._replace(own=own))
        low, high = low - count, high - count
    return found


def fill_chunks(windows: Windows, values_per_pixel: int) -> Iterator[tuple[int, int]]:
    """The ranges of windows whose fills fit in memory together."""
    size = max(1, VALUES_PER_CHUNK // (values_per_pixel * math.prod(windows.window)))
    for start in range(0, len(windows), size):
        yield start, min(start + size, len(windows))


def agree_on_plan(
    plan: Plan,
    sampling: Sampling,
    rows: int | None,
    measure: Measure,
    modules: Iterable[Module],
    prior: object,
    ranks: Ranks,
) -> Sampling:
    """The sampling with the first rank's seed; refuses ranks with other arguments or models."""
    if ranks.count == 1:
        return sampling
    explained, call = plan.explained, plan.parts[0].place.call
    with ranks.failing_together():
        arguments = (
            [(p.place.name, p.place.needs, p.tensor, p.context.name) for p in plan.parts],
            [part.regions.settings() for part in plan.parts],
            (explained.output_shape, explained.columns, explained.region),
            explained.kind.settings(),
            (sampling.n_samples, sampling.stopping.tolerance if sampling.stopping else None),
            (rows, call.given[0].device.type, measure.settings()),
        )
        given = {
            "arguments": repr(arguments),
            "inputs": [device_sync.checksum(tensor) for tensor in call.given],
            "weights of the model": weights_checksum(modules),
            "priors (such as fitted to different data)": repr(prior_settings(prior)),
        }
    told = ranks.gather([given, sampling.seed])
    first, seed = told[0]
    for what in given:
        if any(other[what] != first[what] for other, _ in told):
            raise ValueError(
                f"the ranks of the process_group were given different {what}; all of them explain "
                "the same inputs together, so give each the same ones (without a process_group, "
                "each rank explains its own)"
            )
    # Scores may differ by rounding, since ranks may have different processors.
    scores = ranks.sum(plan.seen if ranks.rank == 0 else torch.zeros_like(plan.seen))
    largest = float(scores.abs().nan_to_num(0, 0, 0).max()) if scores.numel() else 0.0
    same = torch.isclose(plan.seen, scores, rtol=0, equal_nan=True, atol=MODEL_ROUNDING * largest)
    if not all(agrees for (agrees,) in ranks.gather([bool(same.all())])):
        raise ValueError(
            "the ranks of the process_group get different outputs from their models for the same "
            "inputs; give all of them the same model in the same state, one that draws no random "
            "numbers"
        )
    return replace(sampling, seed=seed)


#: The seconds from which a run without a progress bar warns that it is long.
LONG_SECONDS = 60.0
#: Passes are timed for this many seconds before an estimate is shown, and for more if they are
#: fewer than this share of all passes, because the time of their fills counts too.
FEWEST_SECONDS, ENOUGH_SECONDS, ENOUGH_PASSES = 1.0, 5.0, 0.05


class ProgressBar(tqdm):  # type: ignore[misc]
    """Counts forward passes and estimates their time.

    Args:
        total: the number of passes.
        title: the bar's title; None shows no bar.
        warns: whether to warn, once in a process, of a long run without a bar.
        clock: returns the time in seconds.
        n_short: how many passes at the end are much faster than the others.
    """

    was_told = False  #: Whether this process was told that a run is long.

    def __init__(
        self,
        total: int,
        title: str | None,
        warns: bool = False,
        clock: Callable[[], float] = time.perf_counter,
        n_short: int = 0,
    ) -> None:
        self._n_passes, self._n_short, self._title = total, n_short, title
        self._warns = warns and title is None
        self._clock = clock
        self._n_done, self._start = 0, clock()
        #: When the first batch was done, and its passes; the first batch also includes the setup.
        self._measured_from: tuple[float, int] | None = None
        # No time yet, because a model's first pass may be much slower than the others.
        described = None if title is None else f"{title}: {costs(total, 0)}"
        # Without tqdm's own estimate, which assumes that all passes take equally long.
        shown = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
        super().__init__(total=total, desc=described, disable=title is None, bar_format=shown)

    def update(self, n: float | None = 1) -> bool | None:
        """Count passes that are done, and show the estimate as soon as there is one."""
        self._n_done += int(n or 0)
        now = self._clock()
        start, first = self._measured_from = self._measured_from or (now, self._n_done)
        measured = self._n_done - first
        is_enough = measured >= ENOUGH_PASSES * self._n_passes
        if measured and now - start >= (FEWEST_SECONDS if is_enough else ENOUGH_SECONDS):
            per_pass = (now - start) / measured
            n_long = max(0, self._n_passes - self._n_short - self._n_done)
            seconds = now - self._start + per_pass * n_long
            self.expect(seconds, refresh=False)
            if self._warns and seconds > LONG_SECONDS and not type(self).was_told:
                type(self).was_told = True
                warn_user(
                    f"this will take a while: {costs(self._n_passes, seconds)}. Pass "
                    "show_progress=True to watch it, and fewer superpixels or larger strides for "
                    "fewer passes. This warning is given once."
                )
            self._warns = False
        shown: bool | None = super().update(n)
        return shown

    def expect(self, seconds: float, refresh: bool = True) -> None:
        """Show how long all passes take."""
        if self._title is not None:
            said = costs(self._n_passes, seconds)
            self.set_description_str(f"{self._title}: {said}: ", refresh)


def costs(n_passes: int, seconds: float) -> str:
    """What a run costs, in words: "1,760 passes, about 25 s"."""
    passes = counted(n_passes, "pass", "passes")
    if seconds < 1:
        return passes
    for unit, length in (("s", 1), ("min", 60)):
        if seconds < 120 * length:
            return f"{passes}, about {seconds / length:.0f} {unit}"
    return f"{passes}, about {seconds / 3600:.0f} h"
