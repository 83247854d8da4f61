"""Which windows a diagnosis looks at, and the same settings with samples or conditional means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.basics import device_sync
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.methods.efficient import EfficientPDA
from captum_pda.methods.perturbation import PerturbationPDA
from captum_pda.methods.sampled import SampledPDA
from captum_pda.prediction.inputs import check_count, check_images
from captum_pda.priors import PatchPrior
from captum_pda.regions.arguments import Extents, make_grids
from captum_pda.regions.window_grid import WindowGrid


def every_window(inputs: Tensor, sliding_window_shapes: Extents) -> WindowGrid:
    """All places of a window: the papers' stride of 1."""
    (grid,) = make_grids((check_images("inputs", inputs),), sliding_window_shapes, 1)
    return grid


def windows_at(grid: WindowGrid, corners: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of the windows whose first pixels are given."""
    numbers = []
    for corner in corners:
        if len(corner) != len(grid.shape) or not all(
            0 <= start < size for start, size in zip(corner, grid.shape, strict=True)
        ):
            raise ValueError(
                f"no window of {grid.window} starts at {tuple(corner)}; a corner has "
                f"{len(grid.shape)} numbers from 0 to {tuple(size - 1 for size in grid.shape)}"
            )
        numbers.append(int(np.ravel_multi_index(tuple(corner), grid.shape)))
    return numbers


def random_windows(
    grid: WindowGrid, n_windows: int, generator: torch.Generator | None
) -> list[int]:
    """The numbers of some windows, each as likely as any other, in the grid's order."""
    n_windows = min(check_count("n_windows", n_windows), len(grid))
    seed = device_sync.draw_seed(generator)
    order = np.random.default_rng(seed % 2**64).permutation(len(grid))
    return sorted(int(number) for number in order[:n_windows])


def with_samples(pda: PerturbationPDA) -> SampledPDA:
    """SampledPDA with the same model, prior and settings."""
    return SampledPDA(pda.forward_func, pda.prior, **_settings(pda))


def with_conditional_mean(pda: PerturbationPDA) -> EfficientPDA:
    """EfficientPDA with the same model, prior and settings."""
    return with_prior(pda, pda.prior)


def with_prior(pda: PerturbationPDA, prior: PatchPrior | None) -> EfficientPDA:
    """EfficientPDA with the same model and settings, and another prior."""
    return EfficientPDA(pda.forward_func, prior, **_settings(pda))


def _settings(pda: PerturbationPDA) -> dict[str, Any]:
    return {
        "output": pda.output,
        "measure": pda.measure,
        "engine": pda.engine,
        "process_group": pda.process_group,
    }


def target_or_predicted(target: TargetType, evidence: WindowEvidence) -> TargetType:
    """The target as given, or without one the predicted class of each example."""
    if target is None and evidence.output != "raw" and len(evidence.output_shape) == 1:
        return device_sync.as_integers(evidence.scores.argmax(dim=1))
    return target
