"""The linear equations of a Gaussian field, and how they are solved for regions of any shape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import eigh_tridiagonal
from scipy.sparse import csc_array, csr_array, identity
from scipy.sparse.linalg import splu
from torch import Tensor
from torch.nn.functional import pad

from captum_pda import device_sync
from captum_pda.regions.protocol import Integers, Windows, block_pixels, row_major_steps

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

#: Bounds of a fill's error, as a share of the range of the values around the region. Errors of
#: photos, noise and volumes were at most 1/20 of the bound.
DOUBLE_TOLERANCE, SINGLE_TOLERANCE = 1e-8, 5e-4
#: Values of boxes that are solved for at once: larger batches fall out of a processor's cache.
VALUES_AT_ONCE = 2**19
#: Iterations after which the solver gives up; photos take 8 to 20, very smooth fields up to 400.
MAX_ITERATIONS = 5000
#: Pixels of the largest smooth region that has a sparse factor (0.5 GB).
LARGEST_FACTORED = 2**18
#: By how much corrections of a coarser grid are stretched: sums over blocks of pixels have too
#: large an energy. Photos take 22 iterations with a factor of 1, 11 with 1.5, and 14 with 2.
STRETCH = 1.5


class HiddenPixels:
    """The equations Q_hh x = b of regions h whose boxes have one shape, each by itself.

    Q = 1/l^2 + L + b^2 L^2, with L the Laplacian of the pixel grid. Without b, the eigenvectors of
    each axis of a window solve them at once, and regions of other shapes are solved by conjugate
    gradients with multigrid, on the hidden pixels only. With b multigrid takes thousands of
    iterations: regions of signals and images have a sparse factor, and for windows and volumes,
    whose factors are too large, the eigenvectors are the preconditioner.

    Args:
        example: the input (C, *space).
        regions: W regions in boxes of one shape.
        correlation_length, smoothness: of the field.
    """

    def __init__(
        self, example: Tensor, regions: Windows, correlation_length: float, smoothness: float
    ) -> None:
        self.box = regions.window
        self._dims = len(self.box)
        self._kappa2, self._beta = correlation_length**-2, smoothness**2
        self._corners, self._space = regions.corner_array, regions.space
        # Two pixels around the box are coupled with it by L^2, one by L.
        margin = self._margin = 2 if self._beta else 1
        dtype = torch.promote_types(example.dtype, torch.float32)
        values, inside = boxes_with_margin(
            example.detach().to(dtype), regions, (margin,) * self._dims
        )
        hidden = inside.new_ones((len(regions), 1, *self.box), dtype=torch.bool)
        if regions.hidden is not None:
            hidden = regions.hidden.to(example.device).unsqueeze(1)
        #: Whether a pixel is seen, (W, 1, *box with margin), and its values, 0 where it is hidden.
        self.seen = inside & ~pad(hidden, (margin,) * (2 * self._dims))
        self.values = values.where(self.seen, 0)
        self._inside = inside.to(dtype)
        self._degree = -_laplacian(self._inside, 0, self._dims) * self._inside
        if not self._kappa2:
            # Where nothing is seen, and no mean is known, there is nothing to solve.
            hidden = hidden & self.seen.flatten(1).any(dim=1).reshape(-1, 1, *(1 for _ in self.box))
        self._hidden = hidden
        self._are_windows = regions.hidden is None

    # Right-hand sides

    def boundary_mean(self) -> Tensor:
        """The mean of the seen neighbours of each region's pixels, (W, C, 1...); 0 without any."""
        neighbours = pad(self._hidden.to(self.values.dtype), (self._margin,) * (2 * self._dims))
        weights = -_laplacian(neighbours, 0, self._dims) * self.seen
        total = (weights * self.values).flatten(2).sum(-1)
        mean = total / weights.flatten(2).sum(-1).clamp_min(1)
        return mean.reshape(*mean.shape, *(1 for _ in self.box))

    def expected(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """Whose solution is the conditional mean of a field, less the field's mean (W or 1, C,
        1...): right-hand sides (W, C, *box), and what errors are measured by, (W, C)."""
        deviation = (self.values - level).where(self.seen, 0)
        scale = deviation.abs().flatten(2).amax(-1)
        if not device_sync.all_finite(scale):
            raise ValueError(
                "the input holds NaN or infinite values around a region; replace them first, for "
                "example with torch.nan_to_num"
            )
        product = _laplacian(deviation, self._degree, self._dims)
        if self._beta:
            twice = _laplacian(product * self._inside, self._degree, self._dims)
            product = product + self._beta * twice
        return -_without_margin(product, self._margin, self._dims), scale

    def drawn(self, n_draws: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Whose solutions are independent draws of the field about its mean: right-hand sides (W,
        n_draws, *box), and what errors are measured by, (W, n_draws).

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
            # There is no neighbour, and so no difference, beyond the border of the input.
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

    def solve(self, right: Tensor, scale: Tensor) -> Tensor:
        """x of Q_hh x = right, (W, K, *box), 0 outside of the regions.

        Args:
            right: the right-hand sides.
            scale: what errors are measured by, (W, K).
        """
        if self._are_windows and not self._beta:
            return self._solve_windows(right)
        tolerance = DOUBLE_TOLERANCE if right.dtype == torch.float64 else SINGLE_TOLERANCE
        error = np.full(tuple(scale.shape), tolerance)
        # In units of the scale, since squares of tiny values are 0 in single precision.
        unit = scale.where(scale > 0, 1).reshape(*scale.shape, *(1 for _ in self.box))
        # On the processor for all devices, as superpixels are found.
        by_pixel = (right / unit).cpu().movedim(1, -1)
        hidden = self._hidden.cpu().squeeze(1)
        found = torch.zeros(by_pixel.shape, dtype=right.dtype, device="cpu")
        own = by_pixel[hidden].to(torch.float64 if self._beta else right.dtype)

        def by_windows(flat: Floats) -> Floats:
            # Nearly the solution for windows.
            wide = torch.zeros(by_pixel.shape, dtype=torch.float64, device="cpu")
            wide[hidden] = torch.from_numpy(flat)
            return self._solve_windows(wide.movedim(-1, 1)).movedim(1, -1)[hidden].numpy()

        if self._beta and self._dims < 3 and not self._are_windows and len(own) < LARGEST_FACTORED:
            solved = self._sparse.solve_directly(own.numpy())
        else:
            solved = self._sparse.solve(own.numpy(), error, by_windows if self._beta else None)
        found[hidden] = torch.from_numpy(solved).to(right.dtype)
        return found.movedim(-1, 1).to(right.device) * unit

    @cached_property
    def _sparse(self) -> SparseEquations:
        hidden = self._hidden.cpu().squeeze(1).numpy()
        inside = self._inside.cpu().squeeze(1).numpy() > 0
        unit = np.eye(self._dims, dtype=np.int64)
        neighbours = {tuple(row): 1.0 for row in np.concatenate([unit, -unit]).tolist()}
        # Equations of smooth fields are too badly conditioned for single precision.
        dtype = np.float64 if self._beta else self.values.cpu().numpy().dtype
        smooth = None
        if self._beta:
            # L^2 couples by way of all pixels of the box and around it, so L is made for these.
            nearby = inside[(slice(None), *[slice(1, -1)] * self._dims)]
            own = np.pad(hidden, [(0, 0), *[(1, 1)] * self._dims])[nearby]
            columns = couplings(nearby, inside, neighbours)[:, np.flatnonzero(own)]
            rough, smooth = columns[own], columns.T @ columns
        else:
            rough = couplings(hidden, inside, neighbours)
        if self._kappa2:
            rough = csr_array(rough + self._kappa2 * identity(rough.shape[0]))
        matrix = rough if smooth is None else csr_array(rough + self._beta * smooth)
        return SparseEquations(matrix.astype(dtype), rough.astype(dtype), hidden)

    def _solve_windows(self, right: Tensor) -> Tensor:
        """The solution by the eigenvectors of the Laplacian along each axis of the windows."""
        hidden = self._hidden.to(right.device)
        modes, bases = right * hidden, []
        total = torch.zeros(1, 1, *(1 for _ in self.box), dtype=torch.float64, device="cpu")
        for axis, width in enumerate(self.box):
            at_start = self._corners[:, axis] == 0
            at_end = self._corners[:, axis] + width == self._space[axis]
            ends = torch.from_numpy(2 * at_start + at_end)
            variants = [_axis_modes(width, start, end) for start in (0, 1) for end in (0, 1)]
            values, vectors = (
                torch.from_numpy(np.stack(each)) for each in zip(*variants, strict=True)
            )
            bases.append(device_sync.moved_like(vectors, right)[ends.to(right.device)])
            modes = _along(axis, modes, bases[-1].mT)
            shape = [len(ends), 1, *(width if a == axis else 1 for a in range(self._dims))]
            total = total + values[ends].reshape(shape)
        # The eigenvalue 0 is that of a window of the whole input, where nothing is solved.
        inverse = 1 / (self._kappa2 + total + self._beta * total**2).clamp_min(1e-12)
        modes = modes * device_sync.moved_like(inverse, right)
        for axis, basis in enumerate(bases):
            modes = _along(axis, modes, basis)
        return modes * hidden


class SparseEquations:
    """Equations of hidden pixels, of several regions that are not coupled with each other.

    They are solved by conjugate gradients with a cycle of multigrid: pixels of a region are joined
    in blocks of 2, 4, 8, ... pixels along each axis. No number of a region depends on the others.

    Args:
        matrix: symmetric, with a row for each hidden pixel, in the order of ``hidden``.
        rough: the matrix without the terms that make a field smooth, whose blocks are taken.
        hidden: the hidden pixels, (W, *box).
    """

    def __init__(self, matrix: csr_array, rough: csr_array, hidden: Booleans) -> None:
        self._matrix = matrix
        self._largest_variance = _largest_resistance(hidden.shape[1:])
        places, shape = np.stack(np.nonzero(hidden)), np.array(hidden.shape)
        self._regions: Integers = places[0]
        n_pixels = len(self._regions)
        members = (np.ones(n_pixels, matrix.dtype), (self._regions, np.arange(n_pixels)))
        self._sums = csr_array(members, shape=(len(hidden), n_pixels))
        #: Of each grid the matrix, the smoother's steps, and which pixels each block joins.
        self._grids: list[tuple[csr_array, Floats, csr_array, csr_array]] = []
        while (shape[1:] > 1).any():
            places[1:] //= 2
            shape[1:] = (shape[1:] + 1) // 2
            keys = np.ravel_multi_index(tuple(places), tuple(shape))
            is_block = np.zeros(shape.prod(), dtype=np.bool_)
            is_block[keys] = True
            blocks = (np.cumsum(is_block) - 1)[keys].astype(np.int32)
            places = np.stack(np.unravel_index(np.flatnonzero(is_block), tuple(shape)))
            n_fine, n_blocks = len(blocks), places.shape[1]
            own = np.arange(n_fine, dtype=np.int32)
            joined = csr_array(
                (np.ones(n_fine, matrix.dtype), (blocks, own)), shape=(n_blocks, n_fine)
            )
            # The largest step for which Jacobi's iteration converges, by Gershgorin's theorem, is
            # 2 / sum; it is 2/3 of that.
            steps = (4 / 3) / (abs(rough) @ np.ones((n_fine, 1), matrix.dtype))
            self._grids.append((rough, steps, csr_array(joined.T), joined))
            entries = rough.tocoo()
            pairs = (entries.data, (blocks[entries.row], blocks[entries.col]))
            rough = csr_array(pairs, shape=(n_blocks, n_blocks))
        self._coarsest = rough.diagonal()[:, None]

    def solve(
        self,
        residual: Floats,
        error: Floats,
        precondition: Callable[[Floats], Floats] | None = None,
    ) -> Floats:
        """Solve for right-hand sides (pixels, K), which are overwritten.

        With M^-1 the preconditioner, 4 r^T M^-1 r is at least the energy of the error, and with the
        largest element of the inverse's diagonal it bounds the square of the error at every pixel.
        Each region and column stops by itself, so that it does not depend on the others.

        Args:
            residual: the right-hand sides.
            error: the largest error of each region, (W, K).
            precondition: nearly the solution for right-hand sides; None is a cycle of multigrid.
        """
        precondition = precondition or self._cycle
        bound = error**2 / (4 * self._largest_variance)
        solution = np.zeros_like(residual)
        direction = precondition(residual)
        energy = self._sums @ (residual * direction)
        active = energy > bound
        for _ in range(MAX_ITERATIONS):
            if not active.any():
                return solution
            image = self._matrix @ direction
            curvature = self._sums @ (direction * image)
            active &= curvature > 0  # but for rounding
            step = np.divide(energy, curvature, out=np.zeros_like(energy), where=active)
            by_pixel = step[self._regions]
            solution += by_pixel * direction
            residual -= by_pixel * image
            corrected = precondition(residual)
            before, energy = energy, self._sums @ (residual * corrected)
            active &= energy > bound
            ratio = np.divide(energy, before, out=np.zeros_like(energy), where=active)
            direction *= ratio[self._regions]
            direction += corrected
        raise RuntimeError(
            f"regions of {len(residual)} pixels were not filled in {MAX_ITERATIONS} iterations; "
            "please report this with the input"
        )

    def solve_directly(self, right: Floats) -> Floats:
        """Solve for right-hand sides (pixels, K) by a sparse factor."""
        if not len(right):
            return right
        matrix, options = csc_array(self._matrix), {"SymmetricMode": True}
        factor = splu(matrix, "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
        solution: Floats = factor.solve(right)
        return solution

    def _cycle(self, residual: Floats, grid: int = 0) -> Floats:
        """Nearly the solution: Jacobi's step, a correction by blocks of pixels, the same step."""
        found: Floats
        if grid == len(self._grids):
            found = residual / self._coarsest
            return found
        matrix, steps, spread, joined = self._grids[grid]
        found = steps * residual
        coarse = self._cycle(joined @ (residual - matrix @ found), grid + 1)
        found += spread @ (STRETCH * coarse)
        found += steps * (residual - matrix @ found)
        return found


def couplings(
    hidden: Booleans, inside: Booleans, weights: Mapping[tuple[int, ...], float]
) -> csr_array:
    """The matrix of sum_pq w_pq (x_p - x_q)^2 / 2, of the hidden pixels.

    Args:
        hidden: in boxes, (W, *box).
        inside: which pixels lie in the input, of the boxes with a pixel more on each side.
        weights: w_pq by the offset from p to q.
    """
    pixels = np.flatnonzero(np.pad(hidden, [(0, 0), *[(1, 1)] * (hidden.ndim - 1)]))
    numbers = np.full(inside.size, -1, dtype=np.int32)
    numbers[pixels] = np.arange(len(pixels))
    steps = {int(np.dot(row_major_steps(inside.shape)[1:], each)): w for each, w in weights.items()}
    order = sorted([*steps, 0])  # so that the columns of each row are in order
    near = pixels[:, None] + np.array(order)
    values = np.array([-steps.get(step, 0.0) for step in order])
    degree = inside.reshape(-1)[near] @ -values
    values = np.tile(values, (len(pixels), 1))
    values[:, order.index(0)] = degree
    columns = numbers[near]
    kept = columns >= 0
    ends = np.append(0, np.cumsum(kept.sum(axis=1))).astype(np.int32)
    return csr_array((values[kept], columns[kept], ends), shape=(len(pixels), len(pixels)))


def weighted_means(image: Tensor, seen: Tensor) -> Tensor:
    """Fill what is not seen of an image (C, *space) by its neighbours, (K, C, *space).

    Removed pixels solve a sparse linear system: each is the weighted mean of its neighbours, seen
    or removed themselves,

        x_p = sum_q w_pq x_q / sum_q w_pq,     q within one step of p along every axis,

    with w_pq = 1 / (along how many axes they differ): 1 for direct neighbours and 1/2 for diagonal
    ones in an image, as in ROAD (Rong et al. 2022). Where nothing is seen it is the image's mean.

    Args:
        image: (C, *space).
        seen: which pixels are seen, one row for each fill, (K, *space) of bool.
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
        matrix = couplings(hidden, inside, weights)
        around = np.pad(deviation.numpy(), [*[(1, 1)] * len(space), (0, 0)])
        places = np.argwhere(hidden[0]) + 1
        right = sum(
            weight * around[tuple((places + offset).T)] for offset, weight in weights.items()
        )
        error = tolerance * deviation.abs().flatten(0, -2).amax(0).numpy()[None]
        found = SparseEquations(matrix, matrix, hidden).solve(np.asarray(right), error)
        fill[:, ~shown] = torch.from_numpy(found).T + level.unsqueeze(-1)
    return fills.to(image)


def _largest_resistance(box: tuple[int, ...]) -> float:
    """A bound of the diagonal of L_hh^-1: the resistance between pixels of a grid of resistors of
    1 ohm, which is at most that of a chain of squares."""
    shortest = min((n for n in box if n > 1), default=1) if len(box) > 1 else 1
    return max(box) / shortest + 4 / math.pi * math.log(shortest) + 1


def boxes_with_margin(
    example: Tensor, regions: Windows, margins: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """What an example (C, *space) has in boxes with some pixels around them, (W, C, *box with
    margins), and whether these pixels lie in the input, (W, 1, *box with margins)."""
    sides = [side for margin in reversed(margins) for side in (margin, margin)]
    wide = tuple(n + 2 * margin for n, margin in zip(regions.window, margins, strict=True))
    around = pad(example, sides)
    space = tuple(around.shape[1:])
    # Moved by the padding, corners of boxes with margins are those of the boxes without.
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
    """Values (W, K, *space) without this many pixels on each side."""
    for axis in range(n_dims):
        if margin and axis != except_axis:
            values = values.narrow(2 + axis, margin, values.shape[2 + axis] - 2 * margin)
    return values


def _laplacian(values: Tensor, degree: Tensor | int, n_dims: int) -> Tensor:
    """The sum of each pixel's differences to its neighbours, of values that are 0 elsewhere."""
    product = values * degree
    for axis in range(values.dim() - n_dims, values.dim()):
        length = values.shape[axis] - 1
        product.narrow(axis, 1, length).sub_(values.narrow(axis, 0, length))
        product.narrow(axis, 0, length).sub_(values.narrow(axis, 1, length))
    return product


def _along(axis: int, values: Tensor, matrices: Tensor) -> Tensor:
    """Matrices (W, n, n) times each line of values (W, K, *box) along an axis of the box."""
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
    pixel may lie at the border of the input and have no neighbour there."""
    diagonal = np.full(width, 2.0)
    diagonal[0] -= at_start
    diagonal[-1] -= at_end
    if width == 1:
        return diagonal, np.ones((1, 1))
    values, vectors = eigh_tridiagonal(diagonal, np.full(width - 1, -1.0))
    return np.maximum(values, 0), vectors
