"""Evidence from a gradient: what replacing regions would change, to first order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_pda.model.inputs import attribution_dtype
from captum_pda.regions.protocol import Regions, Windows
from captum_pda.running.contents import Contents
from captum_pda.running.rank_chunks import fill_chunks
from captum_pda.running.sampling import Sampling


@dataclass(frozen=True, eq=False)
class FirstOrder:
    """One example with its gradient, both (1, C, *space), and what is expected in its regions.

    Args:
        gradient: df/dx.
        example: x.
        contents: gives the conditional means.
        number: which example it is, for regions that differ between examples.
    """

    gradient: Tensor
    example: Tensor
    contents: Contents
    number: int

    def region_evidence(self, regions: Regions) -> Tensor:
        """The sum over each region of df/dx (x - x'), (1, W)."""
        slopes, values = (
            tensor[0].flatten(1).to(attribution_dtype(tensor))
            for tensor in (self.gradient, self.example)
        )
        evidence = []
        for windows, means in self._conditional_means(regions):
            pixels = windows.pixels(self.example.device)
            change = values[:, pixels] - means.flatten(2).transpose(0, 1)
            evidence.append((slopes[:, pixels] * change).sum(dim=(0, 2)))
        return torch.cat(evidence).unsqueeze(0)

    def pixel_evidence(self, regions: Regions) -> Tensor:
        """R_i = df/dx_i (x_i - x_i'), x_i' averaged over the regions of i, (1, C, *space)."""
        n_channels, *space = self.example.shape[1:]
        dtype = attribution_dtype(self.example)
        total = torch.zeros(n_channels, math.prod(space), dtype=dtype, device=self.example.device)
        for windows, means in self._conditional_means(regions):
            hidden = windows.hidden
            if hidden is not None:
                means = means * hidden.to(means).unsqueeze(1)
            flat = means.flatten(2).transpose(0, 1).flatten(1)
            total.index_add_(1, windows.pixels(total.device).reshape(-1), flat)
        mean = total.reshape(n_channels, *space) / regions.coverage(total.device)
        return (self.gradient * (self.example - mean)).to(dtype)

    def _conditional_means(self, regions: Regions) -> Iterator[tuple[Windows, Tensor]]:
        """The conditional means (W, C, *window), some regions at a time."""
        own = self.contents.of(self.example, "full")
        for windows in regions.boxes(self.number):
            for start, stop in fill_chunks(windows, self.example.shape[1]):
                some, fills = own.fills(windows[start:stop], Sampling())
                yield some, fills[0].to(attribution_dtype(self.example))
