"""Conditional means and samples of regions, a few matrix products for all of them."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from captum_pda.basics.device_sync import moved_like
from captum_pda.priors.gaussian.conditioning import MOST_FACTORED_VALUES, Conditional
from captum_pda.priors.gaussian.fill_options import Draws, FillOptions
from captum_pda.priors.gaussian.moments import Moments
from captum_pda.priors.gaussian.operator_windows import OperatorWindows
from captum_pda.priors.gaussian.outer_patches import (
    OuterPatchGroup,
    middle_of,
    outer_patches,
    ring_and_region,
)
from captum_pda.priors.gaussian.region_shapes import RegionShape, alike_regions
from captum_pda.priors.gaussian.solved_windows import (
    VERY_FEW,
    PatchValues,
    SolvedWindows,
    WholePatches,
    are_few,
)
from captum_pda.priors.gaussian.stationary_draws import StationaryDraws
from captum_pda.priors.gaussian.stationary_moments import StationaryMoments
from captum_pda.priors.gaussian.thinned import ThinnedRegion
from captum_pda.priors.gaussian.thinned_windows import ThinnedWindows
from captum_pda.regions.protocol import Integers, Windows, block_pixels

#: Values of matrices that are kept between calls (128 MiB in single precision), beside the factor
#: of the last whole patch.
REMEMBERED_VALUES = 2**25
#: Values of outer patches that are gathered at once.
RING_VALUES = 2**22
#: A region with more values around it is given some of them only, unless all are asked for.
MOST_RING_VALUES = 768


class _Remembered(Protocol):
    """Matrices that are kept between calls."""

    @property
    def size(self) -> int: ...


_Made = TypeVar("_Made", bound=_Remembered)

#: Threads may share a prior. One lock for all priors, since a prior can be copied and a lock can't.
_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class _Surroundings:
    """An example's pixels (P, C), regions of one shape, and the shape of their outer patches."""

    pixels: Tensor
    regions: Windows
    shape: RegionShape
    patch: tuple[int, ...]

    def around(self, offset: tuple[int, ...], corners: Integers) -> Tensor:
        """What surrounds a region at ``offset`` in these patches, (regions, ring pixels, C)."""
        ring, _ = ring_and_region(self.patch, offset, self.shape)
        within = torch.from_numpy(np.ravel_multi_index(tuple(ring.T), self.patch))
        device = self.pixels.device
        numbers = block_pixels(corners, self.patch, self.regions.space, device)
        return self.pixels[numbers[:, within.to(device)]]

    def empty_fills(self, draws: Draws) -> Tensor:
        """Room for the fills of the regions' pixels, (S, W, pixels, C)."""
        shape = draws.count, len(self.regions), len(self.shape.places), self.pixels.shape[1]
        return self.pixels.new_empty(shape)


class GaussianFills:
    """Fills regions from fitted moments.

    Regions of one shape at the same place of their outer patch share their factorisations, so there
    are few of those however many windows there are.
    """

    def __init__(self, moments: Moments, options: FillOptions) -> None:
        self._moments = moments
        self._options = options
        self._remembered: OrderedDict[object, _Remembered] = OrderedDict()
        self._patches = WholePatches(moments, options.regularization)

    def fill(self, example: Tensor, regions: Windows, draws: Draws) -> Tensor:
        """Fills (S, W, C, *window) of regions of one example (C, *space)."""
        # Autocast is for the model: fills are computed in the precision of the inputs.
        with torch.autocast(example.device.type, enabled=False):
            dtype = torch.promote_types(example.dtype, torch.float32)
            # Pixels first, channels last: the values of a place stand together, as in the moments.
            pixels = example.detach().flatten(1).T.to(dtype)
            if regions.hidden is None:
                shape = RegionShape.of_window(regions.window)
                fills = self._fill_alike(pixels, regions, shape, draws)
            else:
                fills = self._fill_shapes(pixels, regions, regions.hidden, draws)
        by_channel = fills.transpose(2, 3).reshape(
            draws.count, len(regions), len(example), *regions.window
        )
        return by_channel.to(example.dtype)

    def _fill_shapes(
        self, pixels: Tensor, regions: Windows, hidden: Tensor, draws: Draws
    ) -> Tensor:
        """Fills (S, W, box pixels, C) of regions of any shape: what is not hidden stays."""
        seen = pixels[regions.pixels(pixels.device)]
        fills = seen.expand(draws.count, *seen.shape).clone()
        for alike in alike_regions(regions, hidden):
            values = self._fill_alike(pixels, alike.windows, alike.shape, draws)
            members, inside = alike.members.to(pixels.device), alike.pixels.to(pixels.device)
            fills[:, members[:, None], inside] = values
        return fills

    def _fill_alike(
        self, pixels: Tensor, regions: Windows, shape: RegionShape, draws: Draws
    ) -> Tensor:
        """Fills (S, W, region's pixels, C) of regions of one shape in their boxes."""
        surroundings = _Surroundings(pixels, regions, shape, self._patch(regions))
        fills = surroundings.empty_fills(draws)
        ring = math.prod(surroundings.patch) - len(shape.places)
        stationary = isinstance(self._moments, StationaryMoments)
        if (
            stationary
            and not self._options.exact
            and ring * self._values_per_pixel > MOST_RING_VALUES
        ):
            self._fill_thinned(fills, surroundings, draws)
        else:
            for group in outer_patches(regions, surroundings.patch):
                self._fill_group(fills, surroundings, group, draws)
        return fills

    def _patch(self, regions: Windows) -> tuple[int, ...]:
        """The shape of outer patches around these windows."""
        window, space, fitted = regions.window, regions.space, self._moments.patch
        for width, size, extent in zip(window, fitted, space, strict=True):
            # A window may cover an axis, if the patch does too.
            if width > size or width == size < extent:
                raise ValueError(
                    f"a region of {window} leaves nothing to condition on in an outer patch of "
                    f"{fitted}; use a smaller window, or fit with a patch_size beyond "
                    f"{max(window)}"
                )
        patch = np.minimum(fitted, space)
        if self._options.margin is not None:
            patch = np.minimum(patch, np.add(window, 2 * self._options.margin))
        return tuple(int(side) for side in patch)

    def _fill_thinned(self, fills: Tensor, surroundings: _Surroundings, draws: Draws) -> None:
        """Write the fills of large regions, given some of the pixels around them."""
        pixels, regions = surroundings.pixels, surroundings.regions
        moments, patch = cast(StationaryMoments, self._moments), surroundings.patch
        windows = self._thinned(moments, surroundings)
        at_once = max(1, RING_VALUES // (draws.count * math.prod(patch) * pixels.shape[1]))
        for start in range(0, len(regions), at_once):
            some = slice(start, start + at_once)
            given, inside = windows.around(pixels, regions.corner_array[some], regions.space)
            values, energy = windows.explain(given.unsqueeze(0), inside)
            if draws.n_samples is not None:
                torus = self._recall(
                    ("torus", pixels.dtype, pixels.device), lambda: StationaryDraws(moments, pixels)
                )
                drawn = torus.blocks(draws.count, len(inside), patch, draws.generator)
                drawing = self._thinned(torus.moments, surroundings)
                about = drawing.residual(drawn, inside)
                if drawing is not windows:
                    about = about * (windows.variance / drawing.variance).clamp_min(0).sqrt().mT
                values = values + (about * energy.sqrt() if self._options.local_scale else about)
            fills[:, some] = moved_like(values, pixels) + windows.mean_like(pixels)

    def _thinned(self, moments: StationaryMoments, surroundings: _Surroundings) -> ThinnedWindows:
        """Large regions of one shape under moments, remembered from the last time."""
        regions, shape, patch = surroundings.regions, surroundings.shape, surroundings.patch
        alone = len(getattr(regions, "whole", regions)) == 1
        return self._recall(
            (type(moments), patch, shape.key, alone),
            lambda: ThinnedWindows(
                moments,
                ThinnedRegion(shape, patch, self._values_per_pixel),
                self._options.regularization,
                alone,
            ),
        )

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
        patch, shape = surroundings.patch, surroundings.shape
        pixels = surroundings.pixels
        values = [n * self._values_per_pixel for n in (math.prod(patch), len(shape.places))]
        # Counted in the whole grid, so that a map does not depend on how it was cut up.
        few = are_few(group.in_whole_grid, values[0] - values[1], values[1], drawing)
        few = few and not (drawing and values[0] > MOST_FACTORED_VALUES)
        very_few = group.in_whole_grid <= VERY_FEW
        key = (patch, group.offset, shape.key, few, very_few, drawing, pixels.dtype, pixels.device)
        # Those that are alone are not kept, or corners would crowd out the others.
        return self._recall(
            key,
            lambda: self._make(surroundings, group.offset, drawing, (few, very_few)),
            keep=group.in_whole_grid > 1,
        )

    def _make(
        self,
        surroundings: _Surroundings,
        offset: tuple[int, ...],
        drawing: bool,
        number: tuple[bool, bool],
    ) -> SolvedWindows | OperatorWindows:
        """How regions at a place of their outer patch are filled, which are few or very few."""
        patch, options = surroundings.patch, self._options
        ring, inside = ring_and_region(patch, offset, surroundings.shape)
        middle = middle_of(self._moments.patch, patch)
        conditional = Conditional(
            self._moments, ring + middle, inside + middle, options.regularization
        )
        few, very_few = number
        if few:
            around, within = (self._values_at(places, patch) for places in (ring, inside))
            places = PatchValues(patch, around, within)
            return SolvedWindows(conditional, places, self._patches, very_few, options.local_scale)
        return OperatorWindows(conditional, drawing, surroundings.pixels, options.local_scale)

    def _values_at(self, places: Integers, patch: tuple[int, ...]) -> Tensor:
        """The numbers of some places' values among those of a patch that vary together."""
        numbers = torch.from_numpy(np.ravel_multi_index(tuple(places.T), patch))
        channels = self._values_per_pixel
        return (numbers[:, None] * channels + torch.arange(channels)).flatten()

    @property
    def _values_per_pixel(self) -> int:
        """How many values of a pixel vary together."""
        return self._moments.n_values // math.prod(self._moments.patch)

    def _recall(self, key: object, make: Callable[[], _Made], keep: bool = True) -> _Made:
        """What was made for this key, made now unless it is remembered; what was used last is
        kept, and the first is forgotten where there is much."""
        with _lock:
            found = self._remembered.get(key)
        made = make() if found is None else cast(_Made, found)
        if keep:
            with _lock:
                self._remembered[key] = made
                self._remembered.move_to_end(key)
                held = sum(matrices.size for matrices in self._remembered.values())
                while held > REMEMBERED_VALUES and len(self._remembered) > 1:
                    held -= self._remembered.popitem(last=False)[1].size
        return made
