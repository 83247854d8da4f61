"""The evidence of regions of one size, in one context, at one depth."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.evidence.reading import Quantity, Reading
from captum_pda.regions.protocol import Regions

#: How values between the places of a feature map are read, by its number of spatial dimensions.
INTERPOLATION = {1: "linear", 2: "bilinear", 3: "trilinear"}


@dataclass(frozen=True, eq=False, repr=False)
class EvidencePart:
    """What regions of one size say about every output.

    Args:
        tensor: the number of the input tensor that they lie in.
        regions: where they lie.
        context: "full" (all else was seen) or "empty" (nothing else was seen).
        reading: how scores become evidence.
        reference: scores before a region is changed, (N, columns): log-odds in nats or raw outputs.
        scores: the same with each region changed, (N, W, columns).
        drawn: how many contents of each region the model has seen, (N, W).
        errors: the standard errors of ``scores``, where there were several samples.
        depth: "input", or the name of the layer in whose feature map the regions lie.
    """

    tensor: int
    regions: Regions
    context: str
    reading: Reading
    reference: Tensor
    scores: Tensor
    drawn: Tensor
    errors: Tensor | None = None
    depth: str = "input"

    def __repr__(self) -> str:
        where = "" if self.depth == "input" else f", depth {self.depth}"
        return (
            f"EvidencePart({len(self.regions)} regions of {self.regions.size}, context "
            f"{self.context}{where})"
        )

    @property
    def size(self) -> tuple[int, ...]:
        """The window's shape, or the mean extent of other regions."""
        return self.regions.size

    def values(self, target: TargetType = None) -> Tensor:
        """The evidence of each region for ``target``, (N, W)."""
        return self.differences(self.reading.quantity(target))

    def differences(self, quantity: Quantity) -> Tensor:
        """By how much a quantity is larger where each region is seen, (N, W)."""
        before, after = quantity(self.reference.unsqueeze(1)), quantity(self.scores)
        return before - after if self.context == "full" else after - before

    def predictions(self, target: TargetType = None) -> Tensor:
        """The probability of ``target``, or its raw output, with each region changed, (N, W)."""
        return self.reading.prediction(target)(self.scores)

    def standard_error(self, target: TargetType = None) -> Tensor:
        """The standard error of each of the ``values``, (N, W), from the samples' spread."""
        if self.errors is None:
            raise ValueError(
                "a standard error needs two samples or more of each window; use "
                "SampledPDA(...).evidence(inputs, n_samples=10)"
            )
        return self.reading.errors(self.errors, self.scores, target)

    def map(self, values: Tensor, space: tuple[int, ...]) -> Tensor:
        """Values of the regions (N, W) averaged onto the pixels of the input, (N, *space)."""
        averaged = self.regions.average(values)
        if self.regions.space == space:
            return averaged
        larger = F.interpolate(
            averaged.unsqueeze(1), size=space, mode=INTERPOLATION[len(space)], align_corners=False
        )
        return larger.squeeze(1)
