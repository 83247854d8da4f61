"""The engine that tries the incremental one on a few windows, and goes on with the better one."""

from __future__ import annotations

import time
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
#: Why inputs of a kind are run densely after an audit has failed.
DISAGREED_BEFORE = "the incremental engine disagreed on another example"


class AutoEngine:
    """Chooses between the dense and the incremental engine by trying both on a few windows.

    The choice holds for inputs of the same shape and windows, and ``report`` says what was chosen
    last, and why.
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
    """One example; the engine is chosen when its first windows are known."""

    def __init__(
        self, auto: AutoEngine, forward: Forward, example: Tensor, batch_size: BatchSize
    ) -> None:
        self._auto = auto
        self._forward = forward
        self._example = example
        self._batch_size = batch_size
        self._chosen: PreparedEngine | None = None
        self._kind: Any = None

    @property
    def unfinished(self) -> Tensor | None:
        """What the chosen engine has finished of the windows that it runs now."""
        return getattr(self._chosen, "unfinished", None)

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        if self._chosen is None:
            self._chosen = self._choose(grid, fills)
        return self._chosen.scores(grid, fills, read, advance)

    def audit(self) -> Audit:
        """How the chosen engine's windows compare with the dense engine's."""
        audit = audit_of(self._chosen) if self._chosen is not None else Audit()
        if not audit.agrees:
            # From now on all of this kind is run densely at once.
            self._auto.choices[self._kind] = EngineReport("dense", DISAGREED_BEFORE)
        return audit

    def _choose(self, grid: Windows, fills: Tensor) -> PreparedEngine:
        arguments = (self._forward, self._example, self._batch_size)
        dense = DenseEngine().prepare(*arguments)
        incremental = AuditedEngine(IncrementalEngine().prepare(*arguments), *arguments)
        example = self._example
        kind = self._kind = (example.shape, example.dtype, example.device, grid.window)
        report = self._auto.choices.get(kind)
        if report is None:
            n_copies = fills.shape[0] * fills.shape[1]
            if n_copies < WORTH_A_PROBE:
                report = EngineReport("dense", "too few windows to try another")
            else:
                report = self._auto.choices[kind] = self._try(grid, fills, dense, incremental)
        self._auto.report = report
        return incremental if report.engine == "incremental" else dense

    def _try(
        self, grid: Windows, fills: Tensor, dense: PreparedEngine, incremental: AuditedEngine
    ) -> EngineReport:
        """Run both engines on a few windows, at the border and in the middle."""
        half, middle = PROBED // 2, len(grid) // 2
        parts = [slice(0, half), slice(middle, middle + half)]
        timed = slice(middle, min(middle + TIMED, len(grid)))
        samples = -(-TIMED // (timed.stop - timed.start))
        engine = incremental.prepared
        try:
            # The first pass also computes the unperturbed example, so it is not timed.
            _seconds_per_copy(engine, grid, fills, parts)
            incremental_time = _seconds_per_copy(engine, grid, fills, [timed], samples)
        except Exception as error:  # what can go wrong is up to the model; dense shows if it is it
            return EngineReport("dense", f"the incremental engine failed: {error}")
        speed_up = _seconds_per_copy(dense, grid, fills, parts) / incremental_time
        went_dense = dict(engine.run.went_dense)
        if speed_up < WORTH_IT:
            return EngineReport(
                "dense", "the incremental engine is no faster here", speed_up, went_dense
            )
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
