"""The paper's experiments: the error of the conditional mean, and the agreement of maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from captum_pda import device_sync
from captum_pda._captum import TargetType
from captum_pda.device_sync import in_double
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.methods.gradient import GradientPDA
from captum_pda.methods.perturbation import EfficientPDA, PerturbationPDA, SampledPDA
from captum_pda.model.inputs import check_choice, check_count, check_images
from captum_pda.priors import EmpiricalMeanPrior
from captum_pda.regions.choice import Extents, make_grids
from captum_pda.regions.windows import WindowGrid

#: The number of random windows, or the first pixels of some.
SomeWindows: TypeAlias = int | Sequence[Sequence[int]]


def chosen_windows(
    windows: SomeWindows,
    shape: Extents,
    inputs: Tensor,
    generator: torch.Generator | None,
    one: bool = False,
) -> WindowGrid:
    """Windows of images (N, C, *space), the same for all examples; or ``one`` window of one
    image."""
    check_images("inputs", inputs)
    if one and len(inputs) != 1:
        raise ValueError(f"inputs has {len(inputs)} examples; give one, such as inputs[:1]")
    (grid,) = make_grids((inputs,), shape, 1)
    if isinstance(windows, Sequence):
        numbers = []
        for corner in windows:
            try:
                numbers.append(int(np.ravel_multi_index(tuple(corner), grid.shape)))
            except (TypeError, ValueError):
                raise ValueError(
                    f"no window of {grid.window} starts at {corner!r}; a corner has "
                    f"{len(grid.shape)} numbers from 0 to {tuple(n - 1 for n in grid.shape)}"
                ) from None
    else:
        n, seed = check_count("windows", windows), device_sync.draw_seed(generator)
        order = np.random.default_rng(seed % 2**64).permutation(len(grid))
        numbers = sorted(order[:n].tolist())
    if one and len(numbers) != 1:
        raise ValueError(
            f"windows holds {len(numbers)} windows, and this looks at one; give windows=1 or one "
            "corner"
        )
    return grid.pick(numbers)


def settings_of(pda: PerturbationPDA) -> dict[str, Any]:
    """The settings of a method without its model and prior, for another method."""
    return {
        "output": pda.output_kind,
        "measure": pda.measure,
        "engine": pda.engine,
        "process_group": pda.process_group,
    }


def target_or_predicted(target: TargetType, evidence: WindowEvidence) -> TargetType:
    """The given target, or the predicted class of each example."""
    if target is None and evidence.measure.needs_probabilities and len(evidence.output_shape) == 1:
        return [int(column) for column in evidence.scores.argmax(dim=1).tolist()]
    return target


def _both(
    pda: PerturbationPDA, inputs: Tensor, grid: WindowGrid, sampled: dict[str, Any], **both: Any
) -> tuple[WindowEvidence, WindowEvidence]:
    """The evidence of windows by the conditional mean, and of these or others by samples."""
    model, settings = (pda.forward_func, pda.prior), settings_of(pda)
    return (
        EfficientPDA(*model, **settings).evidence(inputs, regions=grid, **both),
        SampledPDA(*model, **settings).evidence(inputs, **{"regions": grid, **both, **sampled}),
    )


def _kept_apart(window: WindowGrid, n_samples: int, generator: Any) -> dict[str, Any]:
    """The same window many times with one sample each, to get every sample's result."""
    copies = window.pick([0] * n_samples)
    return {"n_samples": 1, "generator": generator, "regions": copies}


@dataclass(frozen=True, eq=False, repr=False)
class ConditionalMeanError:
    """The evidence of windows by the conditional mean and by samples, (N, W) except ``corners``.

    Args:
        efficient: the evidence with the conditional mean in the window (Algorithm 2).
        sampled: the evidence averaged over samples (Algorithm 1).
        standard_error: that of ``sampled``.
        efficient_without: P(c|x without w) by the conditional mean; the value for raw outputs.
        sampled_without: the same averaged over samples.
        corners: the windows' first pixels, (W, dims).
        n_samples: the number of samples of each window.
        unit: the unit of the evidence.
    """

    efficient: Tensor
    sampled: Tensor
    standard_error: Tensor
    efficient_without: Tensor
    sampled_without: Tensor
    corners: Tensor
    n_samples: int
    unit: str

    @property
    def error(self) -> Tensor:
        """The evidence by the conditional mean minus the sampled one, (N, W)."""
        return self.efficient - self.sampled

    @property
    def prediction_error(self) -> Tensor:
        """P(c|x without w) by the conditional mean minus the sampled one, (N, W): `appro_error`."""
        return self.efficient_without - self.sampled_without

    @property
    def root_mean_square(self) -> float:
        """The size of the error, including sampling noise."""
        return _root_mean_square(self.error)

    @property
    def beyond_sampling(self) -> float:
        """The size of the error without sampling noise: sqrt(mean(error^2 - se^2)) or 0."""
        squares = in_double(self.error).square() - in_double(self.standard_error).square()
        return float(squares.mean().clamp_min(0).sqrt())

    def __repr__(self) -> str:
        n_examples, n_windows = self.error.shape
        return (
            f"conditional mean against {self.n_samples} samples, {n_examples} examples x "
            f"{n_windows} windows: error {self.root_mean_square:.3g} {self.unit} (root mean "
            f"square; median {float(self.error.abs().median()):.3g}), of which the sampling's own "
            f"standard error is {_root_mean_square(self.standard_error):.3g}; the evidence itself "
            f"is {_root_mean_square(self.sampled):.3g}"
        )


def _root_mean_square(values: Tensor) -> float:
    return float(in_double(values).square().mean().sqrt())


def conditional_mean_error(
    pda: PerturbationPDA,
    inputs: Tensor,
    target: TargetType = None,
    *,
    windows: SomeWindows = 8,
    sliding_window_shapes: Extents = None,
    n_samples: int = 100,
    generator: torch.Generator | None = None,
    **arguments: Any,
) -> ConditionalMeanError:
    """Compare EfficientPDA and SampledPDA on a few windows.

    Args:
        pda: an EfficientPDA (or SampledPDA), whose model, prior, output, measure and engine are
            used.
        inputs: (N, C, *space).
        target: as in ``attribute``. Default: the predicted class of each example.
        windows: the number of random windows, the same for every example; or the first pixels of
            some, such as ``[(0, 0)]`` as in the paper's figure `appro_error` of 200 images.
        sliding_window_shapes: their size, as in ``attribute``. Default: the papers', 10 wide, or 4
            in images under 64.
        n_samples: the number of samples of each window; 500 in the paper.
        generator: seeds the choice of windows and the samples.
        arguments: others of ``evidence``: additional_forward_args, perturbations_per_eval,
            show_progress.
    """
    n_samples = check_count("n_samples", n_samples)
    if n_samples < 2:
        raise ValueError(f"n_samples={n_samples} has no standard error; draw 2 or more")
    grid = chosen_windows(windows, sliding_window_shapes, inputs, generator)
    drawn = {"n_samples": n_samples, "generator": generator}
    efficient, sampled = _both(pda, inputs, grid, drawn, **arguments)
    target = target_or_predicted(target, efficient)
    return ConditionalMeanError(
        cast(Tensor, efficient.window_values(target)),
        cast(Tensor, sampled.window_values(target)),
        cast(Tensor, sampled.standard_error(target)),
        cast(Tensor, efficient.predictions_without(target)),
        cast(Tensor, sampled.predictions_without(target)),
        grid.corners,
        n_samples,
        pda.measure.unit,
    )


@dataclass(frozen=True, eq=False, repr=False)
class SamplingConvergence:
    """One window's P(c|x without w), estimated from 1, 2, ... S samples.

    Args:
        sampled: the mean over the first n samples, n = 1 ... S, (repeats, S).
        efficient: by the conditional mean, one number.
        corner: the window's first pixel.
    """

    sampled: Tensor
    efficient: float
    corner: tuple[int, ...]

    @property
    def n_samples(self) -> Tensor:
        """1, 2, ... S."""
        return torch.arange(1, self.sampled.shape[1] + 1)

    @property
    def difference(self) -> Tensor:
        """|P sampled - P by the conditional mean|, (repeats, S), as in the paper's figure."""
        return (self.sampled - self.efficient).abs()

    @property
    def spread(self) -> Tensor:
        """The standard deviation over the repeats, (S,)."""
        return self.sampled.std(dim=0)

    def __repr__(self) -> str:
        repeats, n_samples = self.sampled.shape
        at = [n for n in (1, 10, 100) if n < n_samples] + [n_samples]
        settled = ", ".join(f"{float(self.difference[:, n - 1].mean()):.3g} after {n}" for n in at)
        return (
            f"window at {self.corner}, {repeats} repeats: mean difference from the conditional "
            f"mean's {self.efficient:.3g} is {settled} samples"
        )


def sampling_convergence(
    pda: PerturbationPDA,
    inputs: Tensor,
    target: TargetType = None,
    *,
    windows: SomeWindows = 1,
    sliding_window_shapes: Extents = None,
    n_samples: int = 500,
    repeats: int = 1,
    generator: torch.Generator | None = None,
    **arguments: Any,
) -> SamplingConvergence:
    """One window's prediction as a function of the number of samples.

    Args:
        pda, sliding_window_shapes, generator, arguments: as in ``conditional_mean_error``.
        inputs: one image, (1, C, *space).
        target: as in ``attribute``. Default: the predicted class.
        windows: the window. Default: a random one, as in the paper; ``[(96, 40)]`` is one at a
            place.
        n_samples: S, the largest number of samples.
        repeats: how many times to start again with new samples.
    """
    n_samples, repeats = check_count("n_samples", n_samples), check_count("repeats", repeats)
    window = chosen_windows(windows, sliding_window_shapes, inputs, generator, one=True)
    copies = _kept_apart(window, n_samples * repeats, generator)
    efficient, single = _both(pda, inputs, window, copies, **arguments)
    target = target_or_predicted(target, efficient)
    predictions = in_double(cast(Tensor, single.predictions_without(target)))
    counts = torch.arange(1, n_samples + 1, device=predictions.device)
    return SamplingConvergence(
        predictions.reshape(repeats, n_samples).cumsum(dim=1) / counts,
        float(cast(Tensor, efficient.predictions_without(target))),
        tuple(window.corner_array[0].tolist()),
    )


@dataclass(frozen=True, eq=False, repr=False)
class ActivationStatistics:
    """The activations of a layer's units over the samples of one window, all (units,).

    Args:
        mean: over the samples.
        standard_deviation: over the samples.
        rectified_mean: the mean of ReLU(activation) over the samples.
        at_conditional_mean: the activation with the conditional mean in the window.
        unperturbed: the activation for the unperturbed input.
        n_samples: the number of samples.
    """

    mean: Tensor
    standard_deviation: Tensor
    rectified_mean: Tensor
    at_conditional_mean: Tensor
    unperturbed: Tensor
    n_samples: int

    @property
    def ratio(self) -> Tensor:
        """|mean| / standard deviation: if it is large, a ReLU is linear over the samples."""
        return self.mean.abs() / self.standard_deviation

    @property
    def error(self) -> Tensor:
        """The activation at the conditional mean minus the mean activation."""
        return self.at_conditional_mean - self.mean

    @property
    def rectifier_error(self) -> Tensor:
        """E[ReLU(a)] - ReLU(E[a]): the error of exchanging this layer's ReLU and the mean."""
        return self.rectified_mean - self.mean.clamp_min(0)

    def __repr__(self) -> str:
        linear = float((self.ratio > 2).float().mean())
        return (
            f"{len(self.mean)} units over {self.n_samples} samples: activations "
            f"{_root_mean_square(self.mean):.3g} (root mean square), their standard deviation "
            f"{float(self.standard_deviation.median()):.3g} (median), mean over 2 standard "
            f"deviations from zero for {linear:.0%} of the units; at the conditional mean they "
            f"differ from their mean by {_root_mean_square(self.error):.3g}"
        )


def activation_statistics(
    pda: PerturbationPDA,
    inputs: Tensor,
    layer: nn.Module,
    of: str = "output",
    *,
    windows: SomeWindows | None = None,
    sliding_window_shapes: Extents = None,
    n_samples: int = 160,
    generator: torch.Generator | None = None,
    **arguments: Any,
) -> ActivationStatistics:
    """Fill one window with samples, and record a layer's activations.

    Args:
        pda, sliding_window_shapes, generator, arguments: as in ``conditional_mean_error``.
        inputs: one image, (1, C, *space).
        layer: a module of the model, such as a fully connected layer.
        of: the "output" of the layer (which the next ReLU gets, as in the paper) or its "input".
        windows: the window. Default: the top left corner, as in the paper.
        n_samples: the number of samples; 160 in the paper. Memory grows with samples times units.
    """
    n_samples = check_count("n_samples", n_samples)
    check_choice("of", of, ("output", "input"))
    if windows is None:
        windows = [(0,) * len(check_images("inputs", inputs).shape[2:])]
    window = chosen_windows(windows, sliding_window_shapes, inputs, generator, one=True)
    seen: list[Any] = []

    # Copies, because later layers may write into the same memory.
    def record(module: nn.Module, arguments: tuple[Any, ...], output: Any = None) -> None:
        value = output if of == "output" else next(iter(arguments), None)
        seen.append(value.clone() if isinstance(value, Tensor) else value)

    def units(*given: Any) -> Tensor:
        seen.clear()
        kind = "register_forward_hook" if of == "output" else "register_forward_pre_hook"
        with getattr(layer, kind)(record):
            pda.forward_func(*given)
        if not seen or not isinstance(seen[-1], Tensor):
            found = f"has no tensor as its {of}" if seen else "was not called by the model"
            raise ValueError(
                f"the layer {type(layer).__name__} {found}; give another module of the model, such "
                "as model.classifier"
            )
        return seen[-1].flatten(1)

    raw = EfficientPDA(units, pda.prior, "raw", engine="dense", process_group=pda.process_group)
    copies = _kept_apart(window, n_samples, generator)
    at_mean, samples = _both(raw, inputs, window, copies, **arguments)
    activations = in_double(samples.parts[0].scores[0])
    return ActivationStatistics(
        activations.mean(dim=0),
        activations.std(dim=0) if n_samples > 1 else torch.zeros_like(activations[0]),
        activations.clamp_min(0).mean(dim=0),
        in_double(at_mean.parts[0].scores[0, 0]),
        in_double(at_mean.scores[0]),
        n_samples,
    )


# The agreement of maps, which the paper compares by eye, is measured by correlation.


@dataclass(frozen=True, eq=False, repr=False)
class MapAgreement:
    """The similarity of several maps of the same examples.

    Args:
        maps: the maps by name, each (N, ...).
        correlations: Pearson's correlation of each two, (N, maps, maps), which does not depend on
            their size. NaN for a constant map.
        sizes: each map's root mean square, (N, maps).
    """

    maps: dict[str, Tensor]
    correlations: Tensor
    sizes: Tensor

    def correlation(self, first: str, second: str) -> Tensor:
        """The correlation of two maps by name, (N,)."""
        names = list(self.maps)
        for name in (first, second):
            if name not in names:
                raise ValueError(f"no map is called {name!r}; there are {names}")
        return self.correlations[:, names.index(first), names.index(second)]

    def __repr__(self) -> str:
        """The mean over examples, as a table."""
        width = max(len(name) for name in self.maps)
        rows = zip(
            self.maps, self.sizes.mean(0).tolist(), self.correlations.mean(0).tolist(), strict=True
        )
        lines = [
            f"{name:>{width}}  size {size:8.3g}  correlations "
            + " ".join(f"{value:6.3f}" for value in row)
            for name, size, row in rows
        ]
        return "\n".join(lines)


def map_agreement(maps: Mapping[str, Tensor]) -> MapAgreement:
    """Correlate each two maps of one shape, (N, ...)."""
    if not maps:
        raise ValueError("maps is empty; give at least one map by name")
    shapes = {name: tuple(each.shape) for name, each in maps.items()}
    if len(set(shapes.values())) != 1:
        raise ValueError(f"maps have different shapes, {shapes}; correlate maps of one shape")
    values = torch.stack([in_double(each.detach()).flatten(1) for each in maps.values()], dim=1)
    deviations = values - values.mean(dim=2, keepdim=True)
    lengths = deviations.norm(dim=2, keepdim=True)
    # A map that is constant up to rounding has no correlation.
    constant = lengths <= 1e-12 * values.norm(dim=2, keepdim=True)
    directions = torch.where(constant, torch.nan, deviations / lengths)
    return MapAgreement(dict(maps), directions @ directions.mT, values.square().mean(dim=2).sqrt())


def algorithm_agreement(
    pda: PerturbationPDA,
    inputs: Tensor,
    target: TargetType = None,
    *,
    additional_forward_args: object = None,
    n_samples: int = 10,
    generator: torch.Generator | None = None,
    sliding_window_shapes: Extents = None,
    strides: Extents = None,
    **arguments: Any,
) -> MapAgreement:
    """Explain inputs with every algorithm, and correlate the maps.

    The maps are "conditional mean" (EfficientPDA), "empirical mean" (the same with the mean of
    ``n_samples`` samples in the window), "sampled" and "sampled again" (SampledPDA twice with other
    samples, whose agreement limits that of any map with "sampled") and "gradient" (GradientPDA).

    Args:
        pda, inputs, target, generator: as in ``conditional_mean_error``.
        additional_forward_args, sliding_window_shapes, strides: as in ``attribute``.
        n_samples: of each window, for the empirical mean and the sampled maps; 10 in the paper.
        arguments: perturbations_per_eval and show_progress, as in ``attribute``.
    """
    n_samples = check_count("n_samples", n_samples)
    generator = generator or torch.Generator().manual_seed(torch.initial_seed())
    windows = (additional_forward_args, sliding_window_shapes, strides)
    model, settings = pda.forward_func, settings_of(pda)
    averaging = EmpiricalMeanPrior(pda.prior, n_samples, generator)
    evidence = EfficientPDA(model, pda.prior, **settings).evidence(inputs, *windows, **arguments)
    target = target_or_predicted(target, evidence)
    sampled = partial(
        SampledPDA(model, pda.prior, **settings).attribute,
        *(inputs, target, *windows),
        n_samples=n_samples,
        generator=generator,
        **arguments,
    )
    empirical = EfficientPDA(model, averaging, **settings)
    gradient = GradientPDA(model, pda.prior, pda.output_kind, pda.measure)
    return map_agreement(
        {
            "conditional mean": cast(Tensor, evidence.attribution(target)),
            "empirical mean": empirical.attribute(inputs, target, *windows, **arguments),
            "sampled": sampled(),
            "sampled again": sampled(),
            "gradient": gradient.attribute(inputs, target, *windows),
        }
    )
