"""Every incremental run is checked: a few of its windows are run densely too, and compared.

What matters is the map, so differences are measured by the spread of the windows' effects. Where
one is too large for single precision, the dense engine's own rounding is measured too: half
precision may round by more than a window does.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from captum_pda import device_sync
from captum_pda.engines.batch_loop import BatchLoop, Rows
from captum_pda.engines.batch_size import BatchSize
from captum_pda.engines.engine_protocol import Advance, Forward, PreparedEngine, Read
from captum_pda.engines.incremental.engine import PreparedIncremental
from captum_pda.engines.incremental.pass_state import channels_last
from captum_pda.engines.report import Audit
from captum_pda.errors import warn_user
from captum_pda.regions.protocol import Windows

#: The share of the copies that is compared, and the fewest and most of an example. Five in each of
#: five examples miss an error in a fifth of the copies with a chance of 0.8 ** 25 = 0.4%.
SHARE_COMPARED, FEWEST_COMPARED, MOST_COMPARED = 0.01, 2, 5
#: Differences up to this share of the spread of the windows' effects are tolerated.
TOLERATED = 2e-3
#: So are differences of this many times the dense engine's own rounding.
TIMES_ROUNDING = 16.0
#: The rounding of a dense pass in single precision is at least this many units in the last place.
UNITS_OF_ROUNDING = 2.0
#: Rounding of this share of the spread and more makes a map hard to read.
NOISY = 0.25
#: The precision of activations that dynamic quantisation rounds to eight bits.
QUANTISED = 2.0**-8


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
        self._random: np.random.Generator | None = None
        self._kinds: dict[Hashable, _Kind] = {}
        self._read: Read

    @property
    def unfinished(self) -> Tensor | None:
        """What the engine has finished of the windows that it runs now."""
        return self.prepared.unfinished

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        scores = self.prepared.scores(grid, fills, read, advance)
        self._read = read
        if self._random is None:
            # Other windows in each example, and the same ones whenever it is explained again.
            contents = (self._example, fills[0, len(grid) // 2])
            seeds = [device_sync.checksum(values) for values in contents]
            self._random = np.random.default_rng(seeds)
        # Windows of one size have effects of one size; regions of any shape are one kind together.
        name = grid.window if grid.hidden is None else None
        if name not in self._kinds:
            self._kinds[name] = _Kind(len(grid.window), self._random)
        self._kinds[name].add(grid, fills, scores)
        return scores

    def audit(self) -> Audit:
        """Run some of the windows densely too, and compare."""
        picked = self._picked()
        if not picked:
            return Audit()
        dense = _DenseRuns(self._forward, self._example, self._batch_size, self._read)
        copies = torch.cat([self._copy(one) for _, one in picked])
        expected = dense.scores(copies)
        found = torch.stack([one.scores for _, one in picked])
        spread = torch.stack([kind.spread() for kind, _ in picked])
        unit = TIMES_ROUNDING * UNITS_OF_ROUNDING * dense.last_place
        size = torch.maximum(spread, unit).clamp_min(torch.finfo(spread.dtype).tiny)
        share = _difference(found, expected) / size
        largest = device_sync.as_float(share.max())
        allowed = (unit / size).clamp_min(TOLERATED)
        if device_sync.as_float((share / allowed).max()) <= 1:
            return Audit(len(picked), largest)
        rounding = dense.rounding(copies, expected, size)
        typical = rounding.square().mean().sqrt()
        allowed = torch.maximum(allowed, TIMES_ROUNDING * torch.maximum(rounding, typical))
        agrees = device_sync.as_float((share / allowed).max()) <= 1
        return Audit(len(picked), largest, device_sync.as_float(typical), agrees)

    def _picked(self) -> list[tuple[_Kind, _Picked]]:
        """The copies to compare, with their kinds: of each at least one, and else in proportion."""
        kinds = list(self._kinds.values())
        n_copies = sum(kind.n_copies for kind in kinds)
        wanted = min(MOST_COMPARED, max(FEWEST_COMPARED, math.ceil(SHARE_COMPARED * n_copies)))
        numbers = [1] * len(kinds)
        while kinds and sum(numbers) < wanted:
            share = [kind.n_copies / number for kind, number in zip(kinds, numbers, strict=True)]
            numbers[int(np.argmax(share))] += 1
        return [
            (kind, one)
            for kind, number in zip(kinds, numbers, strict=True)
            for one in kind.picked(number)
        ]

    def _copy(self, picked: _Picked) -> Tensor:
        """The example with one window replaced, (1, C, *space)."""
        copy = self._example.flatten(2).clone()
        copy[0][:, picked.pixels] = picked.fill.flatten(1)
        return copy.reshape(self._example.shape)


@dataclass(frozen=True, eq=False)
class _Picked:
    """One copy of the example, with one window replaced by one fill.

    Args:
        key: the copy with the largest random key stays.
        pixels: the flat numbers of the window's pixels.
        fill: what stands in it, (C, *window).
        scores: what the engine said, (columns,).
    """

    key: float
    pixels: Tensor
    fill: Tensor
    scores: Tensor


class _Kind:
    """Copies whose windows have one size: a few of them, and the spread of all their scores.

    The input is cut into cells, and of each cell a random copy is picked. The cells are those of a
    lattice with a random shift that goes on from the last row to the first: all are equally large,
    so any copy is as likely as another, and the first few cells are far from each other.
    """

    def __init__(self, n_dims: int, random: np.random.Generator) -> None:
        self.n_copies = 0
        self._random = random
        # The steps that spread points best: powers of the root of x ** (n + 1) = x + 1.
        root = max(np.roots([1, *[0] * (n_dims - 1), -1, -1]).real)
        steps = np.outer(np.arange(MOST_COMPARED), root ** -np.arange(1.0, n_dims + 1))
        self._centres = (random.random(n_dims) + steps) % 1
        self._of_cells: dict[int, _Picked] = {}
        self._count: Tensor
        self._mean: Tensor
        self._squares: Tensor

    def add(self, windows: Windows, fills: Tensor, scores: Tensor) -> None:
        """Copies that were run: fills (S, W, C, *window) and scores (S, W, columns)."""
        self._add_to_spread(scores.flatten(0, 1))
        self.n_copies += scores.shape[0] * scores.shape[1]
        cells, keys = self._cells(windows), self._random.random(len(windows))
        for cell in set(cells.tolist()):
            window = int(np.where(cells == cell, keys, -1).argmax())
            if cell not in self._of_cells or keys[window] > self._of_cells[cell].key:
                sample = int(self._random.integers(len(fills)))
                self._of_cells[cell] = _Picked(
                    float(keys[window]),
                    windows.pick([window]).pixels(fills.device)[0],
                    fills[sample, window].clone(),
                    scores[sample, window].clone(),
                )

    def picked(self, number: int) -> list[_Picked]:
        """Copies of the first cells."""
        return [self._of_cells[cell] for cell in sorted(self._of_cells)[:number]]

    def _cells(self, windows: Windows) -> npt.NDArray[np.int64]:
        """The number of the cell that each window lies in, (W,)."""
        slack = np.maximum(np.array(windows.space) - np.array(windows.window), 1)
        apart = np.abs(windows.corner_array[:, None] / slack - self._centres)
        nearest: npt.NDArray[np.int64] = (np.minimum(apart, 1 - apart) ** 2).sum(2).argmin(axis=1)
        return nearest

    def _add_to_spread(self, scores: Tensor) -> None:
        """More rows, (n, columns); what is not finite does not count."""
        finite = torch.isfinite(scores)
        count = finite.sum(dim=0)
        mean = torch.where(finite, scores, 0).sum(dim=0) / count.clamp_min(1)
        squares = torch.where(finite, scores - mean, 0).square().sum(dim=0)
        if self.n_copies == 0:
            self._count, self._mean, self._squares = count, mean, squares
            return
        total = (self._count + count).clamp_min(1)
        step = mean - self._mean
        self._squares += squares + step.square() * self._count * count / total
        self._mean += step * count / total
        self._count = self._count + count

    def spread(self) -> Tensor:
        """The standard deviation of each column, 0 where there is one row only."""
        return (self._squares / self._count.clamp_min(1)).sqrt()


class _DenseRuns:
    """Dense passes of a few copies, and what rounding does to them."""

    def __init__(
        self, forward: Forward, example: Tensor, batch_size: BatchSize, read: Read
    ) -> None:
        self._forward = forward
        self._read = read
        self._loop = BatchLoop(batch_size, example)
        #: A unit in the last place of the largest output or score, in single precision or better.
        self.last_place = torch.zeros((), device=example.device)

    def scores(self, copies: Tensor) -> Tensor:
        """The scores of copies, (n, columns)."""

        def run_batch(rows: Rows) -> Tensor:
            some = copies[torch.from_numpy(rows).to(copies.device)]
            outputs = self._forward(channels_last(some) if self._loop.channels_last else some)
            scores = self._read(outputs)
            self._see(outputs)
            self._see(scores)
            return scores

        return self._loop.run(len(copies), run_batch)

    def rounding(self, copies: Tensor, expected: Tensor, size: Tensor) -> Tensor:
        """What rounding does to these scores, as a share of ``size``, (columns,).

        A model may round by its whole batch: so each copy is run by itself. And all values are
        changed by about a unit of the lowest precision that the model computes in.
        """
        with _CoarsestPrecision(copies.device.type) as precision:
            alone = torch.cat([self.scores(copy[None]) for copy in copies])
        found = [_mean_difference(alone, expected, size)]
        generator = torch.Generator().manual_seed(0)
        for _ in range(2):
            steps = torch.randint(-1, 2, copies.shape, generator=generator).to(copies.device)
            jittered = copies * (1 + precision.eps * steps).to(copies.dtype)
            found.append(_mean_difference(self.scores(jittered), expected, size))
        return torch.stack(found).amax(dim=0)

    def _see(self, values: Tensor) -> None:
        eps = torch.finfo(torch.promote_types(values.dtype, torch.float32)).eps
        size = values.detach().abs().nan_to_num(0, 0, 0).max()
        self.last_place = torch.maximum(self.last_place, eps * size)


class _CoarsestPrecision(TorchFunctionMode):
    """Sees the lowest precision in which anything is computed on a kind of device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.eps = 0.0
        if torch.is_autocast_enabled(device):
            self.eps = torch.finfo(torch.get_autocast_dtype(device)).eps

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


def _mean_difference(found: Tensor, expected: Tensor, size: Tensor) -> Tensor:
    """The root of the mean of the squared differences, as shares of ``size``, (columns,)."""
    return (_difference(found, expected) / size).square().mean(dim=0).sqrt()
