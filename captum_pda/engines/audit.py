"""The audit: some windows of each incremental run are also run densely and compared.

Differences are measured relative to the spread of the windows' effects, because the map is what
matters. If they exceed single precision, the rounding of the dense engine is measured too: in half
precision it may change a score by more than a window does.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from captum_pda import device_sync
from captum_pda.engines.protocol import (
    Advance,
    Audit,
    BatchLoop,
    BatchSize,
    Forward,
    PreparedBatches,
    Read,
    channels_last,
)
from captum_pda.errors import warn_user
from captum_pda.regions.protocol import Windows

#: The copies of an example that are compared. Five in each of five examples miss an error in a
#: fifth of the copies with a probability of 0.8 ** 25 = 0.4%, in 1 to 2% of the time of a map of
#: 500 windows.
N_COMPARED = 5
#: Tolerated differences, as a fraction of the spread of the windows' effects.
TOLERANCE = 2e-3
#: Also tolerated are this multiple of the dense engine's rounding, and twice this number of units
#: in the last place.
TIMES_ROUNDING = 16.0
#: A warning is given if rounding is a larger fraction of the spread.
NOISY_ROUNDING = 0.25
#: The precision of quantised activations.
EIGHT_BITS = 2.0**-8


def warn_of_disagreement(audit: Audit | None) -> None:
    """Warn that the map is run again."""
    found = f"; {audit}" if audit is not None and audit.n_windows else " on another rank"
    warn_user(
        "the incremental and the dense engine disagree, so all windows are run again densely"
        f"{found}. Pass engine='dense' to silence this and to save the time."
    )


def warn_of_rounding(audit: Audit | None) -> None:
    """Warn if rounding is a large part of a map."""
    if audit is None or audit.rounding is None or not audit.agrees:
        return
    if audit.rounding > NOISY_ROUNDING:
        warn_user(
            f"two dense passes of the same window differ by {audit.rounding:.0%} of the spread of "
            "the windows' effects, so the map shows rounding (or the model's own randomness) as "
            "much as evidence, on any engine. Explain the model in single precision, such as "
            "model.float(), or hide larger windows."
        )


class AuditedBatches(PreparedBatches):
    """Batches of an engine for one example that can compare itself with the dense one."""

    def __init__(
        self, forward: Forward, example: Tensor, batch_size: BatchSize, times: int
    ) -> None:
        super().__init__(BatchLoop(batch_size, example, times))
        self._forward, self._example = forward, example
        self._dense_loop = BatchLoop(batch_size, example)
        self._random: np.random.Generator | None = None
        self._read: Read
        #: The scores (copies, columns) since the last audit, by the shape of the windows.
        self._scores: dict[Hashable, list[Tensor]] = {}
        #: The copies with the largest random keys of each shape: key, shape, copy and scores.
        self._picked: list[tuple[float, Hashable, Tensor, Tensor]] = []

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        scores = super().scores(grid, fills, read, advance)
        self._read = read
        if self._random is None:
            # Different windows for each example, but the same ones whenever it is explained again.
            contents = (self._example, fills[0, len(grid) // 2])
            self._random = np.random.default_rng(list(map(device_sync.checksum, contents)))
        # Windows of one shape have effects of similar size; other regions are sampled together.
        size = grid.window if grid.hidden is None else None
        self._scores.setdefault(size, []).append(scores.flatten(0, 1))
        keys = self._random.random(len(grid))
        for window in np.argsort(-keys)[:N_COMPARED].tolist():
            sample = int(self._random.integers(len(fills)))
            copy = self._example[0].flatten(1).clone()
            pixels = grid.pick([window]).pixels(fills.device)[0]
            copy[:, pixels] = fills[sample, window].flatten(1)
            found = scores[sample, window].clone()
            self._picked.append((float(keys[window]), size, copy.view_as(self._example[0]), found))
        # The largest keys are kept, and the largest of each size.
        self._picked.sort(key=lambda pick: -pick[0])
        sizes = [size for _, size, _, _ in self._picked]
        order = sorted(range(len(sizes)), key=lambda n: (sizes.index(sizes[n]) != n, n))
        n_kept = max(N_COMPARED, len(self._scores))
        self._picked = [self._picked[n] for n in order[:n_kept]]
        return scores

    def audit(self) -> Audit:
        """Compare some of the windows since the last audit with the dense engine."""
        if not self._picked:
            return Audit()
        copies = torch.stack([copy for _, _, copy, _ in self._picked])
        found = torch.stack([scores for _, _, _, scores in self._picked])
        spreads = {size: _spread(torch.cat(scores)) for size, scores in self._scores.items()}
        spread = torch.stack([spreads[size] for _, size, _, _ in self._picked])
        self._scores, self._picked = {}, []
        expected, last_place = self._dense_scores(copies)
        unit = 2 * TIMES_ROUNDING * last_place
        size = torch.maximum(spread, unit).clamp_min(torch.finfo(spread.dtype).tiny)
        difference = _difference(found, expected) / size
        largest = device_sync.as_float(difference.max())
        allowed = (unit / size).clamp_min(TOLERANCE)
        if device_sync.as_float((difference / allowed).max()) <= 1:
            return Audit(len(copies), largest)
        rounding = self._rounding(copies, expected, size)
        typical = rounding.square().mean().sqrt()
        allowed = torch.maximum(allowed, TIMES_ROUNDING * torch.maximum(rounding, typical))
        agrees = device_sync.as_float((difference / allowed).max()) <= 1
        return Audit(len(copies), largest, device_sync.as_float(typical), agrees)

    def _dense_scores(self, copies: Tensor) -> tuple[Tensor, Tensor]:
        """The scores (n, columns) of copies (n, C, *space) on the dense engine, and a unit in the
        last place of the largest output or score, in single precision or better."""
        units = [torch.zeros((), device=copies.device)]

        def run_batch(rows: range) -> Tensor:
            some = copies[rows.start : rows.stop]
            outputs = self._forward(channels_last(some) if self._dense_loop.channels_last else some)
            scores = self._read(outputs)
            for values in (outputs.detach(), scores):
                eps = torch.finfo(torch.promote_types(values.dtype, torch.float32)).eps
                units.append(eps * values.abs().nan_to_num(0, 0, 0).max().float())
            return scores

        return self._dense_loop.run(len(copies), run_batch), torch.stack(units).max()

    def _rounding(self, copies: Tensor, expected: Tensor, size: Tensor) -> Tensor:
        """The effect of rounding on these scores, as a fraction of ``size``, (columns,): each copy
        is run in a batch by itself, and with all values changed by a unit of the lowest precision
        in the model."""
        with _CoarsestPrecision(copies.device.type) as precision:
            runs = [torch.cat([self._dense_scores(copy[None])[0] for copy in copies])]
        generator = torch.Generator().manual_seed(0)
        for _ in range(2):
            steps = torch.randint(-1, 2, copies.shape, generator=generator).to(copies.device)
            changed = copies * (1 + precision.eps * steps).to(copies.dtype)
            runs.append(self._dense_scores(changed)[0])
        squares = [(_difference(run, expected) / size).square().mean(dim=0) for run in runs]
        return torch.stack(squares).amax(dim=0).sqrt()


def _spread(scores: Tensor) -> Tensor:
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    finite = scores.where(scores.isfinite(), torch.nan)
    deviations = finite - finite.nanmean(dim=0)
    return deviations.square().nanmean(dim=0).sqrt().nan_to_num(0)


class _CoarsestPrecision(TorchFunctionMode):
    """Records the lowest precision that is used on a kind of device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.eps = 0.0
        if torch.is_autocast_enabled(device):
            self.eps = torch.finfo(torch.get_autocast_dtype(device)).eps

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if "quantized" in str(func):
            self.eps = max(self.eps, EIGHT_BITS)
        elif isinstance(result, Tensor) and result.is_floating_point():
            self.eps = max(self.eps, torch.finfo(result.dtype).eps)
        return result


def _difference(found: Tensor, expected: Tensor) -> Tensor:
    same = (found == expected) | (found.isnan() & expected.isnan())
    return torch.where(same, 0, (found - expected).abs()).nan_to_num(torch.inf, torch.inf)
