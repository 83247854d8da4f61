"""Which windows a diagnosis looks at, and the same settings with samples or conditional means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.methods.base import PerturbationPDA
from captum_pda.methods.efficient import EfficientPDA
from captum_pda.methods.sampled import SampledPDA
from captum_pda.model.inputs import check_count, check_images
from captum_pda.priors import PatchPrior
from captum_pda.regions.choice import Extents, make_grids
from captum_pda.regions.windows import WindowGrid


@dataclass(frozen=True)
class SomeWindows:
    """Which windows a diagnosis looks at: some at random, or those that start at given pixels.

    Args:
        n: how many, at random among all places of the window.
        corners: the first pixels of the windows instead, such as ``[(0, 0)]``.
        sliding_window_shapes: the window's size, as in ``attribute``. Default: the papers', 10
            wide, or 4 in images under 64.

    Example::

        >>> SomeWindows(20)
        >>> SomeWindows(corners=[(96, 40)], sliding_window_shapes=10)
    """

    n: int = 8
    corners: Sequence[Sequence[int]] | None = None
    sliding_window_shapes: Extents = None

    def of(self, inputs: Tensor, generator: torch.Generator | None) -> WindowGrid:
        """These windows of images (N, C, *space), the same for every example."""
        (grid,) = make_grids((inputs,), self.sliding_window_shapes, 1)
        if self.corners is not None:
            return grid.pick(_numbers_at(grid, self.corners))
        return grid.pick(_random_numbers(grid, check_count("n", self.n), generator))


def chosen_windows(
    windows: SomeWindows | WindowGrid, inputs: Tensor, generator: torch.Generator | None
) -> WindowGrid:
    """The windows that were asked for, of images (N, C, *space)."""
    check_images("inputs", inputs)
    if isinstance(windows, WindowGrid):
        return windows
    if not isinstance(windows, SomeWindows):
        raise TypeError(
            f"windows must be SomeWindows or a WindowGrid, got {windows!r}; for example "
            "SomeWindows(20) or SomeWindows(corners=[(0, 0)])"
        )
    return windows.of(inputs, generator)


def chosen_window(
    windows: SomeWindows | WindowGrid, inputs: Tensor, generator: torch.Generator | None
) -> WindowGrid:
    """The one window that was asked for, of one image (1, C, *space)."""
    window = chosen_windows(windows, inputs, generator)
    if len(inputs) != 1:
        raise ValueError(f"inputs has {len(inputs)} examples; give one, such as inputs[:1]")
    if len(window) != 1:
        raise ValueError(
            f"windows holds {len(window)} windows, and this looks at one; give SomeWindows(1) or "
            "one corner"
        )
    return window


def _numbers_at(grid: WindowGrid, corners: Sequence[Sequence[int]]) -> list[int]:
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


def _random_numbers(grid: WindowGrid, n: int, generator: torch.Generator | None) -> list[int]:
    """The numbers of some windows, each as likely as any other, in the grid's order."""
    seed = device_sync.draw_seed(generator)
    order = np.random.default_rng(seed % 2**64).permutation(len(grid))
    return sorted(int(number) for number in order[:n])


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
