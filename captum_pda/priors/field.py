"""The default prior: a Gaussian field over all pixels, conditioned on everything that is seen.

The power spectrum of natural images falls as 1/f^2 (Ruderman 1994). The Gaussian field with that
spectrum has the Laplacian L of the pixel grid as its precision matrix,

    x^T L x = sum over neighbouring pixels (x_p - x_q)^2,

so hidden pixels h given the seen ones s have the mean m with L_hh m = -L_hs x_s: the harmonic
interpolation of what surrounds them. Their covariance is L_hh^-1 times a covariance of colours.
A field that was fitted to data has the precision Q = 1/l^2 + L + b^2 L^2, with a correlation
length l and a smoothness b.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.fft import dctn
from scipy.linalg import eigh_tridiagonal
from scipy.optimize import minimize
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.linalg import splu
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Self

from captum_pda import device_sync
from captum_pda.distributed import Ranks
from captum_pda.fingerprints import fingerprint, own_code
from captum_pda.model.inputs import check_count
from captum_pda.priors.empty_context import EmptyContext, blurred, pasted
from captum_pda.priors.protocol import Images, batches_of, opened_tensors, save_tensors
from captum_pda.regions.protocol import Windows, row_major_steps

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


Floats = npt.NDArray[np.float64]

#: Bounds of a fill's error, as a share of the range of the values around the region.
DOUBLE_TOLERANCE, SINGLE_TOLERANCE = 1e-9, 3e-5
#: Values of regions that are solved for at once: larger batches fall out of a processor's cache.
VALUES_AT_ONCE = 2**19
#: Pixels of the largest box whose region has a sparse factor (0.5 GB); it takes some seconds.
LARGEST_FACTORED_BOX = 2**18
#: Iterations after which the solver gives up; regions of photos take 10 to 40.
MAX_ITERATIONS = 5000
#: Samples vary as much as the seen pixels up to this share of the region's extent around it, and
#: at least this many: 4 pixels around a window of 10 are the papers' outer patch.
SURROUNDINGS, LEAST_SURROUNDINGS = 1 / 4, 4
#: Edges between the bins of a power spectrum, in eigenvalues of the Laplacian.
SPECTRUM_EDGES = np.geomspace(1e-7, 12.0, 257)
#: Bounds of a fitted correlation length and smoothness, in pixels.
LENGTH_BOUNDS, SMOOTHNESS_BOUNDS = (0.1, 1e4), (1e-3, 1e3)


class GaussianFieldPrior:
    """All pixels are one Gaussian field; a region is expected given all pixels outside of it.

    Without a fit, nothing about the data is assumed but that neighbouring pixels are alike. The
    conditional mean of a region is the harmonic interpolation of the pixels around it, in one to
    three dimensions, for regions of any shape. Samples vary as much, and in the same colours, as
    the seen pixels around the region. No fill depends on the pixels that it replaces.

    A fit to images of another kind than photos (``fit``) adds a correlation length, a smoothness,
    a mean and a covariance of colours.

    Where nothing is seen, because a region is the whole input, the conditional mean is the fitted
    mean; without a fit it is 0, the mean of inputs that were normalised, and so are samples.

    Example::

        >>> EfficientPDA(model).attribute(image, target=3)    # this prior is the default
        >>> prior = GaussianFieldPrior().fit(loader, show_progress=True)
        >>> prior.save("chest_xray.safetensors")
        >>> EfficientPDA(model, prior=prior).attribute(image, target=3)
    """

    #: Raised whenever the same arguments give other fills.
    version = 1

    def __init__(self) -> None:
        #: The length l of the precision 1/l^2 + L + b^2 L^2, in pixels; infinite without a fit.
        self.correlation_length = math.inf
        #: The length b of that precision; 0 without a fit.
        self.smoothness = 0.0
        #: The fitted mean of each channel, (C,), and the covariance of the channels of the
        #: differences between neighbouring pixels, (C, C); None without a fit.
        self.mean: Tensor | None = None
        self.colour_covariance: Tensor | None = None

    # Filling regions

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        """The expected content of each region of an example (C, *space), (W, C, *window)."""
        self._check_channels(example)
        fills = example.new_empty(len(regions), len(example), *regions.window)
        with torch.autocast(example.device.type, enabled=False):
            for some, systems in self._systems(example, regions, len(example)):
                fills[some] = self._means(systems).to(example.dtype)
        return fills

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws of each region's content given all other pixels, (S, W, C, *window)."""
        n_samples, n_channels = check_count("n_samples", n_samples), len(example)
        self._check_channels(example)
        fills = example.new_empty(n_samples, len(regions), n_channels, *regions.window)
        with torch.autocast(example.device.type, enabled=False):
            for some, systems in self._systems(example, regions, n_samples * n_channels):
                drawn = systems.draw(n_samples * n_channels, generator)
                drawn = drawn.reshape(-1, n_samples, n_channels, *regions.window)
                roots = self._colour_roots(example, regions[some], drawn)
                coloured = torch.einsum("wcd,wsd...->swc...", roots, drawn)
                fills[:, some] = (self._means(systems) + coloured).to(example.dtype)
        return fills

    def _systems(
        self, example: Tensor, regions: Windows, n_values: int
    ) -> Iterator[tuple[slice, _HiddenPixels]]:
        """The equations of regions, as many at once as suit n_values for each pixel."""
        at_once = max(1, VALUES_AT_ONCE // (n_values * math.prod(regions.window)))
        for start in range(0, len(regions), at_once):
            some = slice(start, min(start + at_once, len(regions)))
            yield (
                some,
                _HiddenPixels(example, regions[some], self.correlation_length, self.smoothness),
            )

    def _means(self, systems: _HiddenPixels) -> Tensor:
        """Conditional means, (W, C, *window)."""
        if self.mean is None:
            level = systems.boundary_mean()
        else:
            level = device_sync.moved_like(self.mean, systems.values)
            level = level.reshape(1, -1, *(1 for _ in systems.box))
        return systems.mean_about(level)

    def _colour_roots(self, example: Tensor, regions: Windows, like: Tensor) -> Tensor:
        """Square roots of the covariances of colours, (W, C, C), in the dtype of ``like``."""
        if self.colour_covariance is None:
            covariances = _surrounding_colours(example, regions, like.dtype)
        else:
            covariances = device_sync.moved_like(self.colour_covariance, like)
            covariances = covariances.expand(len(regions), -1, -1)
        values, vectors = torch.linalg.eigh(covariances)
        roots: Tensor = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
        return roots

    def _check_channels(self, example: Tensor) -> None:
        if self.mean is not None and len(self.mean) != len(example):
            raise ValueError(
                f"this GaussianFieldPrior was fitted to {len(self.mean)} channels, and the input "
                f"has {len(example)}; fit it to such inputs, or use GaussianFieldPrior() unfitted"
            )

    # The empty context

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The example (C, *space) blurred until only its layout of colours is left, by a Gaussian
        of 20/224 of its shorter side: evidence is then about structure, not about colours."""
        return blurred(example)

    def seen_alone(self, example: Tensor, windows: Windows) -> tuple[Windows, Tensor]:
        """Each region in the blurred example, with soft edges: boxes, and contents (W, C, *box)."""
        return pasted(example, self.nothing_seen(example), windows)

    # Fitting and storing

    def fit(
        self,
        data: Images,
        show_progress: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> Self:
        """Fit to a tensor (N, C, *space), an iterable of batches, a Dataset or a DataLoader.

        The coefficients of an image's cosine transform are independent under the field, with
        covariance S / (1/l^2 + v + b^2 v^2) for the eigenvalue v of the Laplacian. Correlation
        length l, smoothness b and the covariance S of colours are those of the largest likelihood,
        from one pass over the data. Images may differ in size.

        With a process group each rank gives its own part of the data, such as a loader with a
        DistributedSampler, and all get the fit to the whole.
        """
        ranks = Ranks(process_group)
        spectrum: _Spectrum | None = None
        with ranks.failing_together():
            shows = show_progress and ranks.rank == 0
            for batch in batches_of(data, shows, may_be_empty=ranks.count > 1):
                spectrum = spectrum or _Spectrum(batch.shape[1])
                spectrum.add(batch)
        spectrum = _over_ranks(spectrum, ranks)
        length, smoothness, colours = spectrum.most_likely()
        self.correlation_length, self.smoothness = length, smoothness
        self.mean, self.colour_covariance = torch.from_numpy(spectrum.mean), colours
        return self

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the fit to a safetensors file, which holds numbers and settings only."""
        if self.mean is None or self.colour_covariance is None:
            raise ValueError("this GaussianFieldPrior has no fit to save; call fit(images) first")
        lengths = torch.from_numpy(np.array([self.correlation_length, self.smoothness]))
        tensors = {"lengths": lengths, "mean": self.mean, "colours": self.colour_covariance}
        save_tensors(path, tensors, {"kind": "GaussianFieldPrior"}, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Read a prior that ``save`` wrote. Loading never runs code, and checks what it reads.

        ``device`` is accepted as for other priors; fills are computed on the example's device.
        """
        with opened_tensors(path, "cpu") as file:
            if file.settings.get("kind") != "GaussianFieldPrior":
                raise ValueError("it does not hold a GaussianFieldPrior")
            channels = (file.shapes.get("mean") or [0])[0]
            if channels < 1:
                raise ValueError("its mean is that of no channels")
            tensors = file.read(
                {"lengths": [2], "mean": [channels], "colours": [channels, channels]}
            )
            length, smoothness = tensors["lengths"].tolist()
            colours = tensors["colours"]
            for name, value, (low, high) in (
                ("correlation length", length, LENGTH_BOUNDS),
                ("smoothness", smoothness, SMOOTHNESS_BOUNDS),
            ):
                if not low * (1 - 1e-6) <= value <= high * (1 + 1e-6):
                    raise ValueError(
                        f"its {name} is {value:.3g}, beyond {low:g} to {high:g} pixels"
                    )
            if not torch.allclose(colours, colours.T, rtol=1e-6) or not _is_covariance(colours):
                raise ValueError("its colours are not a covariance")
        prior = cls()
        prior.correlation_length, prior.smoothness = length, smoothness
        prior.mean, prior.colour_covariance = tensors["mean"], colours
        return prior

    def settings(self) -> dict[str, object]:
        """What fills depend on, as plain values."""
        described: dict[str, object] = {"kind": "GaussianFieldPrior", "version": self.version}
        if self.mean is not None:
            described["correlation_length"] = self.correlation_length
            described["smoothness"] = self.smoothness
            described["fit_sha256"] = fingerprint([self.mean, self.colour_covariance])
        return described

    def __repr__(self) -> str:
        if self.mean is None:
            return "GaussianFieldPrior()"
        return (
            f"GaussianFieldPrior(correlation_length={self.correlation_length:.3g}, "
            f"smoothness={self.smoothness:.3g}, fitted to {len(self.mean)} channels)"
        )


class _HiddenPixels:
    """The equations Q_hh x = b of regions h whose boxes have one shape, each by itself.

    They are solved by conjugate gradients. The preconditioner is the inverse of Q on the whole box,
    which the eigenvectors of each axis diagonalise: exact for windows, and within 10 to 40
    iterations for other shapes. On a CPU, other shapes in one or two dimensions have a sparse
    factor instead, which takes a third of the time for means and a tenth for ten samples.

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
        self._kappa2 = correlation_length**-2
        self._beta = smoothness**2
        dtype = torch.promote_types(example.dtype, torch.float32)
        device = example.device
        # Two pixels around the box are coupled with it by L^2, one by L.
        self._margin = 2 if self._beta else 1
        pixels, inside, degree = _boxes_with_margin(regions, (self._margin,) * self._dims)
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
        self._hidden = hidden.unsqueeze(1).to(dtype)
        self._corners, self._space = regions.corner_array, regions.space
        self._is_sparse = (
            regions.hidden is not None
            and device.type == "cpu"
            and self._dims <= 2
            and math.prod(self.box) <= LARGEST_FACTORED_BOX
            and bool(self.seen.flatten(1).any(dim=1).all())  # or the matrix is singular
        )
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
        product = _without_margin(self._multiply(deviation, self._margin), self._margin, self._dims)
        return self.solve(-product * self._hidden, deviation.abs().flatten(2).amax(-1)) + level

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

        The preconditioner M^-1 is no smaller than Q_hh^-1, so r^T M^-1 r bounds the error's energy,
        and with the largest diagonal element of M^-1 its square at every pixel. Each system stops
        by itself, so that it does not depend on the others.

        Args:
            right: the right-hand sides, 0 outside of the regions.
            scale: what errors are measured by, (W, K).
        """
        if self._is_sparse:
            return self._solve_sparse(right)
        largest = self._largest_variance()
        bound = (self._tolerance * scale) ** 2 / largest.unsqueeze(1)
        found = torch.empty_like(right)
        # One column after another where a single region is already large.
        at_once = max(1, VALUES_AT_ONCE // (len(right) * math.prod(self.box)))
        for start in range(0, right.shape[1], at_once):
            some = slice(start, start + at_once)
            found[:, some] = self._conjugate_gradients(right[:, some], bound[:, some])
        return found

    def _conjugate_gradients(self, right: Tensor, bound: Tensor) -> Tensor:
        solution = torch.zeros_like(right)
        residual = right.clone()
        direction = self._precondition(residual)
        energy = _dot(residual, direction)
        active = energy > bound
        wide = (..., *(None for _ in self.box))
        for iteration in range(MAX_ITERATIONS):
            # Reading a value waits for the device.
            if iteration % 2 == 0 and not device_sync.is_true(active.any()):
                return solution
            image = self._multiply_hidden(direction)
            step = torch.where(active, energy / _dot(direction, image), 0)[wide]
            solution.addcmul_(step, direction)
            residual.addcmul_(step, image, value=-1)
            preconditioned = self._precondition(residual)
            before, energy = energy, _dot(residual, preconditioned)
            active = active & (energy > bound)
            step = torch.where(active, energy / before, 0)[wide]
            direction = preconditioned.addcmul_(step, direction)
        raise RuntimeError(
            f"the conditional mean of regions of {self.box} was not found in {MAX_ITERATIONS} "
            "iterations; please report this with the input"
        )

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
    def _preconditioner(self) -> tuple[list[Tensor], Tensor]:
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

    def _precondition(self, residual: Tensor) -> Tensor:
        """The inverse of Q on whole boxes times a residual, in the regions."""
        bases, scaling = self._preconditioner
        modes = residual
        for axis, basis in enumerate(bases):
            modes = _along(axis, modes, basis.mT)
        modes = modes * scaling
        for axis, basis in enumerate(bases):
            modes = _along(axis, modes, basis)
        return modes.mul_(self._hidden)

    def _largest_variance(self) -> Tensor:
        """The largest diagonal element of the preconditioner for each region, (W,)."""
        bases, diagonal = self._preconditioner
        for axis, basis in enumerate(bases):
            diagonal = _along(axis, diagonal, basis.square())
        return diagonal.flatten(1).amax(-1)


def _surrounding_colours(example: Tensor, regions: Windows, dtype: torch.dtype) -> Tensor:
    """The covariance of colours of each region's samples, (W, C, C), from seen pixels around it.

    With d the differences between seen neighbours and n seen pixels, sum d d^T / (n - 1) is the
    covariance of the largest likelihood of a field on these pixels.
    """
    n_dims = len(regions.window)
    margins = tuple(max(LEAST_SURROUNDINGS, round(SURROUNDINGS * n)) for n in regions.window)
    pixels, seen, _ = _boxes_with_margin(regions, margins)
    hidden = torch.ones((len(regions), *regions.window), dtype=torch.bool, device="cpu")
    if regions.hidden is not None:
        hidden = regions.hidden.cpu()
    sides = [side for margin in reversed(margins) for side in (margin, margin)]
    seen = (seen & ~pad(hidden, sides)).unsqueeze(1).to(example.device)
    values = example.detach().flatten(1)[:, pixels.to(example.device)].movedim(1, 0).to(dtype)
    total = values.new_zeros(len(regions), len(example), len(example))
    for axis in range(2, 2 + n_dims):
        length = values.shape[axis] - 1
        both = seen.narrow(axis, 0, length) & seen.narrow(axis, 1, length)
        steps = values.narrow(axis, 1, length) - values.narrow(axis, 0, length)
        steps = steps.where(both, 0).flatten(2)
        total += steps @ steps.mT
    count = seen.flatten(1).sum(-1) - 1
    return total / count.clamp_min(1).reshape(-1, 1, 1)


def _boxes_with_margin(regions: Windows, margins: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
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


def _dot(first: Tensor, second: Tensor) -> Tensor:
    """Scalar products over all pixels, (W, K)."""
    products: Tensor = torch.linalg.vecdot(first.flatten(2), second.flatten(2))
    return products


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


class _Spectrum:
    """The power spectrum of images, gathered in bins of the Laplacian's eigenvalues.

    Args:
        n_channels: of the images.
    """

    def __init__(self, n_channels: int) -> None:
        n_bins = len(SPECTRUM_EDGES) + 1
        self.n_channels = n_channels
        #: Images, pixels, and the sums over images of pixels times mean, and mean times its
        #: transpose.
        self.n_images, self.n_pixels = 0.0, 0.0
        self.level, self.level_squares = np.zeros(n_channels), np.zeros((n_channels, n_channels))
        #: Of each bin: coefficients, sum of eigenvalues, sum of products of channels.
        self.counts, self.eigenvalues = np.zeros(n_bins), np.zeros(n_bins)
        self.power = np.zeros((n_bins, n_channels, n_channels))

    def add(self, images: Tensor) -> None:
        """Add a batch (N, C, *space)."""
        if images.shape[1] != self.n_channels:
            raise ValueError(
                f"a batch has {images.shape[1]} channels where the first had {self.n_channels}; "
                "fit to images of one kind"
            )
        space = tuple(images.shape[2:])
        eigenvalues = np.zeros(space)
        for axis, size in enumerate(space):
            along = 2 - 2 * np.cos(np.pi * np.arange(size) / size)
            eigenvalues += along.reshape([-1 if a == axis else 1 for a in range(len(space))])
        flat = eigenvalues.reshape(-1)[1:]
        bins, n_bins = np.searchsorted(SPECTRUM_EDGES, flat), len(self.counts)
        for image in images.detach().cpu().double().numpy():
            coefficients = dctn(image, axes=range(1, image.ndim), norm="ortho")
            coefficients = coefficients.reshape(self.n_channels, -1)
            mean = coefficients[:, 0] / math.sqrt(math.prod(space))
            self.n_images += 1
            self.n_pixels += math.prod(space)
            self.level += math.prod(space) * mean
            self.level_squares += math.prod(space) * np.outer(mean, mean)
            self.counts += np.bincount(bins, minlength=n_bins)
            self.eigenvalues += np.bincount(bins, flat, minlength=n_bins)
            for one in range(self.n_channels):
                for other in range(one + 1):
                    product = coefficients[one, 1:] * coefficients[other, 1:]
                    total = np.bincount(bins, product, minlength=n_bins)
                    self.power[:, one, other] += total
                    if other != one:
                        self.power[:, other, one] += total

    @property
    def mean(self) -> Floats:
        """The mean of each channel."""
        return self.level / self.n_pixels

    def most_likely(self) -> tuple[float, float, Tensor]:
        """The correlation length, the smoothness and the covariance of colours that make these
        images most likely."""
        # The mean was fitted too, which takes one image's worth of the lowest coefficient.
        lowest = self.level_squares - self.n_pixels * np.outer(self.mean, self.mean)
        counts = np.append(self.counts, self.n_images - 1)
        power = np.concatenate([self.power, lowest[None]])
        eigenvalues = np.append(self.eigenvalues / np.maximum(self.counts, 1), 0)
        some = counts > 0
        counts, power, eigenvalues = counts[some], power[some], eigenvalues[some]
        loading = 1e-9 * np.trace(power.sum(axis=0)) / max(1, counts.sum()) / self.n_channels
        if not loading > 0:
            raise ValueError(
                "the images are constant, so there is nothing to fit; use GaussianFieldPrior() "
                "without a fit"
            )

        def precision(logarithms: Floats) -> Floats:
            length, smoothness = np.exp(logarithms)
            total: Floats = length**-2 + eigenvalues + smoothness**2 * eigenvalues**2
            return total

        def colours(precisions: Floats) -> Floats:
            covariance = np.tensordot(precisions, power, 1) / counts.sum()
            return np.asarray(covariance + loading * np.eye(self.n_channels))

        def unlikelihood(logarithms: Floats) -> float:
            precisions = precision(logarithms)
            _, logarithm = np.linalg.slogdet(colours(precisions))
            return float(logarithm - self.n_channels * counts @ np.log(precisions) / counts.sum())

        limits = [
            (math.log(low), math.log(high)) for low, high in (LENGTH_BOUNDS, SMOOTHNESS_BOUNDS)
        ]
        starts = [(math.log(length), math.log(b)) for length in (1, 30) for b in (1e-2, 1)]
        found = min(
            (
                minimize(unlikelihood, start, method="Nelder-Mead", bounds=limits)
                for start in starts
            ),
            key=lambda result: float(result.fun),
        )
        length, smoothness = (float(value) for value in np.exp(found.x))
        return length, smoothness, torch.from_numpy(colours(precision(found.x)))


def _over_ranks(spectrum: _Spectrum | None, ranks: Ranks) -> _Spectrum:
    """The spectrum of all images that any rank has seen."""
    told = [channels for (channels,) in ranks.gather([spectrum.n_channels if spectrum else 0])]
    seen = sorted({channels for channels in told if channels})
    if not seen:
        raise ValueError("there were no batches to fit on any rank; the iterables were empty")
    if len(seen) > 1:
        raise ValueError(f"the ranks have images of {seen} channels; fit to images of one kind")
    total = spectrum or _Spectrum(seen[0])
    if ranks.count > 1:
        parts = (total.n_images, total.n_pixels, total.level, total.level_squares)
        arrays: list[Any] = [*map(np.asarray, parts), total.counts, total.eigenvalues, total.power]
        flat = np.concatenate([array.reshape(-1) for array in arrays])
        summed = ranks.sum(torch.from_numpy(flat)).numpy()
        ends = np.cumsum([array.size for array in arrays])[:-1]
        pieces = [
            piece.reshape(array.shape)
            for piece, array in zip(np.split(summed, ends), arrays, strict=True)
        ]
        total.n_images, total.n_pixels = float(pieces[0]), float(pieces[1])
        total.level, total.level_squares, total.counts, total.eigenvalues, total.power = pieces[2:]
    return total


def _is_covariance(matrix: Tensor) -> bool:
    lowest = torch.linalg.eigvalsh((matrix + matrix.T) / 2)[0]
    return bool(lowest >= -1e-9 * matrix.diagonal().abs().max())


DEFAULT_PRIOR = GaussianFieldPrior()


def prior_for(prior: Any, method: str) -> Any:
    """The given prior, or without one the default.

    Args:
        prior: the user's prior, or None.
        method: the method that will be called on it.
    """
    if prior is None:
        return DEFAULT_PRIOR
    if isinstance(prior, type) or not callable(getattr(prior, method, None)):
        raise TypeError(
            f"prior={prior!r} has no method {method}; use a GaussianFieldPrior(), "
            "GaussianPatchPrior, MarginalPrior or ConstantPrior, or write the method as PatchPrior "
            "describes"
        )
    return prior


def prior_settings(prior: Any) -> dict[str, object]:
    """What describes a prior, as plain values; one of your own without ``settings()`` is known by
    its class and a hash of its code and attributes."""
    if prior is None:
        prior = DEFAULT_PRIOR
    described: dict[str, object] = {"empty_context_version": EmptyContext.version}
    if callable(getattr(prior, "settings", None)):
        return {**described, **prior.settings(), **own_code(prior)}
    return {**described, "kind": type(prior).__qualname__, "sha256": fingerprint(prior)}
