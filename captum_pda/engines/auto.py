"""The engine that tries the incremental one on a few windows, and goes on with the better one."""

from __future__ import annotations

import operator
import time
from collections import Counter
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from captum_pda.basics import device_sync
from captum_pda.engines.audit import AuditedEngine, audit_of
from captum_pda.engines.batch_size import BatchSize
from captum_pda.engines.dense import DenseEngine
from captum_pda.engines.engine_protocol import Advance, Forward, PreparedEngine, Read
from captum_pda.engines.incremental.engine import IncrementalEngine
from captum_pda.engines.report import Audit, EngineReport
from captum_pda.regions.protocol import Windows

#: Windows that both engines run, to be compared.
PROBED = 6
#: Copies on which the incremental engine is timed, since its calls cost time for few copies too.
TIMED = 18
#: Fewer copies than this are done sooner than a probe pays.
WORTH_A_PROBE = 16 * PROBED
#: The incremental engine must be this much faster in the probe.
WORTH_IT = 1.1
#: Why a kind of windows is run densely.
NO_FASTER = "the incremental engine is no faster here"
#: Why inputs of a kind are run densely after an audit has failed.
DISAGREED_BEFORE = "the incremental engine disagreed on another example"


class AutoEngine:
    """Chooses between the dense and the incremental engine by trying both on a few windows.

    The choice holds for inputs of the same shape and windows of the same shape, and ``report`` says
    what was chosen last, and why; of several sizes, for that of the most windows.
    """

    def __init__(self) -> None:
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
        self._running: PreparedEngine | None = None

    @cached_property
    def _dense(self) -> PreparedEngine:
        return DenseEngine().prepare(*self._arguments)

    @cached_property
    def _incremental(self) -> AuditedEngine:
        return AuditedEngine(IncrementalEngine().prepare(*self._arguments), *self._arguments)

    @property
    def unfinished(self) -> Tensor | None:
        """What the chosen engine has finished of the windows that it runs now."""
        return getattr(self._running, "unfinished", None)

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        report = self._choice(grid, fills)
        self._copies[grid.window] += fills.shape[0] * fills.shape[1]
        if self._auto.report is None or self._copies.most_common(1)[0][0] == grid.window:
            self._auto.report = report
        self._running = self._incremental if report.engine == "incremental" else self._dense
        return self._running.scores(grid, fills, read, advance)

    def audit(self) -> Audit:
        """How the incremental engine's windows compare with the dense engine's."""
        audit = audit_of(self._incremental) if "_incremental" in vars(self) else Audit()
        if not audit.agrees:
            # From now on all of these kinds are run densely at once.
            for window in self._copies:
                self._auto.choices[(*self._kind, window)] = EngineReport("dense", DISAGREED_BEFORE)
        return audit

    def _choice(self, grid: Windows, fills: Tensor) -> EngineReport:
        """Which engine runs windows of this shape, and why."""
        choices = self._auto.choices
        report = choices.get((*self._kind, grid.window))
        if report is not None:
            return report
        if fills.shape[0] * fills.shape[1] < WORTH_A_PROBE:
            return EngineReport("dense", "too few windows to try another")
        report = self._slower_for_smaller(grid.window) or self._try(grid, fills)
        choices[(*self._kind, grid.window)] = report
        return report

    def _slower_for_smaller(self, window: tuple[int, ...]) -> EngineReport | None:
        """What was found for smaller windows where the incremental engine was no faster: larger
        ones leave it less to save."""
        for (*kind, smaller), report in self._auto.choices.items():
            fits = all(map(operator.le, smaller, window))
            slower = report.speed_up is not None and report.speed_up < WORTH_IT
            if tuple(kind) == self._kind and fits and slower:
                return EngineReport("dense", f"{NO_FASTER}, as for windows of {smaller}")
        return None

    def _try(self, grid: Windows, fills: Tensor) -> EngineReport:
        """Run both engines on a few windows, at the border and in the middle."""
        half, middle = PROBED // 2, len(grid) // 2
        parts = [slice(0, half), slice(middle, middle + half)]
        timed = slice(middle, min(middle + TIMED, len(grid)))
        samples = -(-TIMED // (timed.stop - timed.start))
        engine = self._incremental.prepared
        try:
            # The first pass also computes the unperturbed example, so it is not timed.
            _seconds_per_copy(engine, grid, fills, parts)
            incremental_time = _seconds_per_copy(engine, grid, fills, [timed], samples)
        except Exception as error:  # what can go wrong is up to the model; dense shows if it is it
            return EngineReport("dense", f"the incremental engine failed: {error}")
        speed_up = _seconds_per_copy(self._dense, grid, fills, parts) / incremental_time
        went_dense = dict(engine.went_dense)
        if speed_up < WORTH_IT:
            return EngineReport("dense", NO_FASTER, speed_up, went_dense)
        return EngineReport("incremental", "it is faster here", speed_up, went_dense)


def _seconds_per_copy(
    engine: PreparedEngine, grid: Windows, fills: Tensor, parts: list[slice], samples: int = 1
) -> float:
    """The time that some fills of some windows take."""
    start = time.perf_counter()
    outputs = [
        engine.scores(grid[part], fills[:samples, part], _everything, _nothing).flatten(0, 1)
        for part in parts
    ]
    device_sync.all_finite(torch.cat(outputs))  # waits for the device
    return (time.perf_counter() - start) / sum(map(len, outputs))


def _everything(outputs: Tensor) -> Tensor:
    return outputs.flatten(1) if outputs.dim() > 1 else outputs.unsqueeze(1)


def _nothing(rows: int) -> None:
    """No progress is shown."""
