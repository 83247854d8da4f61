"""The regions that say most for a class, and most against it, as the map has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.basics.device_sync import in_double
from captum_pda.evidence.part import EvidencePart
from captum_pda.evidence.reading import Quantity
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.prediction.inputs import check_count
from captum_pda.prediction.measures import Measure, signed
from captum_pda.regions.protocol import Regions

Pixels = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: The share of the input that a listed region has at best: large enough to be a part of an object.
REGION_SHARE = 1 / 25
#: Regions whose value is a smaller share of the largest one are not listed.
LEAST_SHARE = 0.02


@dataclass(frozen=True, eq=False)
class StrongRegion:
    """A region that is listed because of the map, and the answers to each question about it.

    Args:
        pixels: which pixels belong to it, (*space).
        value: the mean of the map inside it; its sign and order in the list are those of the map.
        seen: P(c) with everything seen, or the raw output.
        unseen: the same without the region; None where that was not asked.
        lost: what is lost without it, in the measure's unit: its evidence in the full context.
        alone: what it says by itself, over an input of which nothing is seen: its evidence in the
            empty context.
        uncertain: whether regions of other sizes disagree about it by as much as its value.
        measure: what evidence is measured in.

    Example::

        >>> speak_for, speak_against = strongest_regions(evidence, target=3)
        >>> print(speak_for[0])
        without it: 95.1% -> 62.0% (-3.6 bits); by itself: +9.6 bits over nothing
    """

    pixels: Pixels
    value: float
    seen: float
    unseen: float | None
    lost: float | None
    alone: float | None
    uncertain: bool
    measure: Measure

    @property
    def corner(self) -> tuple[int, ...]:
        """The first pixel of its box."""
        return tuple(int(places.min()) for places in np.nonzero(self.pixels))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of its box."""
        return tuple(int(np.ptp(places)) + 1 for places in np.nonzero(self.pixels))

    def __str__(self) -> str:
        return "; ".join(self.answers())

    def __repr__(self) -> str:
        return f"StrongRegion(corner={self.corner}, shape={self.shape}, {self})"

    def answers(self) -> list[str]:
        """Each question about the region with its answer, as every list shows them."""
        unit = f" {self.measure.unit}" if self.measure.unit else ""
        found = []
        if self.lost is not None and self.unseen is not None:
            said = self.measure.in_words
            change = f"{said(self.seen)} -> {said(self.unseen)}"
            found.append(f"without it: {change} ({signed(-self.lost)}{unit})")
        if self.alone is not None:
            found.append(f"by itself: {signed(self.alone)}{unit} over nothing")
        if not found:
            found.append(f"{signed(self.value)}{unit} on the map")
        if self.uncertain:
            found.append("uncertain: other sizes disagree")
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
    values = _plain(whole[example, 0])
    of_input = [part for part in evidence.parts if part.depth == "input"]
    parts = of_input or list(evidence.parts)
    space = values.shape
    parts = [part for part in parts if part.regions.space == space] or parts
    regions = listed_regions([part.regions for part in parts], math.prod(space))
    own = [part for part in parts if part.regions is regions]
    others = _standardised_maps(parts, quantity, example, space)
    speak_for, speak_against = (
        [
            _described(
                evidence,
                own,
                quantity,
                target,
                example,
                number,
                pixels,
                value,
                [float(one[pixels].mean()) for one in others],
            )  # fmt: skip
            for number, pixels, value in kind
        ]
        for kind in _strongest_in(values, regions, example, n)
    )
    return speak_for, speak_against


def regions_of_map(
    values: Tensor, kinds: Sequence[Regions], measure: Measure, n: int = 3
) -> tuple[list[StrongRegion], list[StrongRegion]]:
    """The regions in which a map (*space) is strongest, for and against, where no region was asked
    by itself, as for GradientPDA."""
    plain = _plain(values)
    speak_for, speak_against = (
        [
            StrongRegion(pixels, value, math.nan, None, None, None, False, measure)
            for _, pixels, value in kind
        ]
        for kind in _strongest_in(plain, listed_regions(kinds, plain.size), 0, n)
    )
    return speak_for, speak_against


def _strongest_in(
    values: Floats, regions: Regions, example: int, n: int
) -> tuple[list[tuple[int, Pixels, float]], list[tuple[int, Pixels, float]]]:
    """The regions with the highest and the lowest means of a map, which do not overlap: number,
    pixels and mean of each."""
    candidates = _pixels_of_each(regions, example, values.shape)
    means = np.array([values[pixels].mean() for _, pixels in candidates])
    chosen: tuple[list[tuple[int, Pixels, float]], ...] = ([], [])
    taken = np.zeros(values.shape, dtype=np.bool_)
    for place in np.argsort(-np.abs(means), kind="stable"):
        number, pixels = candidates[place]
        kind = chosen[int(means[place] < 0)]
        if abs(means[place]) <= LEAST_SHARE * np.abs(means).max():
            break
        if len(kind) < n and not (taken & pixels).any():
            taken |= pixels
            kind.append((number, pixels, float(means[place])))
    return chosen[0], chosen[1]


def listed_regions(kinds: Sequence[Regions], n_pixels: int) -> Regions:
    """Of several sizes of regions, the one whose regions are nearest to a 25th of the input."""

    def distance(regions: Regions) -> float:
        areas = [
            math.prod(windows.window)
            if windows.hidden is None
            else float(windows.hidden.sum()) / len(windows)
            for windows in regions.boxes(0)
        ]
        return abs(math.log(float(np.mean(areas)) / n_pixels / REGION_SHARE))

    return min(dict.fromkeys(kinds), key=distance)


def _pixels_of_each(
    regions: Regions, example: int, space: tuple[int, ...]
) -> list[tuple[int, Pixels]]:
    """The number of each region of an example, and its pixels (*space).

    Those of a region of a feature map are the pixels of the input that it covers.
    """
    found = []
    nearest = np.ix_(
        *(np.arange(size) * own // size for size, own in zip(space, regions.space, strict=True))
    )
    for windows, members in zip(regions.boxes(example), regions.members(example), strict=True):
        for place, number in enumerate(members):
            pixels = np.zeros(regions.space, dtype=np.bool_)
            corner = windows.corner_array[place]
            box = tuple(slice(a, a + n) for a, n in zip(corner, windows.window, strict=True))
            pixels[box] = True if windows.hidden is None else windows.hidden[place].numpy()
            found.append((int(number), pixels[nearest] if regions.space != space else pixels))
    return [(number, pixels) for number, pixels in found if pixels.any()]


def _described(
    evidence: WindowEvidence,
    own: Sequence[EvidencePart],
    quantity: Quantity,
    target: TargetType,
    example: int,
    number: int,
    pixels: Pixels,
    value: float,
    spread: Sequence[float],
) -> StrongRegion:
    """A region with the answer to each question that was asked about it."""
    prediction = evidence.reading.prediction(target)
    answers: dict[str, float] = {}
    unseen = None
    for part in own:
        answers[part.context] = float(part.differences(quantity)[example, number])
        if part.context == "full":
            unseen = float(prediction(part.scores)[example, number])
    deviation = float(np.std(spread, ddof=1)) if len(spread) > 1 else 0.0
    return StrongRegion(
        pixels=pixels,
        value=value,
        seen=float(prediction(evidence.scores.unsqueeze(1))[example, 0]),
        unseen=unseen,
        lost=answers.get("full"),
        alone=answers.get("empty"),
        uncertain=len(spread) > 1 and abs(float(np.mean(spread))) <= deviation,
        measure=evidence.measure,
    )


def _standardised_maps(
    parts: Sequence[EvidencePart], quantity: Quantity, example: int, space: tuple[int, ...]
) -> list[Floats]:
    """The map of each size and context, divided by its standard deviation over the pixels."""
    maps = [_plain(part.map(part.differences(quantity), space)[example]) for part in parts]
    return [values / (values.std() or 1.0) for values in maps]


def _plain(values: Tensor) -> Floats:
    plain: Floats = (
        torch.nan_to_num(in_double(values.detach()), posinf=0.0, neginf=0.0).cpu().numpy()
    )
    return plain
