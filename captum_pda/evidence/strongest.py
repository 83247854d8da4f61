"""The regions that say most for a class, and most against it, as the map has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.device_sync import in_double
from captum_pda.evidence import words
from captum_pda.evidence.evidence import EvidencePart, Quantity, WindowEvidence
from captum_pda.model.inputs import check_count
from captum_pda.model.measures import Measure
from captum_pda.regions.protocol import Regions, Windows

Pixels = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: The share of the input that a listed region has at best: large enough to be a part of an object.
REGION_SHARE = 1 / 25
#: Regions whose value is a smaller share of the largest one are not listed.
LEAST_SHARE = 0.02
#: Regions whose values differ by a smaller share of the larger one are about as strong. Of ten
#: photos, this marks 6 of the 7 neighbours in a list that turn (benchmarks/stability.py).
CLOSE_SHARE = 0.15
#: A map whose standard deviation is a smaller share of its largest value is flat.
FLAT = 1e-6
#: How many values of regions are read from the map at once.
VALUES_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class StrongRegion:
    """A region that is listed because of the map, and the answers to each question about it.

    Args:
        pixels: which pixels belong to it, (*space).
        value: the mean of the map inside it; its sign and order in the list are those of the map.
        seen: P(c) with everything seen, or the raw output.
        evidence: what it says in each context that was asked, in the measure's unit.
        changed: P(c) with the region changed, in each of these contexts, or the raw output.
        uncertain: whether regions of other sizes disagree about it by as much as its value.
        measure: what evidence is measured in.
        tied: whether the next region of the list is about as strong, so that the two might change
            places with other superpixels, or in a JPEG of the same photo.
        number: its place among the regions of its size.

    Example::

        >>> speak_for, speak_against = strongest_regions(evidence, target=3)
        >>> print(speak_for[0])
        without it: 95.1% -> 62.0% (-3.6 bits); by itself: +9.6 bits over nothing
    """

    pixels: Pixels
    value: float
    seen: float
    evidence: Mapping[str, float]
    changed: Mapping[str, float]
    uncertain: bool
    measure: Measure
    tied: bool = False
    number: int = -1

    @property
    def corner(self) -> tuple[int, ...]:
        """The first pixel of its box."""
        return tuple(int(places.min()) for places in np.nonzero(self.pixels))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of its box."""
        return tuple(int(np.ptp(places)) + 1 for places in np.nonzero(self.pixels))

    @property
    def lost(self) -> float | None:
        """What is lost without it: its evidence in the full context, if that was asked."""
        return self.evidence.get("full")

    @property
    def unseen(self) -> float | None:
        """P(c) without it, or the raw output, if that was asked."""
        return self.changed.get("full")

    @property
    def alone(self) -> float | None:
        """What it says by itself: its evidence in the empty context, if that was asked."""
        return self.evidence.get("empty")

    def __str__(self) -> str:
        return "; ".join(self.answers())

    def __repr__(self) -> str:
        return f"StrongRegion(corner={self.corner}, shape={self.shape}, {self})"

    def answers(self) -> list[str]:
        """Each question about the region with its answer, as every list shows them."""
        found = [
            words.answer(context, value, self.seen, self.changed[context], self.measure)
            for context, value in self.evidence.items()
        ]
        if not found:
            found.append(f"{words.with_unit(self.value, self.measure)} on the map")
        if self.uncertain:
            found.append(words.UNCERTAIN)
        elif self.tied:
            found.append(words.TIED)
        return found


def strongest_regions(
    evidence: WindowEvidence,
    target: TargetType,
    n: int = 3,
    rather_than: TargetType = None,
    example: int | None = None,
) -> tuple[list[StrongRegion], list[StrongRegion]]:
    """The regions with the strongest evidence for ``target``, and those against it.

    The map decides: a region counts by the mean of the map inside it. Listed regions do not
    overlap. There may be fewer than ``n``, as only regions that do speak for the class (or against
    it) are listed. Of several sizes, those are listed that have about a 25th of the input.

    Args:
        evidence: with one input tensor.
        target: the output to ask about.
        n: how many regions of each kind.
        rather_than: another output, to list what speaks for ``target`` rather than for that.
        example: which one, where the evidence is of several.

    Example::

        >>> speak_for, speak_against = strongest_regions(evidence, target=3)
        >>> speak_for[0].corner, speak_for[0].lost
        ((96, 40), 1.73)
    """
    n = check_count("n", n)
    example = evidence.checked_example(example)
    quantity = evidence.reading.quantity(target)
    map_ = evidence.attribution(target) if rather_than is None else None
    if rather_than is not None:
        quantity = evidence.reading.rather(target, rather_than)
        map_ = evidence.contrast(target, rather_than)
    whole = map_[0] if isinstance(map_, tuple) else cast(Tensor, map_)
    values = plain_values(whole[example, 0])
    of_input = [part for part in evidence.parts if part.depth == "input"]
    parts = of_input or list(evidence.parts)
    space = values.shape
    parts = [part for part in parts if part.regions.space == space] or parts
    regions = listed_regions([part.regions for part in parts], example)
    own = [part for part in parts if part.regions == regions]
    others = _standardised_maps(parts, quantity, example, space)
    lists: list[list[StrongRegion]] = []
    for kind in _strongest_in(values, regions, example, n):
        lists.append(
            [
                _described(
                    evidence, own, quantity, target, example, number, pixels, value,
                    _within_spread(np.array([one[pixels].mean() for one in others])),
                    place + 1 < len(kind) and _is_tied(value, kind[place + 1][2]),
                )
                for place, (number, pixels, value) in enumerate(kind)
            ]
        )  # fmt: skip
    return lists[0], lists[1]


def _is_tied(value: float, following: float) -> bool:
    """Whether two regions of a list are about as strong."""
    return abs(value) - abs(following) < CLOSE_SHARE * abs(value)


def _within_spread(each: Floats) -> bool:
    """Whether values by several sizes and contexts disagree by as much as their mean."""
    return len(each) > 1 and abs(float(each.mean())) <= float(each.std(ddof=1))


def regions_of_map(
    values: Tensor, kinds: Sequence[Regions], measure: Measure, n: int = 3
) -> tuple[list[StrongRegion], list[StrongRegion]]:
    """The regions in which a map (*space) is strongest, for and against, where no region was asked
    by itself, as for GradientPDA."""
    plain = plain_values(values)
    speak_for, speak_against = (
        [StrongRegion(pixels, value, math.nan, {}, {}, False, measure) for _, pixels, value in kind]
        for kind in _strongest_in(plain, listed_regions(kinds), 0, n)
    )
    return speak_for, speak_against


def _strongest_in(
    values: Floats, regions: Regions, example: int, n: int
) -> tuple[list[tuple[int, Pixels, float]], list[tuple[int, Pixels, float]]]:
    """The regions with the highest and the lowest means of a map, which do not overlap: number,
    pixels and mean of each."""
    numbers, means = means_inside(regions, example, values)
    chosen: tuple[list[tuple[int, Pixels, float]], ...] = ([], [])
    taken = np.zeros(values.shape, dtype=np.bool_)
    for place in np.argsort(-np.abs(means), kind="stable"):
        number, mean = int(numbers[place]), float(means[place])
        kind = chosen[int(mean < 0)]
        is_weak = abs(mean) <= LEAST_SHARE * np.abs(means).max()
        if is_weak or all(len(each) == n for each in chosen):
            break
        if len(kind) < n:
            pixels = pixels_of(regions, example, number, values.shape)
            if not (taken & pixels).any():
                taken |= pixels
                kind.append((number, pixels, mean))
    return chosen[0], chosen[1]


def listed_regions(
    kinds: Sequence[Regions], example: int = 0, wanted: float = REGION_SHARE
) -> Regions:
    """Of several sizes of regions, the one whose regions are nearest to a share of the input."""

    def distance(regions: Regions) -> float:
        groups = [windows for windows in regions.boxes(example) if len(windows)]
        total = sum(
            len(windows) * math.prod(windows.window)
            if windows.hidden is None
            else int(windows.hidden.sum())
            for windows in groups
        )
        share = total / sum(map(len, groups)) / math.prod(regions.space)
        return abs(math.log(share / wanted))

    return min(dict.fromkeys(kinds), key=distance)


def means_inside(
    regions: Regions, example: int, values: Floats
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The numbers of an example's regions, and the mean of a map (*space) inside each."""
    numbers, means = [], []
    on_input = _on_input(regions.space, values.shape)
    own = values
    weights = np.ones_like(values)
    if on_input is not None:
        # The sum over the pixels that each place of a feature map covers, and their number.
        own, weights = np.zeros(regions.space), np.zeros(regions.space)
        np.add.at(own, on_input, values)
        np.add.at(weights, on_input, 1)
    for windows, members in zip(regions.boxes(example), regions.members(example), strict=True):
        at_once = max(1, VALUES_AT_ONCE // math.prod(windows.window))
        for start in range(0, len(windows), at_once):
            some = windows[start : start + at_once]
            pixels = some.pixels().numpy()
            inside = 1 if some.hidden is None else some.hidden.flatten(1).numpy()
            total = (own.reshape(-1)[pixels] * inside).sum(axis=1)
            count = (weights.reshape(-1)[pixels] * inside).sum(axis=1)
            numbers.append(members[start : start + at_once][count > 0])
            means.append(total[count > 0] / count[count > 0])
    return np.concatenate(numbers), np.concatenate(means)


def pixels_of(regions: Regions, example: int, number: int, space: tuple[int, ...]) -> Pixels:
    """The pixels of a region, (*space); those of a region of a feature map are the pixels of the
    input that it covers."""
    pixels = np.zeros(regions.space, dtype=np.bool_)
    for windows, members in zip(regions.boxes(example), regions.members(example), strict=True):
        for place in np.flatnonzero(members == number):
            hidden = windows.hidden
            pixels[_box(windows, int(place))] = True if hidden is None else hidden[place].numpy()
    on_input = _on_input(regions.space, space)
    return pixels if on_input is None else pixels[on_input]


def _box(windows: Windows, place: int) -> tuple[slice, ...]:
    corner = windows.corner_array[place]
    return tuple(slice(a, a + side) for a, side in zip(corner, windows.window, strict=True))


def _on_input(
    own: tuple[int, ...], space: tuple[int, ...]
) -> tuple[npt.NDArray[np.int64], ...] | None:
    """The place of a feature map at each pixel of the input; None where they are the same."""
    if own == space:
        return None
    return np.ix_(
        *(np.arange(size) * width // size for size, width in zip(space, own, strict=True))
    )


def _described(
    evidence: WindowEvidence,
    own: Sequence[EvidencePart],
    quantity: Quantity,
    target: TargetType,
    example: int,
    number: int,
    pixels: Pixels,
    value: float,
    uncertain: bool,
    tied: bool,
) -> StrongRegion:
    """A region with the answer to each question that was asked about it."""
    prediction = evidence.reading.prediction(target)
    return StrongRegion(
        pixels=pixels,
        value=value,
        seen=float(prediction(evidence.scores.unsqueeze(1))[example, 0]),
        evidence={part.context: float(part.differences(quantity)[example, number]) for part in own},
        changed={part.context: float(prediction(part.scores)[example, number]) for part in own},
        uncertain=uncertain,
        measure=evidence.measure,
        tied=tied,
        number=number,
    )


def _standardised_maps(
    parts: Sequence[EvidencePart], quantity: Quantity, example: int, space: tuple[int, ...]
) -> list[Floats]:
    """The map of each size and context, divided by its standard deviation over the pixels."""
    maps = [plain_values(part.map(part.differences(quantity), space)[example]) for part in parts]
    spreads = [float(values.std()) for values in maps]
    # A map of one region is flat, and what it has of spread is rounding.
    flat = [spread <= FLAT * np.abs(one).max() for spread, one in zip(spreads, maps, strict=True)]
    return [
        one / (1.0 if is_flat else spread)
        for one, spread, is_flat in zip(maps, spreads, flat, strict=True)
    ]


def plain_values(values: Tensor) -> Floats:
    """Values as doubles, with 0 for those that are not finite."""
    plain: Floats = (
        torch.nan_to_num(in_double(values.detach()), posinf=0.0, neginf=0.0).cpu().numpy()
    )
    return plain
