"""The engine that tries the incremental one on a few windows and chooses the faster one."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.engines.dense import DenseEngine
from captum_pda.engines.incremental.engine import IncrementalEngine, PreparedIncremental
from captum_pda.engines.protocol import (
    Advance,
    Audit,
    BatchSize,
    Engine,
    EngineReport,
    Forward,
    IncrementalError,
    PreparedBatches,
    Read,
)
from captum_pda.fingerprints import fingerprint, own_code
from captum_pda.model.inputs import check_choice
from captum_pda.regions.protocol import Windows

ENGINES = ("auto", "dense", "incremental")
#: Copies that the dense engine is timed on, and that the incremental engine runs before it is
#: timed, since its first batch computes the maps of the unperturbed example.
PROBE = 4
#: The most copies that are timed; with fewer copies a probe would be a large part of the call.
FEWEST_COPIES = 64
#: Faster calls are not probed: a probe without success costs about two dense passes and 0.1 s
#: (benchmarks/small_calls.py).
MIN_SECONDS = 6.0
#: The speed-up that the incremental engine must have in the probe.
MIN_SPEED_UP = 1.1


class AutoEngine:
    """Chooses between the dense and the incremental engine by trying both on a few windows.

    The choice holds for inputs and windows of the same shapes. ``report`` has the last choice and
    its reason; with several sizes, for the one with the most windows. No window is run twice. Calls
    that take the dense engine less than ``min_seconds`` are run densely without a trial.
    """

    def __init__(self, min_seconds: float = MIN_SECONDS) -> None:
        self.min_seconds = min_seconds
        self.report: EngineReport | None = None
        #: By kind of input and shape of windows; without windows for all of them.
        self.choices: dict[Any, EngineReport] = {}

    def settings(self) -> dict[str, object]:
        return {"kind": "AutoEngine"}

    def prepare(self, forward: Forward, example: Tensor, batch_size: BatchSize) -> PreparedAuto:
        return PreparedAuto(self, forward, example, batch_size)


class PreparedAuto:
    """One example; the engine is chosen for each shape of windows when it first occurs."""

    def __init__(
        self, auto: AutoEngine, forward: Forward, example: Tensor, batch_size: BatchSize
    ) -> None:
        self._auto = auto
        self._arguments = (forward, example, batch_size)
        self._kind = (example.shape, example.dtype, example.device)
        self._dense = DenseEngine().prepare(*self._arguments)
        self._incremental: PreparedIncremental | None = None
        self._copies: Counter[tuple[int, ...]] = Counter()
        #: The time of a dense copy; None until it is measured.
        self._dense_seconds: float | None = None
        #: While ``scores`` runs, what it will return, with NaN for what is still to come.
        self.unfinished: Tensor | None = None

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        if not len(grid):
            raise ValueError("the grid has no windows")
        self.unfinished = None
        # Windows in the middle go first: they are timed.
        waiting = np.roll(np.arange(len(grid)), -(len(grid) // 2))

        def run(engine: PreparedBatches, n_copies: int | None = None) -> float:
            """Run some windows, by default all that are left; the time that a copy takes."""
            nonlocal waiting
            numbers = waiting[: -(-n_copies // len(fills))] if n_copies else np.sort(waiting)
            if not len(numbers):
                return 0.0
            advanced: list[int] = []

            def count(n: int) -> None:
                advanced.append(n)
                advance(n)

            device_sync.wait(fills)
            start = _now(fills.device)
            picked = torch.from_numpy(numbers).to(fills.device)
            found: Tensor | None = None
            try:
                found = engine.scores(grid.pick(numbers.tolist()), fills[:, picked], read, count)
            except Exception:
                advance(-sum(advanced))  # another engine may run them again
                raise
            finally:
                some = engine.unfinished if found is None else found
                if some is not None:
                    if self.unfinished is None:
                        shape = len(some), len(grid), some.shape[2]
                        self.unfinished = some.new_full(shape, math.nan)
                    self.unfinished[:, picked] = some
            waiting = waiting[~np.isin(waiting, numbers)]
            device_sync.wait(found)
            return (_now(fills.device) - start) / (len(numbers) * len(fills))

        n_copies = len(fills) * len(grid)
        report = self._choice(grid.window, n_copies, run)
        self._copies[grid.window] += n_copies
        if report.engine == "incremental":
            try:
                run(self._incremental_engine())
            except IncrementalError as error:  # the model does something else with other values
                report = self._always_dense(f"the incremental engine failed: {error}")
        if self._auto.report is None or self._copies.most_common(1)[0][0] == grid.window:
            self._auto.report = report
        run(self._dense)
        scores, self.unfinished = cast(Tensor, self.unfinished), None
        return scores

    def audit(self) -> Audit:
        audit = Audit() if self._incremental is None else self._incremental.audit()
        if not audit.agrees:
            self._always_dense("the incremental engine disagreed on another example")
        return audit

    def _always_dense(self, reason: str) -> EngineReport:
        report = self._auto.choices[self._kind] = EngineReport("dense", reason)
        return report

    def _incremental_engine(self) -> PreparedIncremental:
        if self._incremental is None:
            self._incremental = IncrementalEngine().prepare(*self._arguments)
        return self._incremental

    def _choice(
        self, window: tuple[int, ...], n_copies: int, run: Callable[..., float]
    ) -> EngineReport:
        choices, key = self._auto.choices, (self._kind, window)
        report = choices.get(self._kind) or choices.get(key)
        if report is not None:
            return report
        too_few = EngineReport("dense", "too few windows to try another")
        if n_copies < FEWEST_COPIES:
            return too_few
        if self._dense_seconds is None:
            self._dense_seconds = run(self._dense, PROBE)
        # Once the unperturbed maps are there, another size is tried at the cost of one batch.
        is_first = self._incremental is None
        if self._dense_seconds * n_copies < self._auto.min_seconds and is_first:
            return too_few
        engine = self._incremental_engine()
        try:
            if is_first:
                run(engine, PROBE)
            seconds = run(engine, min(FEWEST_COPIES, max(PROBE, n_copies // 16)))
        except Exception as error:  # any error of the model; if it is its own, dense raises it too
            return self._always_dense(f"the incremental engine failed: {error}")
        speed_up = self._dense_seconds / max(seconds, 1e-9)
        chosen, reason = "incremental", "it is faster here"
        if speed_up < MIN_SPEED_UP:
            chosen, reason = "dense", "the incremental engine is no faster here"
        choices[key] = EngineReport(chosen, reason, speed_up, dict(engine.went_dense))
        return choices[key]


def _now(device: torch.device) -> float:
    """Seconds; on a CPU those of this thread, to exclude other programs."""
    # On some systems the resolution of thread times is 16 ms.
    if device.type == "cpu" and time.get_clock_info("thread_time").resolution < 1e-4:
        return time.thread_time()
    return time.perf_counter()


def engine_for(engine: str | Engine) -> Engine:
    """The engine of this name, or the given engine."""
    if not isinstance(engine, str) and isinstance(engine, Engine):
        return engine
    check_choice("engine", engine, ENGINES)
    if engine == "auto":
        return AutoEngine()
    return IncrementalEngine() if engine == "incremental" else DenseEngine()


def engine_settings(engine: Engine) -> dict[str, object]:
    """The settings of an engine as plain values; an engine without ``settings()`` is identified by
    its class and a hash of its code and attributes."""
    if callable(getattr(engine, "settings", None)):
        return {**engine.settings(), **own_code(engine)}  # type: ignore[attr-defined]
    return {"kind": type(engine).__qualname__, "sha256": fingerprint(engine)}
