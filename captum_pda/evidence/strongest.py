"""The regions with the strongest evidence for and against a class, according to the map."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.device_sync import in_double
from captum_pda.evidence import words
from captum_pda.model.inputs import check_count
from captum_pda.model.measures import Measure
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.protocol import Regions

if TYPE_CHECKING:
    from captum_pda.evidence.evidence import WindowEvidence

Pixels = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: The preferred size of listed regions, as a share of the input: about a part of an object.
REGION_SHARE = 1 / 25
#: Regions with a smaller share of the largest value are not listed: the map is pale there, and all
#: such regions of twelve photos were marked as uncertain.
LEAST_SHARE = 0.1
#: The largest evidence that is negligible, in bits.
LEAST_BITS = 0.01
#: Regions whose values differ by a smaller share are about equally strong. For ten photos, this
#: marks 6 of the 7 neighbours in a list that change places (benchmarks/stability.py).
CLOSE_SHARE = 0.15
#: A region is listed if one of its own answers has the sign of the map inside it and at least this
#: share of its size; otherwise a region of another size is listed, which makes the map there.
OWN_SHARE = 0.25
#: A region that shares at most this part of its pixels with those listed before is listed without
#: them, and otherwise not listed.
SHARED_PART = 0.1
#: A map with a standard deviation below this share of its largest value is flat.
FLAT = 1e-6
#: The values of regions that are read from the map at once.
VALUES_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class StrongRegion:
    """A listed region and its answer to each question.

    Args:
        pixels: its pixels, (*space), without those of regions listed before.
        value: the mean of the map inside them, which sets its sign and order in the list.
        seen: P(c) for the unperturbed input, or the raw output.
        evidence: its evidence in each context, in the measure's unit.
        changed: P(c) with the region changed, in each of these contexts, or the raw output.
        uncertain: whether questions and sizes disagree about it by as much as its value.
        measure: the measure of evidence.
        tied: whether the next region of the list is about equally strong, so that the two might
            change places with other superpixels, or in a JPEG of the same photo.
        second: ``seen`` and ``changed`` of the output that it is contrasted with, if any.
        number, regions: its number among all regions of its size.

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
    second: tuple[float, Mapping[str, float]] | None = None
    number: int = -1
    regions: Regions | None = None

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
        """Its evidence in the full context, what is lost without it; None if not asked."""
        return self.evidence.get("full")

    @property
    def alone(self) -> float | None:
        """Its evidence in the empty context, by itself; None if not asked."""
        return self.evidence.get("empty")

    @property
    def main_answer(self) -> str:
        """The first answer that has the sign of the map, for places with room for one."""
        agree = [value * self.value > 0 for value in self.evidence.values()]
        return self.answers()[agree.index(True)]

    def __str__(self) -> str:
        return "; ".join(self.answers())

    def __repr__(self) -> str:
        return f"StrongRegion(corner={self.corner}, shape={self.shape}, {self})"

    def answers(self) -> list[str]:
        """Each question about the region with its answer in words."""
        outputs = [(self.seen, self.changed), *([self.second] if self.second else [])]
        found = [
            words.answer(
                context,
                value,
                [seen for seen, _ in outputs],
                [changed[context] for _, changed in outputs],
                self.measure,
            )
            for context, value in self.evidence.items()
        ]
        doubt = words.UNCERTAIN if self.uncertain else words.TIED if self.tied else None
        return found if doubt is None else [*found, doubt]


def strongest_regions(
    evidence: WindowEvidence,
    target: TargetType,
    n: int = 3,
    rather_than: TargetType = None,
    example: int | None = None,
) -> tuple[list[StrongRegion], list[StrongRegion]]:
    """The regions with the strongest evidence for ``target``, and those against it.

    Regions are ranked by the mean of the map inside them. Listed regions do not overlap: a region
    that shares up to a tenth of its pixels with those before is listed without these, though its
    answers are about all of it. There may be fewer than ``n``: regions are not listed if their mean
    is below a tenth of the strongest, or if none of their answers has the sign of the map and more
    than 0.01 bits. Listed regions have about a 25th of the input; if such a region has next to no
    evidence itself, the region of another size that makes the map there is listed.

    Args:
        evidence: of one input tensor.
        target: the output.
        n: the number of regions of each kind.
        rather_than: another output, to list the evidence for ``target`` rather than it.
        example: the number of an example in a batch.

    Example::

        >>> speak_for, speak_against = strongest_regions(evidence, target=3)
        >>> speak_for[0].corner, speak_for[0].lost
        ((96, 40), 1.73)
    """
    n = check_count("n", n)
    example = evidence.checked_example(example)
    values = plain_values(evidence.map(target, rather_than, example))
    quantity = evidence.outputs.quantity(target)
    if rather_than is not None:
        quantity = evidence.outputs.rather(target, rather_than)
    parts = [part for part in evidence.parts if part.depth == "input"] or list(evidence.parts)
    parts = [part for part in parts if part.regions.space == values.shape] or parts
    # The evidence of the regions of each part, and its map in standard deviations.
    answers, maps, deviations = [], [], []
    for part in parts:
        each = part.differences(quantity)
        own = plain_values(part.map(each, values.shape)[example])
        # The map of a single region is flat, and its standard deviation is rounding.
        deviations.append(float(own.std()) if own.std() > FLAT * np.abs(own).max() else 1.0)
        answers.append(plain_values(each[example]))
        maps.append(own / deviations[-1])
    mean_map = np.mean(maps, axis=0)
    least = LEAST_BITS if evidence.measure.unit == "bits" else 0.0
    sizes = []
    # Regions that are only fitted to random sets have no answers of their own.
    asked_alone = [part for part in parts if not CONTEXTS[part.context].in_sets] or parts
    for regions in dict.fromkeys(part.regions for part in asked_alone):
        asked = [place for place, part in enumerate(parts) if part.regions == regions]
        numbers, means = means_inside(regions, example, values)
        expected = np.abs(means_inside(regions, example, mean_map)[1])
        said = np.zeros(len(numbers))
        for place in asked:
            agrees = np.sign(means) * answers[place][numbers]
            standardised = np.where(agrees > least, agrees / deviations[place], 0)
            said = np.maximum(said, np.where(standardised >= OWN_SHARE * expected, standardised, 0))
        sizes.append(Size(regions, numbers, means, said))
    outputs = [target, *([] if rather_than is None else [rather_than])]
    predictions = [evidence.outputs.prediction(one) for one in outputs]

    def told(kind: list[Chosen]) -> Iterator[StrongRegion]:
        for chosen, following in zip_longest(kind, kind[1:]):
            number = int(chosen.size.numbers[chosen.row])
            own = [k for k, part in enumerate(parts) if part.regions == chosen.size.regions]
            said = {parts[k].context: float(answers[k][number]) for k in own}
            each = np.array([one[chosen.pixels].mean() for one in maps])
            disagree = len(each) > 1 and abs(each.mean()) <= each.std(ddof=1)
            gap = abs(chosen.value) - (abs(following.value) if following else 0)
            (seen, changed), *second = (
                (
                    float(one(evidence.scores.unsqueeze(1))[example, 0]),
                    {parts[k].context: float(one(parts[k].scores)[example, number]) for k in own},
                )
                for one in predictions
            )
            yield StrongRegion(
                chosen.pixels,
                chosen.value,
                seen,
                said,
                changed,
                bool(disagree),
                evidence.measure,
                gap < CLOSE_SHARE * abs(chosen.value),
                second[0] if second else None,
                number,
                chosen.size.regions,
            )

    speak_for, speak_against = strongest_in(values, sizes, example, n)
    return list(told(speak_for)), list(told(speak_against))


class Size(NamedTuple):
    """Regions of one size: their numbers, the mean of the map inside each, and its strongest answer
    with the sign of the map (0 if that is not enough to list it)."""

    regions: Regions
    numbers: npt.NDArray[np.int64]
    means: Floats
    said: Floats


class Chosen(NamedTuple):
    """A region of a list: its size, its row there, its pixels without those of regions before it,
    and the mean of the map inside these."""

    size: Size
    row: int
    pixels: Pixels
    value: float


def strongest_in(
    values: Floats, sizes: Sequence[Size], example: int, n: int
) -> tuple[list[Chosen], list[Chosen]]:
    """The regions with the highest and the lowest means of a map (*space), without overlaps."""
    preferred = listed_regions([size.regions for size in sizes], example)
    first = next(place for place, size in enumerate(sizes) if size.regions == preferred)
    strength = np.abs(sizes[first].means)
    queue = [(-one, first, row) for row, one in enumerate(strength.tolist())]
    heapq.heapify(queue)
    chosen: tuple[list[Chosen], list[Chosen]] = ([], [])
    taken = np.zeros(values.shape, dtype=np.bool_)
    while queue and -queue[0][0] > LEAST_SHARE * strength.max():
        expected, place, row = heapq.heappop(queue)
        size = sizes[place]
        value = float(size.means[row])
        is_negative = value < 0
        if len(chosen[is_negative]) == n:
            continue
        whole = pixels_of(size.regions, example, int(size.numbers[row]), values.shape)
        pixels = whole & ~taken
        if whole.sum() - pixels.sum() > SHARED_PART * whole.sum():
            continue
        if (whole & taken).any():
            value = float(values[pixels].mean())
            if (value < 0) != is_negative:
                continue
            if abs(value) < -expected:  # others may be stronger than what is left of it
                heapq.heappush(queue, (-abs(value), place, row))
                continue
        if not size.said[row]:
            # Among all regions with the same sign, the largest evidence times the share inside this
            # one.
            here = [
                means_inside(other.regions, example, pixels.astype(float))[1]
                * np.where((other.means < 0) == is_negative, other.said, 0)
                for other in sizes
            ]
            best = max(range(len(sizes)), key=lambda other: here[other].max())
            if here[best].max() > 0:
                other_row = int(here[best].argmax())
                heapq.heappush(queue, (-abs(sizes[best].means[other_row]), best, other_row))
            continue
        taken |= pixels
        chosen[is_negative].append(Chosen(size, row, pixels, value))
    for kind in chosen:  # what is left of a region may be stronger than all of it
        kind.sort(key=lambda one: -abs(one.value))
    return chosen


def listed_regions(
    kinds: Sequence[Regions], example: int = 0, wanted: float = REGION_SHARE
) -> Regions:
    """The size of regions, among several, that is nearest to a share of the input."""
    return min(dict.fromkeys(kinds), key=lambda one: distance_to_share(one, example, wanted))


def distance_to_share(regions: Regions, example: int = 0, wanted: float = REGION_SHARE) -> float:
    """The distance of the mean share of regions from another share, in logarithms."""
    groups = [windows for windows in regions.boxes(example) if len(windows)]
    total = sum(
        len(windows) * math.prod(windows.window)
        if windows.hidden is None
        else int(windows.hidden.sum())
        for windows in groups
    )
    share = total / sum(map(len, groups)) / math.prod(regions.space)
    return abs(math.log(share / wanted))


def means_inside(
    regions: Regions, example: int, values: Floats
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The numbers of an example's regions, and the mean of a map (*space) inside each."""
    groups = list(zip(regions.boxes(example), regions.members(example), strict=True))
    if regions.space != values.shape:  # a feature map, of few regions
        numbers = np.concatenate([members for _, members in groups])
        inside = [pixels_of(regions, example, number, values.shape) for number in numbers]
        known = [place for place, pixels in enumerate(inside) if pixels.any()]
        return numbers[known], np.array([values[inside[place]].mean() for place in known])
    means = []
    for windows, _ in groups:
        at_once = max(1, VALUES_AT_ONCE // math.prod(windows.window))
        for start in range(0, len(windows), at_once):
            some = windows[start : start + at_once]
            own = values.reshape(-1)[some.pixels().numpy()]
            weights = None if some.hidden is None else some.hidden.flatten(1).numpy()
            means.append(np.average(own, axis=1, weights=weights))
    return np.concatenate([members for _, members in groups]), np.concatenate(means)


def pixels_of(regions: Regions, example: int, number: int, space: tuple[int, ...]) -> Pixels:
    """The pixels of a region, (*space), or those that a region of a feature map covers."""
    pixels = np.zeros(regions.space, dtype=np.bool_)
    for windows, members in zip(regions.boxes(example), regions.members(example), strict=True):
        for place in np.flatnonzero(members == number):
            corner, hidden = windows.corner_array[place], windows.hidden
            box = tuple(slice(a, a + b) for a, b in zip(corner, windows.window, strict=True))
            pixels[box] = True if hidden is None else hidden[place].numpy()
    if regions.space == space:
        return pixels
    sides = zip(space, regions.space, strict=True)
    return pixels[np.ix_(*(np.arange(size) * own // size for size, own in sides))]


def plain_values(values: Tensor) -> Floats:
    """Values as doubles, with 0 for those that are not finite."""
    finite = torch.nan_to_num(in_double(values.detach()), posinf=0.0, neginf=0.0)
    return np.asarray(finite.cpu())
