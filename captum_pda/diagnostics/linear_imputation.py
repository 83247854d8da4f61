"""Every removed pixel as the weighted mean of its neighbours (ROAD; Rong et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

#: The residual, as a share of its size at the start, at which the system counts as solved.
TOLERANCE = 3e-4
MOST_ITERATIONS = 200
#: How far a step of the smoother goes.
DAMPING = 0.8
#: The shortest side of a coarser level.
COARSEST_SIDE = 4


def linear_imputation(image: Tensor, seen: Tensor) -> Tensor:
    """Fill what is not seen of an image by its neighbours, (K, C, *space).

    Removed pixels solve a sparse linear system: each is the weighted mean of its neighbours, seen
    or removed themselves,

        x_p = sum_q w_pq x_q / sum_q w_pq,     q within one step of p along every axis,

    with w_pq = 1 / (along how many axes they differ): 1 for direct neighbours and 1/2 for diagonal
    ones in an image, as in ROAD. Where nothing is seen it is the image's mean colour.

    Args:
        image: (C, *space).
        seen: which pixels are seen, one row for each fill, (K, *space) of bool.
    """
    dtype = torch.promote_types(image.dtype, torch.float32)
    known = image.detach().to(dtype)
    hidden = (~seen).unsqueeze(1)
    count = seen.flatten(1).sum(dim=1).reshape(-1, 1, *[1] * (image.dim() - 1))
    total = torch.where(hidden, 0, known).flatten(2).sum(dim=2).reshape(len(seen), len(image))
    own_mean = known.flatten(1).mean(dim=1).reshape(1, -1, *[1] * (image.dim() - 1))
    colour = total.reshape(*total.shape, *[1] * (image.dim() - 1)) / count.clamp_min(1)
    start = torch.where(hidden, torch.where(count > 0, colour, own_mean), known)
    # Where nothing is seen there is nothing to solve; a constant is as good as any other.
    return _solve(start, hidden & (count > 0)).to(image.dtype)


def neighbour_sum(values: Tensor) -> Tensor:
    """sum_q w_pq x_q of values (K, C, *space), over the neighbours within the space."""
    by_axes = [values]  # [n]: the sum over neighbours that differ along n axes
    for axis in range(2, values.dim()):
        moved = [_both_sides(part, axis) for part in by_axes]
        by_axes = [
            by_axes[0],
            *(by_axes[n] + moved[n - 1] for n in range(1, len(by_axes))),
            moved[-1],
        ]
    total = by_axes[1].clone()
    for n, part in enumerate(by_axes[2:], start=2):
        total.add_(part, alpha=1 / n)
    return total


def _both_sides(values: Tensor, axis: int) -> Tensor:
    size = values.shape[axis]
    total = torch.zeros_like(values)
    total.narrow(axis, 1, size - 1).add_(values.narrow(axis, 0, size - 1))
    total.narrow(axis, 0, size - 1).add_(values.narrow(axis, 1, size - 1))
    return total


def _solve(start: Tensor, hidden: Tensor) -> Tensor:
    """Conjugate gradients on the removed pixels, each row of the batch by itself.

    The system is symmetric and positive: with d_p = sum_q w_pq it is d_p x_p - sum_q w_pq x_q = 0
    for removed pixels p. A cycle over coarser and coarser levels is the preconditioner.
    """
    levels = _levels(hidden.to(start.dtype))
    finest = levels[0]
    values = start
    residual = -finest.apply(values)
    size = _inner(residual, residual)
    enough = TOLERANCE**2 * size
    found = finest.precondition(levels, residual)
    direction, along = found, _inner(residual, found)
    for _ in range(MOST_ITERATIONS):
        going = size > enough
        if not bool(going.any()):
            break
        applied = finest.apply(direction)
        curvature = _inner(direction, applied)
        step = torch.where(going, along / curvature.where(going, 1), 0)
        values = values + step * direction
        last, residual = residual, residual - step * applied
        size = _inner(residual, residual)
        found = finest.precondition(levels, residual)
        # The cycle is not quite symmetric, which this form forgives.
        turn = torch.where(going, _inner(found, residual - last) / along.where(going, 1), 0)
        along = _inner(residual, found)
        direction = found + turn * direction
    return values


@dataclass(frozen=True, eq=False)
class _Level:
    """The system at one resolution: which pixels are unknown (K, 1, *space), and d_p."""

    unknown: Tensor
    degrees: Tensor
    scale: float

    def apply(self, values: Tensor) -> Tensor:
        """(d_p x_p - sum_q w_pq x_q) at unknown pixels, 0 elsewhere."""
        return (self.degrees * values - neighbour_sum(values)) * (self.scale * self.unknown)

    def precondition(self, levels: list[_Level], residual: Tensor) -> Tensor:
        """About the solution for a residual: smooth, correct on the coarser level, smooth."""
        smoother = DAMPING / (self.scale * self.degrees)
        found = smoother * residual * self.unknown
        if len(levels) > 1:
            coarse = levels[1]
            rest = residual - self.apply(found)
            correction = coarse.precondition(levels[1:], _restricted(rest, coarse))
            found = found + _prolonged(correction, rest.shape[2:]) * self.unknown
        return found + smoother * (residual - self.apply(found)) * self.unknown


def _levels(unknown: Tensor) -> list[_Level]:
    """The system at finer to coarser resolutions, for unknown pixels (K, 1, *space) of 0 and 1."""
    dims = unknown.dim() - 2
    levels: list[_Level] = []
    while True:
        degrees = neighbour_sum(torch.ones_like(unknown[:1])).clamp_min(1)
        # A Laplacian of twice the mesh, next to sums over twice the mesh.
        levels.append(_Level(unknown, degrees, 2.0 ** ((dims - 2) * len(levels))))
        sides = unknown.shape[2:]
        if min(sides) < 2 * COARSEST_SIDE:
            return levels
        # A coarse pixel is unknown where all that it stands for is.
        seen = F.pad(1 - unknown, _padding(sides), value=1)
        unknown = 1 - _pooled(seen, largest=True)


def _padding(sides: torch.Size) -> list[int]:
    return [amount for side in reversed(sides) for amount in (0, side % 2)]


def _pooled(values: Tensor, largest: bool) -> Tensor:
    """The largest or the sum of each block of two pixels along every axis."""
    for axis in range(2, values.dim()):
        shape = values.shape
        pairs = values.reshape(*shape[:axis], shape[axis] // 2, 2, *shape[axis + 1 :])
        values = pairs.amax(dim=axis + 1) if largest else pairs.sum(dim=axis + 1)
    return values


def _restricted(values: Tensor, coarse: _Level) -> Tensor:
    return _pooled(F.pad(values, _padding(values.shape[2:])), largest=False) * coarse.unknown


def _prolonged(values: Tensor, sides: torch.Size) -> Tensor:
    dims = values.dim() - 2
    mode = ("linear", "bilinear", "trilinear")[dims - 1]
    doubled = F.interpolate(values, scale_factor=2, mode=mode, align_corners=False)
    for axis, side in enumerate(sides, start=2):
        doubled = doubled.narrow(axis, 0, side)
    return doubled


def _inner(left: Tensor, right: Tensor) -> Tensor:
    """The inner product of each row and channel, (K, C, 1, ...)."""
    product = (left * right).flatten(2).sum(dim=2)
    return product.reshape(*product.shape, *[1] * (left.dim() - 2))
