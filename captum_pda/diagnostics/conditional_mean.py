"""How far the conditional mean's answer is from the sampled one (the paper's `appro_error`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.device_sync import in_double
from captum_pda.diagnostics.some_windows import (
    SomeWindows,
    chosen_windows,
    target_or_predicted,
    with_conditional_mean,
    with_samples,
)
from captum_pda.methods.base import PerturbationPDA
from captum_pda.model.inputs import check_count
from captum_pda.regions.windows import WindowGrid


@dataclass(frozen=True, eq=False, repr=False)
class ConditionalMeanError:
    """Windows' evidence by the conditional mean and by samples, all (N, W) but ``corners``.

    Args:
        efficient: the evidence with the conditional mean in the window (Algorithm 2).
        sampled: the evidence averaged over samples (Algorithm 1).
        standard_error: that of ``sampled``.
        efficient_without: P(c|x without w) by the conditional mean; the value for raw outputs.
        sampled_without: the same averaged over samples.
        corners: the windows' first pixels, (W, dims).
        n_samples: how many samples each window had.
        unit: what the evidence is in.
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
        """The evidence by the conditional mean less the sampled one, (N, W)."""
        return self.efficient - self.sampled

    @property
    def prediction_error(self) -> Tensor:
        """P(c|x without w) by the conditional mean less the sampled one, (N, W): `appro_error`."""
        return self.efficient_without - self.sampled_without

    @property
    def root_mean_square(self) -> float:
        """The size of the error, sampling noise included."""
        return _root_mean_square(self.error)

    @property
    def beyond_sampling(self) -> float:
        """The size of the error after the sampling's own is taken off: sqrt(mean(error^2 - se^2))
        or 0, the conditional mean's own error."""
        squares = in_double(self.error).square() - in_double(self.standard_error).square()
        return float(squares.mean().clamp_min(0).sqrt())

    def __str__(self) -> str:
        n_examples, n_windows = self.error.shape
        return (
            f"conditional mean against {self.n_samples} samples, {n_examples} examples x "
            f"{n_windows} windows: error {self.root_mean_square:.3g} {self.unit} (root mean "
            f"square; median {float(self.error.abs().median()):.3g}), of which the sampling's own "
            f"standard error is {_root_mean_square(self.standard_error):.3g}; the evidence itself "
            f"is {_root_mean_square(self.sampled):.3g}"
        )

    __repr__ = __str__


def conditional_mean_error(
    pda: PerturbationPDA,
    inputs: Tensor,
    target: TargetType = None,
    *,
    additional_forward_args: object = None,
    windows: SomeWindows | WindowGrid | None = None,
    n_samples: int = 100,
    generator: torch.Generator | None = None,
    perturbations_per_eval: int | None = None,
    show_progress: bool = False,
) -> ConditionalMeanError:
    """Ask for a few windows what EfficientPDA and SampledPDA say, on your own model.

    Args:
        pda: an EfficientPDA (or SampledPDA): its model, prior, output, measure and engine are used.
        inputs: (N, C, *space).
        target: as in ``attribute``; None takes the predicted class of each example.
        additional_forward_args, perturbations_per_eval, show_progress: as in ``attribute``.
        windows: SomeWindows to look at, the same for every example, or a WindowGrid. Default: 8
            at random. The paper's figure `appro_error` has one fixed window in 200 images,
            ``SomeWindows(corners=[(0, 0)])``.
        n_samples: how many samples to draw of each window; 500 in the paper.
        generator: seeds the choice of windows and the samples.

    Example::

        >>> print(diagnostics.conditional_mean_error(EfficientPDA(model), image))
    """
    n_samples = check_count("n_samples", n_samples)
    if n_samples < 2:
        raise ValueError(f"n_samples={n_samples} has no standard error; draw 2 or more")
    some = SomeWindows(8) if windows is None else windows
    grid = chosen_windows(some, inputs, generator)
    common = (inputs, additional_forward_args, None, None, perturbations_per_eval, show_progress)
    efficient = with_conditional_mean(pda).evidence(*common, windows=grid)
    sampled = with_samples(pda).evidence(
        *common, n_samples=n_samples, generator=generator, windows=grid
    )
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


def _root_mean_square(values: Tensor) -> float:
    return float(in_double(values).square().mean().sqrt())
