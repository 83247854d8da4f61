"""The engine that tries the incremental one on a few windows, and goes on with the better one."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from captum_pda.basics import device_sync
from captum_pda.basics.errors import warn_user
from captum_pda.engines.batch_size import BatchSize
from captum_pda.engines.dense import DenseEngine
from captum_pda.engines.engine_protocol import Advance, Forward, PreparedEngine, Read
from captum_pda.engines.incremental.engine import IncrementalEngine, PreparedIncremental
from captum_pda.engines.report import EngineReport
from captum_pda.regions.protocol import Windows

#: Windows that both engines run, to be compared.
PROBED = 6
#: Copies on which the incremental engine is timed, since its calls cost time for few copies too.
TIMED = 18
#: Fewer copies than this are done sooner than a probe pays.
WORTH_A_PROBE = 16 * PROBED
#: The incremental engine must be this much faster in the probe.
WORTH_IT = 1.1
#: Differences of this many units of rounding are no surprise; half precision is coarse enough.
ROUNDINGS, AT_MOST = 1e3, 0.05


class AutoEngine:
    """Chooses between the dense and the incremental engine by trying both on a few windows.

    The choice holds for inputs of the same shape and windows, and ``report`` says what was chosen
    last, and why.
    """

    def __init__(self) -> None:
        self.report: EngineReport | None = None
        self.choices: dict[Any, EngineReport] = {}

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

    @property
    def unfinished(self) -> Tensor | None:
        """What the chosen engine has finished of the windows that it runs now."""
        return getattr(self._chosen, "unfinished", None)

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        if self._chosen is None:
            self._chosen = self._choose(grid, fills)
        return self._chosen.scores(grid, fills, read, advance)

    def _choose(self, grid: Windows, fills: Tensor) -> PreparedEngine:
        arguments = (self._forward, self._example, self._batch_size)
        dense = DenseEngine().prepare(*arguments)
        incremental = IncrementalEngine().prepare(*arguments)
        kind = (self._example.shape, self._example.dtype, self._example.device, grid.window)
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
        self,
        grid: Windows,
        fills: Tensor,
        dense: PreparedEngine,
        incremental: PreparedIncremental,
    ) -> EngineReport:
        """Run both engines on a few windows, at the border and in the middle."""
        half, middle = PROBED // 2, len(grid) // 2
        parts = [slice(0, half), slice(middle, middle + half)]
        timed = slice(middle, min(middle + TIMED, len(grid)))
        samples = -(-TIMED // (timed.stop - timed.start))
        try:
            # The first pass also computes the unperturbed example, so it is not timed.
            _, outputs = _outputs(incremental, grid, fills, parts)
            incremental_time, timed_outputs = _outputs(incremental, grid, fills, [timed], samples)
        except Exception as error:  # what can go wrong is up to the model; dense shows if it is it
            return EngineReport("dense", f"the incremental engine failed: {error}")
        dense_time, expected = _outputs(dense, grid, fills, parts)
        difference, tolerance = _difference(outputs, expected), _tolerance(expected)
        facts: dict[str, Any] = {
            "speed_up": (dense_time / len(expected)) / (incremental_time / len(timed_outputs)),
            "largest_difference": difference,
            "goes_dense": dict(incremental.run.went_dense),
        }
        if not difference <= tolerance:
            warn_user(
                "the incremental engine's outputs differ from the dense engine's by "
                f"{difference:.1e} of their size, where rounding explains {tolerance:.1e}; using "
                "the dense engine. Pass engine='dense' to silence this."
            )
            return EngineReport("dense", "the incremental engine disagrees", **facts)
        if facts["speed_up"] < WORTH_IT:
            return EngineReport("dense", "the incremental engine is no faster here", **facts)
        return EngineReport("incremental", "faster, and it agrees with dense", **facts)


def _outputs(
    engine: PreparedEngine, grid: Windows, fills: Tensor, parts: list[slice], samples: int = 1
) -> tuple[float, Tensor]:
    """The time that some fills of some windows take, and the model's outputs for them."""
    start = time.perf_counter()
    outputs = torch.cat(
        [
            engine.scores(grid[part], fills[:samples, part], _everything, _nothing).flatten(0, 1)
            for part in parts
        ]
    )
    device_sync.all_finite(outputs)  # waits for the device
    return time.perf_counter() - start, outputs


def _everything(outputs: Tensor) -> Tensor:
    return outputs.flatten(1) if outputs.dim() > 1 else outputs.unsqueeze(1)


def _nothing(rows: int) -> None:
    """No progress is shown."""


def _difference(outputs: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the outputs' size."""
    outputs, expected = outputs.double(), expected.double()
    # Where both are infinite or not numbers they agree.
    difference = torch.where(outputs == expected, 0, outputs - expected).abs()
    difference = difference[~(outputs.isnan() & expected.isnan())]
    size = (
        torch.nan_to_num(expected, 0, 0, 0).abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    )
    return float(difference.max() / size) if difference.numel() else 0.0


def _tolerance(outputs: Tensor) -> float:
    """How far apart rounding may take two engines."""
    kind = outputs.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else outputs.dtype
    return min(ROUNDINGS * torch.finfo(dtype).eps, AT_MOST)
