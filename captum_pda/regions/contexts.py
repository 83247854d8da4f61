"""Contexts: what the model sees of everything else while one region is in question.

A new context is one class here and one entry of ``CONTEXTS``; users pass its name as ``context``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from captum_pda.regions.protocol import Windows


class Context:
    """What the model gets before a region is changed, and what is put in the region's place.

    ``fills`` offers what a method and its prior can put into an example (C, *space):

    - ``drawn(example, windows, sampling)``: what the prior expects in the place of regions, or
      samples of it, (S, W, C, *window).
    - ``nothing_seen(example)``: the example with nothing seen of it, (C, *space).
    - ``seen_alone(example, windows)``, ``among_others(example, windows)``: each region with nothing
      else seen, or each random set of regions: boxes, and their contents (W, C, *box).
    """

    #: What users pass as ``context``.
    name: str
    #: Whether a region is taken away, so that its evidence is what is lost (before less after).
    #: Otherwise the region is put in, and its evidence is what is gained (after less before).
    removes = True
    #: Whether what is put in can be sampled. A true content is known for certain.
    is_sampled = True
    #: Whether nothing of the input is seen before a region is changed.
    starts_from_nothing = False
    #: Whether regions are shown in random sets, in place of one at a time.
    in_sets = False
    #: How much the map of this question counts beside those of others.
    weight = 1.0
    #: About how many superpixels there are by default, for each effort. More granularities add
    #: passes and no faithfulness (benchmarks/FAITHFULNESS.md).
    granularities: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "quick": (12, 25, 60),
        "standard": (12, 25, 60, 120, 250),
        "thorough": (12, 25, 60, 120, 250, 500),
    }
    #: Where there are no superpixels: the sizes of windows as shares of the shorter side, and their
    #: strides as shares of the size. 32, 64 and 96 pixels of 224, all at strides of 16; of inputs
    #: under 64 pixels, 4 and 8 of 28.
    large_windows: tuple[tuple[float, float], ...] = (
        (1 / 7, 1 / 2),
        (2 / 7, 1 / 4),
        (3 / 7, 1 / 6),
    )
    small_windows: tuple[tuple[float, float], ...] = ((1 / 7, 1 / 4), (2 / 7, 1 / 4))
    #: The question about all regions, as something to choose, and as part of a sentence.
    choice = "Each region"
    each = "each region"
    #: The question about one region.
    question = "it"
    #: Its answer: ``{value}`` is the evidence, ``{change}`` what the prediction loses without the
    #: region, ``{seen}`` and ``{changed}`` are predictions before and after.
    answer = "{value}"
    #: How a sentence about the effect of one region begins.
    effect = "It"
    #: The caption of a picture of what the model was shown.
    picture = "As it was shown"

    def before(self, fills: Any, example: Tensor) -> Tensor:
        """What the model gets before a region is changed, (C, *space)."""
        raise NotImplementedError

    def changed(
        self, fills: Any, example: Tensor, windows: Windows, sampling: Any
    ) -> tuple[Windows, Tensor]:
        """The boxes that change, and what is put there, (S, W, C, *box)."""
        raise NotImplementedError


class Full(Context):
    """A region is hidden, and all else is seen: what is lost without it?"""

    name = "full"
    choice = "Without each region"
    each = "without each region"
    question = "without it"
    answer = "without it: {seen} -> {changed} ({change})"
    effect = "Seeing it"
    picture = "Expected in its place"

    def before(self, fills: Any, example: Tensor) -> Tensor:
        """The example as it is."""
        return example

    def changed(
        self, fills: Any, example: Tensor, windows: Windows, sampling: Any
    ) -> tuple[Windows, Tensor]:
        """What the prior expects in the region, or samples of it."""
        return windows, fills.drawn(example, windows, sampling)


class Empty(Context):
    """A region is shown, and nothing else is seen: what does it say by itself?"""

    name = "empty"
    removes = False
    is_sampled = False
    starts_from_nothing = True
    # A small region says next to nothing by itself.
    granularities: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "quick": (12, 25, 60),
        "standard": (12, 25, 60),
        "thorough": (12, 25, 60, 120),
    }
    large_windows = ((2 / 7, 1 / 4), (3 / 7, 1 / 6))
    small_windows = ((2 / 7, 1 / 4), (3 / 7, 1 / 4))
    choice = "Each by itself"
    each = "each region by itself"
    question = "by itself"
    answer = "by itself: {value} over nothing"
    effect = "By itself, it"
    picture = "By itself"

    def before(self, fills: Any, example: Tensor) -> Tensor:
        """The example with nothing seen of it."""
        nothing: Tensor = fills.nothing_seen(example)
        return nothing

    def changed(
        self, fills: Any, example: Tensor, windows: Windows, sampling: Any
    ) -> tuple[Windows, Tensor]:
        """The region's true content, in an input with nothing else seen."""
        boxes, contents = fills.seen_alone(example, windows)
        return boxes, contents.unsqueeze(0)


class Random(Empty):
    """Random sets of regions are shown: what does a region add to those that are seen with it?"""

    name = "random"
    starts_from_nothing = False  # its evidence starts from half of the regions seen
    in_sets = True
    weight = 2.0  # ahead of 1 on 24 photos (benchmarks/FAITHFULNESS.md)
    # What is added is read for small regions, which costs no passes.
    granularities = dict.fromkeys(("quick", "standard", "thorough"), (250,))
    choice = "Each among others"
    each = "each region among random others"
    question = "among others"
    answer = "among random others: {value}"
    effect = "Among random others, it"
    picture = "Among others"

    def changed(
        self, fills: Any, example: Tensor, windows: Windows, sampling: Any
    ) -> tuple[Windows, Tensor]:
        """The regions of each set, in an input with all else blurred."""
        boxes, contents = fills.among_others(example, windows)
        return boxes, contents.unsqueeze(0)


#: Every context by its name.
CONTEXTS: dict[str, Context] = {"full": Full(), "empty": Empty(), "random": Random()}
#: Names for several contexts together.
SEVERAL = {"both": ("full", "empty"), "all": ("full", "empty", "random")}
#: How many random sets of regions there are for each effort.
SETS = {"quick": 100, "standard": 200, "thorough": 400}
#: About how many superpixels the divisions have that random sets are drawn from. Sets of ten
#: divisions tell more than as many sets of one (benchmarks/FAITHFULNESS.md).
DIVISIONS = (36, 40, 45, 50, 55, 60, 65, 70, 75, 80)
#: Beside random sets, fewer superpixels are as good (benchmarks/FAITHFULNESS.md).
BESIDE_SETS: dict[str, dict[str, tuple[int, ...]]] = {
    "quick": {"full": (25, 60), "empty": (25,)},
    "standard": {"full": (25, 60), "empty": (25,)},
    "thorough": {"full": (25, 60, 120), "empty": (25,)},
}
#: The fewest passes that can be asked for as a number.
LEAST_PASSES = 150


def contexts_of(context: object) -> list[Context]:
    """The contexts that the argument ``context`` names."""
    known = {**{name: (name,) for name in CONTEXTS}, **SEVERAL}
    if not isinstance(context, str) or context not in known:
        listed = ", ".join(map(repr, known))
        raise ValueError(f"context={context!r} is not known; choose one of {listed}")
    return [CONTEXTS[name] for name in known[context]]


def planned_passes(
    contexts: Sequence[Context], effort: str | int
) -> tuple[dict[str, tuple[int, ...]], int]:
    """The default numbers of superpixels in each context, and how many random sets there are, for
    an effort by its name, or for about so many passes."""
    with_sets = any(context.in_sets for context in contexts)
    if isinstance(effort, str) and effort in SETS:
        own = {context.name: context.granularities[effort] for context in contexts}
        if with_sets and len(contexts) > 1:
            own |= {name: BESIDE_SETS[effort].get(name, own[name]) for name in own}
        return own, SETS[effort]
    if isinstance(effort, bool) or not isinstance(effort, int) or effort < LEAST_PASSES:
        raise ValueError(
            f"effort={effort!r} is not known; choose 'quick', 'standard' or 'thorough', or a "
            f"number of passes from {LEAST_PASSES} on, or say what is hidden, such as "
            "superpixels=(25, 60)"
        )
    if with_sets:
        # The regions of the largest effort that fits; all further passes are random sets.
        for name in reversed(SETS):
            found, n_sets = planned_passes(contexts, name)
            alone = sum(sum(found[each.name]) for each in contexts if not each.in_sets)
            if alone + n_sets <= effort or name == "quick":
                return found, max(effort - alone, 2)
    ladder = (12, 25, 60, 120, 250, 500, 1000)
    fits = [n for n in range(1, len(ladder) + 1) if sum(ladder[:n]) * len(contexts) <= effort]
    return {context.name: ladder[: max(fits)] for context in contexts}, 0
