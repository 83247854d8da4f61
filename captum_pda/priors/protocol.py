"""What a prior is; bring your own by writing these two methods."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from captum_pda.regions.window_grid import WindowGrid


@runtime_checkable
class PatchPrior(Protocol):
    """What could stand in each window of a grid, given what surrounds it.

    EfficientPDA and GradientPDA need ``conditional_mean`` only, SampledPDA ``sample`` only.

    Example::

        >>> class Inpainting:
        ...     def conditional_mean(self, inputs, grid):
        ...         # grid.corners (W, dims) and grid.window say where the windows are
        ...         return inpaint(inputs, grid.corners, grid.window)
        >>> EfficientPDA(model, prior=Inpainting()).attribute(image, target=3)
    """

    def conditional_mean(self, inputs: Tensor, grid: WindowGrid) -> Tensor:
        """The expected content of each window, (N, W, C, *window)."""
        ...

    def sample(
        self,
        inputs: Tensor,
        grid: WindowGrid,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws of each window's content, (S, N, W, C, *window)."""
        ...
