"""How the sampled answer settles as the number of samples grows (the paper's `pred_diff`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.device_sync import in_double
from captum_pda.diagnostics.some_windows import (
    SomeWindows,
    chosen_window,
    target_or_predicted,
    with_conditional_mean,
    with_samples,
)
from captum_pda.methods.base import PerturbationPDA
from captum_pda.model.inputs import check_count
from captum_pda.regions.windows import WindowGrid


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
        """|P sampled - P by the conditional mean|, (repeats, S): what the paper's figure shows."""
        return (self.sampled - self.efficient).abs()

    @property
    def spread(self) -> Tensor:
        """The standard deviation over the repeats, (S,): how much the number depends on chance."""
        return self.sampled.std(dim=0)

    def __str__(self) -> str:
        repeats, n_samples = self.sampled.shape
        at = [n for n in (1, 10, 100) if n < n_samples] + [n_samples]
        settled = ", ".join(f"{float(self.difference[:, n - 1].mean()):.3g} after {n}" for n in at)
        return (
            f"window at {self.corner}, {repeats} repeats: mean difference from the conditional "
            f"mean's {self.efficient:.3g} is {settled} samples"
        )

    __repr__ = __str__


def sampling_convergence(
    pda: PerturbationPDA,
    inputs: Tensor,
    target: TargetType = None,
    *,
    additional_forward_args: object = None,
    windows: SomeWindows | WindowGrid | None = None,
    n_samples: int = 500,
    repeats: int = 1,
    generator: torch.Generator | None = None,
    perturbations_per_eval: int | None = None,
    show_progress: bool = False,
) -> SamplingConvergence:
    """Watch one window's prediction settle as more samples are drawn.

    Args:
        pda, additional_forward_args, perturbations_per_eval, show_progress, generator: as in
            ``conditional_mean_error``.
        inputs: one image, (1, C, *space).
        target: as in ``attribute``; None takes the predicted class.
        windows: which window to look at. Default: one at random, as in the paper;
            ``SomeWindows(corners=[(96, 40)])`` is one at a place.
        n_samples: S, the largest number of samples.
        repeats: how many times to start again with new samples.

    Example::

        >>> diagnostics.sampling_convergence(EfficientPDA(model), image, repeats=4).spread
    """
    n_samples, repeats = check_count("n_samples", n_samples), check_count("repeats", repeats)
    some = SomeWindows(1) if windows is None else windows
    window = chosen_window(some, inputs, generator)
    common = (inputs, additional_forward_args, None, None, perturbations_per_eval, show_progress)
    efficient = with_conditional_mean(pda).evidence(*common, windows=window)
    target = target_or_predicted(target, efficient)
    # The same window many times with one sample each, so that every sample is kept apart.
    copies = window.pick([0] * (n_samples * repeats))
    single = with_samples(pda).evidence(*common, n_samples=1, generator=generator, windows=copies)
    predictions = in_double(cast(Tensor, single.predictions_without(target))).reshape(
        repeats, n_samples
    )
    counts = torch.arange(1, n_samples + 1, device=predictions.device)
    return SamplingConvergence(
        predictions.cumsum(dim=1) / counts,
        float(cast(Tensor, efficient.predictions_without(target))),
        tuple(window.corner_array[0].tolist()),
    )
