"""The engine that tries the incremental one on a few windows, and goes on with the better one."""

from __future__ import annotations

import operator
import time
from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines.audit import AuditedEngine, audit_of
from captum_pda.engines.batch_size import BatchSize
from captum_pda.engines.dense import DenseEngine
from captum_pda.engines.engine_protocol import Advance, Forward, PreparedEngine, Read
from captum_pda.engines.incremental.engine import IncrementalEngine
from captum_pda.engines.incremental.no_rule import IncrementalError
from captum_pda.engines.pieces import Pieces
from captum_pda.engines.report import Audit, EngineReport
from captum_pda.regions.protocol import Windows

#: Copies of a first batch on the incremental engine, whose time counts for nothing: what is done
#: once is done there, such as all that it computes for the unperturbed example.
FIRST = 4
#: Copies that each engine is timed on. For the dense one about a whole batch of photos, without a
#: first one, as the model has run before: so they cost what they would in any case.
TIMED_DENSE, TIMED_INCREMENTAL = 12, 18
#: From so many copies on the incremental engine is likely, and the dense one gets a glance first: a
#: small batch, which makes it look slower than it is. That will do where the incremental engine is
#: no faster even so, or clearly faster. It is timed on about a whole batch of photos then, in which
#: what is done once hardly counts.
MANY, GLANCE, CLEARLY, MANY_TIMED = 256, 4, 2.0, 80
#: Fewer copies than this are done sooner than a probe pays, whatever the model.
WORTH_A_PROBE = 64
#: What a batch of the incremental engine costs beside its copies, in seconds, since it does each
#: layer in many small steps; and what its first batch costs, in dense passes of a copy.
SECONDS_PER_BATCH, PASSES_AT_FIRST = 0.04, 2.0
#: The incremental engine must be this much faster in the probe.
WORTH_IT = 1.1
#: Where it was this much faster, windows that are so many times as wide need no try of their own.
SURE, AS_WIDE = 1.3, 1.25
#: Why a kind of windows is run densely.
FAILED = "the incremental engine failed"
TOO_FEW = "too few windows to try another"
NO_FASTER = "the incremental engine is no faster here"
#: Why one is not.
FASTER = "it is faster here"
#: Why inputs of a kind are run densely after an audit has failed.
DISAGREED_BEFORE = "the incremental engine disagreed on another example"

clock = time.perf_counter
#: On a processor, the time that this thread was given: other programs don't make a model slower.
is_fine = time.get_clock_info("thread_time").resolution < 1e-4
processor_clock = time.thread_time if is_fine else time.perf_counter


class AutoEngine:
    """Chooses between the dense and the incremental engine by trying both on a few windows.

    The choice holds for inputs of the same shape and windows of the same shape, and ``report`` says
    what was chosen last, and why; of several sizes, for that of the most windows. What is run to
    find out is kept, so that no window is run twice.

    Args:
        patience: the share of a dense run's time that a try may cost where it is in vain. Models
            that are too quick for the number of windows are run densely at once.
    """

    def __init__(self, patience: float = 0.03) -> None:
        self.patience = patience
        self.report: EngineReport | None = None
        self.choices: dict[Any, EngineReport] = {}

    def settings(self) -> dict[str, object]:
        """What describes this engine, as plain values."""
        return {"kind": "AutoEngine"}

    def prepare(self, forward: Forward, example: Tensor, batch_size: BatchSize) -> PreparedAuto:
        return PreparedAuto(self, forward, example, batch_size)


class PreparedAuto:
    """One example; the engine is chosen for each shape of windows when the first of them come."""

    def __init__(
        self, auto: AutoEngine, forward: Forward, example: Tensor, batch_size: BatchSize
    ) -> None:
        self._auto = auto
        self._arguments = (forward, example, batch_size)
        self._kind = (example.shape, example.dtype, example.device)
        self._copies: Counter[tuple[int, ...]] = Counter()
        self._pieces: Pieces | None = None
        #: What a copy takes densely, whatever its windows; None until it was measured.
        self._dense_seconds: float | None = None

    @cached_property
    def _dense(self) -> PreparedEngine:
        return DenseEngine().prepare(*self._arguments)

    @cached_property
    def _incremental(self) -> AuditedEngine:
        return AuditedEngine(IncrementalEngine().prepare(*self._arguments), *self._arguments)

    @property
    def unfinished(self) -> Tensor | None:
        """What is finished of the windows that are run now."""
        return None if self._pieces is None else self._pieces.unfinished

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        pieces = self._pieces = Pieces(grid, fills, read, advance)
        report = self._choice(pieces)
        self._copies[grid.window] += pieces.n_copies
        if report.engine == "incremental":
            try:
                pieces.finish(self._incremental)
            except IncrementalError as error:  # of what this model does with other values
                report = EngineReport("dense", f"{FAILED}: {error}")
                self._auto.choices[(*self._kind, grid.window)] = report
        if self._auto.report is None or self._copies.most_common(1)[0][0] == grid.window:
            self._auto.report = report
        scores = pieces.finish(self._dense)
        self._pieces = None
        return scores

    def audit(self) -> Audit:
        """How the incremental engine's windows compare with the dense engine's."""
        audit = audit_of(self._incremental) if self._is_warm else Audit()
        if not audit.agrees:
            # From now on all of these kinds are run densely at once.
            for window in self._copies:
                self._auto.choices[(*self._kind, window)] = EngineReport("dense", DISAGREED_BEFORE)
        return audit

    def _choice(self, pieces: Pieces) -> EngineReport:
        """Which engine runs windows of this shape, and why."""
        window = pieces.grid.window
        report = self._auto.choices.get((*self._kind, window))
        if report is not None:
            return report
        if pieces.n_copies < WORTH_A_PROBE:
            return EngineReport("dense", TOO_FEW)
        report = self._known_of_others(window)
        if report is None:
            if self._dense_seconds is None:
                few = min(TIMED_DENSE, max(FIRST, pieces.n_copies // 8))
                n_copies = few if pieces.n_copies < MANY else GLANCE
                self._dense_seconds = _seconds_per_copy(self._dense, pieces, n_copies)
            if self._cost_of_a_try(self._dense_seconds) > self._auto.patience * pieces.n_copies:
                return EngineReport("dense", TOO_FEW)
            report = self._try(pieces, self._dense_seconds)
        self._auto.choices[(*self._kind, window)] = report
        return report

    def _cost_of_a_try(self, dense_seconds: float) -> float:
        """What trying the incremental engine costs in vain, in dense passes of a copy."""
        at_first, n_batches = (0.0, 1) if self._is_warm else (PASSES_AT_FIRST, 2)
        return at_first + n_batches * SECONDS_PER_BATCH / max(dense_seconds, 1e-9)

    @property
    def _is_warm(self) -> bool:
        """Whether the incremental engine has run windows of this example, of another size."""
        return "_incremental" in vars(self)

    def _known_of_others(self, window: tuple[int, ...]) -> EngineReport | None:
        """What windows of another size have taught. Larger windows leave the incremental engine
        less to save: so where it failed or was no faster, it is not for larger ones either, and
        where it was faster, it is for smaller ones and for those a little larger."""
        # A copy, since another thread may add a choice meanwhile.
        for (*kind, other), report in self._auto.choices.copy().items():
            if tuple(kind) != self._kind:
                continue
            if all(map(operator.le, other, window)):
                if report.reason.startswith(FAILED):
                    return report
                if report.speed_up is not None and report.speed_up < WORTH_IT:
                    return EngineReport("dense", f"{NO_FASTER}, as for windows of {other}")
            if report.engine == "incremental" and report.speed_up is not None:
                times = AS_WIDE if report.speed_up >= SURE else 1.0
                if all(width <= times * known for width, known in zip(window, other, strict=True)):
                    return replace(report, reason=f"{FASTER}, as for windows of {other}")
        return None

    def _try(self, pieces: Pieces, dense_seconds: float) -> EngineReport:
        """Run some windows incrementally, and compare the time."""
        are_many = pieces.n_copies >= MANY
        needs_a_first = not (self._is_warm or are_many)
        engine = self._incremental
        if are_many:
            n_copies = min(MANY_TIMED, pieces.n_copies // 4)
        else:  # few, since the other engine may be the better one
            n_copies = min(TIMED_INCREMENTAL, max(FIRST, pieces.n_copies // 16))
        try:
            if needs_a_first:
                pieces.run(engine, pieces.some(FIRST, pieces.middle))
            seconds = _seconds_per_copy(engine, pieces, n_copies)
        except Exception as error:  # what can go wrong is up to the model; dense shows if it is it
            return EngineReport("dense", f"{FAILED}: {error}")
        speed_up = dense_seconds / max(seconds, 1e-9)
        if are_many and WORTH_IT <= speed_up < CLEARLY:
            self._dense_seconds = _seconds_per_copy(self._dense, pieces, TIMED_DENSE)
            speed_up = self._dense_seconds / max(seconds, 1e-9)
        went_dense = dict(engine.prepared.went_dense)
        if speed_up < WORTH_IT:
            return EngineReport("dense", NO_FASTER, speed_up, went_dense)
        return EngineReport("incremental", FASTER, speed_up, went_dense)


def _seconds_per_copy(engine: PreparedEngine, pieces: Pieces, n_copies: int) -> float:
    """The time that a copy takes on an engine, for windows in the middle."""
    device_sync.wait(pieces.fills)
    now = processor_clock if pieces.fills.device.type == "cpu" else clock
    start = now()
    timed = pieces.run(engine, pieces.some(n_copies, pieces.middle))
    device_sync.wait(timed)
    return (now() - start) / max(1, timed.shape[0] * timed.shape[1])
