"""Every incremental run is checked: a few of its windows are run densely too, and compared.

What counts is the map, so differences are measured by the spread of the windows' effects. Where
one is too large for single precision, the dense engine's own rounding is measured too: half
precision may round by more than a window does.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from captum_pda.basics import device_sync
from captum_pda.basics.errors import warn_user
from captum_pda.engines.batch_size import BatchSize
from captum_pda.engines.dense import DenseEngine, PreparedDense
from captum_pda.engines.engine_protocol import Advance, Forward, PreparedEngine, Read
from captum_pda.engines.incremental.engine import PreparedIncremental
from captum_pda.engines.picked_copies import PickedCopies, PickedCopy, Spread, kind_of
from captum_pda.engines.report import Audit
from captum_pda.regions.protocol import Windows

#: The share of a run's time that its audit may take, from so many windows on. In smaller runs so
#: many windows are compared whatever they cost, and one of each size.
SHARE_OF_TIME, MANY_WINDOWS, FEWEST_COMPARED = 0.015, 500, 2
#: Differences up to this share of the spread of the windows' effects are of no account ...
TOLERATED = 2e-3
#: ... nor are so many units of rounding of single precision, of the size of outputs and scores ...
UNITS_OF_ROUNDING = 32
#: ... nor what is up to so many times the rounding of a few dense passes.
TIMES_ROUNDING = 15.0
#: Rounding of this share of the spread and more makes a map hard to read.
NOISY = 0.25
#: Precision of the activations that dynamic quantisation rounds to eight bits.
QUANTISED = 2.0**-8

clock = time.perf_counter


def audited(
    prepared: PreparedEngine, forward: Forward, example: Tensor, batch_size: BatchSize
) -> PreparedEngine:
    """An engine as it was prepared, with an audit if it is one that needs it."""
    if isinstance(prepared, PreparedIncremental):
        return AuditedEngine(prepared, forward, example, batch_size)
    return prepared


def audit_of(prepared: PreparedEngine) -> Audit:
    """Compare some of what an engine has run with the dense engine, where it has an audit."""
    audit = getattr(prepared, "audit", None)
    found: Audit = Audit() if audit is None else audit()
    return found


def warn_of_disagreement(audit: Audit | None) -> None:
    """Tell the user that the map is run again."""
    found = f"; {audit}" if audit is not None and audit.n_windows else " on another rank"
    warn_user(
        "the incremental engine does not find what the dense engine finds, so all windows are run "
        f"again densely{found}. Pass engine='dense' to silence this and to save the time."
    )


def warn_of_rounding(audit: Audit | None) -> None:
    """Tell the user where a map shows rounding as much as windows."""
    if audit is None or audit.rounding is None or not audit.agrees:
        return
    if audit.rounding > NOISY:
        warn_user(
            f"two dense passes of the same window differ by {audit.rounding:.0%} of the spread of "
            "the windows' effects, so the map shows rounding (or the model's own randomness) as "
            "much as evidence, on any engine. Explain the model in single precision, such as "
            "model.float(), or hide larger windows."
        )


class AuditedEngine:
    """An incremental engine for one example that can say whether it agrees with the dense one."""

    def __init__(
        self,
        prepared: PreparedIncremental,
        forward: Forward,
        example: Tensor,
        batch_size: BatchSize,
    ) -> None:
        self.prepared = prepared
        self._forward = forward
        self._example = example
        self._batch_size = batch_size
        self._picked = PickedCopies()
        self._spreads: dict[Hashable, Spread] = {}
        self._n_copies = 0
        self._seconds = 0.0
        self._read: Read

    @property
    def unfinished(self) -> Tensor | None:
        """What the engine has finished of the windows that it runs now."""
        return self.prepared.unfinished

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        start = clock()
        scores = self.prepared.scores(grid, fills, read, advance)
        self._seconds += clock() - start
        self._n_copies += scores.shape[0] * scores.shape[1]
        self._read = read
        self._picked.offer(grid, fills, scores)
        self._spreads.setdefault(kind_of(grid), Spread()).add(scores.flatten(0, 1))
        return scores

    def audit(self) -> Audit:
        """Run some of the windows densely too, and compare."""
        copies = self._picked.spread_out()
        if not copies:
            return Audit()
        dense = DenseRuns(self._forward, self._example, self._batch_size, self._read)
        compared, expected = self._run_densely(copies, dense)
        sizes = [torch.maximum(self._spreads[copy.kind].value(), dense.unit) for copy in compared]
        size = torch.stack(sizes)
        share = _difference(torch.cat([copy.scores for copy in compared]), expected) / size
        largest, n_compared = device_sync.as_float(share.max()), len(compared)
        if self.prepared.approximate:
            return Audit(n_compared, largest, approximate=True)
        allowed = (dense.unit / size).clamp_min(TOLERATED)
        if device_sync.as_float((share / allowed).max()) <= 1:
            return Audit(n_compared, largest)
        rounding = self._rounding(copies[: max(FEWEST_COMPARED, n_compared)], dense)
        typical = _root_mean_square(rounding)
        allowed = torch.maximum(allowed, TIMES_ROUNDING * torch.maximum(rounding, typical))
        agrees = device_sync.as_float((share / allowed).max()) <= 1
        return Audit(n_compared, largest, device_sync.as_float(typical), agrees)

    def _run_densely(
        self, copies: list[PickedCopy], dense: DenseRuns
    ) -> tuple[list[PickedCopy], Tensor]:
        """As many of the copies as there is time for, and their scores, (copies, columns)."""
        start = clock()
        device_sync.all_finite(copies[0].scores)  # waits for the device
        budget = SHARE_OF_TIME * (self._seconds + clock() - start)
        start = clock()
        expected = [dense.scores(copies[0])]
        device_sync.all_finite(expected[0])
        affordable = int(budget / max(clock() - start, 1e-9))
        fewest = max(FEWEST_COMPARED, self._picked.n_kinds)
        if self._n_copies >= MANY_WINDOWS:
            fewest = 1
        compared = copies[: max(fewest, affordable)]
        expected += [dense.scores(copy) for copy in compared[1:]]
        return compared, torch.cat(expected)

    def _rounding(self, copies: list[PickedCopy], dense: DenseRuns) -> Tensor:
        """What rounding does to the dense engine's scores, as a share of the spread, (columns,)."""
        batched: list[Tensor] = []
        jittered: list[Tensor] = []
        for copy in copies[:FEWEST_COMPARED]:
            expected = dense.scores(copy)
            spread = torch.maximum(self._spreads[copy.kind].value(), dense.unit)
            batched.append(_difference(dense.in_another_batch(copy), expected) / spread)
            jittered += [
                _difference(dense.jittered(copy, seed), expected) / spread for seed in range(2)
            ]
        return torch.maximum(
            *(torch.cat(some).square().mean(0).sqrt() for some in (batched, jittered))
        )


class DenseRuns:
    """Dense passes of single copies, and what can be seen on the way."""

    def __init__(
        self, forward: Forward, example: Tensor, batch_size: BatchSize, read: Read
    ) -> None:
        self._forward = forward
        self._example = example
        self._batch_size = batch_size
        self._read = read
        self._prepared = self._prepare(example)
        #: The difference that rounding in single precision makes to scores of this size.
        self.unit = torch.zeros((), device=example.device)
        self._eps = 0.0

    def scores(self, copy: PickedCopy) -> Tensor:
        """The scores of a copy, (1, columns)."""
        found = self._prepared.scores(copy.windows, copy.fill, self._read_and_watch, _nothing)[0]
        self._see(found)
        return found

    def in_another_batch(self, copy: PickedCopy) -> Tensor:
        """The scores of a copy run beside another, since a model may round by its whole batch."""
        together = torch.cat([copy.fill, copy.fill.flip(-1)])
        windows = copy.windows
        with CoarsestPrecision() as precision:
            found = self._prepared.scores(windows, together, self._read, _nothing)[0]
        self._eps = precision.eps
        kind = self._example.device.type
        if torch.is_autocast_enabled(kind):
            self._eps = max(self._eps, torch.finfo(torch.get_autocast_dtype(kind)).eps)
        return found

    def jittered(self, copy: PickedCopy, seed: int) -> Tensor:
        """The scores of a copy with all its values changed by about one unit of the lowest
        precision that the model computes in."""
        prepared = self._prepare(_jittered(self._example, self._eps, seed))
        fill = _jittered(copy.fill, self._eps, seed + 2)
        return prepared.scores(copy.windows, fill, self._read, _nothing)[0]

    def _prepare(self, example: Tensor) -> PreparedDense:
        return DenseEngine().prepare(self._forward, example, self._batch_size)

    def _read_and_watch(self, outputs: Tensor) -> Tensor:
        self._see(outputs)
        return self._read(outputs)

    def _see(self, values: Tensor) -> None:
        eps = torch.finfo(torch.promote_types(values.dtype, torch.float32)).eps
        size = values.detach().abs().nan_to_num(0, 0, 0).max()
        self.unit = torch.maximum(self.unit, UNITS_OF_ROUNDING * eps * size)


class CoarsestPrecision(TorchFunctionMode):
    """Sees the lowest precision in which anything is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and look at the type of its result."""
        result = func(*args, **(kwargs or {}))
        if "quantized" in str(func):
            self.eps = max(self.eps, QUANTISED)
        elif isinstance(result, Tensor) and result.is_floating_point():
            self.eps = max(self.eps, torch.finfo(result.dtype).eps)
        return result


def _difference(found: Tensor, expected: Tensor) -> Tensor:
    """How far scores are apart; where both are infinite or not a number, they agree."""
    same = (found == expected) | (found.isnan() & expected.isnan())
    return torch.where(same, 0, (found - expected).abs()).nan_to_num(torch.inf, torch.inf)


def _jittered(values: Tensor, eps: float, seed: int) -> Tensor:
    """Values that are each a unit of rounding larger, smaller or the same."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(-1, 2, values.shape, generator=generator, device="cpu").to(values.device)
    return values * (1 + eps * steps).to(values.dtype)


def _root_mean_square(values: Tensor) -> Tensor:
    return values.square().mean().sqrt()


def _nothing(rows: int) -> None:
    """No progress is shown."""
