"""The engine that tries the incremental one on a few windows, and goes on with the faster one."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines.audit import AuditedEngine
from captum_pda.engines.dense import DenseEngine
from captum_pda.engines.incremental.engine import IncrementalEngine
from captum_pda.engines.protocol import (
    Advance,
    Audit,
    BatchSize,
    Engine,
    EngineReport,
    Forward,
    IncrementalError,
    PreparedEngine,
    Read,
)
from captum_pda.fingerprints import fingerprint, own_code
from captum_pda.model.inputs import check_choice
from captum_pda.regions.protocol import Windows

ENGINES = ("auto", "dense", "incremental")
#: Copies that the dense engine is timed on, and that the incremental engine runs before it is
#: timed, since its first batch computes the maps of the unperturbed example.
PROBE = 4
#: With fewer copies than this a probe is a large part of the call; no more than this are timed.
FEWEST_COPIES = 64
#: Calls that take less time than this densely are not probed: a probe that does not pay costs
#: about two dense passes and 0.1 s, whatever the model (benchmarks/small_calls.py).
MIN_SECONDS = 6.0
#: The incremental engine must be this many times faster in the probe.
MIN_SPEED_UP = 1.1


class AutoEngine:
    """Chooses between the dense and the incremental engine by trying both on a few windows.

    The choice holds for inputs of the same shape and windows of the same shape. ``report`` says
    what was chosen last, and why; with several sizes, it is about the size with the most windows.
    The windows that are run to choose count, so no window is run twice.

    Args:
        min_seconds: calls that the dense engine finishes sooner than this are run densely at once.
    """

    def __init__(self, min_seconds: float = MIN_SECONDS) -> None:
        self.min_seconds = min_seconds
        self.report: EngineReport | None = None
        #: By kind of input and shape of windows; without windows for all of them.
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
        self._dense = DenseEngine().prepare(*self._arguments)
        self._incremental: AuditedEngine | None = None
        self._copies: Counter[tuple[int, ...]] = Counter()
        self._call: _Call | None = None
        #: How long a copy takes densely, whatever its windows; None until it was measured.
        self._dense_seconds: float | None = None

    @property
    def unfinished(self) -> Tensor | None:
        """While ``scores`` runs, what it will return, with NaN for what is still to come."""
        return None if self._call is None else self._call.unfinished

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        call = self._call = _Call(grid, fills, read, advance)
        report = self._choice(call)
        self._copies[grid.window] += call.n_copies
        if report.engine == "incremental":
            try:
                call.finish(self._incremental_engine())
            except IncrementalError as error:  # the model does something else with other values
                report = self._always_dense(f"the incremental engine failed: {error}")
        if self._auto.report is None or self._copies.most_common(1)[0][0] == grid.window:
            self._auto.report = report
        scores = call.finish(self._dense)
        self._call = None
        return scores

    def audit(self) -> Audit:
        """How the incremental engine's windows compare with the dense engine's."""
        audit = Audit() if self._incremental is None else self._incremental.audit()
        if not audit.agrees:
            self._always_dense("the incremental engine disagreed on another example")
        return audit

    def _always_dense(self, reason: str) -> EngineReport:
        """From now on run inputs of this shape densely at once."""
        report = self._auto.choices[self._kind] = EngineReport("dense", reason)
        return report

    def _incremental_engine(self) -> AuditedEngine:
        if self._incremental is None:
            prepared = IncrementalEngine().prepare(*self._arguments)
            self._incremental = AuditedEngine(prepared, *self._arguments)
        return self._incremental

    def _choice(self, call: _Call) -> EngineReport:
        """Which engine runs windows of this shape, and why."""
        choices, key = self._auto.choices, (self._kind, call.grid.window)
        report = choices.get(self._kind) or choices.get(key)
        if report is not None:
            return report
        too_few = EngineReport("dense", "too few windows to try another")
        if call.n_copies < FEWEST_COPIES:
            return too_few
        if self._dense_seconds is None:
            self._dense_seconds = call.seconds_per_copy(self._dense, PROBE)
        # With the unperturbed maps at hand, another size is tried at the cost of one batch.
        is_first = self._incremental is None
        if self._dense_seconds * call.n_copies < self._auto.min_seconds and is_first:
            return too_few
        engine = self._incremental_engine()
        try:
            if is_first:
                call.seconds_per_copy(engine, PROBE)
            n_timed = min(FEWEST_COPIES, max(PROBE, call.n_copies // 16))
            seconds = call.seconds_per_copy(engine, n_timed)
        except Exception as error:  # any error of the model; if it is its own, dense raises it too
            return self._always_dense(f"the incremental engine failed: {error}")
        speed_up = self._dense_seconds / max(seconds, 1e-9)
        chosen, reason = "incremental", "it is faster here"
        if speed_up < MIN_SPEED_UP:
            chosen, reason = "dense", "the incremental engine is no faster here"
        choices[key] = EngineReport(chosen, reason, speed_up, dict(engine.prepared.went_dense))
        return choices[key]


class _Call:
    """The windows of one call of ``scores``, of which either engine runs some."""

    def __init__(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> None:
        self.grid = grid
        self.n_copies = len(fills) * len(grid)
        self._fills = fills
        self._read = read
        self._advance = advance
        self._scores: Tensor | None = None
        # Windows in the middle go first: they are timed.
        self._waiting = np.roll(np.arange(len(grid)), -(len(grid) // 2))
        self._running: tuple[PreparedEngine, Tensor] | None = None

    def seconds_per_copy(self, engine: PreparedEngine, n_copies: int) -> float:
        """Run some windows, and measure the time that a copy takes."""
        numbers = self._waiting[: -(-n_copies // len(self._fills))]
        device_sync.wait(self._fills)
        start = _now(self._fills.device)
        self._run(engine, numbers)
        if self._scores is not None:
            device_sync.wait(self._scores)
        return (_now(self._fills.device) - start) / max(1, len(numbers) * len(self._fills))

    def finish(self, engine: PreparedEngine) -> Tensor:
        """Run what is left, and return the scores of all windows, (S, W, columns)."""
        self._run(engine, np.sort(self._waiting))
        if self._scores is None:
            raise ValueError("the grid has no windows")
        return self._scores

    def _run(self, engine: PreparedEngine, numbers: Any) -> None:
        """Run the windows of these numbers, and keep their scores."""
        if not len(numbers):
            return
        picked = torch.from_numpy(numbers).to(self._fills.device)
        grid, fills = self.grid.pick(numbers.tolist()), self._fills[:, picked]
        advanced: list[int] = []

        def advance(n_copies: int) -> None:
            advanced.append(n_copies)
            self._advance(n_copies)

        self._running = engine, picked
        try:
            found = engine.scores(grid, fills, self._read, advance)
        except Exception:
            self._advance(-sum(advanced))  # another engine may run them again
            raise
        self._running = None
        self._put(picked, found)
        self._waiting = self._waiting[~np.isin(self._waiting, numbers)]

    @property
    def unfinished(self) -> Tensor | None:
        """What is known, with NaN for what is still to come."""
        if self._running is not None:
            engine, picked = self._running
            found = getattr(engine, "unfinished", None)
            if found is not None:
                self._put(picked, found)
        return self._scores

    def _put(self, picked: Tensor, found: Tensor) -> None:
        if self._scores is None:
            shape = (len(self._fills), len(self.grid), found.shape[2])
            self._scores = found.new_full(shape, math.nan)
        self._scores[:, picked] = found


def _now(device: torch.device) -> float:
    """Seconds; on a processor those of this thread, so that other programs don't count."""
    # On some systems threads are timed by ticks of 16 ms.
    if device.type == "cpu" and time.get_clock_info("thread_time").resolution < 1e-4:
        return time.thread_time()
    return time.perf_counter()


def engine_for(engine: str | Engine) -> Engine:
    """The engine of this name, or the engine object itself."""
    if not isinstance(engine, str) and isinstance(engine, Engine):
        return engine
    check_choice("engine", engine, ENGINES)
    if engine == "auto":
        return AutoEngine()
    return IncrementalEngine() if engine == "incremental" else DenseEngine()


def engine_settings(engine: Engine) -> dict[str, object]:
    """What describes an engine, as plain values; one of your own without ``settings()`` is
    identified by its class and a hash of its code and attributes."""
    if callable(getattr(engine, "settings", None)):
        return {**engine.settings(), **own_code(engine)}  # type: ignore[attr-defined]
    return {"kind": type(engine).__qualname__, "sha256": fingerprint(engine)}
