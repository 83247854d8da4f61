"""What a prior is; bring your own by writing one or two methods."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from captum_pda.regions.protocol import Windows


@runtime_checkable
class PatchPrior(Protocol):
    """What could stand in each region of one example, given what surrounds it.

    EfficientPDA and GradientPDA need ``conditional_mean`` only, SampledPDA ``sample`` only. Regions
    of any shape have a mask ``regions.hidden`` (W, *window), true where a pixel is hidden; what is
    given for the other pixels of a box is not used.

    Optional methods:

    - ``nothing_seen(example)``, the input (C, *space) with nothing seen, for contexts "empty" and
      "both".
    - ``seen_alone(example, regions)``, each region with nothing else seen: the boxes that differ
      from ``nothing_seen`` as PlacedWindows, and their contents (W, C, *box). Without it regions
      are pasted into ``nothing_seen`` with soft edges.
    - ``settings()``, a dict of plain values that describes the prior in result files. Without it, a
      prior of your own is known there by its class and a hash of its attributes.

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
