"""Conditional means and samples of all windows of a grid, a few matrix products for all of them."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict

import numpy as np
import torch
from torch import Tensor

from captum_pda.priors.gaussian.conditioning import (
    MOST_VALUES,
    Conditional,
    middle_of,
    ring_and_window,
)
from captum_pda.priors.gaussian.moments import Moments
from captum_pda.priors.gaussian.operator_windows import ManyWindows
from captum_pda.priors.gaussian.solved_windows import VERY_FEW, FewWindows, WholePatches, are_few
from captum_pda.regions.protocol import Integers, block_pixels
from captum_pda.regions.window_grid import OuterPatchGroup, WindowGrid

#: Values of matrices that are kept between calls (128 MiB in single precision), beside the factor
#: of the last whole patch.
REMEMBERED_VALUES = 2**25
#: Values of outer patches that are gathered at once.
RING_VALUES = 2**22

#: Threads may share a prior. One lock for all priors, since a prior can be copied and a lock can't.
_lock = threading.Lock()


class GaussianFills:
    """Fills windows from fitted moments.

    Windows at the same place of their outer patch share their factorisations, so there are few of
    those however many windows there are.
    """

    def __init__(self, moments: Moments, regularization: float) -> None:
        self._moments = moments
        self._regularization = regularization
        self._remembered: OrderedDict[object, FewWindows | ManyWindows] = OrderedDict()
        self._patches = WholePatches(moments, regularization)

    def fill(
        self,
        inputs: Tensor,
        grid: WindowGrid,
        n_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples (S, N, W, C, *window), or without ``n_samples`` the conditional mean as the only
        one."""
        # Autocast is for the model: fills are computed in the precision of the inputs.
        with torch.autocast(inputs.device.type, enabled=False):
            dtype = torch.promote_types(inputs.dtype, torch.float32)
            # Pixels first, channels last: the values of a place stand together, as in the moments.
            pixels = inputs.detach().flatten(2).transpose(1, 2).to(dtype)
            n_examples, _, n_channels = pixels.shape
            fills = pixels.new_empty(
                n_samples or 1, n_examples, len(grid), math.prod(grid.window), n_channels
            )
            patch = tuple(np.minimum(self._moments.patch, grid.space).tolist())
            for group in grid.outer_patches(patch):
                self._fill_group(fills, pixels, patch, group, grid, n_samples, generator)
        shape = (*fills.shape[:3], n_channels, *grid.window)
        return fills.transpose(3, 4).reshape(shape).to(inputs.dtype)

    def _fill_group(
        self,
        fills: Tensor,
        pixels: Tensor,
        patch: tuple[int, ...],
        group: OuterPatchGroup,
        grid: WindowGrid,
        n_samples: int | None,
        generator: torch.Generator | None,
    ) -> None:
        """Write the fills of windows at one place of their outer patch."""
        windows = self._windows_at(patch, group, grid.window, pixels, n_samples is not None)
        draws = n_samples or 1
        at_once = max(1, RING_VALUES // (draws * len(pixels) * math.prod(patch) * pixels.shape[2]))
        for start in range(0, len(group.members), at_once):
            some = slice(start, start + at_once)
            ring = self._ring_values(pixels, patch, group.offset, group.corners[some], grid)
            values = windows.fill(ring, n_samples, generator)
            members = torch.from_numpy(group.members[some]).to(pixels.device)
            fills[:, :, members] = self._ungroup(values, len(pixels), pixels.shape[2])

    def _ring_values(
        self,
        pixels: Tensor,
        patch: tuple[int, ...],
        offset: tuple[int, ...],
        corners: Integers,
        grid: WindowGrid,
    ) -> Tensor:
        """What surrounds windows in these patches, (groups, N * windows, ring values)."""
        ring, _ = ring_and_window(patch, offset, grid.window)
        within = torch.from_numpy(np.ravel_multi_index(tuple(ring.T), patch)).to(pixels.device)
        numbers = block_pixels(corners, patch, grid.space, pixels.device)[:, within]
        values = pixels[:, numbers].flatten(0, 1)
        return values.flatten(1).unsqueeze(0) if self._moments.joint else values.movedim(2, 0)

    def _ungroup(self, values: Tensor, n_examples: int, n_channels: int) -> Tensor:
        """From (S, groups, N * windows, values) to (S, N, windows, pixels, C)."""
        n_samples, _, rows, _ = values.shape
        split = (n_samples, n_examples, rows // n_examples, -1, n_channels)
        return (values if self._moments.joint else values.movedim(1, -1)).reshape(split)

    def _windows_at(
        self,
        patch: tuple[int, ...],
        group: OuterPatchGroup,
        window: tuple[int, ...],
        pixels: Tensor,
        drawing: bool,
    ) -> FewWindows | ManyWindows:
        """How windows of this group are filled, remembered from the last time."""
        values = [math.prod(shape) * self._values_per_pixel for shape in (patch, window)]
        # Counted in the whole grid, so that a map does not depend on how it was cut up.
        few = are_few(group.in_whole_grid, values[0] - values[1], values[1], drawing)
        few = few and not (drawing and values[0] > MOST_VALUES)
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
                windows = FewWindows(conditional, around, within, patch, self._patches, very_few)
            else:
                windows = ManyWindows(conditional, drawing, pixels)
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

    def _remember(self, key: object, windows: FewWindows | ManyWindows) -> None:
        """Keep what was used last, and forget the first where there is much."""
        self._remembered[key] = windows
        self._remembered.move_to_end(key)
        held = sum(windows.size for windows in self._remembered.values())
        while held > REMEMBERED_VALUES and len(self._remembered) > 1:
            held -= self._remembered.popitem(last=False)[1].size
