"""What a prior is; bring your own by writing one or two methods."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from captum_pda.regions.protocol import Windows


@runtime_checkable
class PatchPrior(Protocol):
    """What could stand in each region of one example, given what surrounds it.

    EfficientPDA and GradientPDA need ``conditional_mean`` only, SampledPDA ``sample`` only. A
    ``settings()`` that returns a dict of plain values describes a prior in result files; without
    one, a prior of your own is known there by its class and a hash of its attributes.

    Example::

        >>> class Inpainting:
        ...     def conditional_mean(self, example, regions):
        ...         # regions.corners (W, dims) and regions.window say where the windows are
        ...         return inpaint(example, regions.corners, regions.window)
        >>> EfficientPDA(model, prior=Inpainting()).attribute(image, target=3)
    """

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        """The expected content of each region of an example (C, *space), (W, C, *window)."""
        ...

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws of each region's content, (S, W, C, *window)."""
        ...
