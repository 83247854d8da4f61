"""The default prior: a Gaussian field over all pixels, conditioned on all visible ones.

The power spectrum of natural images falls as 1/f^2 (Ruderman 1994). The Gaussian field with that
spectrum has the Laplacian L of the pixel grid as its precision matrix,

    x^T L x = sum over neighbouring pixels (x_p - x_q)^2,

so hidden pixels h given the visible ones s have the mean m with L_hh m = -L_hs x_s, the harmonic
interpolation of their surroundings. Their covariance is L_hh^-1 times a covariance of colours. A
fitted field has the precision Q = 1/l^2 + L + b^2 L^2, with a correlation length l and a smoothness
b.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.fft import dctn
from scipy.optimize import minimize
from torch import Tensor
from typing_extensions import Self

from captum_pda import device_sync
from captum_pda.distributed import Ranks
from captum_pda.files import counted
from captum_pda.fingerprints import fingerprint, own_code
from captum_pda.model.inputs import check_count
from captum_pda.priors.empty_context import BlurredContext, EmptyContext
from captum_pda.priors.protocol import Images, batches_of, opened_tensors, save_tensors
from captum_pda.priors.solver import VALUES_AT_ONCE, HiddenPixels, boxes_with_margin, check_finite
from captum_pda.regions.protocol import Windows

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


Floats = npt.NDArray[np.float64]

#: The distance up to which pixels around a region set the variance of its samples, as a share of
#: the region's extent, and its minimum. 4 pixels around a window of 10 are the papers' outer patch.
SURROUNDINGS, LEAST_SURROUNDINGS = 1 / 4, 4
#: The bins of a power spectrum, in eigenvalues of the Laplacian.
SPECTRUM_EDGES = np.geomspace(1e-7, 12.0, 257)
#: Bounds of a fitted correlation length and smoothness, in pixels.
LENGTH_BOUNDS, SMOOTHNESS_BOUNDS = (0.1, 1e4), (1e-3, 1e3)


class GaussianFieldPrior(BlurredContext):
    """A Gaussian field over all pixels; each region is predicted from all pixels outside of it.

    Without a fit, it only assumes that neighbouring pixels are similar. The conditional mean of a
    region is the harmonic interpolation of its surroundings, in one to three dimensions and for any
    shape. Samples have the variance and the colours of the visible pixels around the region. A fill
    never depends on the pixels that it replaces.

    ``fit`` adds a correlation length, a smoothness, a mean and a covariance of colours, for images
    that are not photos. For a region that is the whole input, the conditional mean is the fitted
    mean, or without a fit 0, the mean of normalised inputs.

    Example::

        >>> EfficientPDA(model).attribute(image, target=3)    # this prior is the default
        >>> prior = GaussianFieldPrior().fit(loader, show_progress=True)
        >>> prior.save("chest_xray.safetensors")
        >>> EfficientPDA(model, prior=prior).attribute(image, target=3)
    """

    #: Increase this whenever the same arguments give other fills.
    version = 3

    def __init__(self) -> None:
        #: The length l of the precision 1/l^2 + L + b^2 L^2, in pixels; infinite without a fit.
        self.correlation_length = math.inf
        #: The length b of that precision; 0 without a fit.
        self.smoothness = 0.0
        #: The fitted mean of each channel, (C,), and the covariance of the channels of the
        #: differences between neighbouring pixels, (C, C); None without a fit.
        self.mean: Tensor | None = None
        self.colour_covariance: Tensor | None = None

    @property
    def correlation_distance(self) -> float:
        """The distance over which pixels are correlated: 1/sqrt(v), with v the eigenvalue of the
        Laplacian at which the power spectrum 1 / (1/l^2 + v + b^2 v^2) has fallen to half.

        For b = 0 it is l. In very smooth data only the product of l and b is determined, and it is
        sqrt(l b).
        """
        length, b2 = self.correlation_length, self.smoothness**2
        # The positive root of b^2 v^2 + v = 1/l^2, in a form that holds for b = 0 too.
        return length * math.sqrt((1 + math.sqrt(1 + 4 * b2 / length**2)) / 2)

    # Filling regions

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        """The expected content of each region of an example (C, *space), (W, C, *window)."""
        self._check_channels(example)
        fills = example.new_empty(len(regions), len(example), *regions.window)
        with torch.autocast(example.device.type, enabled=False):
            for some, systems in self._systems(example, regions, len(example)):
                level = self._level(systems)
                fills[some] = (systems.solve(systems.expected(level)) + level).to(example.dtype)
        return fills

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples of each region's content given all other pixels, (S, W, C, *window)."""
        n_samples, n_channels = check_count("n_samples", n_samples), len(example)
        self._check_channels(example)
        fills = example.new_empty(n_samples, len(regions), n_channels, *regions.window)
        with torch.autocast(example.device.type, enabled=False):
            for some, systems in self._systems(example, regions, n_samples * n_channels):
                level = self._level(systems)
                # Solved together: the mean of each channel, then the samples.
                noise = systems.drawn(n_samples * n_channels, generator)
                parts = zip(systems.expected(level), noise, strict=True)
                del noise  # so that nothing large is held twice
                both = systems.solve(tuple(torch.cat(each, 1) for each in parts))
                del parts
                drawn = both[:, n_channels:].reshape(-1, n_samples, n_channels, *regions.window)
                roots = self._colour_roots(example, regions[some], drawn)
                coloured = torch.einsum("wcd,wsd...->swc...", roots, drawn)
                fills[:, some] = (both[:, :n_channels] + level + coloured).to(example.dtype)
        return fills

    def _systems(
        self, example: Tensor, regions: Windows, n_values: int
    ) -> Iterator[tuple[slice, HiddenPixels]]:
        at_once = max(1, VALUES_AT_ONCE // (n_values * math.prod(regions.window)))
        for start in range(0, len(regions), at_once):
            some = slice(start, start + at_once)
            lengths = self.correlation_length, self.smoothness
            yield some, HiddenPixels(example, regions[some], *lengths)

    def _level(self, systems: HiddenPixels) -> Tensor:
        """The fitted mean, or that of the visible pixels nearby, (W or 1, C, 1...)."""
        if self.mean is None:
            return systems.boundary_mean()
        mean = device_sync.moved_like(self.mean, systems.values)
        return mean.reshape(1, -1, *(1 for _ in systems.box))

    def _colour_roots(self, example: Tensor, regions: Windows, like: Tensor) -> Tensor:
        """Square roots of the covariances of colours, (W, C, C), in the dtype of ``like``."""
        if self.colour_covariance is None:
            covariances, unit = _surrounding_colours(example, regions, like.dtype)
        else:
            covariances = device_sync.moved_like(self.colour_covariance, like)
            covariances, unit = covariances.expand(len(regions), -1, -1), like.new_ones(1, 1, 1)
        values, vectors = torch.linalg.eigh(covariances)
        roots: Tensor = unit * vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
        return roots

    def _check_channels(self, example: Tensor) -> None:
        if self.mean is not None and len(self.mean) != len(example):
            fitted = counted(len(self.mean), "channel")
            raise ValueError(
                f"this GaussianFieldPrior was fitted to {fitted}, and the input has "
                f"{len(example)}; fit it to such inputs, or use GaussianFieldPrior() unfitted"
            )

    # Fitting and storing

    def fit(
        self, data: Images, show_progress: bool = False, process_group: ProcessGroup | None = None
    ) -> Self:
        """Fit to a tensor (N, C, *space), an iterable of batches, a Dataset or a DataLoader.

        Under the field, the coefficients of an image's cosine transform are independent, with
        covariance S / (1/l^2 + v + b^2 v^2) for the eigenvalue v of the Laplacian. The correlation
        length l, the smoothness b and the covariance S of colours maximise the likelihood, from one
        pass over the data. Images may differ in size.

        With a process group each rank passes its own part of the data, such as a loader with a
        DistributedSampler, and all get the fit to all data.
        """
        ranks = Ranks(process_group)
        spectrum: _Spectrum | None = None
        with ranks.failing_together():
            shows = show_progress and ranks.rank == 0
            for batch in batches_of(data, shows, may_be_empty=ranks.count > 1):
                spectrum = spectrum or _Spectrum(batch.shape[1])
                spectrum.add(batch)
        # All ranks add up in the same order.
        fits = [each for each in ranks.gather(spectrum) if each]
        if not fits:
            raise ValueError("there were no batches to fit on any rank; the iterables were empty")
        total, *others = fits
        for other in others:
            total.include(other)
        self.correlation_length, self.smoothness, self.colour_covariance = total.most_likely()
        self.mean = torch.from_numpy(total.mean)
        return self

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the fit to a safetensors file, which contains numbers and settings only."""
        if self.mean is None or self.colour_covariance is None:
            raise ValueError("this GaussianFieldPrior has no fit to save; call fit(images) first")
        lengths = torch.from_numpy(np.array([self.correlation_length, self.smoothness]))
        tensors = {"lengths": lengths, "mean": self.mean, "colours": self.colour_covariance}
        save_tensors(path, tensors, {"kind": "GaussianFieldPrior"}, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Read a prior that ``save`` wrote. No code is run, and the file is checked.

        ``device`` exists for compatibility: fills are computed on the example's device.
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
            lowest = torch.linalg.eigvalsh((colours + colours.T) / 2)[0]
            is_positive = bool(lowest >= -1e-9 * colours.diagonal().abs().max())
            if not torch.allclose(colours, colours.T, rtol=1e-6) or not is_positive:
                raise ValueError("its colours are not a covariance")
        prior = cls()
        prior.correlation_length, prior.smoothness = length, smoothness
        prior.mean, prior.colour_covariance = tensors["mean"], colours
        return prior

    def settings(self) -> dict[str, object]:
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
            f"GaussianFieldPrior(fitted to {counted(len(self.mean), 'channel')}, correlated over "
            f"{self.correlation_distance:.3g} pixels)"
        )


def _surrounding_colours(
    example: Tensor, regions: Windows, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The covariance of colours of each region's samples, (W, C, C), from visible pixels around it,
    in squares of a unit, (W, 1, 1), because squares of tiny values are 0 in single precision.

    With d the differences between visible neighbours and n visible pixels, sum d d^T / (n - 1) is
    the maximum likelihood covariance of a field on these pixels.
    """
    n_dims = len(regions.window)
    corners, last = regions.corner_array, np.subtract(regions.space, regions.window)
    margins = tuple(
        min(max(LEAST_SURROUNDINGS, round(SURROUNDINGS * n)), max(1, int(room)))
        for n, room in zip(regions.window, np.maximum(corners, last - corners).max(0), strict=True)
    )
    values, seen = boxes_with_margin(example.detach().to(dtype), regions, margins)
    inner = seen.squeeze(1)
    for axis, (margin, width) in enumerate(zip(margins, regions.window, strict=True), start=1):
        inner = inner.narrow(axis, margin, width)
    inner &= False if regions.hidden is None else ~regions.hidden.to(seen.device)
    found = []
    for axis in range(2, 2 + n_dims):
        length = values.shape[axis] - 1
        both = seen.narrow(axis, 0, length) & seen.narrow(axis, 1, length)
        step = values.narrow(axis, 1, length) - values.narrow(axis, 0, length)
        found.append(step.where(both, 0).flatten(2))
    sizes = [torch.linalg.vector_norm(steps, math.inf, (1, 2), keepdim=True) for steps in found]
    unit = torch.cat(sizes, dim=1).amax(dim=1, keepdim=True)
    check_finite(unit)
    count = seen.flatten(1).sum(-1).sub(1).clamp_min(1).reshape(-1, 1, 1)
    for steps in found:
        steps /= unit.where(unit > 0, 1)
    return torch.stack([steps @ steps.mT for steps in found]).sum(0) / count, unit


class _Spectrum:
    """The power spectrum of images in bins of the Laplacian's eigenvalues."""

    def __init__(self, n_channels: int) -> None:
        n_bins = len(SPECTRUM_EDGES) + 1
        self.n_channels = n_channels
        #: Sums over images of 1, the pixels, pixels times mean, and pixels times mean times its
        #: transpose; and for each bin the coefficients, eigenvalues and products of channels.
        self.n_images, self.n_pixels = np.zeros(()), np.zeros(())
        self.level, self.level_squares = np.zeros(n_channels), np.zeros((n_channels, n_channels))
        self.counts, self.eigenvalues = np.zeros(n_bins), np.zeros(n_bins)
        self.power = np.zeros((n_bins, n_channels, n_channels))

    def add(self, images: Tensor) -> None:
        """Add a batch (N, C, *space)."""
        self._check(images.shape[1])
        space = tuple(images.shape[2:])
        n_pixels = math.prod(space)
        along = (2 - 2 * np.cos(np.pi * np.arange(size) / size) for size in space)
        eigenvalues = np.sum(np.meshgrid(*along, indexing="ij"), axis=0).reshape(-1)[1:]
        bins, n_bins = np.searchsorted(SPECTRUM_EDGES, eigenvalues), len(self.counts)
        for image in images.detach().cpu().double().numpy():
            coefficients = dctn(image, axes=range(1, image.ndim), norm="ortho")
            coefficients = coefficients.reshape(self.n_channels, -1)
            mean = coefficients[:, 0] / math.sqrt(n_pixels)
            self.n_images += 1
            self.n_pixels += n_pixels
            self.level += n_pixels * mean
            self.level_squares += n_pixels * np.outer(mean, mean)
            self.counts += np.bincount(bins, minlength=n_bins)
            self.eigenvalues += np.bincount(bins, eigenvalues, minlength=n_bins)
            for one, other in itertools.product(range(self.n_channels), repeat=2):
                product = coefficients[one, 1:] * coefficients[other, 1:]
                self.power[:, one, other] += np.bincount(bins, product, minlength=n_bins)

    def include(self, other: _Spectrum) -> None:
        self._check(other.n_channels)
        for name, values in vars(other).items():
            if isinstance(values, np.ndarray):
                setattr(self, name, getattr(self, name) + values)

    def _check(self, n_channels: int) -> None:
        if n_channels != self.n_channels:
            raise ValueError(
                f"a batch has {n_channels} channels where the first had {self.n_channels}; fit to "
                "images of one kind"
            )

    @property
    def mean(self) -> Floats:
        return np.asarray(self.level / self.n_pixels)

    def most_likely(self) -> tuple[float, float, Tensor]:
        """The maximum likelihood estimates of correlation length, smoothness and colours."""
        # The mean was fitted too, which uses up one image's lowest coefficient.
        lowest = self.level_squares - self.n_pixels * np.outer(self.mean, self.mean)
        counts = np.append(self.counts, self.n_images - 1)
        power = np.concatenate([self.power, lowest[None]])
        eigenvalues = np.append(self.eigenvalues / np.maximum(self.counts, 1), 0)
        some = counts > 0
        counts, power, eigenvalues = counts[some], power[some], eigenvalues[some]
        # The spectrum of a constant consists of rounding errors.
        if not np.trace(power.sum(axis=0)) > 1e-24 * np.trace(self.level_squares):
            raise ValueError(
                "the images are constant, so there is nothing to fit; use GaussianFieldPrior() "
                "without a fit"
            )

        def fitted(logarithms: Floats) -> tuple[Floats, Floats]:
            # The precision of each bin, and the maximum likelihood covariance of colours.
            length, smoothness = np.exp(logarithms)
            precisions = length**-2 + eigenvalues + smoothness**2 * eigenvalues**2
            covariance = np.tensordot(precisions, power, 1) / counts.sum()
            # Channels may be equal, as those of a grey photo are.
            loading = 1e-9 * np.trace(covariance) / self.n_channels
            return precisions, covariance + loading * np.eye(self.n_channels)

        def unlikelihood(logarithms: Floats) -> float:
            precisions, colours = fitted(logarithms)
            _, logarithm = np.linalg.slogdet(colours)
            return float(logarithm - self.n_channels * counts @ np.log(precisions) / counts.sum())

        limits = np.log([LENGTH_BOUNDS, SMOOTHNESS_BOUNDS])
        starts = np.log(list(itertools.product((1, 30), (1e-2, 1))))
        tries = [
            minimize(unlikelihood, start, method="Nelder-Mead", bounds=limits) for start in starts
        ]
        found = min(tries, key=lambda result: float(result.fun))
        length, smoothness = (float(value) for value in np.exp(found.x))
        return length, smoothness, torch.from_numpy(fitted(found.x)[1])


DEFAULT_PRIOR = GaussianFieldPrior()


def prior_for(prior: Any, method: str) -> Any:
    """The given prior, or the default one; refused without a method of this name."""
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
    """The settings of a prior as plain values; a prior without ``settings()`` is identified by its
    class and a hash of its code and attributes."""
    if prior is None:
        prior = DEFAULT_PRIOR
    described: dict[str, object] = {"empty_context_version": EmptyContext.version}
    if callable(getattr(prior, "settings", None)):
        return {**described, **prior.settings(), **own_code(prior)}
    return {**described, "kind": type(prior).__qualname__, "sha256": fingerprint(prior)}
