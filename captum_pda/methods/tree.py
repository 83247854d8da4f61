"""Owen values on a binary tree of regions: bits that add up to the total evidence."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda._captum import TargetType, TensorOrTupleOfTensorsGeneric, captum_method
from captum_pda.engines import Engine
from captum_pda.errors import NonFiniteOutputError
from captum_pda.evidence.evidence import MeasuredOutputs, to_attribution
from captum_pda.evidence.together import meaning
from captum_pda.methods.base import PerturbationPDA
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import check_choice, check_count, check_inputs
from captum_pda.model.measures import Measure, signed
from captum_pda.model.outputs import OutputKind
from captum_pda.priors import PatchPrior
from captum_pda.regions.choice import SMALLEST_SIDE, choose_regions
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.tree import LEAVES, NestedTree, RegionTree, tiles
from captum_pda.running.ask import Asker
from captum_pda.running.plan import Part, make_plan
from captum_pda.running.run import ProgressBar
from captum_pda.running.sampling import Sampling

Pixels = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

#: What stands in for what is hidden, and the context of such questions.
FILLS = {"nothing_seen": "empty", "conditional": "full"}
#: Splits that are asked at once; it does not depend on the batch size, so that results don't.
SPLITS_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class Split:
    """A part of the input that was divided in two, and what the two say together.

    Args:
        pixels: the pixels of each of the two, (2, *space).
        values: the Owen value of each, in the measure's unit.
        interaction: v(a) + v(b) - v(a and b) - v(neither), the mean over the contexts in which
            both were asked. Where they speak for the class, a positive one says that each covers
            for the other, and a negative one that they speak only together.
        weight: the share of the contexts in which both were asked; 1 is all.
        unit: what values are measured in.
    """

    pixels: Pixels
    values: tuple[float, float]
    interaction: float
    weight: float
    unit: str

    @property
    def meaning(self) -> str:
        """What the interaction means, in words."""
        return meaning(self.interaction, sum(self.values))

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
        nothing: the measured value with nothing seen, such as log2 odds.
        everything: the same with everything seen.
        values: the Owen value of each node, (nodes,); NaN for nodes that were not reached.
        interactions: of the two children of each node, the mean over its contexts, (nodes,); NaN
            for nodes that were not split.
        weights: the share of its contexts in which each node was split, (nodes,).
        map: bits of each pixel, (*space); they add up to the total.
        n_evaluations: how many passes this took.
        unit: what values are measured in.

    Example::

        >>> tree = TreePDA(model).tree(image, target=husky)
        >>> tree.total, tree.map.sum()
        (15.4, 15.4)
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
        """All evidence: everything seen less nothing seen."""
        return self.everything - self.nothing

    def splits(self, n: int | None = None) -> list[Split]:
        """The splits with the strongest interactions first."""
        found = []
        known = np.flatnonzero(np.isfinite(self.interactions))
        strength = np.abs(self.interactions[known]) * self.weights[known]
        for node in known[np.argsort(-strength, kind="stable")][:n]:
            children = self.tree.children(int(node))
            if children is None:
                continue
            pixels = np.stack([self.tree.pixels(self.tree.members[one]) for one in children])
            one, other = (float(self.values[child]) for child in children)
            found.append(
                Split(
                    pixels,
                    (one, other),
                    float(self.interactions[node]),
                    float(self.weights[node]),
                    self.unit,
                )
            )
        return found

    def __repr__(self) -> str:
        total = f"{signed(self.total, self.unit)} {self.unit}"
        return (
            f"OwenTree({self.tree.n_leaves} regions, {total} in all, {self.n_evaluations} passes)"
        )


class TreePDA(PerturbationPDA):
    """Owen values on a binary tree of regions, refined where the evidence lies.

    The tree follows the image: superpixels, of which neighbours of similar colour are merged. With
    v the log2 odds of the class where only some regions are seen, each node of the tree shares the
    evidence of its parent with its sibling, in both contexts: with the sibling seen, and without.

        phi(a) = mean over the contexts c of v(c and a) - v(c),

    where a context has for each ancestor of a all of that ancestor's sibling or nothing of it.
    These are the Owen values of the tree, and add up exactly to v(everything) - v(nothing). The
    splits with the most evidence come first; what was not split when the passes are used up is
    spread evenly over its pixels. A split costs two passes for each context.

    Args:
        forward_func: the model, or any function of the inputs that returns one row of outputs per
            example.
        prior, output, measure, engine: as for EfficientPDA.
        fill: what stands in for what is hidden. "nothing_seen" has the input with nothing seen
            there (a strong blur, or the prior's ``nothing_seen``); "conditional" what the prior
            expects given all that is seen, which takes longer: large hidden parts of an image of
            224 x 224 cost two or three passes each.

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
        engine: str | Engine = "auto",
        fill: str = "nothing_seen",
    ) -> None:
        super().__init__(forward_func, prior, output, measure, engine)
        check_choice("fill", fill, tuple(FILLS))
        self.fill = fill

    def settings(self) -> dict[str, object]:
        """What the evidence depends on beside the model and the arguments, as plain values."""
        return {**super().settings(), "fill": self.fill}

    @captum_method
    @torch.no_grad()
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
        """The evidence of each pixel for and against the target, which adds up to the total.

        Args:
            inputs: a tensor (N, C, *space) with 1 to 3 spatial dimensions. Other inputs of the
                model are additional_forward_args.
            target, additional_forward_args, perturbations_per_eval, show_progress: as in
                ``EfficientPDA.attribute``.
            n_evaluations: how many passes each example takes at most. 300 find the main parts, and
                1,000 show more detail.
            feature_mask: the regions at the leaves of the tree, as in ``EfficientPDA.attribute``.
            superpixels: about how many superpixels are at the leaves, 250 by default. Images whose
                shorter side is under 64 pixels and time series have blocks of one size instead.
            tree: the tree itself, as pairs of pairs of the numbers in feature_mask, such as
                ((0, 1), (2, 3)).

        Returns:
            Attributions of the inputs' shape. All channels of a pixel share one value, and the sum
            over all of an example is log2 odds with everything seen less those with nothing seen.
        """
        is_tuple = isinstance(inputs, tuple)
        whole = cast(Tensor, inputs[0] if is_tuple else inputs)
        found: list[OwenTree] = []
        try:
            self._grow(
                inputs,
                target,
                additional_forward_args,
                n_evaluations,
                perturbations_per_eval,
                show_progress,
                feature_mask,
                superpixels,
                tree,
                found,
            )
        except BaseException as error:
            if found:
                error.result = _attributions(found, whole, is_tuple)  # type: ignore[attr-defined]
            raise
        return cast(TensorOrTupleOfTensorsGeneric, _attributions(found, whole, is_tuple))

    @torch.no_grad()
    def tree(
        self,
        inputs: Tensor,
        target: TargetType = None,
        additional_forward_args: object = None,
        n_evaluations: int = 300,
        perturbations_per_eval: int | None = None,
        show_progress: bool = False,
        feature_mask: Tensor | None = None,
        superpixels: int | None = None,
        tree: NestedTree | None = None,
    ) -> OwenTree:
        """The tree of one example, with the value of each node and the interaction of each split.

        Arguments as in ``attribute``.
        """
        if isinstance(inputs, Tensor) and len(inputs) != 1:
            raise ValueError(f"inputs has {len(inputs)} examples; a tree is of one, inputs[:1]")
        found: list[OwenTree] = []
        try:
            self._grow(
                inputs,
                target,
                additional_forward_args,
                n_evaluations,
                perturbations_per_eval,
                show_progress,
                feature_mask,
                superpixels,
                tree,
                found,
            )
        except BaseException as error:
            if found:
                error.result = found[0]  # type: ignore[attr-defined]
            raise
        return found[0]

    def _grow(
        self,
        inputs: Any,
        target: TargetType,
        additional_forward_args: object,
        n_evaluations: int,
        perturbations_per_eval: int | None,
        show_progress: bool,
        feature_mask: Any,
        superpixels: int | None,
        nested: NestedTree | None,
        found: list[OwenTree],
    ) -> None:
        """Refine the tree of each example, and put it into ``found``, finished or not."""
        n_evaluations = check_count("n_evaluations", n_evaluations)
        if nested is not None and feature_mask is None:
            raise ValueError("tree is made of the numbers of feature_mask; give that too")
        rows = perturbations_per_eval
        if rows is not None:
            rows = check_count("perturbations_per_eval", rows)
        call = ModelCall(
            self.forward_func,
            check_inputs(inputs),
            additional_forward_args,
            is_tuple=isinstance(inputs, tuple),
        )
        if len(call.inputs) != 1:
            raise ValueError(
                f"TreePDA explains one tensor, and inputs has {len(call.inputs)}; pass the others "
                "as additional_forward_args"
            )
        (images,) = call.inputs
        regions = _leaves(images, feature_mask, superpixels)
        place = self._place(call)
        with evaluation_mode(self.forward_func):
            part = Part(place, 0, regions, CONTEXTS["full"])
            plan = make_plan((part,), target, False, self.output_kind)
        explained = plan.explained
        asker = Asker(call, place, explained, plan.seen, Sampling(), rows)
        measured = MeasuredOutputs(
            explained.kept_shape, self.output, self.measure, summed=explained.region is not None
        )
        quantity = measured.quantity(None)
        title = self.get_name() if show_progress else None
        with ProgressBar(n_evaluations * len(images), title, warns=True) as bar:
            if show_progress:
                bar.expect(asker.seconds_per_pass(0))
            for example, image in enumerate(images):
                row = 0 if len(regions.numbers) == 1 else example
                numbers = regions.numbers[row].numpy()
                labels, leaves = np.unique(numbers, return_inverse=True)
                leaves = leaves.reshape(numbers.shape)
                if nested is None:
                    tree = RegionTree.of_image(image, leaves)
                else:
                    present = [regions.labels[label] for label in labels]
                    tree = RegionTree.of_nested(leaves, present, nested)
                asked = _Asked(tree, asker, example, FILLS[self.fill], quantity, bar)
                try:
                    asked.refine(n_evaluations)
                finally:
                    if asked.has_begun:
                        found.append(asked.result(self.measure.unit))
                if not np.isfinite(found[-1].map).all():
                    raise NonFiniteOutputError(
                        "the model returned NaN or infinity for some parts of the tree; check the "
                        "prior's fills and the model's precision",
                        None,
                    )


#: A part of the input in one context: its order in the queue, a count, the node, the leaves that
#: are seen beside it, the values without and with it, and the weight of the context.
_Part: TypeAlias = "tuple[float, int, int, Pixels, float, float, float]"


class _Asked:
    """The Owen values of one example while its tree is refined."""

    def __init__(
        self,
        tree: RegionTree,
        asker: Asker,
        example: int,
        context: str,
        quantity: Callable[[Tensor], Tensor],
        bar: ProgressBar,
    ) -> None:
        self.tree = tree
        self.has_begun = False
        self._asker = asker
        self._example = example
        self._context = context
        self._quantity = quantity
        self._bar = bar
        self._n_evaluations = 0
        self._values = np.full(len(tree), np.nan)
        self._interactions = np.full(len(tree), np.nan)
        self._weights = np.zeros(len(tree))
        #: What each leaf has, of parts that were not split further.
        self._bits = np.zeros(tree.n_leaves)
        self._areas = np.bincount(tree.leaves.reshape(-1), minlength=tree.n_leaves)
        #: Those with the most evidence first.
        self._queue: list[_Part] = []
        self._count = 0

    def refine(self, n_evaluations: int) -> None:
        """Split the parts with the most evidence, until the passes are used up."""
        nobody = np.zeros(self.tree.n_leaves, dtype=np.bool_)
        self.nothing, self.everything = self._ask([nobody, ~nobody])
        self._n_evaluations = 2
        self.has_begun = True
        self._push(self.tree.root, nobody, self.nothing, self.everything, 1.0)
        while True:
            at_once = min(SPLITS_AT_ONCE, (n_evaluations - self._n_evaluations) // 2)
            splits: list[tuple[_Part, tuple[int, int]]] = []
            while self._queue and len(splits) < at_once:
                part = heapq.heappop(self._queue)
                children = self.tree.children(part[2])
                if children is None:
                    self._spread(part)
                else:
                    splits.append((part, children))
            if not splits:
                return
            try:
                members = self.tree.members
                values = self._ask(
                    [part[3] | members[child] for part, both in splits for child in both]
                )
            except BaseException:
                for part, _ in splits:
                    heapq.heappush(self._queue, part)
                raise
            self._n_evaluations += len(values)
            for place, (part, children) in enumerate(splits):
                self._split(part, children, values[2 * place], values[2 * place + 1])

    def _split(
        self,
        part: _Part,
        children: tuple[int, int],
        with_one: float,
        with_other: float,
    ) -> None:
        """Share the evidence of a part in one context among its two children."""
        _, _, node, seen, without, whole, weight = part
        one, other = children
        members = self.tree.members
        self._push(one, seen, without, with_one, weight / 2)
        self._push(one, seen | members[other], with_other, whole, weight / 2)
        self._push(other, seen, without, with_other, weight / 2)
        self._push(other, seen | members[one], with_one, whole, weight / 2)
        interaction = with_one + with_other - without - whole
        before = self._weights[node]
        known = 0.0 if before == 0 else self._interactions[node] * before
        self._weights[node] = before + weight
        self._interactions[node] = (known + weight * interaction) / self._weights[node]

    def _push(self, node: int, seen: Pixels, without: float, whole: float, weight: float) -> None:
        value = weight * (whole - without)
        self._values[node] = value + np.nan_to_num(self._values[node])
        order = -abs(value) if np.isfinite(value) else 0.0
        heapq.heappush(self._queue, (order, self._count, node, seen, without, whole, weight))
        self._count += 1

    def _spread(self, part: _Part) -> None:
        """Give the pixels of a part the same share of its evidence."""
        _, _, node, _, without, whole, weight = part
        areas = np.where(self.tree.members[node], self._areas, 0)
        self._bits += weight * (whole - without) * areas / areas.sum()

    def _ask(self, seen: list[Pixels]) -> list[float]:
        """The measured values with only these leaves (K, leaves) seen."""
        hidden = torch.from_numpy(np.stack([~self.tree.pixels(members) for members in seen]))
        scores = self._asker.hidden(self._example, hidden, self._context, None, self._bar)
        return [float(value) for value in self._quantity(scores)[0]]

    def result(self, unit: str) -> OwenTree:
        """What is known by now."""
        queue, self._queue = self._queue, []
        for part in queue:
            self._spread(part)
        per_pixel = self._bits / self._areas
        return OwenTree(
            self.tree,
            self.nothing,
            self.everything,
            self._values,
            self._interactions,
            self._weights,
            per_pixel[self.tree.leaves],
            self._n_evaluations,
            unit,
        )


def _leaves(images: Tensor, feature_mask: Any, superpixels: int | None) -> FeatureMaskRegions:
    """The regions at the leaves: those that were given, superpixels, or blocks of one size."""
    shape = tuple(images.shape)
    if feature_mask is None and superpixels is None:
        if len(shape) < 4 or min(shape[2:]) < SMALLEST_SIDE:
            return FeatureMaskRegions(torch.from_numpy(tiles(shape[2:]))[None])
        superpixels = LEAVES
    found = choose_regions((images,), feature_mask=feature_mask, superpixels=superpixels)
    ((regions,),) = found["full"]
    return cast(FeatureMaskRegions, regions)


def _attributions(found: list[OwenTree], like: Tensor, is_tuple: bool) -> Any:
    """Maps of the input's shape that add up to the total; NaN for examples that are not done."""
    maps = torch.full((len(like), *like.shape[2:]), torch.nan, dtype=torch.float64, device="cpu")
    for number, tree in enumerate(found):
        maps[number] = torch.from_numpy(tree.map)
    values = to_attribution((maps / like.shape[1]).to(torch.float32).to(like.device), like)
    return (values,) if is_tuple else values
