"""Contexts: what the model sees of the rest of the input while it is asked about one region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from captum_pda.regions.protocol import Windows


class Context:
    """The model's input before a region is changed, and what replaces the region.

    ``fills`` has the contents that the method and its prior provide for an example (C, *space):

    - ``drawn(example, windows, sampling)``: the prior's mean of each region, or samples of it,
      (S, W, C, *window).
    - ``nothing_seen(example)``: the example with everything hidden, (C, *space).
    - ``seen_alone(example, windows)``, ``among_others(example, windows)``: boxes and their contents
      (W, C, *box), with one region visible, or one random set of regions.
    """

    #: What users pass as ``context``.
    name: str
    #: Whether a region is removed: its evidence is then the loss (before minus after), and
    #: otherwise the gain (after minus before).
    removes = True
    #: Whether the replacement can be sampled. The true content of a region needs no samples.
    is_sampled = True
    #: Whether everything is hidden before a region is changed.
    starts_from_nothing = False
    #: Whether regions are shown in random sets instead of one at a time.
    in_sets = False
    #: The weight of this map beside those of other contexts.
    weight = 1.0
    #: The approximate numbers of superpixels for each effort. More granularities take more passes
    #: without being more faithful (benchmarks/FAITHFULNESS.md).
    granularities: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "quick": (12, 25, 60),
        "standard": (12, 25, 60, 120, 250),
        "thorough": (12, 25, 60, 120, 250, 500),
    }
    #: For inputs without superpixels: window sizes as shares of the shorter side, and strides as
    #: shares of the size. These are 32, 64 and 96 of 224 pixels with strides of 16, and 4 and 8 of
    #: 28 pixels for inputs under 64 pixels.
    large_windows: tuple[tuple[float, float], ...] = (
        (1 / 7, 1 / 2),
        (2 / 7, 1 / 4),
        (3 / 7, 1 / 6),
    )
    small_windows: tuple[tuple[float, float], ...] = ((1 / 7, 1 / 4), (2 / 7, 1 / 4))
    #: The question about all regions, as the label of a choice and as part of a sentence.
    choice = "Each region"
    each = "each region"
    #: The question about one region.
    question = "it"
    #: The answer: ``{value}`` is the evidence, ``{change}`` the loss of the prediction, and
    #: ``{seen}`` and ``{changed}`` are the predictions before and after.
    answer = "{value}"
    #: The beginning of a sentence about the effect of one region.
    effect = "It"
    #: The caption of the picture that the model got.
    picture = "As it was shown"

    def before(self, fills: Any, example: Tensor) -> Tensor:
        """The model's input before a region is changed, (C, *space)."""
        raise NotImplementedError

    def changed(
        self, fills: Any, example: Tensor, windows: Windows, sampling: Any
    ) -> tuple[Windows, Tensor]:
        """The boxes that change, and their new contents, (S, W, C, *box)."""
        raise NotImplementedError


class Full(Context):
    """A region is hidden and the rest is visible: what is lost without it?"""

    name = "full"
    choice = "Without each region"
    each = "without each region"
    question = "without it"
    answer = "without it: {seen} -> {changed} ({change})"
    effect = "Seeing it"
    picture = "Expected in its place"

    def before(self, fills: Any, example: Tensor) -> Tensor:
        return example

    def changed(
        self, fills: Any, example: Tensor, windows: Windows, sampling: Any
    ) -> tuple[Windows, Tensor]:
        return windows, fills.drawn(example, windows, sampling)


class Empty(Context):
    """Only one region is visible: what is its evidence by itself?"""

    name = "empty"
    removes = False
    is_sampled = False
    starts_from_nothing = True
    # A small region by itself has hardly any evidence.
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
        nothing: Tensor = fills.nothing_seen(example)
        return nothing

    def changed(
        self, fills: Any, example: Tensor, windows: Windows, sampling: Any
    ) -> tuple[Windows, Tensor]:
        boxes, contents = fills.seen_alone(example, windows)
        return boxes, contents.unsqueeze(0)


class Random(Empty):
    """Only a random set of regions is visible: what does a region add to the others?"""

    name = "random"
    starts_from_nothing = False  # its evidence starts with half of the regions visible
    in_sets = True
    weight = 2.0  # ahead of 1 on 24 photos (benchmarks/FAITHFULNESS.md)
    # Regions may be small here: their number does not change the number of passes.
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
        boxes, contents = fills.among_others(example, windows)
        return boxes, contents.unsqueeze(0)


#: Every context by its name.
CONTEXTS: dict[str, Context] = {"full": Full(), "empty": Empty(), "random": Random()}
#: Names for several contexts together.
SEVERAL = {"both": ("full", "empty"), "all": ("full", "empty", "random")}
#: How many random sets of regions there are for each effort.
SETS = {"quick": 100, "standard": 200, "thorough": 400}
#: The approximate numbers of superpixels of the divisions that random sets are drawn from. Sets
#: from ten divisions are more faithful than the same number from one (benchmarks/FAITHFULNESS.md).
DIVISIONS = (36, 40, 45, 50, 55, 60, 65, 70, 75, 80)
#: With random sets, fewer superpixels are as faithful (benchmarks/FAITHFULNESS.md).
BESIDE_SETS: dict[str, dict[str, tuple[int, ...]]] = {
    "quick": {"full": (25, 60), "empty": (25,)},
    "standard": {"full": (25, 60), "empty": (25,)},
    "thorough": {"full": (25, 60, 120), "empty": (25,)},
}
#: The smallest ``effort`` that can be given as a number of passes.
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
    """The default numbers of superpixels in each context and the number of random sets, for an
    effort given by name or as an approximate number of passes."""
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
        # The regions of the largest effort that fits; the other passes are random sets.
        for name in reversed(SETS):
            found, n_sets = planned_passes(contexts, name)
            alone = sum(sum(found[each.name]) for each in contexts if not each.in_sets)
            if alone + n_sets <= effort or name == "quick":
                return found, max(effort - alone, 2)
    ladder = (12, 25, 60, 120, 250, 500, 1000)
    fits = [n for n in range(1, len(ladder) + 1) if sum(ladder[:n]) * len(contexts) <= effort]
    return {context.name: ladder[: max(fits)] for context in contexts}, 0
