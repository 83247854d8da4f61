"""Conditional means and samples of all windows of a grid, a few matrix products for all of them."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from captum_pda.priors.gaussian.conditioning import MOST_FACTORED_VALUES, Conditional
from captum_pda.priors.gaussian.moments import Moments
from captum_pda.priors.gaussian.operator_windows import OperatorWindows
from captum_pda.priors.gaussian.outer_patches import (
    OuterPatchGroup,
    middle_of,
    outer_patches,
    ring_and_window,
)
from captum_pda.priors.gaussian.solved_windows import (
    VERY_FEW,
    SolvedWindows,
    WholePatches,
    are_few,
)
from captum_pda.regions.protocol import Integers, Windows, block_pixels

#: Values of matrices that are kept between calls (128 MiB in single precision), beside the factor
#: of the last whole patch.
REMEMBERED_VALUES = 2**25
#: Values of outer patches that are gathered at once.
RING_VALUES = 2**22

#: Threads may share a prior. One lock for all priors, since a prior can be copied and a lock can't.
_lock = threading.Lock()


@dataclass(frozen=True)
class Draws:
    """How many samples are wanted, and what they are drawn with; None is the conditional mean."""

    n_samples: int | None = None
    generator: torch.Generator | None = None

    @property
    def count(self) -> int:
        """How many fills each window gets."""
        return self.n_samples or 1


@dataclass(frozen=True)
class _Surroundings:
    """An example's pixels (P, C), its windows, and the shape of their outer patches."""

    pixels: Tensor
    regions: Windows
    patch: tuple[int, ...]

    def around(self, offset: tuple[int, ...], corners: Integers) -> Tensor:
        """What surrounds a window at ``offset`` in these patches, (windows, ring pixels, C)."""
        ring, _ = ring_and_window(self.patch, offset, self.regions.window)
        within = torch.from_numpy(np.ravel_multi_index(tuple(ring.T), self.patch))
        device = self.pixels.device
        numbers = block_pixels(corners, self.patch, self.regions.space, device)
        return self.pixels[numbers[:, within.to(device)]]


class GaussianFills:
    """Fills windows from fitted moments.

    Windows at the same place of their outer patch share their factorisations, so there are few of
    those however many windows there are.
    """

    def __init__(self, moments: Moments, regularization: float) -> None:
        self._moments = moments
        self._regularization = regularization
        self._remembered: OrderedDict[object, SolvedWindows | OperatorWindows] = OrderedDict()
        self._patches = WholePatches(moments, regularization)

    def fill(self, example: Tensor, regions: Windows, draws: Draws) -> Tensor:
        """Fills (S, W, C, *window) of windows of one example (C, *space)."""
        # Autocast is for the model: fills are computed in the precision of the inputs.
        with torch.autocast(example.device.type, enabled=False):
            dtype = torch.promote_types(example.dtype, torch.float32)
            # Pixels first, channels last: the values of a place stand together, as in the moments.
            pixels = example.detach().flatten(1).T.to(dtype)
            patch = tuple(np.minimum(self._moments.patch, regions.space).tolist())
            surroundings = _Surroundings(pixels, regions, patch)
            n_channels = pixels.shape[1]
            shape = (draws.count, len(regions), math.prod(regions.window), n_channels)
            fills = pixels.new_empty(shape)
            for group in outer_patches(regions, patch):
                self._fill_group(fills, surroundings, group, draws)
        by_channel = fills.transpose(2, 3).reshape(*shape[:2], n_channels, *regions.window)
        return by_channel.to(example.dtype)

    def _fill_group(
        self, fills: Tensor, surroundings: _Surroundings, group: OuterPatchGroup, draws: Draws
    ) -> None:
        """Write the fills of windows at one place of their outer patch."""
        windows = self._windows_at(surroundings, group, draws.n_samples is not None)
        pixels, patch = surroundings.pixels, surroundings.patch
        at_once = max(1, RING_VALUES // (draws.count * math.prod(patch) * pixels.shape[1]))
        for start in range(0, len(group.members), at_once):
            some = slice(start, start + at_once)
            around = surroundings.around(group.offset, group.corners[some])
            joint = self._moments.joint
            ring = around.flatten(1).unsqueeze(0) if joint else around.movedim(2, 0)
            values = windows.fill(ring, draws.n_samples, draws.generator)
            members = torch.from_numpy(group.members[some]).to(pixels.device)
            by_pixel = values if joint else values.movedim(1, -1)
            fills[:, members] = by_pixel.reshape(draws.count, len(members), *fills.shape[2:])

    def _windows_at(
        self, surroundings: _Surroundings, group: OuterPatchGroup, drawing: bool
    ) -> SolvedWindows | OperatorWindows:
        """How windows of this group are filled, remembered from the last time."""
        patch, window = surroundings.patch, surroundings.regions.window
        pixels = surroundings.pixels
        values = [math.prod(shape) * self._values_per_pixel for shape in (patch, window)]
        # Counted in the whole grid, so that a map does not depend on how it was cut up.
        few = are_few(group.in_whole_grid, values[0] - values[1], values[1], drawing)
        few = few and not (drawing and values[0] > MOST_FACTORED_VALUES)
        very_few = group.in_whole_grid <= VERY_FEW
        key = (patch, group.offset, window, few, very_few, drawing, pixels.dtype, pixels.device)
        with _lock:
            windows = self._remembered.get(key)
        if windows is None:
            ring, inside = ring_and_window(patch, group.offset, window)
            middle = middle_of(self._moments.patch, patch)
            conditional = Conditional(
                self._moments, ring + middle, inside + middle, self._regularization
            )
            if few:
                around, within = (self._values_at(places, patch) for places in (ring, inside))
                windows = SolvedWindows(conditional, around, within, patch, self._patches, very_few)
            else:
                windows = OperatorWindows(conditional, drawing, pixels)
        if group.in_whole_grid > 1:  # or corners would crowd out the others
            with _lock:
                self._remember(key, windows)
        return windows

    def _values_at(self, places: Integers, patch: tuple[int, ...]) -> Tensor:
        """The numbers of some places' values among those of a patch that vary together."""
        numbers = torch.from_numpy(np.ravel_multi_index(tuple(places.T), patch))
        channels = self._values_per_pixel
        return (numbers[:, None] * channels + torch.arange(channels)).flatten()

    @property
    def _values_per_pixel(self) -> int:
        """How many values of a pixel vary together."""
        return self._moments.n_values // math.prod(self._moments.patch)

    def _remember(self, key: object, windows: SolvedWindows | OperatorWindows) -> None:
        """Keep what was used last, and forget the first where there is much."""
        self._remembered[key] = windows
        self._remembered.move_to_end(key)
        held = sum(windows.size for windows in self._remembered.values())
        while held > REMEMBERED_VALUES and len(self._remembered) > 1:
            held -= self._remembered.popitem(last=False)[1].size
