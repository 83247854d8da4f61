"""What regions say together: interactions, and the parts of an input that decide its answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.evidence.strongest import (
    REGION_SHARE,
    listed_regions,
    means_inside,
    pixels_of,
    plain_values,
)
from captum_pda.model.inputs import check_count
from captum_pda.model.measures import percent, signed
from captum_pda.running.ask import Asker
from captum_pda.running.run import ProgressBar

if TYPE_CHECKING:
    from captum_pda.evidence.evidence import WindowEvidence

Pixels = npt.NDArray[np.bool_]
#: How many of the strongest regions, the numbers of some, or the pixels of each, (R, *space).
WhichRegions: TypeAlias = int | Sequence[int] | Tensor | npt.NDArray[Any] | None

#: The share of the input that one region of a part has at best.
PART_SHARE = 1 / 60
#: What an interaction means, by its sign where the pair speaks for the class.
COVER, TOGETHER = "each covers for the other", "they speak only together"


class Coalitions:
    """Some regions of one example, and what the model says with any of them hidden.

    Made by ``evidence.coalitions``. Equal questions are asked once.

    Args:
        evidence: what is known of the example, with the model to ask.
        example: its number.
        numbers: the numbers of the regions, or of the masks that were given.
        pixels: the pixels of each region, (R, *space).

    Example::

        >>> coalitions = evidence.coalitions(husky, regions=3)
        >>> coalitions.ask([[True, False, False], [True, True, False]])    # (2, classes)
    """

    def __init__(
        self, evidence: WindowEvidence, example: int, numbers: Sequence[int], pixels: Pixels
    ) -> None:
        self.evidence = evidence
        self.example = example
        self.numbers = tuple(int(number) for number in numbers)
        self.pixels = pixels
        self._flat = torch.from_numpy(pixels.reshape(len(pixels), -1).astype(np.float32))
        self._box = torch.from_numpy(pixels.any(axis=0))
        if not isinstance(evidence.ask, Asker):
            raise ValueError(
                "this evidence has no model to ask: it was loaded from a file, or is of a layer's "
                "feature map. Make it anew with PDA(model).evidence(inputs)"
            )
        self._asker = evidence.ask
        self.kind = evidence.ask.explained.kind

    def __len__(self) -> int:
        return len(self.numbers)

    def ask(
        self, hidden: Any, context: str = "full", progress: ProgressBar | str | None = None
    ) -> Tensor:
        """The scores without some regions: log-odds in nats or raw outputs, (K, columns).

        Args:
            hidden: which regions are hidden in each coalition, true or false, (K, R).
            context: "full" fills them with what the prior expects given all that is seen; "empty"
                pastes what is seen into the input with nothing seen.
            progress: the title of a progress bar; None shows none.
        """
        samples = self.ask_samples(hidden, context, progress)
        return self.kind.average(samples)

    def ask_samples(
        self, hidden: Any, context: str = "full", progress: ProgressBar | str | None = None
    ) -> Tensor:
        """The same for each sample, (S, K, columns), where SampledPDA has drawn several."""
        return self._ask(self._union(hidden), context, progress)

    def only(self, seen: Any, progress: ProgressBar | str | None = None) -> Tensor:
        """The scores with some regions (K, R) seen and nothing else, (K, columns)."""
        return self._ask(~self._union(seen), "empty", progress)[0]

    def pick(self, scores: Tensor, target: TargetType) -> Tensor:
        """The columns of ``target`` of scores (..., columns), (..., 1 or more)."""
        evidence = self.evidence
        rows = scores.reshape(1, -1, scores.shape[-1]).expand(len(evidence.scores), -1, -1)
        picked = evidence.reading.pick(rows, target)[self.example]
        return picked.reshape(*scores.shape[:-1], -1)

    def values(self, scores: Tensor, target: TargetType) -> Tensor:
        """What is measured of ``target``, such as its log2 odds, of scores (..., columns)."""
        return self.evidence.measure.value(self.pick(scores, target)).sum(dim=-1)

    def predictions(self, scores: Tensor, target: TargetType) -> Tensor:
        """The probability of ``target``, or the raw output, of scores (..., columns)."""
        return self.evidence.measure.prediction(self.pick(scores, target)).mean(dim=-1)

    @property
    def seen(self) -> Tensor:
        """The scores with everything seen, (columns,)."""
        return self.evidence.scores[self.example]

    @property
    def n_samples(self) -> int:
        """How many passes a coalition takes in the full context."""
        return self._asker.sampling.n_samples

    def seconds_per_pass(self) -> float:
        """How long one pass of the model takes, without what fills hidden regions."""
        return self._asker.seconds_per_pass(self.example)

    def _union(self, chosen: Any) -> Tensor:
        rows = torch.as_tensor(np.asarray(chosen)).bool().cpu()
        if rows.dim() != 2 or rows.shape[1] != len(self):
            raise ValueError(
                f"coalitions have shape {tuple(rows.shape)}; give one row of {len(self)} booleans "
                "for each coalition, (K, regions)"
            )
        return (rows.float() @ self._flat > 0).reshape(-1, *self.pixels.shape[1:])

    def _ask(self, hidden: Tensor, context: str, progress: ProgressBar | str | None) -> Tensor:
        return self._asker.hidden(self.example, hidden, context, self._box, progress)


def coalitions_of(
    evidence: WindowEvidence,
    target: TargetType,
    regions: WhichRegions,
    example: int | None,
    rather_than: TargetType = None,
    share: float = REGION_SHARE,
) -> Coalitions:
    """The regions to ask about; see ``WindowEvidence.coalitions``. With None all regions of one
    size, the strongest for the target first."""
    number = evidence.checked_example(example)
    space = tuple(evidence.inputs[0].shape[2:])
    if isinstance(regions, Tensor | np.ndarray) and np.ndim(regions) > 1:
        pixels = np.asarray(torch.as_tensor(regions).cpu(), dtype=np.bool_)
        if pixels.shape[1:] != space:
            raise ValueError(
                f"regions have shape {pixels.shape}; give the pixels of each as booleans, "
                f"(regions, *{space})"
            )
        if not pixels.any(axis=tuple(range(1, pixels.ndim))).all():
            raise ValueError("regions holds one without pixels; leave it out")
        return Coalitions(evidence, number, range(len(pixels)), pixels)
    kinds = [part.regions for part in evidence.parts if part.depth == "input"]
    if not kinds:
        raise ValueError(
            "this evidence is of a layer's feature map, and regions of the input are asked "
            "together; use PDA(model).evidence(inputs)"
        )
    size = listed_regions(kinds, number, share)
    found = evidence.attribution(target)
    if rather_than is not None:
        found = evidence.contrast(target, rather_than)
    whole = found[0] if isinstance(found, tuple) else found
    numbers, means = means_inside(size, number, plain_values(whole[number, 0]))
    if regions is None or isinstance(regions, int):
        order = np.argsort(-means if regions is None else -np.abs(means), kind="stable")
        candidates = numbers[order]
        n = len(candidates) if regions is None else check_count("regions", regions)
    else:
        candidates = np.asarray(regions, dtype=np.int64)
        unknown = sorted(set(candidates.tolist()) - set(numbers.tolist()))
        if unknown:
            raise ValueError(
                f"regions={list(regions)} holds {unknown}; the example has the regions "
                f"{numbers.min()} to {numbers.max()} of {size.title}"
            )
        n = len(candidates)
    chosen: list[int] = []
    pixels_of_chosen: list[Pixels] = []
    taken = np.zeros(space, dtype=np.bool_)
    # All regions of a size cover the input; of windows that overlap, as few as do so.
    allowed_overlaps = (0.0,) if regions is not None else (0.5, 1.0)
    for allowed in allowed_overlaps:
        for candidate in candidates:
            if len(chosen) == n or taken.all():
                break
            own = pixels_of(size, number, int(candidate), space)
            overlap = (taken & own).sum() / own.sum()
            if overlap <= allowed and overlap < 1:
                taken |= own
                chosen.append(int(candidate))
                pixels_of_chosen.append(own)
    if regions is None:
        places = {int(candidate): place for place, candidate in enumerate(candidates)}
        order_of = sorted(range(len(chosen)), key=lambda place: places[chosen[place]])
        chosen = [chosen[place] for place in order_of]
        pixels_of_chosen = [pixels_of_chosen[place] for place in order_of]
    return Coalitions(evidence, number, chosen, np.stack(pixels_of_chosen))


# Interactions


def meaning(interaction: float, evidence: float) -> str:
    """What an interaction of two parts with this evidence together means, in words."""
    words = COVER if (interaction > 0) == (evidence >= 0) else TOGETHER
    return words if evidence >= 0 else f"{words}, against the class"


@dataclass(frozen=True, eq=False)
class Interaction:
    """What two regions say together.

    Args:
        first, second: the places of the two in the list of regions.
        value: I(a, b) = R(a and b) - R(a) - R(b), in the measure's unit.
        lost: R(a and b), R(a) and R(b): what is lost without both, and without each.
        error: the standard error of the value; None without samples.
        unit: what the values are measured in.
    """

    first: int
    second: int
    value: float
    lost: tuple[float, float, float]
    error: float | None
    unit: str

    @property
    def meaning(self) -> str:
        """What the interaction means: "each covers for the other" or "they speak only together"."""
        return meaning(self.value, sum(self.lost))

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        both, one, other = (signed(-value, self.unit) for value in self.lost)
        error = "" if self.error is None else f" ± {self.error:.2g}"
        value = f"{signed(self.value, self.unit)}{error}{unit}"
        return (
            f"{self.first} and {self.second}: {value}, {self.meaning} "
            f"(without both {both}, without one {one}, without the other {other})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """What pairs of regions say together, about every output.

    With R what is lost without regions, I(a, b) = R(a and b) - R(a) - R(b). Where regions speak
    for a class, a positive value says that each covers for the other: losing both costs more than
    the sum. A negative one says that they speak only together: what both say is lost with either.

    Args:
        coalitions: the regions.
        single: scores without each region, for each sample, (S, R, columns).
        joint: scores without each pair, in the order of ``index``, (S, pairs, columns).
        target: the output that is meant where none is given.
        index: the two regions of each pair.

    Example::

        >>> interactions = evidence.interactions(husky)
        >>> print(interactions)                     # the strongest pairs, in words
        >>> interactions.values(wolf)               # (R, R), from the same passes
        >>> interactions.pairs(husky)[0].meaning
        'each covers for the other'
    """

    coalitions: Coalitions
    single: Tensor
    joint: Tensor
    target: TargetType = None
    index: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.coalitions)

    @property
    def pixels(self) -> Pixels:
        """The pixels of each region, (R, *space)."""
        return self.coalitions.pixels

    @property
    def unit(self) -> str:
        """What values are measured in."""
        return self.coalitions.evidence.measure.unit

    def lost(self, target: TargetType = None) -> Tensor:
        """R(a): what is lost without each region, (R,)."""
        return self._lost(self.single, self._target(target))

    def values(self, target: TargetType = None) -> Tensor:
        """I(a, b) for every pair of regions, (R, R), with 0 on the diagonal."""
        target = self._target(target)
        single, joint = (self._lost(scores, target) for scores in (self.single, self.joint))
        return self._matrix(joint - single[self._first] - single[self._second])

    def standard_errors(self, target: TargetType = None) -> Tensor:
        """The standard error of each of the ``values``, (R, R), by the delta method. Samples of a
        pair and of its regions share their random numbers, so what they have in common cancels."""
        if len(self.single) < 2:
            raise ValueError(
                "a standard error needs two samples or more of each region; use "
                "SampledPDA(...).evidence(inputs, n_samples=10)"
            )
        target = self._target(target)
        single, joint = (self._deviations(scores, target) for scores in (self.single, self.joint))
        spread = single[:, self._first] + single[:, self._second] - joint
        return self._matrix(spread.std(dim=0) / math.sqrt(len(spread)))

    def pairs(self, target: TargetType = None, n: int | None = None) -> list[Interaction]:
        """The pairs with the strongest interactions first."""
        target = self._target(target)
        values = self.values(target).cpu()
        single, joint = self.lost(target).cpu(), self._lost(self.joint, target).cpu()
        errors = self.standard_errors(target).cpu() if len(self.single) > 1 else None
        found = [
            Interaction(
                a,
                b,
                float(values[a, b]),
                (float(joint[place]), float(single[a]), float(single[b])),
                None if errors is None else float(errors[a, b]),
                self.unit,
            )
            for place, (a, b) in enumerate(self.index)
        ]
        found.sort(key=lambda pair: -abs(pair.value) if math.isfinite(pair.value) else math.inf)
        return found[:n]

    def __str__(self) -> str:
        return "\n".join(map(str, self.pairs(n=5)))

    def __repr__(self) -> str:
        return f"Interactions({len(self)} regions, {len(self.index)} pairs)"

    def _target(self, target: TargetType) -> TargetType:
        return self.target if target is None else target

    @property
    def _first(self) -> list[int]:
        return [a for a, _ in self.index]

    @property
    def _second(self) -> list[int]:
        return [b for _, b in self.index]

    def _lost(self, samples: Tensor, target: TargetType) -> Tensor:
        """What is lost by each coalition of samples (S, K, columns), (K,)."""
        game = self.coalitions
        scores = game.kind.average(samples)
        return game.values(game.seen, target) - game.values(scores, target)

    def _deviations(self, samples: Tensor, target: TargetType) -> Tensor:
        """By how much each sample (S, K, columns) moves the measured value of the mean, (S, K)."""
        evidence = self.coalitions.evidence
        picked = self.coalitions.pick(samples, target)
        mean = self.coalitions.kind.average(picked)
        if not self.coalitions.kind.has_probabilities:
            moved = picked - mean
        else:
            # (p_s - p) / (p (1 - p)), from the rarer of the two events.
            ratio = torch.expm1(F.logsigmoid(picked) - F.logsigmoid(mean)) / torch.sigmoid(-mean)
            other = torch.expm1(F.logsigmoid(-picked) - F.logsigmoid(-mean)) / torch.sigmoid(mean)
            moved = torch.where(mean < 0, ratio, -other)
        return (moved * evidence.measure.slope(mean)).sum(dim=-1)

    def _matrix(self, values: Tensor) -> Tensor:
        matrix = values.new_zeros(len(self), len(self))
        matrix[self._first, self._second] = values
        matrix[self._second, self._first] = values
        return matrix


def interactions(
    evidence: WindowEvidence,
    target: TargetType,
    regions: WhichRegions,
    example: int | None,
    show_progress: bool,
) -> Interactions:
    """Ask about each region and each pair; see ``WindowEvidence.interactions``."""
    game = coalitions_of(evidence, target, regions, example)
    if len(game) < 2:
        raise ValueError(
            f"regions={regions!r} gives {len(game)} region that overlaps no other, and an "
            "interaction needs two; ask for more, or for smaller ones, such as "
            "evidence.at(60).interactions(target)"
        )
    index = list(itertools.combinations(range(len(game)), 2))
    hidden = np.zeros((len(game) + len(index), len(game)), dtype=np.bool_)
    hidden[np.arange(len(game)), np.arange(len(game))] = True
    for row, pair in enumerate(index, start=len(game)):
        hidden[row, list(pair)] = True
    title = f"Interactions of {len(game)} regions" if show_progress else None

    def collected(samples: Tensor) -> Interactions:
        return Interactions(game, samples[:, : len(game)], samples[:, len(game) :], target, index)

    try:
        return collected(game.ask_samples(hidden, progress=title))
    except BaseException as error:
        known = getattr(error, "result", None)
        if isinstance(known, Tensor):
            error.result = collected(known)  # type: ignore[attr-defined]
        raise


# Parts that decide the answer


@dataclass(frozen=True, eq=False)
class DecidingPart:
    """Some regions that keep an answer by themselves, or whose removal changes it.

    Args:
        numbers: the numbers of the regions.
        pixels: which pixels they have, (*space).
        n_regions: of how many regions in all.
        alone: whether only these are seen; otherwise they are hidden, and all else is seen.
        target: the class that was asked about, its flat number.
        seen: P(target) with everything seen, or the raw output.
        prediction: the same with this part alone, or without it.
        first: the class that is first then; None where outputs are no classes.
        first_prediction: its probability.
        minimal: whether leaving out any single region was asked, and fails.
        n_passes: how many passes the search took.
        in_words: a prediction as it is told.

    Example::

        >>> (part, *others) = evidence.sufficient()
        >>> print(part)
        only 3 of 58 regions (6.2% of it): class 248 95% -> 61%, still first
        >>> part.pixels                            # (height, width), true inside it
    """

    numbers: tuple[int, ...]
    pixels: Pixels
    n_regions: int
    alone: bool
    target: int
    seen: float
    prediction: float
    first: int | None
    first_prediction: float | None
    minimal: bool
    n_passes: int
    in_words: Callable[[float], str] = percent

    @property
    def share(self) -> float:
        """The share of the input's pixels."""
        return float(self.pixels.mean())

    def described(self, names: Sequence[str] | None = None) -> str:
        """What the part does, with the names of classes."""

        def name(number: int) -> str:
            return f"class {number}" if names is None else names[number]

        own = f"{self.in_words(self.seen)} -> {self.in_words(self.prediction)}"
        which = f"{len(self.numbers)} of {self.n_regions} regions ({percent(self.share)} of it)"
        text = f"{'only' if self.alone else 'without'} {which}: {name(self.target)} {own}"
        if self.first is not None and self.first_prediction is not None:
            if self.first == self.target:
                text += ", still first"
            else:
                text += f", and {name(self.first)} is first with "
                text += self.in_words(self.first_prediction)
        return text if self.minimal else f"{text} (not minimal: the passes were used up)"

    def __str__(self) -> str:
        return self.described()


class _Search:
    """A search for the fewest regions of a game that reach a goal, within a number of passes."""

    def __init__(
        self,
        game: Coalitions,
        target: TargetType,
        goal: Callable[[Tensor], Tensor],
        alone: bool,
        max_passes: int,
        bar: ProgressBar,
    ) -> None:
        self.game = game
        self.target = target
        self.goal = goal
        self.alone = alone
        self.max_passes = max_passes
        self.bar = bar
        self.n_passes = 0

    @property
    def left(self) -> int:
        return self.max_passes - self.n_passes

    def scores(self, sets: Sequence[Sequence[int]]) -> Tensor:
        """The scores with only these sets of regions seen, or without them, (K, columns)."""
        rows = np.zeros((len(sets), len(self.game)), dtype=np.bool_)
        for row, chosen in zip(rows, sets, strict=True):
            row[list(chosen)] = True
        self.n_passes += len(sets)
        if self.alone:
            return self.game.only(rows, self.bar)
        return self.game.ask(rows, progress=self.bar)

    def reached(self, sets: Sequence[Sequence[int]]) -> list[bool]:
        return [bool(is_so) for is_so in self.goal(self.scores(sets))]

    def smallest(self, order: list[int]) -> tuple[list[int], bool] | None:
        """Few regions that reach the goal, and whether no single one of them can be left out:
        first of the regions in their order, then without those that are not needed."""
        found = self._first_ones(order)
        return None if found is None else self._without_needless(found)

    def _first_ones(self, order: list[int]) -> list[int] | None:
        """The fewest first regions that reach the goal, of some numbers of them."""
        counts = sorted({min(len(order), round(1.4**k)) for k in range(24)})
        for start in range(0, len(counts), 4):
            some = [order[:count] for count in counts[start : start + 4]][: self.left]
            for chosen, is_so in zip(some, self.reached(some) if some else [], strict=True):
                if is_so:
                    return chosen
        return None

    def _without_needless(self, chosen: list[int]) -> tuple[list[int], bool]:
        """Leave out groups of regions while the goal is reached, then single ones until none can
        be left out; the weakest come last in the order, and are tried first."""
        for share in (2, 4):
            size = len(chosen) // share
            stop = len(chosen)
            while size > 1 and stop > 0 and self.left:
                fewer = chosen[: max(0, stop - size)] + chosen[stop:]
                if fewer and self.reached([fewer])[0]:
                    chosen = fewer
                stop -= size
        needed: set[int] = set()  # of the regions as they are now
        while len(chosen) > len(needed) and len(chosen) > 1:
            if not self.left:
                return chosen, False
            one = next(each for each in reversed(chosen) if each not in needed)
            fewer = [each for each in chosen if each != one]
            if self.reached([fewer])[0]:
                # What was needed before may not be now, and is asked again after the others.
                chosen = sorted(fewer, key=lambda each: each not in needed)
                needed = set()
            else:
                needed.add(one)
        return chosen, True

    def part(self, chosen: list[int], minimal: bool) -> DecidingPart:
        """A part that was found, with what the model says of it."""
        game = self.game
        scores = self.scores([chosen])[0]
        self.n_passes -= 1  # known already
        first = first_class(game.evidence, scores)
        return DecidingPart(
            numbers=tuple(game.numbers[place] for place in chosen),
            pixels=np.logical_or.reduce(game.pixels[chosen]),
            n_regions=len(game),
            alone=self.alone,
            target=flat_target(game, self.target),
            seen=float(game.predictions(game.seen, self.target)),
            prediction=float(game.predictions(scores, self.target)),
            first=first,
            first_prediction=None if first is None else float(torch.sigmoid(scores[first])),
            minimal=minimal,
            n_passes=self.n_passes,
            in_words=game.evidence.measure.in_words,
        )


def first_class(evidence: WindowEvidence, scores: Tensor) -> int | None:
    """The class with the largest probability of scores (columns,); None for other outputs."""
    is_class = evidence.measure.needs_probabilities and len(evidence.output_shape) == 1
    if not is_class or len(scores) < 2:
        return None
    return int(scores.argmax())


def flat_target(game: Coalitions, target: TargetType) -> int:
    """The number of the one column that a target means."""
    columns = torch.arange(game.seen.shape[-1], device=game.seen.device)
    picked = game.pick(columns, target)
    if picked.numel() != 1:
        raise ValueError(
            f"target={target!r} is a mask of {picked.numel()} outputs; give one output to ask for "
            "the regions that decide it"
        )
    return int(picked)


def _goal_for(
    game: Coalitions, target: TargetType, first: int, at_least: float | None, keep: bool
) -> Callable[[Tensor], Tensor]:
    """Whether scores (K, columns) keep ``first`` at the top, or the target at the bound; or, for
    ``keep=False``, whether they do not."""
    if at_least is not None:
        return lambda scores: (game.predictions(scores, target) >= at_least) == keep
    if first_class(game.evidence, game.seen) is not None:
        return lambda scores: (scores.argmax(dim=1) == first) == keep
    if not game.kind.has_probabilities or game.seen.numel() > 1:
        raise ValueError(
            "these outputs are not one list of classes, so none is first; give the bound of the "
            "output instead, such as at_least=0.5 or below=0.5"
        )
    is_likely = bool(game.seen[first] >= 0)
    return lambda scores: ((scores[:, first] >= 0) == is_likely) == keep


def sufficient_parts(
    evidence: WindowEvidence,
    target: TargetType,
    n: int,
    at_least: float | None,
    regions: WhichRegions,
    example: int | None,
    max_passes: int,
    show_progress: bool,
) -> list[DecidingPart]:
    """Disjoint parts that keep the answer by themselves; see ``WindowEvidence.sufficient``."""
    check_count("n", n)
    target = _target_or_first(evidence, target, example)
    game = coalitions_of(evidence, target, regions, example, share=PART_SHARE)
    own = flat_target(game, target)
    goal = _goal_for(game, target, own, at_least, keep=True)
    if not bool(goal(game.seen.unsqueeze(0))[0]):
        said = evidence.measure.in_words(float(game.predictions(game.seen, target)))
        first = first_class(evidence, game.seen)
        raise ValueError(
            f"target={own} does not reach this with everything seen: it has {said}"
            + (f", and class {first} is first" if at_least is None else "")
            + "; ask about that class, or give a lower at_least="
        )
    max_passes = check_count("max_passes", max_passes)
    parts: list[DecidingPart] = []
    title = "Sufficient parts" if show_progress else None
    with ProgressBar(max_passes, title) as bar:
        bar.expect(game.seconds_per_pass() if show_progress else 0)
        search = _Search(game, target, goal, True, max_passes, bar)
        left = list(range(len(game)))
        try:
            while left and len(parts) < n and search.left:
                found = search.smallest(left)
                if found is None:
                    break
                parts.append(search.part(*found))
                used = parts[-1].pixels
                left = [place for place in left if not (game.pixels[place] & used).any()]
        except BaseException as error:
            error.result = parts  # type: ignore[attr-defined]
            raise
    return parts


def necessary_part(
    evidence: WindowEvidence,
    target: TargetType,
    expected: TargetType,
    below: float | None,
    regions: WhichRegions,
    example: int | None,
    max_passes: int,
    show_progress: bool,
) -> DecidingPart | None:
    """The fewest regions whose removal changes the answer; see ``WindowEvidence.necessary``."""
    target = _target_or_first(evidence, target, example)
    game = coalitions_of(evidence, target, regions, example, expected, PART_SHARE)
    if expected is None:
        goal = _goal_for(game, target, flat_target(game, target), below, keep=False)
    elif below is not None:
        raise ValueError("below and expected both say what to reach; give one of them")
    else:
        goal = _goal_for(game, expected, flat_target(game, expected), None, keep=True)
    if bool(goal(game.seen.unsqueeze(0))[0]):
        raise ValueError("the answer is so with everything seen: there is nothing to hide for it")
    max_passes = check_count("max_passes", max_passes)
    title = "Necessary part" if show_progress else None
    with ProgressBar(max_passes * game.n_samples, title) as bar:
        bar.expect(game.seconds_per_pass() if show_progress else 0)
        search = _Search(game, target, goal, False, max_passes, bar)
        found = search.smallest(list(range(len(game))))
        return None if found is None else search.part(*found)


def _target_or_first(
    evidence: WindowEvidence, target: TargetType, example: int | None
) -> TargetType:
    """The target, or without one the class that is first with everything seen."""
    if target is not None or evidence.reading.output_shape == ():
        return target
    first = first_class(evidence, evidence.scores[evidence.checked_example(example)])
    return target if first is None else first


# Games


class RegionGame:
    """Regions as the players of a cooperative game, for shapiq and the like.

    ``game(coalitions)`` takes rows of booleans or of 0 and 1, (K, players), true where a region is
    present, and gives what is measured of the target, such as its log2 odds in bits, (K,). Regions
    that are no players are always seen in the full context, and never in the empty one.

    Args:
        coalitions: the regions.
        target: the output.
        context: "full" or "empty".
        show_progress: whether each call shows a progress bar.

    Example::

        >>> game = evidence.as_game(husky, regions=12)
        >>> approximator = shapiq.KernelSHAPIQ(n=game.n_players, max_order=2)
        >>> values = approximator.approximate(budget=300, game=game)
    """

    def __init__(
        self, coalitions: Coalitions, target: TargetType, context: str, show_progress: bool = False
    ) -> None:
        if context not in ("full", "empty"):
            raise ValueError(f"context={context!r} is not known; choose 'full' or 'empty'")
        self.coalitions = coalitions
        self.target = target
        self.context = context
        self.show_progress = show_progress

    @property
    def n_players(self) -> int:
        """How many regions there are."""
        return len(self.coalitions)

    @property
    def pixels(self) -> Pixels:
        """The pixels of each player, (players, *space)."""
        return self.coalitions.pixels

    def __call__(self, coalitions: Any) -> npt.NDArray[np.float64]:
        present = np.atleast_2d(np.asarray(coalitions, dtype=np.bool_))
        progress = "Game" if self.show_progress else None
        if self.context == "empty":
            scores = self.coalitions.only(present, progress)
        else:
            scores = self.coalitions.ask(~present, progress=progress)
        values = self.coalitions.values(scores, self.target)
        found: npt.NDArray[np.float64] = values.cpu().double().numpy()
        return found

    def __repr__(self) -> str:
        return f"RegionGame({self.n_players} players, context {self.context!r})"
