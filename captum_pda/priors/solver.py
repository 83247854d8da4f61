"""The linear equations of a Gaussian field, and how they are solved for regions of any shape."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import eigh_tridiagonal
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.linalg import splu
from torch import Tensor
from torch.nn.functional import pad

from captum_pda import device_sync
from captum_pda.regions.protocol import Windows, row_major_steps

Floats = npt.NDArray[np.float64]
#: How far a neighbour is along each axis: -1, 0 or 1.
Offset = tuple[int, ...]
#: From values (W, K, *box) to values of the same shape, for each region by itself.
Linear = Callable[[Tensor], Tensor]

#: Bounds of a fill's error, as a share of the range of the values around the region.
DOUBLE_TOLERANCE, SINGLE_TOLERANCE = 1e-9, 7e-5
#: Values of regions that are solved for at once: larger batches fall out of a processor's cache.
VALUES_AT_ONCE = 2**19
#: Iterations after which the solver gives up; regions of photos take 5 to 40.
MAX_ITERATIONS = 5000
#: Pixels of the largest box whose region has a sparse factor (0.5 GB); it takes some seconds.
LARGEST_FACTORED_BOX = 2**18
#: Multigrid takes less time than a sparse factor where more than this many pixels are hidden, and
#: more than this share of the box. In volumes it takes three times as long as eigenvectors.
MULTIGRID_PIXELS, MULTIGRID_SHARE = 2**13, 1 / 3
#: How far a step of multigrid's smoother goes.
DAMPING = 0.8
#: Pixels of multigrid's coarsest level, whose matrix is inverted.
COARSEST_PIXELS = 64


class HiddenPixels:
    """The equations Q_hh x = b of regions h whose boxes have one shape, each by itself.

    Q = 1/l^2 + L + b^2 L^2, with L the Laplacian of the pixel grid. Windows are solved by conjugate
    gradients whose preconditioner is the inverse on the whole box of 1/l^2 + v + b^2 v^2, with v
    the box's own Laplacian, which the eigenvectors of each axis diagonalise: exact without b. For
    large regions of other shapes the preconditioner is multigrid, 5 to 10 iterations whatever the
    shape. Smaller ones have a sparse factor on a CPU, in one or two dimensions, and otherwise the
    preconditioner of windows, 10 to 40 iterations.

    Args:
        example: the input (C, *space).
        regions: W regions in boxes of one shape.
        correlation_length, smoothness: of the field.
        many_hidden: whether enough pixels are hidden for multigrid to pay; only without b.
        memory: as for ``Level``.
    """

    def __init__(
        self,
        example: Tensor,
        regions: Windows,
        correlation_length: float,
        smoothness: float,
        many_hidden: bool,
        memory: dict[object, Tensor],
    ) -> None:
        self._memory = memory
        self.box = regions.window
        self._dims = len(self.box)
        self._kappa2 = correlation_length**-2
        self._beta = smoothness**2
        dtype = torch.promote_types(example.dtype, torch.float32)
        device = example.device
        # Two pixels around the box are coupled with it by L^2, one by L.
        self._margin = 2 if self._beta else 1
        pixels, inside, degree = boxes_with_margin(regions, (self._margin,) * self._dims)
        inside, degree = inside.to(device), degree.to(device)
        hidden = torch.ones((len(regions), *self.box), dtype=torch.bool, device=device)
        if regions.hidden is not None:
            hidden = regions.hidden.to(device)
        around = pad(hidden, (self._margin,) * (2 * self._dims))
        values = example.detach().flatten(1)[:, pixels.to(device)].movedim(1, 0).to(dtype)
        #: Whether a pixel is seen, (W, 1, *box with margin), and its values, 0 where it is hidden.
        self.seen = (inside & ~around).unsqueeze(1)
        self.values = values.where(self.seen, 0)
        self._inside = inside.unsqueeze(1).to(dtype)
        self._degree = degree.unsqueeze(1).to(dtype)
        if not self._kappa2:
            # Where nothing is seen, and no mean is known, there is nothing to solve.
            hidden = hidden & self.seen.flatten(1).any(dim=1).reshape(-1, *(1 for _ in self.box))
        self._hidden = hidden.unsqueeze(1).to(dtype)
        self._corners, self._space = regions.corner_array, regions.space
        self._by_factor = may_have_factors(example, regions) and not many_hidden
        self._by_multigrid = many_hidden
        self._factor: Any = None
        self._tolerance = DOUBLE_TOLERANCE if dtype == torch.float64 else SINGLE_TOLERANCE

    # Right-hand sides

    def boundary_mean(self) -> Tensor:
        """The mean of the seen neighbours of each region's pixels, (W, C, 1...); 0 without any."""
        neighbours = pad(self._hidden, (self._margin,) * (2 * self._dims))
        weights = -_laplacian(neighbours, torch.zeros_like(neighbours), self._dims) * self.seen
        total = (weights * self.values).flatten(2).sum(-1)
        mean = total / weights.flatten(2).sum(-1).clamp_min(1)
        return mean.reshape(*mean.shape, *(1 for _ in self.box))

    def mean_about(self, level: Tensor) -> Tensor:
        """Conditional means of a field with this mean, (W, C, 1...) or (1, C, 1...)."""
        deviation = (self.values - level).where(self.seen, 0)
        scale = deviation.abs().flatten(2).amax(-1)
        if not device_sync.all_finite(scale):
            raise ValueError(
                "the input holds NaN or infinite values around a region; replace them first, for "
                "example with torch.nan_to_num"
            )
        product = _without_margin(self._multiply(deviation, self._margin), self._margin, self._dims)
        return self.solve(-product * self._hidden, scale) + level

    def draw(self, n_draws: int, generator: torch.Generator | None) -> Tensor:
        """Independent draws of the field about its mean, (W, n_draws, *box).

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
            # There is no neighbour, and so no difference, beyond the border of the input.
            before, after = (
                _box(self._inside, self._margin, self.box, axis, step) for step in (-1, 1)
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
        return self.solve(right * self._hidden, right.new_ones(shape))

    # The solver

    def solve(self, right: Tensor, scale: Tensor) -> Tensor:
        """x of Q_hh x = right, (W, K, *box), 0 outside of the regions.

        With M^-1 the preconditioner, Q_hh^-1 is at most s M^-1 with a known s, so s r^T M^-1 r
        bounds the error's energy, and with the largest element of Q_hh^-1's diagonal its square at
        every pixel. Each system stops by itself, so that it does not depend on the others.

        Args:
            right: the right-hand sides, 0 outside of the regions.
            scale: what errors are measured by, (W, K).
        """
        if self._by_factor:
            return self._solve_sparse(right)
        multiply: Linear = self._multiply_hidden
        precondition: Linear = self._inverse_of_boxes
        if self._by_multigrid:
            finest, precondition = self._multigrid
            multiply = finest.multiply
            largest = right.new_full((len(right),), 2 * _largest_resistance(self.box))
        else:
            largest = self._largest_variance()
        bound = (self._tolerance * scale) ** 2 / largest.unsqueeze(1)
        found = torch.empty_like(right)
        # One column after another where a single region is already large.
        at_once = max(1, VALUES_AT_ONCE // (len(right) * math.prod(self.box)))
        for start in range(0, right.shape[1], at_once):
            some = slice(start, start + at_once)
            found[:, some] = conjugate_gradients(
                right[:, some].clone(), bound[:, some], multiply, precondition
            )
        return found

    def _multiply_hidden(self, values: Tensor) -> Tensor:
        """Q_hh times values (W, K, *box) that are 0 outside of the regions."""
        margin = self._margin - 1
        wide = pad(values, (margin,) * (2 * self._dims)) if margin else values
        return _without_margin(self._multiply(wide, margin), margin, self._dims) * self._hidden

    def _multiply(self, values: Tensor, margin: int) -> Tensor:
        """Q times values (W, K, *box with a margin), right in the box."""
        cut = self._margin - margin
        degree = _without_margin(self._degree, cut, self._dims)
        product = _laplacian(values, degree, self._dims)
        if self._beta:
            inside = _without_margin(self._inside, cut, self._dims)
            product = product + self._beta * _laplacian(product * inside, degree, self._dims)
        if self._kappa2:
            product.add_(values, alpha=self._kappa2)
        return product

    def _solve_sparse(self, right: Tensor) -> Tensor:
        """The solution by a sparse factor of all these regions' equations together."""
        hidden = self._hidden.squeeze(1) > 0
        if not bool(hidden.any()):
            return torch.zeros_like(right)
        if self._factor is None:
            self._factor = splu(
                self._sparse_matrix(hidden),
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )
        columns = right.movedim(1, -1)[hidden].double().numpy()
        solution = torch.zeros_like(right)
        solved = torch.from_numpy(self._factor.solve(columns)).to(right.dtype)
        solution.movedim(1, -1)[hidden] = solved
        return solution

    def _sparse_matrix(self, hidden: Tensor) -> csc_array:
        """Q_hh of all regions, one block after another."""
        inside, degree = (
            _without_margin(values, self._margin - 1, self._dims).squeeze(1).numpy()
            for values in (self._inside, self._degree)
        )
        # Pixels are numbered in the boxes with one pixel around them.
        pixels = np.flatnonzero(np.pad(hidden.numpy(), [(0, 0), *[(1, 1)] * self._dims]))
        own = np.arange(len(pixels))
        rows, columns = [pixels], [own]
        values = [degree.reshape(-1)[pixels].astype(np.float64)]
        for stride in row_major_steps(inside.shape)[1:]:
            for near in (pixels - stride, pixels + stride):
                there = inside.reshape(-1)[near] > 0
                rows.append(near[there])
                columns.append(own[there])
                values.append(np.full(np.count_nonzero(there), -1.0))
        entries = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
        laplacian = csr_array(entries, shape=(inside.size, len(pixels)))
        matrix = laplacian[pixels] + self._kappa2 * eye_array(len(pixels))
        if self._beta:
            matrix = matrix + self._beta * (laplacian.T @ laplacian)
        return csc_array(matrix)

    @cached_property
    def _multigrid(self) -> tuple[Level, Multigrid]:
        degree = _without_margin(self._degree, self._margin, self._dims)
        unit = np.eye(self._dims, dtype=np.int64)
        couplings = {tuple(row): -1.0 for row in np.concatenate([unit, -unit]).tolist()}
        finest = Level(self._hidden, degree + self._kappa2, couplings, self._memory)
        return finest, Multigrid(finest)

    @cached_property
    def _modes(self) -> tuple[list[Tensor], Tensor]:
        """Eigenvectors of the Laplacian along each axis of each box, (W, n, n), and the inverse
        eigenvalues of Q, (W, 1, *box)."""
        corners, like = self._corners, self.values
        bases: list[Tensor] = []
        total = torch.zeros(1, 1, *(1 for _ in self.box), dtype=torch.float64, device="cpu")
        for axis, width in enumerate(self.box):
            at_start = corners[:, axis] == 0
            at_end = corners[:, axis] + width == self._space[axis]
            ends = torch.from_numpy(2 * at_start + at_end)
            variants = [_axis_modes(width, start, end) for start in (0, 1) for end in (0, 1)]
            eigenvalues = torch.from_numpy(np.stack([values for values, _ in variants]))[ends]
            vectors = torch.from_numpy(np.stack([vectors for _, vectors in variants]))
            bases.append(device_sync.moved_like(vectors, like)[ends.to(like.device)])
            shape = [len(corners), 1, *(width if a == axis else 1 for a in range(self._dims))]
            total = total + eigenvalues.reshape(shape)
        # A box that is the whole input has the eigenvalue 0, which a part of it has not.
        total = total.clamp_min(1e-3 * (math.pi / max(self._space)) ** 2)
        scaling = 1 / (self._kappa2 + total + self._beta * total**2)
        return bases, device_sync.moved_like(scaling, like)

    def _inverse_of_boxes(self, residual: Tensor) -> Tensor:
        """The inverse of Q on whole boxes times a residual, in the regions."""
        bases, scaling = self._modes
        modes = residual
        for axis, basis in enumerate(bases):
            modes = _along(axis, modes, basis.mT)
        modes = modes * scaling
        for axis, basis in enumerate(bases):
            modes = _along(axis, modes, basis)
        return modes.mul_(self._hidden)

    def _largest_variance(self) -> Tensor:
        """The largest diagonal element of the inverse on whole boxes, (W,)."""
        bases, diagonal = self._modes
        for axis, basis in enumerate(bases):
            diagonal = _along(axis, diagonal, basis.square())
        return diagonal.flatten(1).amax(-1)


def may_have_factors(example: Tensor, regions: Windows) -> bool:
    """Whether a sparse factor of these regions' equations is of use."""
    small = len(regions.window) <= 2 and math.prod(regions.window) <= LARGEST_FACTORED_BOX
    return regions.hidden is not None and example.device.type == "cpu" and small


def conjugate_gradients(
    residual: Tensor, bound: Tensor, multiply: Linear, precondition: Linear
) -> Tensor:
    """Solve symmetric equations, each until r^T M^-1 r is at most its bound, (W, K, *box).

    Args:
        residual: right-hand sides, (W, K, *box), which are overwritten.
        bound: of each system, (W, K).
        multiply: the matrix times values.
        precondition: M^-1 times values, which may be written into the same memory every time.
    """
    products = torch.empty_like(residual)

    def dot(first: Tensor, second: Tensor) -> Tensor:
        return torch.mul(first, second, out=products).flatten(2).sum(-1)

    solution = torch.zeros_like(residual)
    direction = precondition(residual).clone()
    energy = dot(residual, direction)
    active = energy > bound
    wide = (..., *(None for _ in residual.shape[2:]))
    waits = 1 if residual.device.type == "cpu" else 2
    for iteration in range(MAX_ITERATIONS):
        # Reading a value waits for a device other than the processor.
        if iteration % waits == 0 and not device_sync.is_true(active.any()):
            return solution
        image = multiply(direction)
        step = torch.where(active, energy / dot(direction, image), 0)[wide]
        solution.addcmul_(step, direction)
        residual.addcmul_(step, image, value=-1)
        preconditioned = precondition(residual)
        before, energy = energy, dot(residual, preconditioned)
        active = active & (energy > bound)
        direction.mul_(torch.where(active, energy / before, 0)[wide]).add_(preconditioned)
    raise RuntimeError(
        f"regions of {tuple(residual.shape[2:])} were not filled in {MAX_ITERATIONS} iterations; "
        "please report this with the input"
    )


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
    dtype = torch.promote_types(image.dtype, torch.float32)
    known, space = image.detach().to(dtype), tuple(image.shape[1:])
    one = known.new_ones(1, 1, *space)
    couplings = {
        offset: -1 / sum(map(abs, offset))
        for offset in itertools.product((-1, 0, 1), repeat=len(space))
        if any(offset)
    }
    memory: dict[object, Tensor] = {}
    weights = -Level(one, torch.zeros_like(one), couplings, memory).multiply(one)
    wide = (-1, 1, *(1 for _ in space))
    own_mean = known.flatten(1).mean(dim=1)
    fills = torch.empty(len(seen), *image.shape, dtype=dtype, device=image.device)
    tolerance = DOUBLE_TOLERANCE if dtype == torch.float64 else SINGLE_TOLERANCE
    at_once = max(1, VALUES_AT_ONCE // image.numel())
    for start in range(0, len(seen), at_once):
        some = slice(start, start + at_once)
        shown = seen[some].unsqueeze(1)
        hidden = (~shown & shown.flatten(1).any(dim=1).reshape(wide)).to(dtype)
        finest = Level(hidden, weights, couplings, memory)
        count = shown.flatten(1).sum(dim=1, keepdim=True)
        mean = known.where(shown, 0).flatten(2).sum(-1) / count.clamp_min(1)
        mean = torch.where(count > 0, mean, own_mean)[(..., *(None for _ in space))]
        deviation = (known - mean).where(shown, 0)
        scale = deviation.abs().flatten(2).amax(-1)
        bound = (tolerance * scale) ** 2 / (2 * _largest_resistance(space))
        found = conjugate_gradients(
            -finest.multiply(deviation), bound, finest.multiply, Multigrid(finest)
        )
        fills[some] = torch.where(shown, known, found + mean)
    return fills.to(image.dtype)


def _largest_resistance(box: tuple[int, ...]) -> float:
    """A bound of the diagonal of L_hh^-1: the resistance between pixels of a grid of resistors of
    1 ohm, which is at most that of a chain of squares."""
    shortest = min((n for n in box if n > 1), default=1) if len(box) > 1 else 1
    return max(box) / shortest + 4 / math.pi * math.log(shortest) + 1


def boxes_with_margin(regions: Windows, margins: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes with some pixels around them, each (W, *box with margins).

    Returns:
        The flat numbers of their pixels in the input, whether these lie in the input at all, and
        how many neighbours they have there.
    """
    n_dims = len(margins)
    pixels = degree = np.zeros(1, dtype=np.int64)
    inside = np.ones(1, dtype=np.bool_)
    steps = row_major_steps(regions.space)
    for axis, (margin, width, size) in enumerate(
        zip(margins, regions.window, regions.space, strict=True)
    ):
        places = regions.corner_array[:, axis, None] + np.arange(-margin, width + margin)
        shape = [len(places), *(places.shape[1] if a == axis else 1 for a in range(n_dims))]
        places = places.reshape(shape)
        within = (places >= 0) & (places < size)
        pixels = pixels + np.clip(places, 0, size - 1) * steps[axis]
        inside = inside & within
        degree = degree + ((places > 0).astype(np.int64) + (places < size - 1))
    return torch.from_numpy(pixels), torch.from_numpy(inside), torch.from_numpy(degree * inside)


def _box(values: Tensor, margin: int, box: tuple[int, ...], axis: int, step: int) -> Tensor:
    """Boxes without their margin, moved by a step along an axis."""
    for number, width in enumerate(box):
        values = values.narrow(2 + number, margin + (step if number == axis else 0), width)
    return values


def _without_margin(values: Tensor, margin: int, n_dims: int) -> Tensor:
    """Values (W, K, *space) without this many pixels on each side."""
    for axis in range(values.dim() - n_dims, values.dim()) if margin else ():
        values = values.narrow(axis, margin, values.shape[axis] - 2 * margin)
    return values


def _laplacian(values: Tensor, degree: Tensor, n_dims: int) -> Tensor:
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


class Level:
    """A matrix that couples each pixel of a box with its nearest neighbours, on hidden pixels.

    Args:
        hidden: 1 for pixels that belong to the system, else 0, (W, 1, *box).
        diagonal: the matrix's diagonal, which broadcasts to ``hidden``.
        couplings: its other elements by the offset of the neighbour: a number for all pixels, or
            (W, 1, *box) with 0 wherever a pixel or its neighbour is not hidden.
        memory: where results are put, by their name and shape: to allocate memory anew takes longer
            than to compute them. Levels that are not used at the same time may share it.
    """

    def __init__(
        self,
        hidden: Tensor,
        diagonal: Tensor,
        couplings: Mapping[Offset, float | Tensor],
        memory: dict[object, Tensor],
    ) -> None:
        self.hidden = hidden
        self.box = tuple(hidden.shape[2:])
        self._diagonal = diagonal
        self._couplings = [
            (offset, weight if isinstance(weight, float) else _pairs(weight, offset)[0])
            for offset, weight in couplings.items()
        ]
        self._is_finest = any(isinstance(weight, float) for weight in couplings.values())
        self._smoother = torch.where(hidden > 0, DAMPING / diagonal, 0)
        self._coarser_box = tuple((n + 1) // 2 if n > 2 else n for n in self.box)
        self._memory = memory

    def _empty(self, name: str, like: Tensor, box: tuple[int, ...]) -> Tensor:
        shape = (*like.shape[:2], *box)
        found = self._memory.get((name, shape))
        if found is None:
            found = self._memory[name, shape] = like.new_empty(shape)
        return found

    def multiply(self, values: Tensor) -> Tensor:
        """The matrix times values (W, K, *box) that are 0 where a pixel is not hidden."""
        result = torch.mul(values, self._diagonal, out=self._empty("product", values, self.box))
        return self._add_couplings(result, values, 1)

    def residual(self, right: Tensor, values: Tensor) -> Tensor:
        """The right-hand side less the matrix times values, in memory of this level."""
        result = self._empty("residual", right, self.box)
        torch.addcmul(right, values, self._diagonal, value=-1, out=result)
        return self._add_couplings(result, values, -1)

    def _add_couplings(self, result: Tensor, values: Tensor, sign: int) -> Tensor:
        for offset, weight in self._couplings:
            own, neighbours = _pairs(result, offset)[0], _pairs(values, offset)[1]
            if isinstance(weight, float):
                own.add_(neighbours, alpha=sign * weight)
            else:
                own.addcmul_(weight, neighbours, value=sign)
        return result.mul_(self.hidden) if self._is_finest else result

    def coarser(self) -> Level:
        """The matrix P^T A P of every other pixel, with linear interpolation P between them."""
        hidden = self.hidden
        for axis, size in enumerate(self.box, start=2):
            hidden = _every_other(hidden, axis, 0) if size > 2 else hidden
        hidden = hidden.contiguous()
        n_dims = len(self.box)
        couplings = {
            offset: torch.zeros_like(hidden)
            for offset in itertools.product((-1, 0, 1), repeat=n_dims)
        }
        # Pixels three apart have no neighbour in common, so one product has all their columns.
        for comb in itertools.product(range(3), repeat=n_dims):
            teeth = _slices(3, comb)
            columns = torch.zeros_like(hidden)
            columns[teeth] = hidden[teeth]
            columns = self._restricted(self.multiply(self._interpolated(columns))).mul_(hidden)
            for offset, weights in couplings.items():
                firsts = [(c - o) % 3 for c, o in zip(comb, offset, strict=True)]
                rows = _slices(3, firsts)
                weights[rows] = columns[rows]
        diagonal = couplings.pop((0,) * n_dims)
        return Level(hidden, diagonal + (1 - hidden), couplings, self._memory)

    def _interpolated(self, coarse: Tensor) -> Tensor:
        """Values of every other pixel, at all hidden pixels."""
        box = list(coarse.shape[2:])
        for axis, (count, size) in enumerate(zip(self._coarser_box, self.box, strict=True)):
            if count == size:
                continue
            box[axis] = size
            fine = self._empty(f"interpolated {axis}", coarse, tuple(box))
            axis += 2
            _every_other(fine, axis, 0).copy_(coarse)
            between = _every_other(fine, axis, 1).narrow(axis, 0, count - 1)
            ends = (coarse.narrow(axis, first, count - 1) for first in (0, 1))
            torch.add(*ends, out=between).mul_(0.5)
            if size % 2 == 0:
                fine.narrow(axis, size - 1, 1).copy_(coarse.narrow(axis, count - 1, 1))
            coarse = fine
        return coarse.mul_(self.hidden)

    def _restricted(self, fine: Tensor) -> Tensor:
        """The transpose of the interpolation."""
        box = list(self.box)
        for axis, (count, size) in enumerate(zip(self._coarser_box, self.box, strict=True)):
            if count == size:
                continue
            box[axis] = count
            coarse = self._empty(f"restricted {axis}", fine, tuple(box))
            axis += 2
            coarse.copy_(_every_other(fine, axis, 0))
            between = _every_other(fine, axis, 1).narrow(axis, 0, count - 1)
            coarse.narrow(axis, 0, count - 1).add_(between, alpha=0.5)
            coarse.narrow(axis, 1, count - 1).add_(between, alpha=0.5)
            if size % 2 == 0:
                coarse.narrow(axis, count - 1, 1).add_(fine.narrow(axis, size - 1, 1))
            fine = coarse
        return fine

    def inverse(self) -> Tensor:
        """The inverse matrix, (W, pixels, pixels)."""
        n_pixels = math.prod(self.box)
        unit = torch.eye(n_pixels, dtype=self.hidden.dtype, device=self.hidden.device)
        columns = unit.reshape(1, n_pixels, *self.box) * self.hidden
        matrix = self.multiply(columns).flatten(2) + torch.diag_embed(1 - self.hidden.flatten(1))
        inverse: Tensor = torch.linalg.inv(matrix)
        return inverse

    def correct(self, residual: Tensor, coarser: list[Level], coarsest: Tensor) -> Tensor:
        """Nearly the solution: Jacobi's step, a correction on every other pixel, the same step."""
        if not coarser:
            return (residual.flatten(2) @ coarsest).reshape(residual.shape)
        found = torch.mul(residual, self._smoother, out=self._empty("found", residual, self.box))
        right = self._restricted(self.residual(residual, found)).mul_(coarser[0].hidden)
        found += self._interpolated(coarser[0].correct(right, coarser[1:], coarsest))
        return found.addcmul_(self._smoother, self.residual(residual, found))


class Multigrid:
    """A cycle through coarser and coarser grids, as a preconditioner of conjugate gradients.

    It is symmetric, and its product with the matrix has eigenvalues from about 1/2 to 1.

    Args:
        finest: the matrix that is to be inverted.
    """

    def __init__(self, finest: Level) -> None:
        self._levels = [finest]
        while math.prod(self._levels[-1].box) > COARSEST_PIXELS:
            self._levels.append(self._levels[-1].coarser())
        self._inverse = self._levels[-1].inverse()

    def __call__(self, residual: Tensor) -> Tensor:
        """Nearly the solution for right-hand sides (W, K, *box) that are 0 where nothing is hidden.

        The next call writes into the same memory."""
        finest, *coarser = self._levels
        return finest.correct(residual, coarser, self._inverse)


def _pairs(values: Tensor, offset: Offset) -> tuple[Tensor, Tensor]:
    """The pixels that have a neighbour at this offset, and these neighbours."""
    own = neighbours = values
    for axis, step in enumerate(offset, start=values.dim() - len(offset)):
        if step:
            length = values.shape[axis] - 1
            own = own.narrow(axis, max(-step, 0), length)
            neighbours = neighbours.narrow(axis, max(step, 0), length)
    return own, neighbours


def _every_other(values: Tensor, axis: int, first: int) -> Tensor:
    return values[(slice(None),) * axis + (slice(first, None, 2),)]


def _slices(step: int, firsts: Sequence[int]) -> tuple[EllipsisType | slice, ...]:
    return (..., *(slice(first, None, step) for first in firsts))
