"""From the arguments that choose regions to the regions of each input tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from captum_pda.regions.masks import feature_mask_regions
from captum_pda.regions.protocol import Regions
from captum_pda.regions.superpixels import (
    GRANULARITIES,
    Granularities,
    Superpixels,
    check_granularities,
    has_superpixels,
)
from captum_pda.regions.windows import (
    LARGE_SIDE,
    Extent,
    Scales,
    WindowGrid,
    default_grids,
    is_integer,
    scale_grids,
    window_grid,
)

#: An int, a spatial tuple, or a full tuple with channels first; for several tensors, a tuple of
#: those.
Extents: TypeAlias = int | Sequence[int] | Sequence[Extent] | None

#: What each tensor is divided into: windows of one size or several, or the regions of a mask.
RegionSets: TypeAlias = tuple[tuple[Regions, ...], ...]


#: The arguments of which one at most says what is hidden.
CHOICES = ("windows", "feature_mask", "superpixels", "scales", "sliding_window_shapes")


@dataclass(frozen=True, eq=False)
class RegionChoice:
    """The arguments that say what is hidden, as the user gave them.

    Args:
        sliding_window_shapes: windows of one size.
        strides: the steps between windows.
        scales: windows of several sizes.
        feature_mask: regions of any shape, as in Captum's FeatureAblation.
        windows: some windows of a WindowGrid only.
        superpixels: how many regions that follow the image, once or several times.
        effort: how many default regions there are, "quick" or "standard".
    """

    sliding_window_shapes: Extents = None
    strides: Extents = None
    scales: Scales = None
    feature_mask: Tensor | tuple[Tensor, ...] | None = None
    windows: WindowGrid | tuple[WindowGrid, ...] | None = None
    superpixels: Granularities = None
    effort: str = "standard"

    def resolve(
        self, inputs: tuple[Tensor, ...], contexts: Sequence[str] = ("full",)
    ) -> dict[str, RegionSets]:
        """The regions of each input tensor in each context; what is the same in two contexts is one
        object. By default superpixels, or windows in proportion to small images."""
        self._check_one_is_given()
        if self.effort not in GRANULARITIES:
            raise ValueError(
                f"effort={self.effort!r} is not known; choose 'quick' or 'standard', or say what "
                "is hidden, such as superpixels=(25, 60)"
            )
        if self._is_given:
            return dict.fromkeys(contexts, self._given(inputs))
        steps = _one_each(self.strides, len(inputs), "strides")
        found: dict[tuple[int, int], Superpixels] = {}
        return {
            context: tuple(
                self._default(number, tensor, step, context, found)
                for number, (tensor, step) in enumerate(zip(inputs, steps, strict=True))
            )
            for context in contexts
        }

    @property
    def _is_given(self) -> bool:
        return any(getattr(self, name) is not None for name in CHOICES)

    def _default(
        self,
        number: int,
        tensor: Tensor,
        strides: Extent | None,
        context: str,
        found: dict[tuple[int, int], Superpixels],
    ) -> tuple[Regions, ...]:
        """The regions of a tensor that nothing was said about, those found before among them."""
        shape = tuple(tensor.shape)
        if strides is not None or not has_superpixels(shape):
            return default_grids(shape[2:], strides, context)
        granularities = GRANULARITIES[self.effort][context]
        for granularity in granularities:
            if (number, granularity) not in found:
                found[number, granularity] = Superpixels(tensor, granularity)
        return tuple(found[number, granularity] for granularity in granularities)

    def _given(self, inputs: tuple[Tensor, ...]) -> RegionSets:
        if self.windows is not None:
            return tuple((grid,) for grid in given_grids(inputs, self.windows))
        if self.feature_mask is not None:
            return _mask_regions(inputs, self.feature_mask)
        if self.scales is not None:
            return tuple(
                scale_grids(tuple(tensor.shape[2:]), self.scales, self.strides) for tensor in inputs
            )
        if self.superpixels is not None:
            return tuple(
                tuple(
                    Superpixels(tensor, granularity)
                    for granularity in check_granularities(self.superpixels, tuple(tensor.shape))
                )
                for tensor in inputs
            )
        return tuple(
            (grid,) for grid in make_grids(inputs, self.sliding_window_shapes, self.strides)
        )

    def _check_one_is_given(self) -> None:
        given = [name for name in CHOICES if getattr(self, name) is not None]
        without_strides = ("windows", "feature_mask", "superpixels")
        if given and given[0] in without_strides and self.strides is not None:
            given.append("strides")
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} both say what to hide; give one of them")


def make_grids(
    inputs: tuple[Tensor, ...], sliding_window_shapes: Extents, strides: Extents
) -> tuple[WindowGrid, ...]:
    """One grid for each input tensor, of one window size.

    Without a shape the window is the papers': 10 wide, or 4 where the shorter side is under 64.
    Without strides they are a quarter of the window.
    """
    shapes = _one_each(sliding_window_shapes, len(inputs), "sliding_window_shapes")
    steps = _one_each(strides, len(inputs), "strides")
    return tuple(
        window_grid(
            tuple(tensor.shape[2:]),
            papers_window(tensor) if shape is None else shape,
            step,
            channels=tensor.shape[1],
        )
        for tensor, shape, step in zip(inputs, shapes, steps, strict=True)
    )


def papers_window(tensor: Tensor) -> tuple[int, ...]:
    """The papers' window: 10 wide, or 4 where the shorter side is under 64."""
    space = tuple(tensor.shape[2:])
    width = 10 if min(space) >= LARGE_SIDE else 4
    return tuple(min(width, size) for size in space)


def given_grids(
    inputs: tuple[Tensor, ...], windows: WindowGrid | tuple[WindowGrid, ...]
) -> tuple[WindowGrid, ...]:
    """Check that grids chosen by the user fit the input tensors, one each."""
    grids = windows if isinstance(windows, tuple) else (windows,)
    spaces = [tuple(tensor.shape[2:]) for tensor in inputs]
    if [grid.space for grid in grids] != spaces:
        raise ValueError(
            f"windows lie in spaces of {[grid.space for grid in grids]}, where the inputs have "
            f"{spaces}; make a WindowGrid(space, window, strides) for each tensor"
        )
    if not all(len(grid) for grid in grids):
        raise ValueError("windows holds no window; pick at least one")
    return grids


def _mask_regions(
    inputs: tuple[Tensor, ...], feature_mask: Tensor | tuple[Tensor, ...]
) -> RegionSets:
    masks = feature_mask if isinstance(feature_mask, tuple) else (feature_mask,)
    if len(masks) != len(inputs):
        raise ValueError(
            f"feature_mask has {len(masks)} tensors for {len(inputs)} inputs; give one for each"
        )
    return tuple(
        (
            feature_mask_regions(
                mask,
                tensor,
                f"feature_mask[{n}]" if isinstance(feature_mask, tuple) else "feature_mask",
            ),
        )
        for n, (mask, tensor) in enumerate(zip(masks, inputs, strict=True))
    )


def _one_each(given: Extents, n_tensors: int, name: str) -> list[Extent | None]:
    """Split an argument over the input tensors."""
    if given is None or is_integer(given):
        return [given] * n_tensors
    if not isinstance(given, Sequence):
        raise TypeError(f"{name} must be an int or a tuple of ints, got {given!r}")
    if n_tensors == 1 and all(is_integer(item) for item in given):
        return [given]  # type: ignore[list-item]
    if len(given) != n_tensors:
        raise ValueError(
            f"{name}={given!r} has {len(given)} entries for {n_tensors} input tensors; "
            "give one int for all of them, or one int or tuple for each"
        )
    return list(given)
