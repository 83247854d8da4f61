"""Conditional means and samples of regions, a few matrix products for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from captum_pda.basics.device_sync import moved_like
from captum_pda.priors.gaussian.conditioning import MOST_FACTORED_VALUES, Conditional
from captum_pda.priors.gaussian.factoring_cost import warn_if_long
from captum_pda.priors.gaussian.fill_options import Draws, FillOptions
from captum_pda.priors.gaussian.moments import Moments
from captum_pda.priors.gaussian.operator_windows import OperatorWindows
from captum_pda.priors.gaussian.outer_patches import (
    OuterPatchGroup,
    in_portions,
    middle_of,
    outer_patches,
    ring_and_region,
)
from captum_pda.priors.gaussian.precision_windows import (
    PlacedValues,
    PrecisionWindows,
    inverse_pays,
)
from captum_pda.priors.gaussian.region_shapes import RegionShape, alike_regions
from captum_pda.priors.gaussian.remembered import Remembered
from captum_pda.priors.gaussian.solved_windows import (
    VERY_FEW,
    PatchValues,
    SolvedWindows,
    WholePatches,
    are_few,
)
from captum_pda.priors.gaussian.stationary_draws import StationaryDraws
from captum_pda.priors.gaussian.stationary_moments import StationaryMoments
from captum_pda.priors.gaussian.surroundings import Surroundings
from captum_pda.priors.gaussian.thinned import ThinnedRegion
from captum_pda.priors.gaussian.thinned_windows import ThinnedWindows
from captum_pda.regions.protocol import Integers, Windows

#: Values of outer patches that are gathered at once.
RING_VALUES = 2**22
#: A region with more values around it is given some of them only, unless all are asked for.
MOST_RING_VALUES = 768


class GaussianFills:
    """Fills regions from fitted moments.

    Regions of one shape at the same place of their outer patch share their factorisations, so there
    are few of those however many windows there are.
    """

    def __init__(self, moments: Moments, options: FillOptions) -> None:
        self._moments = moments
        self._options = options
        self._remembered = Remembered()
        self._patches = WholePatches(moments, options.regularization)
        self._was_told = False

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
        surroundings = Surroundings(pixels, regions, shape, self._patch(regions))
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
            self._fill_places(fills, surroundings, draws)
        return fills

    def _fill_places(self, fills: Tensor, surroundings: Surroundings, draws: Draws) -> None:
        """Write the fills of regions given all of their ring, place by place in their patches."""
        few: list[OuterPatchGroup] = []
        many: list[OuterPatchGroup] = []
        for group in outer_patches(surroundings.regions, surroundings.patch):
            (few if self._are_few(surroundings, group, draws) else many).append(group)
        precision = self._precision(surroundings, few)
        self._tell_cost(surroundings, many if precision is not None else [*few, *many])
        if precision is not None:
            self._fill_with(precision, few, fills, surroundings, draws)
        for group in many if precision is not None else [*few, *many]:
            self._fill_group(fills, surroundings, group, draws)

    def _tell_cost(self, surroundings: Surroundings, groups: Sequence[OuterPatchGroup]) -> None:
        """Warn, once, where each of many places has a large factor of its own."""
        if self._was_told or not groups:
            return
        ring, _ = self._counts(surroundings)
        n_factors = groups[0].places * (1 if self._moments.joint else surroundings.pixels.shape[1])
        device = surroundings.pixels.device
        self._was_told = warn_if_long(n_factors, ring, device, self._options.exact)

    def _are_few(self, surroundings: Surroundings, group: OuterPatchGroup, draws: Draws) -> bool:
        """Whether windows at this place do not repay an operator of their own."""
        ring, window = self._counts(surroundings)
        drawing = draws.n_samples is not None
        # Counted in the whole grid, so that a map does not depend on how it was cut up.
        few = are_few(group.in_whole_grid, ring, window, drawing)
        return few and not (drawing and ring + window > MOST_FACTORED_VALUES)

    def _counts(self, surroundings: Surroundings) -> tuple[int, int]:
        """How many values around a region, and of its own, vary together."""
        patch, inside = math.prod(surroundings.patch), len(surroundings.shape.places)
        return (patch - inside) * self._values_per_pixel, inside * self._values_per_pixel

    def _precision(
        self, surroundings: Surroundings, few: Sequence[OuterPatchGroup]
    ) -> PrecisionWindows | None:
        """The inverse that serves windows at all these places, where it pays and can be had."""
        if not few or not inverse_pays(few[0].places, *self._counts(surroundings)):
            return None
        patch, regularization = surroundings.patch, self._options.regularization
        return self._remembered.recall(
            ("inverse", patch),
            lambda: PrecisionWindows.of_patches(self._moments, patch, regularization),
        )

    def _fill_with(
        self,
        precision: PrecisionWindows,
        groups: Sequence[OuterPatchGroup],
        fills: Tensor,
        surroundings: Surroundings,
        draws: Draws,
    ) -> None:
        """Write the fills of windows at several places, from one inverse."""
        patch, joint = surroundings.patch, self._moments.joint
        for some in in_portions(groups, surroundings.at_once(RING_VALUES, draws)):
            around = surroundings.patches(np.concatenate([group.corners for group in some]))
            patches = around.flatten(1).unsqueeze(0) if joint else around.movedim(2, 0)
            windows = []
            for group in some:
                _, inside = ring_and_region(patch, group.offset, surroundings.shape)
                windows.append(PlacedValues(len(group.members), self._values_at(inside, patch)))
            values = precision.fill(patches, windows, draws, self._options.local_scale)
            members = np.concatenate([group.members for group in some])
            self._write(fills, members, values)

    def _write(self, fills: Tensor, members: Integers, values: Tensor) -> None:
        """Put values (S, groups, windows, values) where the fills of these windows belong."""
        by_pixel = values if self._moments.joint else values.movedim(1, -1)
        where = torch.from_numpy(members).to(fills.device)
        fills[:, where] = by_pixel.reshape(len(fills), len(members), *fills.shape[2:])

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

    def _fill_thinned(self, fills: Tensor, surroundings: Surroundings, draws: Draws) -> None:
        """Write the fills of large regions, given some of the pixels around them."""
        pixels, regions = surroundings.pixels, surroundings.regions
        moments, patch = cast(StationaryMoments, self._moments), surroundings.patch
        windows = self._thinned(moments, surroundings)
        at_once = surroundings.at_once(RING_VALUES, draws)
        for start in range(0, len(regions), at_once):
            some = slice(start, start + at_once)
            given, inside = windows.around(pixels, regions.corner_array[some], regions.space)
            values, energy = windows.explain(given.unsqueeze(0), inside)
            if draws.n_samples is not None:
                torus = self._remembered.recall(
                    ("torus", pixels.dtype, pixels.device), lambda: StationaryDraws(moments, pixels)
                )
                drawn = torus.blocks(draws.count, len(inside), patch, draws.generator)
                drawing = self._thinned(torus.moments, surroundings)
                about = drawing.residual(drawn, inside)
                if drawing is not windows:
                    about = about * (windows.variance / drawing.variance).clamp_min(0).sqrt().mT
                values = values + (about * energy.sqrt() if self._options.local_scale else about)
            fills[:, some] = moved_like(values, pixels) + windows.mean_like(pixels)

    def _thinned(self, moments: StationaryMoments, surroundings: Surroundings) -> ThinnedWindows:
        """Large regions of one shape under moments, remembered from the last time."""
        regions, shape, patch = surroundings.regions, surroundings.shape, surroundings.patch
        alone = len(getattr(regions, "whole", regions)) == 1
        return self._remembered.recall(
            (type(moments), patch, shape.key, alone),
            lambda: ThinnedWindows(
                moments,
                ThinnedRegion(shape, patch, self._values_per_pixel),
                self._options.regularization,
                alone,
            ),
        )

    def _fill_group(
        self, fills: Tensor, surroundings: Surroundings, group: OuterPatchGroup, draws: Draws
    ) -> None:
        """Write the fills of windows at one place of their outer patch."""
        windows = self._windows_at(surroundings, group, draws)
        at_once = surroundings.at_once(RING_VALUES, draws)
        for start in range(0, len(group.members), at_once):
            some = slice(start, start + at_once)
            around = surroundings.around(group.offset, group.corners[some])
            joint = self._moments.joint
            ring = around.flatten(1).unsqueeze(0) if joint else around.movedim(2, 0)
            values = windows.fill(ring, draws.n_samples, draws.generator)
            self._write(fills, group.members[some], values)

    def _windows_at(
        self, surroundings: Surroundings, group: OuterPatchGroup, draws: Draws
    ) -> SolvedWindows | OperatorWindows:
        """How windows of this group are filled, remembered from the last time."""
        patch, shape = surroundings.patch, surroundings.shape
        pixels, drawing = surroundings.pixels, draws.n_samples is not None
        few = self._are_few(surroundings, group, draws)
        very_few = group.in_whole_grid <= VERY_FEW
        key = (patch, group.offset, shape.key, few, very_few, drawing, pixels.dtype, pixels.device)
        # Those that are alone are not kept, or corners would crowd out the others.
        return self._remembered.recall(
            key,
            lambda: self._make(surroundings, group.offset, drawing, (few, very_few)),
            keep=group.in_whole_grid > 1,
        )

    def _make(
        self,
        surroundings: Surroundings,
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
        return (numbers[:, None] * channels + torch.arange(channels, device="cpu")).flatten()

    @property
    def _values_per_pixel(self) -> int:
        """How many values of a pixel vary together."""
        return self._moments.n_values // math.prod(self._moments.patch)
