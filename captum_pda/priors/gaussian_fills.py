"""Conditional means and samples of all windows of a grid, a few matrix products for all of them."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from captum_pda.priors.conditioning import Conditional, ring_and_window
from captum_pda.priors.moments import Moments
from captum_pda.windows import Integers, OuterPatchGroup, WindowGrid, block_pixels

#: Values of operators that are kept between calls (256 MiB in single precision).
REMEMBERED_VALUES = 2**26
#: Values of outer patches that are gathered at once.
RING_VALUES = 2**22

#: Threads may share a prior. One lock for all priors, since a prior can be copied and a lock can't.
_lock = threading.Lock()


@dataclass(frozen=True)
class Operators:
    """A conditional distribution as matrices of the inputs' dtype, on the inputs' device."""

    ring_mean: Tensor
    window_mean: Tensor
    operator: Tensor
    sample_factor: Tensor | None

    @property
    def size(self) -> int:
        return self.operator.numel() + (
            0 if self.sample_factor is None else self.sample_factor.numel()
        )


class GaussianFills:
    """Fills windows from fitted moments.

    Windows at the same place of their outer patch share one linear operator (and one factor), so
    there are few factorisations however many windows there are.
    """

    def __init__(self, moments: Moments, regularization: float) -> None:
        self._moments = moments
        self._regularization = regularization
        self._remembered: OrderedDict[object, Operators] = OrderedDict()

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
        few = n_samples is None and group.in_whole_grid < math.prod(grid.window)
        solved = self._conditional(patch, group, grid.window) if few else None
        at_once = max(1, RING_VALUES // (len(pixels) * math.prod(patch) * pixels.shape[2]))
        for start in range(0, len(group.members), at_once):
            some = slice(start, start + at_once)
            ring = self._ring_values(pixels, patch, group.offset, group.corners[some], grid)
            if solved is not None:
                values = self._explain_few(ring, solved)
            else:
                drawing = n_samples is not None
                operators = self._operators(pixels, patch, group, grid.window, drawing)
                deviation = ring - operators.ring_mean.unsqueeze(1)
                values = operators.window_mean.unsqueeze(1) + deviation @ operators.operator
                if operators.sample_factor is not None and n_samples is not None:
                    noise = torch.randn(
                        (n_samples, *values.shape),
                        generator=generator,
                        dtype=values.dtype,
                        device=values.device,
                    )
                    values = values + noise @ operators.sample_factor.mT
            members = torch.from_numpy(group.members[some]).to(pixels.device)
            values = values.reshape(-1, *values.shape[-3:])
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

    def _explain_few(self, ring: Tensor, conditional: Conditional) -> Tensor:
        means = conditional.ring_mean, conditional.window_mean
        deviation = ring.to(means[0]) - means[0].unsqueeze(1)
        return (conditional.explain(deviation) + means[1].unsqueeze(1)).to(ring)

    def _conditional(
        self, patch: tuple[int, ...], group: OuterPatchGroup, window: tuple[int, ...]
    ) -> Conditional:
        ring, inside = ring_and_window(patch, group.offset, window)
        # Where an image is smaller than the fitted patch, it is taken from the patch's middle.
        middle = np.subtract(self._moments.patch, patch) // 2
        return Conditional(self._moments, ring + middle, inside + middle, self._regularization)

    def _operators(
        self,
        pixels: Tensor,
        patch: tuple[int, ...],
        group: OuterPatchGroup,
        window: tuple[int, ...],
        drawing: bool,
    ) -> Operators:
        key = (patch, group.offset, window, drawing, pixels.dtype, pixels.device)
        with _lock:
            operators = self._remembered.get(key)
        if operators is None:
            conditional = self._conditional(patch, group, window)
            operators = Operators(
                conditional.ring_mean.to(pixels),
                conditional.window_mean.to(pixels),
                conditional.operator.to(pixels),
                conditional.sample_factor.to(pixels) if drawing else None,
            )
        with _lock:
            self._remember(key, operators)
        return operators

    def _remember(self, key: object, operators: Operators) -> None:
        """Keep operators as the last that were used, and forget the first where there are many."""
        self._remembered[key] = operators
        self._remembered.move_to_end(key)
        held = sum(operators.size for operators in self._remembered.values())
        while held > REMEMBERED_VALUES and len(self._remembered) > 1:
            held -= self._remembered.popitem(last=False)[1].size
