"""What surrounds regions of one shape in an example."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from captum_pda.priors.gaussian.fill_options import Draws
from captum_pda.priors.gaussian.outer_patches import ring_and_region
from captum_pda.priors.gaussian.region_shapes import RegionShape
from captum_pda.regions.protocol import Integers, Windows, block_pixels


@dataclass(frozen=True, eq=False)
class Surroundings:
    """An example's pixels (P, C), regions of one shape, and the shape of their outer patches."""

    pixels: Tensor
    regions: Windows
    shape: RegionShape
    patch: tuple[int, ...]

    def patches(self, corners: Integers) -> Tensor:
        """The pixels of patches with these corners, (patches, pixels, C)."""
        return self.pixels[self._numbers(corners)]

    def around(self, offset: tuple[int, ...], corners: Integers) -> Tensor:
        """What surrounds a region at ``offset`` in these patches, (regions, ring pixels, C)."""
        ring, _ = ring_and_region(self.patch, offset, self.shape)
        within = torch.from_numpy(np.ravel_multi_index(tuple(ring.T), self.patch))
        return self.pixels[self._numbers(corners)[:, within.to(self.pixels.device)]]

    def at_once(self, values: int, draws: Draws) -> int:
        """How many patches are gathered at once, so that their fills have this many values."""
        per_patch = draws.count * math.prod(self.patch) * self.pixels.shape[1]
        return max(1, values // per_patch)

    def empty_fills(self, draws: Draws) -> Tensor:
        """Room for the fills of the regions' pixels, (S, W, pixels, C)."""
        shape = draws.count, len(self.regions), len(self.shape.places), self.pixels.shape[1]
        return self.pixels.new_empty(shape)

    def _numbers(self, corners: Integers) -> Tensor:
        return block_pixels(corners, self.patch, self.regions.space, self.pixels.device)
