"""Owen values on a binary tree of regions: bits that add up to the total evidence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda._captum import (
    TargetType,
    TensorOrTupleOfTensorsGeneric,
    captum_method,
    format_output,
)
from captum_pda.errors import NonFiniteOutputError, attach_result
from captum_pda.evidence.evidence import to_attribution
from captum_pda.evidence.together import meaning
from captum_pda.methods.perturbation import EfficientPDA, PerturbationPDA, arguments_of
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import attribution_dtype, check_choice, check_count
from captum_pda.model.measures import Measure, signed
from captum_pda.model.outputs import ExplainedOutputs, OutputKind
from captum_pda.priors import PatchPrior
from captum_pda.regions.choice import choose_regions, is_divided
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.tree import LEAVES, NestedTree, RegionTree, tiles
from captum_pda.running.ask import Asker
from captum_pda.running.run import ProgressBar
from captum_pda.running.sampling import Sampling

Pixels = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: The names of fills, and their contexts.
FILLS = {"nothing_seen": "empty", "conditional": "full"}
#: The splits that are asked at once, independent of the batch size so that results are too.
SPLITS_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class Split:
    """A part of the input that was split in two, with the interaction of the two.

    Args:
        pixels: the pixels of each of the two, (2, *space).
        values: the Owen value of each, in the measure's unit.
        interaction: v(a) + v(b) - v(a and b) - v(neither), the mean over the contexts in which the
            part was split. If they have evidence for the class, a positive one means that each
            covers for the other, and a negative one that they speak only together.
        weight: the share of the contexts in which the part was split; 1 is all.
        unit: the unit of the values.
    """

    pixels: Pixels
    values: tuple[float, float]
    interaction: float
    weight: float
    unit: str

    @property
    def meaning(self) -> str:
        """The meaning of the interaction in words."""
        return meaning(self.interaction, self.values, self.unit)

    def __str__(self) -> str:
        shares = " and ".join(f"{100 * one.mean():.1f}%" for one in self.pixels)
        one, other = (signed(value, self.unit) for value in self.values)
        return (
            f"two parts with {shares} of the input say {one} and {other} {self.unit}; "
            f"{signed(self.interaction, self.unit)} {self.unit}, {self.meaning}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class OwenTree:
    """The Owen values of one example, as far as its tree was refined.

    Args:
        tree: the binary tree of regions.
        nothing: the measured value with everything hidden, such as log2 odds.
        everything: the same with everything visible.
        values: the Owen value of each node, (nodes,), which is the sum of the map inside it. NaN
            for nodes that were not reached.
        interactions: of the two children of each node, the mean over its contexts, (nodes,); NaN
            for nodes that were not split.
        weights: the share of its contexts in which each node was split, (nodes,).
        map: bits of each pixel, (*space), which sum to the total.
        n_evaluations: the number of passes.
        unit: the unit of the values.

    Example::

        >>> tree = TreePDA(model).tree(image, target=husky)
        >>> print(tree.splits(1)[0])
        two parts with 4.1% and 6.0% of the input say +3.1 and +2.2 bits; ...
    """

    tree: RegionTree
    nothing: float
    everything: float
    values: Floats
    interactions: Floats
    weights: Floats
    map: Floats
    n_evaluations: int
    unit: str

    @property
    def total(self) -> float:
        """All evidence: everything visible minus everything hidden."""
        return self.everything - self.nothing

    def splits(self, n: int | None = None) -> list[Split]:
        """The splits with the strongest interactions first."""
        known = np.flatnonzero(np.isfinite(self.interactions))
        strength = np.abs(self.interactions[known]) * self.weights[known]
        found = []
        for node in known[np.argsort(-strength, kind="stable")][:n].tolist():
            both = cast(tuple[int, int], self.tree.children(node))
            pixels = np.stack([self.tree.pixels(self.tree.members[child]) for child in both])
            one, other = self.values[list(both)].tolist()
            sizes = float(self.interactions[node]), float(self.weights[node])
            found.append(Split(pixels, (one, other), *sizes, self.unit))
        return found

    def __repr__(self) -> str:
        total = f"{signed(self.total, self.unit)} {self.unit}"
        return (
            f"OwenTree({self.tree.n_leaves} regions, {total} in all, {self.n_evaluations} passes)"
        )


@arguments_of(PerturbationPDA)
class TreePDA(PerturbationPDA):
    """Owen values on a binary tree of regions, refined where the evidence lies.

    The tree follows the image: neighbouring superpixels of similar colour are merged. With v the
    log2 odds of the class if only some regions are visible, each node of the tree shares the
    evidence of its parent with its sibling, by its mean contribution with the sibling visible and
    hidden,

        phi(a) = mean over the contexts c of v(c and a) - v(c),

    where a context shows, for each ancestor of a, all or nothing of that ancestor's sibling. These
    are the Owen values of the tree, and sum exactly to v(everything) - v(nothing). Nodes with the
    most evidence are split first, at two passes for each context; the evidence of parts that are
    not split within the budget is spread evenly over their pixels.

    Args:
        fill: replaces hidden regions: "nothing_seen", the input with everything hidden (a strong
            blur, or the prior's ``nothing_seen``), or "conditional", the prior's prediction from
            all visible pixels, which takes as long as two or three passes for large parts of 224 x
            224 pixels.

    Example::

        >>> attributions = TreePDA(model).attribute(image, target=3)
        >>> attributions.sum()                     # the total evidence, in bits
        >>> tree = TreePDA(model).tree(image, target=3)
        >>> print(*tree.splits(3), sep="\\n")       # what parts say only together
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        prior: PatchPrior | None = None,
        output: str | OutputKind = "logits",
        measure: str | Measure = "weight_of_evidence",
        fill: str = "nothing_seen",
    ) -> None:
        # Sets of regions change most of the input, so other engines save nothing.
        super().__init__(forward_func, prior, output, measure, "dense")
        check_choice("fill", fill, tuple(FILLS))
        self.fill = fill

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "fill": self.fill}

    @captum_method
    @torch.no_grad()
    @arguments_of(EfficientPDA.attribute)
    def attribute(
        self,
        inputs: TensorOrTupleOfTensorsGeneric,
        target: TargetType = None,
        additional_forward_args: object = None,
        n_evaluations: int = 300,
        perturbations_per_eval: int | None = None,
        show_progress: bool = False,
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        superpixels: int | None = None,
        tree: NestedTree | None = None,
    ) -> TensorOrTupleOfTensorsGeneric:
        """The evidence of each pixel for and against the target, which sums to the total.

        Args:
            inputs: a tensor (N, C, *space) with 1 to 3 spatial dimensions. Other inputs of the
                model are additional_forward_args.
            n_evaluations: the maximum number of passes for each example (at least 2 are needed).
                300 find the main parts, and 1,000 show more detail.
            feature_mask: the regions at the leaves of the tree, as in Captum's FeatureAblation:
                integers, (1 or N, 1 or C, *space), or (*space) for all examples.
            superpixels: the approximate number of superpixels at the leaves. Default: 250; images
                under 64 x 64 pixels and time series have blocks of one size instead.
            tree: the tree as nested pairs of the numbers in feature_mask, such as ((0, 1), (2, 3)).

        Returns:
            Attributions of the inputs' shape, equal for all channels of a pixel. The sum over an
            example is log2 odds with everything visible minus those with everything hidden.
        """
        return cast(TensorOrTupleOfTensorsGeneric, self._grow(locals(), _attributions))

    @torch.no_grad()
    def tree(self, inputs: Tensor, target: TargetType = None, **arguments: Any) -> OwenTree:
        """The tree of one example, with the value of each node and the interaction of each split.

        Args:
            inputs: a tensor (1, C, *space).
            target: the output to explain.
            arguments: others of ``attribute``.
        """
        if isinstance(inputs, Tensor) and len(inputs) != 1:
            raise ValueError(f"inputs has {len(inputs)} examples; a tree is of one, inputs[:1]")
        given = inspect.signature(self.attribute).bind(inputs, target, **arguments)
        given.apply_defaults()
        one: OwenTree = self._grow(given.arguments, lambda call, trees: next(iter(trees), None))
        return one

    def _grow(
        self, given: dict[str, Any], result: Callable[[ModelCall, list[OwenTree]], Any]
    ) -> Any:
        """The result of the trees of all examples; an interruption carries that of the trees so
        far."""
        n_evaluations = check_count("n_evaluations", given["n_evaluations"])
        rows, mask, nested = given["perturbations_per_eval"], given["feature_mask"], given["tree"]
        if nested is not None and mask is None:
            raise ValueError("tree is made of the numbers of feature_mask; give that too")
        if rows is not None:
            rows = check_count("perturbations_per_eval", rows)
        call = ModelCall.of(self.forward_func, given["inputs"], given["additional_forward_args"])
        if len(call.inputs) != 1:
            raise ValueError(
                f"TreePDA explains one tensor, and inputs has {len(call.inputs)}; pass the others "
                "as additional_forward_args"
            )
        (images,) = call.inputs
        regions = _leaves(images, mask, given["superpixels"])
        n_passes, context = n_evaluations * len(images), FILLS[self.fill]
        title = self.get_name() if given["show_progress"] else None
        trees: list[OwenTree] = []
        with evaluation_mode(self.forward_func):
            outputs = call.unperturbed()
            explained = ExplainedOutputs.of_target(self.output_kind, outputs, given["target"])
            seen = explained.scores(outputs)
            asker = Asker(self._place(call), explained, seen, Sampling(), rows)
            quantity = self._measured(explained).quantity(None)
            try:
                with ProgressBar(n_passes, title, warns=True) as bar:
                    if title is not None:
                        half = torch.zeros(images.shape[2:], dtype=torch.bool, device="cpu")
                        half[: -(-len(half) // 2)] = True
                        bar.expect(asker.seconds_per_pass(0, half, context) * n_passes)
                    for example in range(len(images)):
                        tree = _tree_of(images, regions, example, nested)

                        def ask(leaves: list[Pixels], n: int, tree: RegionTree) -> list[float]:
                            hidden = np.stack([~tree.pixels(each) for each in leaves])
                            scores = asker.hidden(n, torch.from_numpy(hidden), context, None, bar)
                            return [float(value) for value in quantity(scores)[0]]

                        own = partial(ask, n=example, tree=tree)
                        refine(tree, own, n_evaluations, self.measure.unit, trees)
                        if not np.isfinite(trees[-1].map).all():
                            raise NonFiniteOutputError(
                                "the model returned NaN or infinity for some parts of the tree; "
                                "check the prior's fills and the model's precision",
                                None,
                            )
            except BaseException as error:
                if trees or hasattr(error, "result"):
                    attach_result(error, result(call, trees))
                raise
        return result(call, trees)


class _Part(NamedTuple):
    """A node in one context."""

    node: int
    seen: Pixels  #: The leaves that are seen beside it.
    without: float  #: The measured value without it, and with it.
    whole: float
    weight: float  #: The share of this context among all.

    @property
    def value(self) -> float:
        """Its contribution to the Owen value of its node."""
        return self.weight * (self.whole - self.without)

    @property
    def order(self) -> float:
        """Its place in the queue, which starts with the most evidence."""
        return -abs(self.value) if np.isfinite(self.value) else 0.0


def refine(
    tree: RegionTree,
    ask: Callable[[list[Pixels]], list[float]],
    n_evaluations: int,
    unit: str,
    found: list[OwenTree],
) -> None:
    """Split the parts with the most evidence until the budget is used up. ``ask`` returns the
    measured values with only some leaves visible; the tree is added to ``found``, also on an
    interruption."""
    interactions, weights = np.full(len(tree), np.nan), np.zeros(len(tree))
    nobody, members = np.zeros(tree.n_leaves, dtype=np.bool_), tree.members
    nothing, everything = ask([nobody, ~nobody])
    n_asked = 2
    # At any time, the values of these parts sum to the total.
    parts = [_Part(tree.root, nobody, nothing, everything, 1.0)]
    try:
        while True:
            queue = [(part, both) for part in parts if (both := tree.children(part.node))]
            queue.sort(key=lambda one: one[0].order)
            splits = queue[: min(SPLITS_AT_ONCE, (n_evaluations - n_asked) // 2)]
            if not splits:
                return
            answers = iter(ask([part.seen | members[c] for part, both in splits for c in both]))
            n_asked += 2 * len(splits)
            new = []
            for (node, seen, without, whole, weight), (one, other) in splits:
                with_one, with_other = next(answers), next(answers)
                new += [
                    _Part(one, seen, without, with_one, weight / 2),
                    _Part(one, seen | members[other], with_other, whole, weight / 2),
                    _Part(other, seen, without, with_other, weight / 2),
                    _Part(other, seen | members[one], with_one, whole, weight / 2),
                ]
                interaction = with_one + with_other - without - whole
                known = weights[node] * np.nan_to_num(interactions[node])
                weights[node] += weight
                interactions[node] = (known + weight * interaction) / weights[node]
            parts = [part for part in parts if all(part is not one for one, _ in splits)] + new
    finally:
        # The evidence of parts that were not split is spread evenly over their pixels.
        areas = np.bincount(tree.leaves.reshape(-1), minlength=tree.n_leaves)
        bits, is_known = np.zeros(tree.n_leaves), weights > 0
        for part in parts:
            inside = members[part.node]
            bits[inside] += part.value * areas[inside] / areas[inside].sum()
            is_known[part.node] = True
        results = np.where(is_known, members @ bits, np.nan), interactions, weights
        bits_of_pixels = (bits / areas)[tree.leaves]
        found.append(OwenTree(tree, nothing, everything, *results, bits_of_pixels, n_asked, unit))


def _leaves(images: Tensor, feature_mask: Any, superpixels: int | None) -> FeatureMaskRegions:
    shape = tuple(images.shape)
    if feature_mask is None and superpixels is None:
        if not is_divided(shape):
            return FeatureMaskRegions(torch.from_numpy(tiles(shape[2:]))[None])
        superpixels = LEAVES
    if superpixels is not None:
        check_count("superpixels", superpixels)
    found = choose_regions((images,), feature_mask=feature_mask, superpixels=superpixels)
    ((regions,),) = found["full"]
    return cast(FeatureMaskRegions, regions)


def _tree_of(
    images: Tensor, regions: FeatureMaskRegions, example: int, nested: NestedTree | None
) -> RegionTree:
    """The tree of an example: the one that was given, or one that follows the image."""
    numbers = regions.of_pixels(example).numpy()
    labels, leaves = np.unique(numbers, return_inverse=True)
    leaves = leaves.reshape(numbers.shape)
    if nested is None:
        return RegionTree.of_image(images[example], leaves)
    return RegionTree.of_nested(leaves, [regions.labels[label] for label in labels], nested)


def _attributions(call: ModelCall, trees: list[OwenTree]) -> Any:
    """Maps of the input's shape that sum to the total; NaN for unfinished examples."""
    (like,) = call.inputs
    maps = torch.full((len(like), *like.shape[2:]), torch.nan, dtype=torch.float64, device="cpu")
    for number, tree in enumerate(trees):
        maps[number] = torch.from_numpy(tree.map)
    values = to_attribution(
        (maps / like.shape[1]).to(attribution_dtype(like)).to(like.device), like
    )
    return format_output(call.is_tuple, (values,))
