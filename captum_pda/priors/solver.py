"""The linear equations of a Gaussian field, and their solution for regions of any shape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import eigh_tridiagonal
from scipy.sparse import csc_array, csr_array, identity
from scipy.sparse.linalg import splu
from torch import Tensor
from torch.nn.functional import pad

from captum_pda import device_sync
from captum_pda.regions.protocol import Windows, block_pixels, row_major_steps

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

#: Bounds of a fill's error, relative to the values next to the region. Errors of photos, noise and
#: volumes were at most 1.5e-5 of their range in single precision.
DOUBLE_TOLERANCE, SINGLE_TOLERANCE = 1e-8, 5e-4
#: Values that are solved for at once: larger batches do not fit in a processor's cache.
VALUES_AT_ONCE = 2**19
#: The most iterations of the solver; photos take 8 to 20, very smooth fields up to 400.
MAX_ITERATIONS = 5000
#: The most pixels for which a sparse factor is made (0.5 GB).
LARGEST_FACTORED = 2**18
#: The longest windows that are solved by eigenvectors, whose time is cubic in their length and
#: whose memory is quadratic: windows of 3,400 samples took 8 s and 2 GB.
LONGEST_WITH_EIGENVECTORS = 1024
#: The factor of corrections from a coarser grid, which are too small because sums over blocks have
#: too much energy. Photos take 22 iterations with 1, 11 with 1.5, and 14 with 2.
STRETCH = 1.5
#: The damping of Jacobi's step, which converges below 1. Photos and volumes take 12 to 17% fewer
#: iterations with 0.85 than with 2/3.
DAMPING = 0.85


class HiddenPixels:
    """The equations Q_hh x = b of separate regions h whose boxes have the same shape.

    Q = 1/l^2 + L + b^2 L^2, with L the Laplacian of the pixel grid. The solvers are

    - for windows, the eigenvectors of each axis, on any device: 9 to 18 times as fast as
      iterations;
    - for other shapes, conjugate gradients with multigrid, in time and memory proportional to the
      hidden pixels: 0.1 s for all superpixels of a photo of 224x224;
    - with b, where multigrid would take thousands of iterations, a sparse factor: 0.3 s for 60
      superpixels. For windows and volumes, whose factors are too large, conjugate gradients
      preconditioned by the eigenvectors, which would take 1.3 s for superpixels;
    - for signals also a sparse factor, in time proportional to their length."""

    def __init__(
        self, example: Tensor, regions: Windows, correlation_length: float, smoothness: float
    ) -> None:
        self.box = regions.window
        self._dims = len(self.box)
        self._kappa2, self._beta = correlation_length**-2, smoothness**2
        self._corners, self._space = regions.corner_array, regions.space
        # L^2 couples a box with two pixels around it, L with one.
        margin = self._margin = 2 if self._beta else 1
        dtype = torch.promote_types(example.dtype, torch.float32)
        values, inside = boxes_with_margin(
            example.detach().to(dtype), regions, (margin,) * self._dims
        )
        hidden = inside.new_ones((len(regions), 1, *self.box), dtype=torch.bool)
        if regions.hidden is not None:
            hidden = regions.hidden.to(example.device).unsqueeze(1)
        #: The visible pixels, (W, 1, *box with margin), and their values, 0 where hidden.
        self.seen = inside & ~pad(hidden, (margin,) * (2 * self._dims))
        self.values = values.where(self.seen, 0)
        self._inside = inside.to(dtype)
        self._degree = -_laplacian(self._inside, 0, self._dims) * self._inside
        if not self._kappa2:
            # Without visible pixels and without a mean there is nothing to solve.
            hidden = hidden & self.seen.flatten(1).any(dim=1).reshape(-1, 1, *(1 for _ in self.box))
        self._hidden = hidden
        self._are_windows = regions.hidden is None

    # Right-hand sides

    def boundary_mean(self) -> Tensor:
        """The mean of the visible neighbours of each region, (W, C, 1...); 0 without any."""
        neighbours = pad(self._hidden.to(self.values.dtype), (self._margin,) * (2 * self._dims))
        weights = -_laplacian(neighbours, 0, self._dims) * self.seen
        total = (weights * self.values.where(weights > 0, 0)).flatten(2).sum(-1)
        mean = total / weights.flatten(2).sum(-1).clamp_min(1)
        return mean.reshape(*mean.shape, *(1 for _ in self.box))

    def expected(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """Whose solution is the conditional mean of a field, less the field's mean (W or 1, C,
        1...): right-hand sides (W, C, *box), and what errors are measured by, (W, C)."""
        deviation = (level - self.values).where(self.seen, 0)
        product = _laplacian(deviation, self._degree, self._dims)
        if self._beta:
            twice = _laplacian(product * self._inside, self._degree, self._dims)
            product += self._beta * twice
        right = _without_margin(product, self._margin, self._dims).where(self._hidden, 0)
        # Of the pixels next to a region: others in its box may have any values.
        scale = right.abs().flatten(2).amax(-1)
        check_finite(scale)
        degree = 2 * self._dims
        return right, scale / (self._kappa2 + degree + self._beta * degree * (degree + 1))

    def drawn(self, n_draws: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The equations of independent samples of the field around its mean: right-hand sides (W,
        n_draws, *box), and the scale of errors, (W, n_draws).

        Since L = D^T D, with D the differences between neighbours, D_h^T e has the covariance L_hh
        for white noise e, and Q_hh^-1 D_h^T e has the covariance Q_hh^-1.
        """
        like, shape = self.values, (len(self.values), n_draws)

        def noise(*space: int) -> Tensor:
            return torch.randn(
                *shape, *space, generator=generator, dtype=like.dtype, device=like.device
            )

        right = torch.zeros(*shape, *self.box, dtype=like.dtype, device=like.device)
        for axis, width in enumerate(self.box):
            edges = noise(*(n + 1 if a == axis else n for a, n in enumerate(self.box)))
            around = _without_margin(self._inside, self._margin, self._dims, except_axis=axis)
            # Pixels at the border of the input have no neighbour beyond it.
            before, after = (
                around.narrow(2 + axis, self._margin + step, width) for step in (-1, 1)
            )
            right += edges.narrow(2 + axis, 0, width) * before
            right -= edges.narrow(2 + axis, 1, width) * after
        if self._kappa2:
            right += math.sqrt(self._kappa2) * noise(*self.box)
        if self._beta:
            inside, degree = (
                _without_margin(v, 1, self._dims) for v in (self._inside, self._degree)
            )
            white = noise(*(n + 2 for n in self.box)) * inside
            smooth = _laplacian(white, degree, self._dims)
            right += math.sqrt(self._beta) * _without_margin(smooth, 1, self._dims)
        return right, right.new_ones(shape)

    # Solutions

    def solve(self, equations: Iterable[Tensor]) -> Tensor:
        """Solve Q_hh x = right, (W, K, *box), with x = 0 outside of the regions, for right-hand
        sides and the scale of their errors, (W, K). Can be called once, because it frees the values
        of the pixels to save memory."""
        right, scale = equations
        del equations, self.values, self._degree
        have_modes = self._are_windows and max(self.box) <= LONGEST_WITH_EIGENVECTORS
        if have_modes and not self._beta:
            return self._solve_windows(right)
        # On the processor for all devices, as superpixels are found.
        hidden, like = self._hidden.squeeze(1).cpu().numpy(), right[:0]
        matrix = self._matrix(hidden)
        # In units of the scale, since squares of tiny values are 0 in single precision.
        unit = scale.where(scale > 0, 1).cpu().numpy()
        counts = hidden.reshape(len(hidden), -1).sum(axis=1)
        own = np.empty((counts.sum(), right.shape[1]), matrix.dtype)
        # One after the other, since NumPy and PyTorch copy an index of several axes.
        for column, values in zip(own.T, right.movedim(1, 0).cpu().numpy(), strict=True):
            column[:] = values[hidden]
        del right
        own /= unit.repeat(counts, axis=0)
        tolerance = DOUBLE_TOLERANCE if like.dtype == torch.float64 else SINGLE_TOLERANCE

        def by_windows(flat: Floats) -> Floats:
            # Nearly the solution for windows.
            wide = torch.zeros(*hidden.shape, flat.shape[1], dtype=torch.float64, device="cpu")
            wide[hidden] = torch.from_numpy(flat)
            return self._solve_windows(wide.movedim(-1, 1)).movedim(1, -1)[hidden].numpy()

        is_factored = self._dims == 2 and not have_modes and len(own) < LARGEST_FACTORED
        if self._dims == 1 or (self._beta and is_factored):
            own = factored(matrix, own)
        elif not self._beta:
            own = solved(matrix, own, tolerance, hidden, Multigrid(matrix, hidden))
        else:
            own = solved(matrix, own, tolerance, hidden, by_windows)
        own *= unit.repeat(counts, axis=0)
        found = np.zeros((len(hidden), own.shape[1], *self.box), own.dtype)
        for column, values in zip(own.T, found.swapaxes(0, 1), strict=True):
            values[hidden] = column
        return device_sync.moved_like(torch.from_numpy(found), like)

    def _matrix(self, hidden: Booleans) -> csr_array:
        inside = self._inside.cpu().squeeze(1).numpy() > 0
        unit = np.eye(self._dims, dtype=np.int64)
        neighbours = {tuple(row): 1.0 for row in np.concatenate([unit, -unit]).tolist()}
        if not self._beta:
            # Long signals are too badly conditioned for single precision, as smooth fields are.
            single = self._inside.dtype == torch.float32 and self._dims > 1
            matrix = couplings(hidden, inside, neighbours, np.float32 if single else np.float64)
        else:
            # L^2 couples through all pixels in and around the box, so L is made for these.
            nearby = inside[(slice(None), *[slice(1, -1)] * self._dims)]
            own = np.pad(hidden, [(0, 0), *[(1, 1)] * self._dims])[nearby]
            columns = couplings(nearby, inside, neighbours, np.float64)[:, np.flatnonzero(own)]
            matrix = columns[own] + self._beta * (columns.T @ columns)
        if self._kappa2:
            matrix = matrix + self._kappa2 * identity(matrix.shape[0], matrix.dtype)
        return csr_array(matrix)

    def _solve_windows(self, right: Tensor) -> Tensor:
        """The solution by the eigenvectors of the Laplacian along each axis of the windows;
        overwrites the right-hand sides."""
        hidden = self._hidden.to(right.device)
        modes, bases = right.mul_(hidden), []
        total = torch.zeros(1, 1, *(1 for _ in self.box), dtype=torch.float64, device="cpu")
        for axis, width in enumerate(self.box):
            at_start = self._corners[:, axis] == 0
            at_end = self._corners[:, axis] + width == self._space[axis]
            kinds, ends = np.unique(2 * at_start + at_end, return_inverse=True)
            variants = [_axis_modes(width, *divmod(int(kind), 2)) for kind in kinds]
            values, vectors = (
                torch.from_numpy(np.stack(each)) for each in zip(*variants, strict=True)
            )
            bases.append(device_sync.moved_like(vectors, right)[torch.from_numpy(ends)])
            modes = _along(axis, modes, bases[-1].mT)
            shape = [len(ends), 1, *(width if a == axis else 1 for a in range(self._dims))]
            total = total + values[torch.from_numpy(ends)].reshape(shape)
        # The eigenvalue 0 is that of a window of the whole input, where nothing is solved.
        precision = total.square().mul_(self._beta).add_(total).add_(self._kappa2)
        modes *= device_sync.moved_like(precision.clamp_min_(1e-12).reciprocal_(), right)
        for axis, basis in enumerate(bases):
            modes = _along(axis, modes, basis)
        return modes.mul_(hidden)


class Multigrid:
    """A multigrid cycle: an approximate solution of the equations of rough fields, at the cost of
    four products with the matrix. Pixels of a region are joined in blocks of 2, 4, 8, ... along
    each axis, separately for each region. The matrix has a row for each ``hidden`` pixel (W,
    *box)."""

    def __init__(self, matrix: csr_array, hidden: Booleans) -> None:
        #: For each grid the matrix, the smoother's steps, the block of each pixel, and its
        #: transpose.
        self._grids: list[tuple[csr_array, Floats, csr_array, csc_array]] = []
        while max(hidden.shape[1:]) > 1:
            axes = range(1, hidden.ndim)
            joined = hidden
            for axis in axes:
                joined = np.logical_or.reduceat(joined, range(0, hidden.shape[axis], 2), axis)
            numbers = (np.cumsum(joined, dtype=np.int32) - 1).reshape(joined.shape)
            for axis in axes:
                numbers = numbers.repeat(2, axis)
            blocks = numbers[tuple(map(slice, hidden.shape))][hidden]
            del numbers
            ends = np.arange(len(blocks) + 1, dtype=np.int32)
            ones = np.ones(len(blocks), matrix.dtype)
            spread = csr_array((ones, blocks, ends), shape=(len(blocks), int(joined.sum())))
            steps = DAMPING / matrix.diagonal()[:, None]
            self._grids.append((matrix, steps, spread, spread.T))
            matrix = csr_array(spread.T) @ (matrix @ spread)
            matrix.sort_indices()
            hidden = joined
        self._coarsest = matrix.diagonal()[:, None]

    def __call__(self, residual: Floats, grid: int = 0) -> Floats:
        """Jacobi's step, a correction from the coarser grid, and the same step."""
        found: Floats
        if grid == len(self._grids):
            found = residual / self._coarsest
            return found
        matrix, steps, spread, join = self._grids[grid]
        found = steps * residual
        found += spread @ (STRETCH * self(join @ (residual - matrix @ found), grid + 1))
        found += steps * (residual - matrix @ found)
        return found


def solved(
    matrix: csr_array,
    right: Floats,
    error: Floats | float,
    hidden: Booleans,
    precondition: Callable[[Floats], Floats],
) -> Floats:
    """Solve equations of hidden pixels (W, *box) by conjugate gradients. Right-hand sides (pixels,
    K) are overwritten; ``error`` is the largest error of each region, (W, K) or a number.

    Iterations stop separately for each region and column, so that results do not depend on the
    others. With the preconditioner M^-1, 4 r^T M^-1 r bounds the energy of the error, and times the
    largest diagonal element of the inverse it bounds the squared error at every pixel.
    """
    counts = hidden.reshape(len(hidden), -1).sum(axis=1)
    at_once = max(1, VALUES_AT_ONCE // max(1, len(right)))
    if right.shape[1] > at_once:
        errors = np.broadcast_to(error, (len(hidden), right.shape[1]))
        for first in range(0, right.shape[1], at_once):
            some = slice(first, first + at_once)
            own = np.ascontiguousarray(right[:, some])
            right[:, some] = solved(matrix, own, errors[:, some], hidden, precondition)
        return right
    ends = np.append(0, np.cumsum(counts)).astype(np.int32)
    members = (np.ones(len(right), right.dtype), np.arange(len(right), dtype=np.int32), ends)
    sums = csr_array(members, shape=(len(hidden), len(right)))
    bound = np.square(error) / (4 * _largest_resistance(hidden.shape[1:]))
    residual, solution = right, np.zeros_like(right)
    direction = precondition(residual)
    energy = sums @ (residual * direction)
    active = energy > bound
    for _ in range(MAX_ITERATIONS):
        if not active.any():
            return solution
        image = matrix @ direction
        curvature = sums @ (direction * image)
        active &= curvature > 0  # but for rounding
        step = np.divide(energy, curvature, out=np.zeros_like(energy), where=active)
        by_pixel = step.repeat(counts, axis=0)
        solution += by_pixel * direction
        residual -= by_pixel * image
        corrected = precondition(residual)
        before, energy = energy, sums @ (residual * corrected)
        active &= energy > bound
        ratio = np.divide(energy, before, out=np.zeros_like(energy), where=active)
        direction *= ratio.repeat(counts, axis=0)
        direction += corrected
    raise RuntimeError(
        f"regions of {len(right)} pixels were not filled in {MAX_ITERATIONS} iterations; please "
        "report this with the input"
    )


def factored(matrix: csr_array, right: Floats) -> Floats:
    """Solve for right-hand sides (pixels, K) by a sparse factor."""
    if not len(right):
        return right
    options = {"SymmetricMode": True}
    factor = splu(csc_array(matrix), "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    solution: Floats = factor.solve(right)
    return solution


def couplings(
    hidden: Booleans,
    inside: Booleans,
    weights: Mapping[tuple[int, ...], float],
    dtype: npt.DTypeLike,
) -> csr_array:
    """The matrix of sum_pq w_pq (x_p - x_q)^2 / 2 for hidden pixels (W, *box), with weights w_pq by
    the offset from p to q; ``inside`` marks the input, with one more pixel on each side."""
    pixels = np.flatnonzero(np.pad(hidden, [(0, 0), *[(1, 1)] * (hidden.ndim - 1)]))
    numbers = np.full(inside.size, -1, dtype=np.int32)
    numbers[pixels] = np.arange(len(pixels))
    steps = {int(np.dot(row_major_steps(inside.shape)[1:], each)): w for each, w in weights.items()}
    order = sorted([*steps, 0])  # so that the columns of each row are in order
    columns = np.empty((len(pixels), len(order)), dtype=np.int32)
    degree = np.zeros(len(pixels), dtype)
    for column, step in zip(columns.T, order, strict=True):
        near = pixels + step
        column[:] = numbers[near]
        degree += inside.reshape(-1)[near] * np.asarray(steps.get(step, 0), dtype)
    del pixels, numbers, near  # most of the memory that all this takes
    kept = columns >= 0
    own = np.array([-steps.get(step, 0) for step in order], dtype)
    values = np.broadcast_to(own, kept.shape)[kept]
    ends = np.append(0, np.cumsum(kept.sum(axis=1), dtype=np.int32)).astype(np.int32)
    values[ends[:-1] + kept[:, : order.index(0)].sum(axis=1)] = degree
    return csr_array((values, columns[kept], ends), shape=(len(degree), len(degree)))


def weighted_means(image: Tensor, seen: Tensor) -> Tensor:
    """Fill hidden pixels (K, *space) of an image (C, *space) from their neighbours, (K, C, *space).

    Hidden pixels solve a sparse linear system in which each is the weighted mean of its neighbours,

        x_p = sum_q w_pq x_q / sum_q w_pq,     q within one step of p along every axis,

    with w_pq = 1 / (the number of axes they differ in): 1 for direct neighbours of an image and 1/2
    for diagonal ones, as in ROAD (Rong et al. 2022). With everything hidden it is the image's mean.
    """
    known = image.detach().cpu().double()
    space = tuple(image.shape[1:])
    weights = {
        offset: 1 / sum(map(abs, offset))
        for offset in itertools.product((-1, 0, 1), repeat=len(space))
        if any(offset)
    }
    tolerance = DOUBLE_TOLERANCE if image.dtype == torch.float64 else SINGLE_TOLERANCE
    inside = np.pad(np.ones((1, *space), dtype=np.bool_), [(0, 0), *[(1, 1)] * len(space)])
    fills = known.repeat(len(seen), *(1 for _ in image.shape))
    for fill, shown in zip(fills, seen.cpu(), strict=True):
        if not bool(shown.any()):
            fill[:] = known.flatten(1).mean(dim=1).reshape(-1, *(1 for _ in space))
            continue
        level = known[:, shown].mean(dim=1)
        deviation = (known.movedim(0, -1) - level).where(shown.unsqueeze(-1), 0)
        hidden = ~shown.numpy()[None]
        matrix = couplings(hidden, inside, weights, np.float64)
        around = np.pad(deviation.numpy(), [*[(1, 1)] * len(space), (0, 0)])
        places = np.argwhere(hidden[0]) + 1
        right = sum(
            weight * around[tuple((places + offset).T)] for offset, weight in weights.items()
        )
        error = tolerance * deviation.abs().flatten(0, -2).amax(0).numpy()[None]
        cycle = Multigrid(matrix, hidden)
        found = solved(matrix, np.asarray(right), error, hidden, cycle)
        fill[:, ~shown] = torch.from_numpy(found).T + level.unsqueeze(-1)
    return fills.to(image)


def _largest_resistance(box: tuple[int, ...]) -> float:
    """A bound of the diagonal of L_hh^-1: the resistance between pixels of a grid of 1 ohm
    resistors, which is at most that of a chain of squares."""
    shortest = min((n for n in box if n > 1), default=1) if len(box) > 1 else 1
    return max(box) / shortest + 4 / math.pi * math.log(shortest) + 1


def check_finite(values: Tensor) -> None:
    """Refuse results of visible NaN or infinite values."""
    if not device_sync.all_finite(values):
        raise ValueError(
            "the input holds NaN or infinite values around a region; replace them first, for "
            "example with torch.nan_to_num"
        )


def boxes_with_margin(
    example: Tensor, regions: Windows, margins: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The values of an example (C, *space) in boxes with margins, (W, C, *box with margins), and
    whether these pixels lie in the input, (W, 1, *box with margins)."""
    sides = [side for margin in reversed(margins) for side in (margin, margin)]
    wide = tuple(n + 2 * margin for n, margin in zip(regions.window, margins, strict=True))
    around = pad(example, sides)
    space = tuple(around.shape[1:])
    # The padding moves corners of boxes with margins to those of the boxes without.
    pixels = block_pixels(regions.corner_array, wide, space, example.device)
    inside = pad(torch.ones_like(example[:1], dtype=torch.bool), sides)
    values, within = (
        each.flatten(1)[:, pixels].transpose(0, 1).reshape(len(regions), -1, *wide)
        for each in (around, inside)
    )
    return values, within


def _without_margin(
    values: Tensor, margin: int, n_dims: int, except_axis: int | None = None
) -> Tensor:
    for axis in range(n_dims):
        if margin and axis != except_axis:
            values = values.narrow(2 + axis, margin, values.shape[2 + axis] - 2 * margin)
    return values


def _laplacian(values: Tensor, degree: Tensor | int, n_dims: int) -> Tensor:
    """The sum of each pixel's differences to its neighbours; values elsewhere are 0."""
    product = values * degree
    for axis in range(values.dim() - n_dims, values.dim()):
        length = values.shape[axis] - 1
        product.narrow(axis, 1, length).sub_(values.narrow(axis, 0, length))
        product.narrow(axis, 0, length).sub_(values.narrow(axis, 1, length))
    return product


def _along(axis: int, values: Tensor, matrices: Tensor) -> Tensor:
    """Multiply each line of values (W, K, *box) along an axis of the box by matrices (W, n, n)."""
    n_regions, length = len(values), values.shape[2 + axis]
    if axis == values.dim() - 3:
        lines = values.reshape(n_regions, -1, length) @ matrices.mT
    else:
        after = math.prod(values.shape[3 + axis :])
        lines = matrices.unsqueeze(1) @ values.reshape(n_regions, -1, length, after)
    return lines.reshape(values.shape)


@lru_cache(maxsize=128)
def _axis_modes(width: int, at_start: int, at_end: int) -> tuple[Floats, Floats]:
    """Eigenvalues and eigenvectors of the differences along an axis of a box, whose first or last
    pixel may lie at the border of the input and lack a neighbour."""
    diagonal = np.full(width, 2.0)
    diagonal[0] -= at_start
    diagonal[-1] -= at_end
    if width == 1:
        return diagonal, np.ones((1, 1))
    values, vectors = eigh_tridiagonal(diagonal, np.full(width - 1, -1.0))
    return np.maximum(values, 0), vectors
