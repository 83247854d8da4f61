"""Several regions at once: interactions, the parts that decide an answer, and games."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.errors import attach_result, result_read_by
from captum_pda.evidence.strongest import (
    REGION_SHARE,
    Pixels,
    listed_regions,
    means_inside,
    pixels_of,
    plain_values,
)
from captum_pda.model.inputs import check_choice, check_count
from captum_pda.model.measures import percent, signed
from captum_pda.running.run import ProgressBar

if TYPE_CHECKING:
    from captum_pda.evidence.evidence import WindowEvidence

#: The number of the strongest regions, the numbers of some, or the pixels of each, (R, *space).
WhichRegions: TypeAlias = int | Sequence[int] | Tensor | npt.NDArray[Any] | None

#: The preferred size of the regions of a part, as a share of the input.
PART_SHARE = 1 / 60
#: Interactions below this share of the evidence are rounding errors.
LEAST_INTERACTION = 1e-5


class Coalitions:
    """Some regions of one example, and the model's scores with any of them hidden.

    Returned by ``evidence.coalitions``. Each set is run only once.

    Args:
        evidence, example: the evidence, with the model to ask, and the number of the example.
        numbers: the numbers of the regions, or of the given masks.
        pixels: the pixels of each region, (R, *space).

    Example::

        >>> coalitions = evidence.coalitions(husky, regions=3)
        >>> coalitions.ask([[True, False, False], [True, True, False]])    # (2, classes)
    """

    def __init__(
        self, evidence: WindowEvidence, example: int, numbers: Sequence[int], pixels: Pixels
    ) -> None:
        self.evidence, self.example, self.pixels = evidence, example, pixels
        self.numbers = tuple(int(number) for number in numbers)
        self.asker = evidence.asker()
        self.kind = self.asker.explained.kind

    def __len__(self) -> int:
        return len(self.numbers)

    def ask(
        self, hidden: Any, context: str = "full", progress: ProgressBar | str | None = None
    ) -> Tensor:
        """The scores without some regions: log-odds in nats or raw outputs, (K, columns).

        Args:
            hidden: the hidden regions of each coalition, as booleans, (K, R).
            context: "full" fills them by the prior's prediction from all visible pixels; "empty"
                pastes the visible pixels into the input with everything hidden.
            progress: the title of a progress bar; None shows none.
        """
        with result_read_by(self.kind.average):
            return self.kind.average(self.ask_samples(hidden, context, progress))

    def ask_samples(
        self, hidden: Any, context: str = "full", progress: ProgressBar | str | None = None
    ) -> Tensor:
        """The same for each sample of SampledPDA, (S, K, columns)."""
        box = torch.from_numpy(self.pixels.any(axis=0))
        return self.asker.hidden(self.example, self._union(hidden), context, box, progress)

    def only(self, seen: Any, progress: ProgressBar | str | None = None) -> Tensor:
        """The scores with only some regions (K, R) visible, (K, columns)."""
        with result_read_by(itemgetter(0)):
            return self.asker.hidden(self.example, ~self._union(seen), "empty", None, progress)[0]

    def values(self, scores: Tensor, target: TargetType) -> Tensor:
        """The measured quantity of ``target``, such as log2 odds, of scores (..., columns)."""
        return self._read(self.evidence.outputs.quantity(target), scores)

    def predictions(self, scores: Tensor, target: TargetType) -> Tensor:
        """The probability of ``target``, or the raw output, of scores (..., columns)."""
        return self._read(self.evidence.outputs.prediction(target), scores)

    def interactions(self, target: TargetType, show_progress: bool = False) -> Interactions:
        """Ask about each region and each pair; see ``WindowEvidence.interactions``."""
        if len(self) < 2:
            raise ValueError(
                f"{len(self)} region overlaps no other, and an interaction needs two; "
                "ask for more, or for smaller ones, such as evidence.at(60).interactions(target)"
            )
        each = np.eye(len(self), dtype=np.bool_)
        first, second = np.triu_indices(len(self), 1)
        title = f"Interactions of {len(self)} regions" if show_progress else None
        hidden = np.concatenate([each, each[first] | each[second]])
        with result_read_by(lambda samples: Interactions(self, samples, target)):
            return Interactions(self, self.ask_samples(hidden, progress=title), target)

    @property
    def seen(self) -> Tensor:
        """The scores of the unperturbed input, (columns,)."""
        return self.evidence.scores[self.example]

    def _read(self, quantity: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
        # A target may be one for each example.
        rows = scores.reshape(1, -1, scores.shape[-1]).expand(len(self.evidence), -1, -1)
        return quantity(rows)[self.example].reshape(scores.shape[:-1])

    def _union(self, chosen: Any) -> Tensor:
        rows = np.asarray(chosen.cpu() if isinstance(chosen, Tensor) else chosen)
        is_given = rows.ndim == 2 and rows.shape[1] == len(self) and rows.dtype.kind in "biuf"
        if not is_given or not np.isin(rows, (0, 1)).all():
            raise ValueError(
                f"coalitions have shape {rows.shape} and dtype {rows.dtype}; give one row of "
                f"{len(self)} booleans for each coalition, (K, regions)"
            )
        unions = [self.pixels[row].any(axis=0) for row in rows.astype(bool)]
        return torch.from_numpy(np.array(unions, bool).reshape(-1, *self.pixels.shape[1:]))


def coalitions_of(
    evidence: WindowEvidence,
    target: TargetType,
    regions: WhichRegions,
    example: int | None,
    rather_than: TargetType = None,
    share: float = REGION_SHARE,
) -> Coalitions:
    """See ``WindowEvidence.coalitions``; with ``regions=None`` all regions, the strongest first."""
    number = evidence.checked_example(example)
    space = tuple(evidence.inputs[0].shape[2:])
    if isinstance(regions, Tensor | np.ndarray) and np.ndim(regions) > 1:
        pixels = np.asarray(torch.as_tensor(regions, device="cpu"))
        if pixels.shape[1:] != space or pixels.dtype != np.bool_ or not len(pixels):
            raise ValueError(
                f"regions have shape {pixels.shape} and dtype {pixels.dtype}; give the pixels of "
                f"each as booleans, (regions, *{space})"
            )
        if not pixels.reshape(len(pixels), -1).any(axis=1).all():
            raise ValueError("regions holds one without pixels; leave it out")
        return Coalitions(evidence, number, range(len(pixels)), pixels)
    kinds = [part.regions for part in evidence.parts if part.depth == "input"]
    if not kinds:
        raise ValueError(
            "this evidence is of a layer's feature map, and regions of the input are asked "
            "together; use PDA(model).evidence(inputs)"
        )
    size = listed_regions(kinds, number, share)
    values = plain_values(evidence.map(target, rather_than, number))
    numbers, means = means_inside(size, number, values)
    if np.ndim(regions) == 0:  # type: ignore[arg-type]
        strength = means if regions is None else np.abs(means)
        candidates = numbers[np.argsort(-strength, kind="stable")].tolist()
        n = len(candidates) if regions is None else check_count("regions", regions)
    else:
        given = np.asarray(regions)
        if given.ndim > 1 or given.dtype.kind not in "iu":
            raise TypeError(
                f"regions={regions!r} must be how many of the strongest, the numbers of some, or "
                "the pixels of each as an array of booleans, (regions, *space)"
            )
        named = list(dict.fromkeys(given.tolist()))
        if unknown := sorted(set(named) - set(numbers.tolist())):
            raise ValueError(
                f"regions holds {unknown[:5]}; the example has the regions {numbers.min()} to "
                f"{numbers.max()} of {size.title}"
            )
        pixels = np.stack([pixels_of(size, number, one, space) for one in named])
        return Coalitions(evidence, number, named, pixels)
    chosen: dict[int, Pixels] = {}
    taken = np.zeros(space, dtype=np.bool_)
    # A number of regions do not overlap. All regions cover the input; as few windows as do so.
    for least_new in (1.0,) if regions is not None else (0.5, 0.0):
        for candidate in candidates:
            if len(chosen) == n or taken.all():
                break
            own = pixels_of(size, number, candidate, space)
            new = own & ~taken
            if new.any() and new.sum() >= least_new * own.sum():
                taken |= own
                chosen[candidate] = own
    ordered = [candidate for candidate in candidates if candidate in chosen]
    return Coalitions(evidence, number, ordered, np.stack([chosen[one] for one in ordered]))


# Interactions


def meaning(interaction: float, terms: Sequence[float], unit: str) -> str:
    """The meaning of an interaction of two parts in words; ``terms`` are their evidence."""
    size, evidence = math.fsum(map(abs, terms)), math.fsum(terms)
    if signed(interaction, unit).strip("0.") == "" or abs(interaction) < LEAST_INTERACTION * size:
        return "they add up"
    covers = (interaction > 0) == (evidence >= 0)
    words = "each covers for the other" if covers else "they speak only together"
    return words if evidence >= 0 else f"{words}, against the class"


@dataclass(frozen=True, eq=False)
class Interaction:
    """The interaction of two regions.

    Args:
        first, second: the positions of the two in the list of regions.
        value: I(a, b) = R(a and b) - R(a) - R(b), in the measure's unit.
        lost: R(a and b), R(a) and R(b), the evidence that is lost without both, and without each.
        error: the standard error of the value; None without samples.
        unit: the unit of the values.
    """

    first: int
    second: int
    value: float
    lost: tuple[float, float, float]
    error: float | None
    unit: str

    @property
    def meaning(self) -> str:
        """The meaning in words: "each covers for the other" or "they speak only together"."""
        return meaning(self.value, self.lost, self.unit)

    def __str__(self) -> str:
        both, one, other = (signed(-value, self.unit) for value in self.lost)
        error = "" if self.error is None else f" ± {self.error:.2g}"
        value = f"{signed(self.value, self.unit)}{error} {self.unit}".rstrip()
        return (
            f"{self.first} and {self.second}: {value}, {self.meaning} "
            f"(without both {both}, without one {one}, without the other {other})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """The interactions of pairs of regions for every output, I(a, b) = R(a and b) - R(a) - R(b).

    R is the evidence that is lost without regions. For regions with evidence for a class, a
    positive value means that each covers for the other: losing both costs more than the sum. A
    negative one means that they speak only together: their common evidence is lost with either.

    Args:
        coalitions: the regions.
        samples: scores of each sample without each region and without each pair, in the order of
            ``torch.triu_indices``, (S, R + pairs, columns).
        target: the default output of the methods.

    Example::

        >>> interactions = evidence.interactions(husky)
        >>> print(interactions)                     # the strongest pairs, in words
        0 and 3: +4.1 bits, each covers for the other (without both -6.2, ...)
        >>> interactions.values(wolf)               # (R, R), from the same passes
    """

    coalitions: Coalitions
    samples: Tensor
    target: TargetType = None

    def __len__(self) -> int:
        return len(self.coalitions)

    @property
    def pixels(self) -> Pixels:
        """The pixels of each region, (R, *space)."""
        return self.coalitions.pixels

    @property
    def unit(self) -> str:
        """The unit of the values."""
        return self.coalitions.evidence.measure.unit

    def lost(self, target: TargetType = None) -> Tensor:
        """R(a), the evidence that is lost without each region, (R,)."""
        return self._lost(self.samples, target)[: len(self)]

    def values(self, target: TargetType = None) -> Tensor:
        """I(a, b) for every pair of regions, (R, R), with 0 on the diagonal."""
        return self._of_pairs(self._lost(self.samples, target))

    def standard_errors(self, target: TargetType = None) -> Tensor:
        """The standard error of each of the ``values``, (R, R), by the jackknife. A pair and its
        regions are sampled with the same random numbers, so common errors cancel."""
        n = len(self.samples)
        if n < 2:
            raise ValueError(
                "a standard error needs two samples or more of each region; use "
                "SampledPDA(...).evidence(inputs, n_samples=10)"
            )
        others = [torch.cat([self.samples[:one], self.samples[one + 1 :]]) for one in range(n)]
        without_one = torch.stack([self._of_pairs(self._lost(some, target)) for some in others])
        return without_one.std(dim=0) * (n - 1) / math.sqrt(n)

    def pairs(self, target: TargetType = None, n: int | None = None) -> list[Interaction]:
        """The known pairs, those with the strongest interactions first."""
        lost, values = self._lost(self.samples, target).tolist(), self.values(target).tolist()
        errors = self.standard_errors(target).tolist() if len(self.samples) > 1 else None
        found = []
        for a, b, both in zip(*self._index().tolist(), lost[len(self) :], strict=True):
            error = None if errors is None else errors[a][b]
            terms = both, lost[a], lost[b]
            found.append(Interaction(a, b, values[a][b], terms, error, self.unit))
        known = [pair for pair in found if math.isfinite(pair.value)]
        return sorted(known, key=lambda pair: -abs(pair.value))[:n]

    def __str__(self) -> str:
        return "\n".join(map(str, self.pairs(n=5)))

    def __repr__(self) -> str:
        return f"Interactions({len(self)} regions, {self._index().shape[1]} pairs)"

    def _index(self) -> Tensor:
        return torch.triu_indices(len(self), len(self), 1, device="cpu")

    def _lost(self, samples: Tensor, target: TargetType) -> Tensor:
        """The evidence that is lost in each of the samples (S, K, columns), (K,)."""
        game, target = self.coalitions, self.target if target is None else target
        return game.values(game.seen, target) - game.values(game.kind.average(samples), target)

    def _of_pairs(self, lost: Tensor) -> Tensor:
        first, second = self._index()
        matrix = lost.new_zeros(len(self), len(self))
        matrix[first, second] = lost[len(self) :] - lost[first] - lost[second]
        return matrix + matrix.T


# Parts that decide the answer


@dataclass(frozen=True, eq=False, repr=False)
class DecidingPart:
    """Regions that keep an answer by themselves, or whose removal changes it.

    Args:
        numbers: the numbers of the regions, among the ``n_regions`` that were searched.
        pixels: their pixels, (*space).
        n_regions: the number of all regions, by default those of about a 60th of the input.
        alone: whether only these are visible; otherwise only these are hidden.
        target: the flat number of the class.
        seen: P(target) for the unperturbed input, or the raw output.
        prediction: the same with this part alone, or without it.
        first, first_prediction: the class that is then first, and its probability; None if outputs
            are not exclusive classes.
        minimal: whether it was tried to leave out each single region, without success.
        n_passes: the number of sets of regions that were tried.
        in_words: formats a prediction.

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
        """Its share of the input's pixels."""
        return float(self.pixels.mean())

    def described(self, names: Sequence[str] | None = None) -> str:
        """The effect of the part in words, with the names of classes."""
        kind = "output" if self.first is None else "class"
        target, first = (
            f"{kind} {number}" if names is None or number is None else names[number]
            for number in (self.target, self.first)
        )
        text = (
            f"{'only' if self.alone else 'without'} {len(self.numbers)} of {self.n_regions} regions"
            f" ({percent(self.share)} of it): {target} {self.in_words(self.seen)} -> "
            f"{self.in_words(self.prediction)}"
        )
        if self.first == self.target:
            text += ", still first"
        elif self.first_prediction is not None:
            text += f", and {first} is first with {self.in_words(self.first_prediction)}"
        return text if self.minimal else f"{text} (not minimal: the passes were used up)"

    def __str__(self) -> str:
        return self.described()

    def __repr__(self) -> str:
        return f"DecidingPart({self.described()})"


def minimal_part(
    order: list[int], reaches: Callable[[list[int]], bool], max_asked: int, fewest: int
) -> tuple[list[int] | None, bool, int]:
    """The first regions of an order, at least ``fewest``, that reach a goal, without those that are
    not needed: first many are left out at once, then single ones. Also whether each single one was
    tried, and the number of tries; None if the goal was not reached."""
    needed: set[int] = set()  # of the places as they are now
    # More regions may miss a goal that fewer reach, so other numbers are tried in the end.
    counts = sorted({fewest, *(min(len(order), round(1.4**k)) for k in range(24))})
    counts += sorted({*range(fewest, len(order))} - {*counts})
    for n_asked, count in enumerate(counts, start=1):
        if n_asked > max_asked:
            return None, False, max_asked
        if reaches(order[:count]):
            chosen = order[:count]
            break
    else:
        return None, False, n_asked
    at_once = max(1, len(chosen) // 2)
    while len(chosen) > max(1, len(needed)):
        if n_asked == max_asked:
            return chosen, False, n_asked
        some = [one for one in chosen if one not in needed][-at_once:]
        fewer = [one for one in chosen if one not in some]
        n_asked += bool(fewer)
        if fewer and reaches(fewer):
            # Regions that were needed before may not be now, and are tried again after the others.
            chosen = sorted(fewer, key=lambda one: one not in needed)
            needed = set()
        elif at_once > 1:
            at_once //= 2
        else:
            needed.update(some)
    return chosen, True, n_asked


def first_class(game: Coalitions, scores: Tensor) -> int | None:
    """The most probable class of scores (columns,); None for other outputs."""
    is_class = game.kind.are_exclusive and len(game.evidence.output_shape) == 1
    return int(scores.argmax()) if is_class and len(scores) > 1 else None


def flat_target(
    evidence: WindowEvidence, example: int, target: TargetType, name: str = "target"
) -> int:
    """The number of the single column of a target."""
    columns = torch.arange(evidence.scores.shape[1], device=evidence.scores.device)
    picked = evidence.outputs.pick(columns.expand(len(evidence), 1, -1), target, name)[example]
    if picked.numel() != 1:
        raise ValueError(
            f"{name} is a mask of {picked.numel()} outputs; give one output to ask for the regions "
            "that decide it"
        )
    return int(picked)


def deciding_parts(
    evidence: WindowEvidence,
    target: TargetType,
    expected: TargetType,
    bound: float | None,
    alone: bool,
    n: int,
    regions: WhichRegions,
    example: int | None,
    max_passes: int,
    show_progress: bool,
) -> list[DecidingPart]:
    """Disjoint parts for ``sufficient`` (``alone``) and ``necessary`` of ``WindowEvidence``."""
    check_count("n", n)
    check_count("max_passes", max_passes)
    number, measure = evidence.checked_example(example), evidence.measure
    lower = "at_least" if alone else "below"
    if expected is not None and bound is not None:
        raise ValueError("below and expected both say what to reach; give one of them")
    highest = 1.0 if measure.needs_probabilities else math.inf
    if bound is not None and not (isinstance(bound, Real) and abs(bound) <= highest):
        kind = "a probability" if measure.needs_probabilities else "a number"
        raise ValueError(f"{lower}={bound!r} must be {kind} to keep or to come under")
    own = flat_target(evidence, number, target)
    wanted = own if expected is None else flat_target(evidence, number, expected, "expected")
    if expected is not None and wanted == own:
        raise ValueError(
            f"expected={expected!r} is the class that is asked about: there is nothing to hide for "
            "it; give another class"
        )
    game = coalitions_of(evidence, target, regions, number, expected, PART_SHARE)
    top = first_class(game, game.seen)
    is_label = game.kind.has_probabilities and (len(game.seen) == 1 or not game.kind.are_exclusive)
    if bound is None and top is None and not is_label:
        raise ValueError(
            "these outputs are not one list of classes, so none is first; give the bound of the "
            "output instead, such as at_least=0.5 or below=0.5"
        )
    keep = alone or expected is not None

    def goal(scores: Tensor) -> bool:
        """Whether an output is first or at the bound, or is not; NaN never is."""
        if bound is not None:
            holds = float(measure.prediction(scores[wanted])) >= bound
        elif top is not None:
            holds = int(scores.argmax()) == wanted
        else:  # yes or no
            holds = bool(scores[wanted] >= 0) == (expected is not None or bool(game.seen[own] >= 0))
        return bool(scores.isfinite().all()) and holds == keep

    if goal(game.seen) != alone:
        said = measure.in_words(float(game.predictions(game.seen, target)))
        said += "" if bound is not None or top is None else f", and class {top} is first"
        reached = "does not reach this" if alone else "is past this already, nothing to hide for it"
        raise ValueError(
            f"target={own} {reached}: with everything seen it has {said}; ask about that class, or "
            f"give a lower {lower}="
        )

    def scores(chosen: list[int]) -> Tensor:
        row = np.isin(np.arange(len(game)), chosen)[None]
        return (game.only(row, bar) if alone else game.ask(row, progress=bar))[0]

    n_passes = n * max_passes * (1 if alone else game.asker.sampling.n_samples)
    title = f"{'Sufficient parts' if alone else 'Necessary part'}, at most"
    parts: list[DecidingPart] = []
    left = list(range(len(game)))
    with ProgressBar(n_passes, title if show_progress else None) as bar:
        if show_progress:
            one = torch.from_numpy(~game.pixels[0] if alone else game.pixels[0])
            seconds = game.asker.seconds_per_pass(number, one, "empty" if alone else "full")
            bar.expect(seconds * n_passes)
        try:
            while left and len(parts) < n:
                # With nothing hidden the answer has not changed; with everything hidden it may be
                # kept.
                chosen, minimal, n_asked = minimal_part(
                    left, lambda some: goal(scores(some)), max_passes, int(not alone)
                )
                if chosen is None:
                    break
                after = scores(chosen)  # which is known already
                first = first_class(game, after)
                parts.append(
                    DecidingPart(
                        numbers=tuple(game.numbers[place] for place in chosen),
                        pixels=np.asarray(game.pixels[chosen].any(axis=0)),
                        n_regions=len(game),
                        alone=alone,
                        target=own,
                        seen=float(game.predictions(game.seen, target)),
                        prediction=float(game.predictions(after, target)),
                        first=first,
                        first_prediction=None if first is None else after[first].sigmoid().item(),
                        minimal=minimal,
                        n_passes=n_asked,
                        in_words=measure.in_words,
                    )
                )
                # If the answer is kept with everything hidden, there is nothing more to find.
                taken = parts[-1].pixels
                left = [one for one in left if chosen and not (game.pixels[one] & taken).any()]
        except BaseException as error:
            attach_result(error, parts)
            raise
    return parts


# Games


class RegionGame:
    """Regions as the players of a cooperative game, for shapiq and similar libraries.

    ``game(coalitions)`` takes rows of booleans or of 0 and 1, (K, players), true for present
    regions, and returns the measured quantity of the target, such as log2 odds in bits, (K,). All
    other regions are always visible in the full context, and never in the empty one.

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
        check_choice("context", context, ("full", "empty"))
        self.coalitions, self.target, self.context = coalitions, target, context
        self.progress = "Game" if show_progress else None

    @property
    def n_players(self) -> int:
        """The number of regions."""
        return len(self.coalitions)

    @property
    def pixels(self) -> Pixels:
        """The pixels of each player, (players, *space)."""
        return self.coalitions.pixels

    def __call__(self, coalitions: Any) -> npt.NDArray[np.float64]:
        present, game = np.atleast_2d(np.asarray(coalitions)), self.coalitions
        with result_read_by(self._values):
            if self.context == "empty":
                return self._values(game.only(present, self.progress))
            return self._values(game.ask(1 - present.astype(float), progress=self.progress))

    def _values(self, scores: Tensor) -> npt.NDArray[np.float64]:
        values = self.coalitions.values(scores, self.target)
        return np.asarray(values.cpu(), dtype=np.float64)

    def __repr__(self) -> str:
        return f"RegionGame({self.n_players} players, context {self.context!r})"
