"""The regions of each input tensor, from the arguments that choose them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

from torch import Tensor

from captum_pda.regions.contexts import DIVISIONS, contexts_of, planned_passes
from captum_pda.regions.masks import FeatureMaskRegions, feature_mask_regions, share_labels
from captum_pda.regions.protocol import Regions
from captum_pda.regions.random_sets import RandomSets
from captum_pda.regions.superpixels import Granularities, Superpixels, check_granularities
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

#: An int, a spatial tuple, or a tuple with channels first; a tuple of those for several tensors.
Extents: TypeAlias = int | Sequence[int] | Sequence[Extent] | None

#: The regions of each tensor, of one size or several.
RegionSets: TypeAlias = tuple[tuple[Regions, ...], ...]


#: Superpixels are the default if the smallest of them, a 250th of the pixels, has 4 along each
#: axis. The sides of the image may differ, as those of scans and clips do.
SMALLEST_SIDE, FINEST = 4, 250
#: Kinds of regions that are found in images: classes that are called with the images
#: (N, C, *space) and a size. Users pass ``regions=(name, size)``, or a class instead of the name,
#: such as ``partial(Superpixels, roi=mask)``.
REGION_KINDS: dict[str, Callable[[Tensor, int], Regions]] = {"superpixels": Superpixels}

#: The user's regions: an object for each tensor, or the name of a kind and its size or sizes.
OwnRegions: TypeAlias = (
    Regions
    | tuple[Regions, ...]
    | tuple[str | Callable[[Tensor, int], Regions], int | Sequence[int]]
    | None
)


def is_divided(shape: Sequence[int]) -> bool:
    """Whether inputs (N, C, *space) are divided into superpixels by default."""
    _, _, *space = shape
    return len(space) > 1 and math.prod(space) >= FINEST * SMALLEST_SIDE ** len(space)


def choose_regions(
    inputs: tuple[Tensor, ...],
    context: str = "full",
    sliding_window_shapes: Extents = None,
    strides: Extents = None,
    scales: Scales = None,
    feature_mask: Tensor | tuple[Tensor, ...] | None = None,
    superpixels: Granularities = None,
    regions: OwnRegions = None,
    effort: str | int = "standard",
) -> dict[str, RegionSets]:
    """The regions of each input tensor in each context. Contexts share the regions they have in
    common. See ``EfficientPDA.attribute`` for the arguments."""
    contexts = contexts_of(context)
    choices = {
        "regions": regions,
        "feature_mask": feature_mask,
        "superpixels": superpixels,
        "scales": scales,
        "sliding_window_shapes": sliding_window_shapes,
    }
    given = [name for name, value in choices.items() if value is not None]
    if given and given[0] in ("regions", "feature_mask", "superpixels") and strides is not None:
        given.append("strides")
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]} both say what to hide; give one of them")
    granularities, n_sets = planned_passes(contexts, effort)
    sets: RegionSets | None = None
    if regions is not None:
        sets = _own_regions(inputs, regions)
    elif feature_mask is not None:
        sets = _mask_regions(inputs, feature_mask)
    elif superpixels is not None:
        sets = _found_regions(inputs, "superpixels", superpixels)
    elif scales is not None:
        sets = tuple(scale_grids(tuple(tensor.shape[2:]), scales, strides) for tensor in inputs)
    elif sliding_window_shapes is not None:
        sets = tuple((grid,) for grid in make_grids(inputs, sliding_window_shapes, strides))
    steps = _one_each(strides, len(inputs), "strides")
    has_superpixels = [strides is None and is_divided(tensor.shape) for tensor in inputs]
    if context == "all" and (sets is not None or not all(has_superpixels)):
        contexts = contexts_of("both")  # random sets go with the default superpixels

    @cache  # one object per granularity: SLIC is slow, and contexts share their regions
    def found(number: int, granularity: int) -> Superpixels:
        return Superpixels(inputs[number], granularity)

    asked: dict[str, RegionSets] = {}
    for each in contexts:
        own = sets or tuple(
            tuple(found(number, granularity) for granularity in granularities[each.name])
            if has_superpixels[number]
            else default_grids(tuple(tensor.shape[2:]), steps[number], each)
            for number, tensor in enumerate(inputs)
        )
        if each.in_sets:
            # Random sets are by default drawn from several divisions.
            divisions = [
                [found(n, size) for size in DIVISIONS] if sets is None and has_own else []
                for n, has_own in enumerate(has_superpixels)
            ]
            own = tuple(
                tuple(
                    RandomSets(_checked_for_sets(one), n_sets // len(sizes), divided)
                    for one in sizes
                )
                for sizes, divided in zip(own, divisions, strict=True)
            )
        asked[each.name] = own
    return asked


def _checked_for_sets(regions: Regions) -> FeatureMaskRegions:
    if not isinstance(regions, FeatureMaskRegions):
        raise ValueError(
            "context='random' shows sets of regions that do not overlap; give superpixels= or "
            f"feature_mask= in place of {regions.title}, or another context"
        )
    return regions


def _found_regions(
    inputs: tuple[Tensor, ...], kind: str | Callable[[Tensor, int], Regions], sizes: object
) -> RegionSets:
    name = kind if isinstance(kind, str) else "regions"
    if isinstance(kind, str):
        if kind not in REGION_KINDS:
            known = ", ".join(map(repr, REGION_KINDS))
            raise ValueError(f"regions={kind!r} is not known; choose one of {known}")
        kind = REGION_KINDS[kind]
    return tuple(
        tuple(kind(tensor, size) for size in check_granularities(sizes, tuple(tensor.shape), name))
        for tensor in inputs
    )


def _own_regions(inputs: tuple[Tensor, ...], regions: Any) -> RegionSets:
    """The user's regions: a kind and its size, or an object for each tensor."""
    each = regions if isinstance(regions, tuple) else (regions,)
    if len(each) == 2 and (isinstance(each[0], str) or callable(each[0])):
        return _found_regions(inputs, *each)
    if not all(hasattr(one, "boxes") and hasattr(one, "space") for one in each):
        raise TypeError(
            f"regions={regions!r} must be a WindowGrid, FeatureMaskRegions or another object with "
            "the methods of captum_pda.regions.protocol.Regions, one for each tensor, or the name "
            "of a kind and a size, such as ('superpixels', 60)"
        )
    spaces = [tuple(tensor.shape[2:]) for tensor in inputs]
    if [one.space for one in each] != spaces:
        raise ValueError(
            f"regions lie in spaces of {[one.space for one in each]}, where the inputs have "
            f"{spaces}; make one object for each tensor, such as WindowGrid(space, window, strides)"
        )
    if not all(len(one) for one in each):
        raise ValueError("regions holds no region; pick at least one")
    return tuple((one,) for one in each)


def make_grids(
    inputs: tuple[Tensor, ...], sliding_window_shapes: Extents, strides: Extents
) -> tuple[WindowGrid, ...]:
    """A grid of one window size for each input tensor; by default that of the papers, 10 pixels, or
    4 if the shorter side is under 64."""
    shapes = _one_each(sliding_window_shapes, len(inputs), "sliding_window_shapes")
    steps = _one_each(strides, len(inputs), "strides")
    grids = []
    for tensor, shape, step in zip(inputs, shapes, steps, strict=True):
        space = tuple(tensor.shape[2:])
        if shape is None:
            shape = tuple(min(10 if min(space) >= LARGE_SIDE else 4, size) for size in space)
        grids.append(window_grid(space, shape, step, channels=tensor.shape[1]))
    return tuple(grids)


def _mask_regions(
    inputs: tuple[Tensor, ...], feature_mask: Tensor | tuple[Tensor, ...]
) -> RegionSets:
    masks = feature_mask if isinstance(feature_mask, tuple) else (feature_mask,)
    if len(masks) != len(inputs):
        raise ValueError(
            f"feature_mask has {len(masks)} tensors for {len(inputs)} inputs; give one for each"
        )
    several = isinstance(feature_mask, tuple)
    found = [
        feature_mask_regions(mask, tensor, f"feature_mask[{n}]" if several else "feature_mask")
        for n, (mask, tensor) in enumerate(zip(masks, inputs, strict=True))
    ]
    share_labels(found)
    return tuple((regions,) for regions in found)


def _one_each(given: Extents, n_tensors: int, name: str) -> list[Extent | None]:
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
