"""The evidence of every region for every output, and the maps drawn from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda._captum import TargetType, format_output
from captum_pda.evidence.self_test import SelfTest, self_test
from captum_pda.evidence.together import (
    Coalitions,
    DecidingPart,
    Interactions,
    RegionGame,
    WhichRegions,
    coalitions_of,
    deciding_parts,
)
from captum_pda.evidence.words import description
from captum_pda.files import counted
from captum_pda.model.inputs import attribution_dtype, masked_columns, target_columns
from captum_pda.model.measures import Measure
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.protocol import Regions
from captum_pda.running.ask import Asker

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: From scores (N, W, columns) to the quantity whose difference is the evidence, (N, W).
Quantity: TypeAlias = Callable[[Tensor], Tensor]
#: How values between the places of a feature map are read, by its number of spatial dimensions.
INTERPOLATION = {1: "linear", 2: "bilinear", 3: "trilinear"}
#: A standard deviation of this share of the largest one is no more than rounding.
ROUNDING = 1e-4


@dataclass(frozen=True)
class MeasuredOutputs:
    """What is measured of scores (N, W, columns)."""

    output_shape: tuple[int, ...]  #: Of one example's output, whose flat columns these are.
    output: str  #: The name of the output kind.
    measure: Measure
    summed: bool = False  #: Whether the columns are those of a mask, explained by their sum.

    def quantity(self, target: TargetType) -> Quantity:
        """What is measured of ``target``."""
        return lambda scores: self.measure.value(self.pick(scores, target)).sum(dim=2)

    def rather(self, first: TargetType, second: TargetType) -> Quantity:
        """What speaks for ``first`` rather than ``second``."""
        return lambda scores: self.measure.contrast(
            self.pick(scores, first, "first"), self.pick(scores, second, "second")
        ).sum(dim=2)

    def prediction(self, target: TargetType) -> Quantity:
        """The probability of ``target``, or its raw output; the mean over a mask of outputs."""
        return lambda scores: self.measure.prediction(self.pick(scores, target)).mean(dim=2)

    def pick(self, scores: Tensor, target: TargetType, name: str = "target") -> Tensor:
        """The columns of (N, W, columns) scores that are explained: one, or those of a mask."""
        if self.summed and target is None:
            return scores
        masked = masked_columns(target, self.output_shape, name)
        if masked is not None:
            return scores[..., masked]
        columns = target_columns(target, len(scores), self.output_shape, name)
        index = torch.tensor(columns, device=scores.device)[:, None, None]
        return scores.gather(2, index.expand(-1, scores.shape[1], 1))


@dataclass(frozen=True, eq=False, repr=False)
class EvidencePart:
    """What regions of one size say about every output.

    Args:
        tensor: the number of the input tensor that they lie in.
        regions: where they lie.
        context: "full" (all else was seen), "empty" (nothing else was seen) or "random" (random
            other regions were seen).
        outputs: what is measured of scores.
        reference: scores before a region is changed, (N, columns): log-odds in nats or raw outputs.
            Among random others, those with half of the regions seen.
        scores: the same with each region changed, (N, W, columns).
        drawn: how many contents of each region the model has seen, or how many random sets, (N, W).
        errors: the standard errors of ``scores``, where there were several samples.
        depth: "input", or the name of the layer in whose feature map the regions lie.
    """

    tensor: int
    regions: Regions
    context: str
    outputs: MeasuredOutputs
    reference: Tensor
    scores: Tensor
    drawn: Tensor
    errors: Tensor | None = None
    depth: str = "input"

    def __repr__(self) -> str:
        where = "" if self.depth == "input" else f", depth {self.depth}"
        return f"EvidencePart({len(self.regions)} regions of {self.size}, {self.context}{where})"

    @property
    def title(self) -> str:
        """What to call its regions."""
        return self.regions.title if self.depth == "input" else f"features of {self.depth}"

    @property
    def size(self) -> tuple[int, ...]:
        """The window's shape, or the mean extent of other regions."""
        return self.regions.size

    def values(self, target: TargetType = None) -> Tensor:
        """The evidence of each region for ``target``, (N, W)."""
        return self.differences(self.outputs.quantity(target))

    def differences(self, quantity: Quantity) -> Tensor:
        """By how much a quantity is larger where each region is seen, (N, W)."""
        before, after = quantity(self.reference.unsqueeze(1)), quantity(self.scores)
        return before - after if CONTEXTS[self.context].removes else after - before

    def standard_error(self, target: TargetType = None) -> Tensor:
        """The standard error of each of the ``values``, (N, W), from the samples' spread."""
        if self.errors is None:
            raise ValueError(
                "a standard error needs two samples or more of each window; use "
                "SampledPDA(...).evidence(inputs, n_samples=10)"
            )
        errors = self.outputs.pick(self.errors, target)
        if errors.shape[2] > 1:
            raise ValueError(
                "a sum over a region has no standard error here: its outputs err together; ask for "
                "one output of it"
            )
        scores = self.outputs.pick(self.scores, target)
        return self.outputs.measure.error(errors, scores).squeeze(2)

    @property
    def density(self) -> Tensor | float:
        """What the map has in each region for each unit of its value, (1 or N, W).

        What a region adds to random sets is read from what its pixels add, so a region of twice the
        area has twice as much by that alone; the map shows it per area, times the mean area.
        """
        if not CONTEXTS[self.context].in_sets:
            return 1.0
        areas = cast(FeatureMaskRegions, self.regions).areas.to(self.scores.device)
        mean = areas.sum(dim=1, keepdim=True) / (areas > 0).sum(dim=1, keepdim=True)
        return mean / areas.clamp(min=1)

    def map(
        self,
        values: Tensor,
        space: tuple[int, ...],
        unfinished: bool = False,
        onto: FeatureMaskRegions | None = None,
    ) -> Tensor:
        """Values of the regions (N, W) averaged onto the pixels of the input, (N, *space).

        Of an ``unfinished`` run, those of the regions that are done. The places of a feature map
        are coarse: between them values are interpolated, and averaged inside the regions ``onto``,
        where there are any.
        """
        scaled = values * self.density
        if unfinished:
            done = self._on_pixels(values.isfinite().to(values.dtype), space, onto)
            return self._on_pixels(scaled.nan_to_num(0, 0, 0), space, onto) / done
        return self._on_pixels(scaled, space, onto)

    def _on_pixels(
        self, values: Tensor, space: tuple[int, ...], onto: FeatureMaskRegions | None
    ) -> Tensor:
        averaged = self.regions.average(values)
        if self.regions.space == space:
            return averaged
        mode = INTERPOLATION[len(space)]
        enlarged = F.interpolate(averaged.unsqueeze(1), size=space, mode=mode)[:, 0]
        return enlarged if onto is None else onto.average(onto.means(enlarged))


def mean_map(
    maps: Sequence[Tensor], unfinished: bool = False, weights: Tensor | None = None
) -> Tensor:
    """The mean of maps (N, *space), with ``weights`` (maps, N); of ``unfinished`` maps, the mean of
    those that are known at a pixel."""
    if len(maps) == 1:
        return maps[0]
    stacked = torch.stack(list(maps))
    shape = (*stacked.shape[:2], *[1] * (stacked.dim() - 2))
    weight = stacked.new_ones(shape) if weights is None else weights.reshape(shape)
    if unfinished:
        known = stacked.isfinite()
        stacked, weight = stacked.where(known, 0), weight * known
    return (weight * stacked).sum(dim=0) / weight.sum(dim=0)


def question_weights(maps: Sequence[Tensor], questions: Sequence[Sequence[EvidencePart]]) -> Tensor:
    """How much the map (N, *space) of each question counts, (maps, N); those of an example add up
    to 1.

    A weight is that of the question's context over the map's standard deviation over the pixels: a
    region says several times as many bits by itself as are lost without it, and would dominate
    otherwise. A map that is flat but for rounding counts only where all maps are flat.
    """
    flat = torch.stack([values.flatten(1) for values in maps])
    flat = flat.where(flat.isfinite(), torch.nan)
    variances = (flat - flat.nanmean(dim=2, keepdim=True)).square().nanmean(dim=2)
    deviations = variances.sqrt().nan_to_num(0)
    is_flat = deviations <= ROUNDING * deviations.amax(dim=0)
    inverse = torch.where(is_flat, 0, 1 / deviations.where(~is_flat, 1))
    inverse = torch.where(is_flat.all(dim=0), 1, inverse)
    own = inverse.new_tensor([CONTEXTS[parts[0].context].weight for parts in questions])
    weights = inverse * own.unsqueeze(1)
    return weights / weights.sum(dim=0)


@dataclass(frozen=True, eq=False, repr=False)
class WindowEvidence:
    """What every region says about every output, from one set of forward passes.

    Made by the ``evidence`` method of EfficientPDA, SampledPDA, LayerPDA and PDA. Windows of
    several sizes, contexts and depths are its parts. Parts of one context and depth answer one
    question, and the question's map is the mean of theirs: a pixel has the mean evidence of the
    regions that hold it. The maps M_q of several questions become one by their weighted mean,

        M = sum_q (w_q M_q / s_q) / sum_q (w_q / s_q),

    with s_q the standard deviation of M_q over its pixels, so that no question drowns another, and
    w_q = 2 for what regions add to random sets, and 1 for the other questions.

    Args:
        inputs: the explained tensors.
        scores: log-odds in nats (or raw outputs) with everything seen, (N, columns).
        parts: the regions of each size, context and depth.
        outputs: what is measured of scores.
        is_tuple: whether the inputs came as a tuple, and so do the maps.
        prior: what was expected in the place of regions; None is the default prior.
        ask: asks the model further questions about an example; None where there is no model any
            more.

    Example::

        >>> evidence = EfficientPDA(model).evidence(image, scales=(16, 32, 64))
        >>> evidence.attribution(husky)              # for and against "husky"
        >>> evidence.contrast(husky, wolf)           # why "husky" rather than "wolf"?
        >>> evidence.at(32).attribution(husky)       # windows of 32 x 32 alone

        >>> evidence = SampledPDA(model).evidence(image, n_samples=50, tolerance=0.1)
        >>> evidence.standard_error(husky)           # of each window's value, in bits
        >>> evidence.n_drawn                         # how many samples that took
    """

    inputs: tuple[Tensor, ...]
    scores: Tensor
    parts: tuple[EvidencePart, ...]
    outputs: MeasuredOutputs
    is_tuple: bool = False
    prior: Any = None
    ask: Asker | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The evidence is kept and sent without the model.
        return {**self.__dict__, "ask": None}

    def __repr__(self) -> str:
        return (
            f"WindowEvidence({counted(len(self), 'example')}, "
            f"{counted(self.scores.shape[1], 'output')}, {counted(len(self.parts), 'part')}, "
            f"{self.measure.name})"
        )

    def __str__(self) -> str:
        return description(self)

    def _repr_html_(self) -> str:
        from captum_pda.report import notebook_html

        return notebook_html(self)

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.scores)

    def __getitem__(self, examples: int | slice) -> WindowEvidence:
        """The evidence of one example, or of a slice of them; nothing is asked again."""
        try:
            chosen = range(len(self))[examples]
        except IndexError:
            holds = counted(len(self), "example")
            raise IndexError(f"evidence[{examples}] is out of range; it holds {holds}") from None
        kept = range(chosen, chosen + 1) if isinstance(chosen, int) else chosen
        if not kept or kept.step < 0:
            raise ValueError(f"evidence[{examples}] holds no example in order of the batch")
        rows = slice(kept.start, kept.stop, kept.step)
        # Parts with the same regions keep them in common.
        regions = {id(part.regions): part.regions.of_examples(rows) for part in self.parts}
        parts = tuple(
            replace(
                part,
                regions=regions[id(part.regions)],
                reference=part.reference[rows],
                scores=part.scores[rows],
                drawn=part.drawn[rows],
                errors=None if part.errors is None else part.errors[rows],
            )
            for part in self.parts
        )
        return replace(
            self,
            inputs=tuple(tensor[rows] for tensor in self.inputs),
            scores=self.scores[rows],
            parts=parts,
            ask=None if self.ask is None else self.ask.of_examples(rows),
        )

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the evidence to a file of tensors and JSON (safetensors), inputs included.

        The model is not saved, nor the prior, which is only named.

        Args:
            path: where to write, such as "evidence.safetensors".
            overwrite: whether to replace evidence that is there; other files never are.
        """
        from captum_pda.evidence.storage import save_evidence

        save_evidence(self, path, overwrite)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], device: torch.device | str = "cpu", prior: Any = None
    ) -> WindowEvidence:
        """Read evidence that ``save`` wrote. Nothing in the file is run.

        Maps, lists, pictures and reports are as before. Without a model there is no ``self_test``.

        Args:
            path: the file.
            device: where to put the tensors.
            prior: the prior that it was made with, if it was not the default, so that a report can
                show what was put in the place of regions.
        """
        from captum_pda.evidence.storage import load_evidence

        return load_evidence(path, device, prior)

    def top(self, example: int | None = None) -> int:
        """The most probable output of an example.

        Raises:
            ValueError: the outputs are not classes to choose from, such as those of segmentation.
        """
        if len(self.output_shape) > 1 or (self.output == "raw" and self.scores.shape[1] > 1):
            raise ValueError(
                f"target is missing: of outputs of shape {self.output_shape} per example, read as "
                f"{self.output!r}, none is the top class; say which one to show"
            )
        return int(self.scores[self.checked_example(example)].argmax())

    def show(
        self, target: TargetType = None, name: str | None = None, **options: Any
    ) -> tuple[Figure, list[Axes]]:
        """Draw the input with its strongest regions, the map, and its test.

        Args:
            target: the output to explain. Default: the most probable one, which the title names.
            name: what the output is called.
            options: as for ``captum_pda.visualization.visualize_explanation``, such as ``mean`` and
                ``std`` to undo a normalisation, ``example``, ``rather_than`` and ``test``.
        """
        from captum_pda.visualization import visualize_explanation

        return visualize_explanation(self, target, name=name, **options)

    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        target: int | None = None,
        example: int | None = None,
        **options: Any,
    ) -> str | Path:
        """The report as one HTML page that needs nothing but itself.

        Args:
            path: where to write it, which is returned; None returns the page as a string.
            target: the output shown at first. Default: the most probable one.
            example: which one, where the evidence is of several.
            options: as for ``captum_pda.report.write_report``, such as ``labels``.
        """
        from captum_pda.report import write_report

        targets = () if target is None else (target,)
        return write_report(self, path, targets=targets, example=example, **options)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of one example's output."""
        return self.outputs.output_shape

    @property
    def output(self) -> str:
        """What the model's outputs are: "logits", "multilabel", "probabilities" or "raw"."""
        return self.outputs.output

    @property
    def measure(self) -> Measure:
        """What differences are measured in."""
        return self.outputs.measure

    @property
    def probabilities(self) -> Tensor:
        """P(c|x) of every output with everything seen, (N, *output_shape)."""
        if not self.measure.needs_probabilities:
            raise ValueError(f"{self.output} outputs have no probabilities; use output='logits'")
        return torch.sigmoid(self.scores).reshape(-1, *self.output_shape)

    def at(self, size: int | Sequence[int]) -> WindowEvidence:
        """The evidence of windows of one size alone."""

        def is_wanted(part: EvidencePart) -> bool:
            return part.size == ((size,) * len(part.size) if isinstance(size, int) else tuple(size))

        return self._only(is_wanted, f"windows of size {size}", "size")

    def in_context(self, context: str) -> WindowEvidence:
        """The evidence in the "full", the "empty" or the "random" context alone."""
        return self._only(lambda part: part.context == context, f"context {context!r}", "context")

    def at_depth(self, depth: str) -> WindowEvidence:
        """The evidence of regions of the "input", or of a layer's feature map, alone."""
        return self._only(lambda part: part.depth == depth, f"depth {depth!r}", "depth")

    def window_values(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The evidence of each region for ``target``, (N, W), part after part."""
        return self._each(lambda part: part.values(target))

    def attribution(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The map for ``target``, of the inputs' shape: what ``attribute`` returns."""
        return self._maps(self.outputs.quantity(target))

    def contrast(self, first: TargetType, second: TargetType) -> Tensor | tuple[Tensor, ...]:
        """The map of what speaks for ``first`` rather than ``second``.

        In bits, log2 P(first)/P(second) with the region seen less the same without it; for raw
        outputs and probability differences, the difference of the two maps.
        """
        return self._maps(self.outputs.rather(first, second))

    def map(
        self, target: TargetType, rather_than: TargetType = None, example: int | None = None
    ) -> Tensor:
        """The map of one example of one input tensor, for ``target`` (rather than another output),
        (*space)."""
        example = self.checked_example(example)
        quantity = self.outputs.quantity(target)
        if rather_than is not None:
            quantity = self.outputs.rather(target, rather_than)
        found = self._maps(quantity)
        return (found[0] if isinstance(found, tuple) else found)[example, 0]

    def total(self, target: TargetType = None) -> Tensor:
        """All evidence for ``target``, (N,): log2 odds with everything seen less log2 odds with
        nothing seen, or the same in another measure. The model was asked with nothing seen where
        there is an empty context, as PDA has."""
        quantity = self.outputs.quantity(target)
        for part in self.parts:
            if CONTEXTS[part.context].starts_from_nothing:
                both = torch.stack([self.scores, part.reference], dim=1)
                return -quantity(both).diff(dim=1)[:, 0]
        raise ValueError(
            "this evidence was not asked with nothing seen; use context='empty' or 'both'"
        )

    def self_test(self, target: TargetType = None, example: int | None = None) -> SelfTest:
        """Test the map for ``target`` on its own input, with about 40 further passes.

        The strongest k% of the pixels are hidden, and then only they are shown, for 19 values of k,
        with the prior's conditional mean in the place of what is hidden. A map that explains the
        answer loses it in the first case and keeps it in the second.
        """
        return self_test(self, target, example)

    def coalitions(
        self, target: TargetType = None, regions: WhichRegions = 15, example: int | None = None
    ) -> Coalitions:
        """Some regions, to ask what the model says with any set of them hidden.

        Args:
            target: the output whose map says which regions are the strongest. Default: the most
                probable one.
            regions: how many of the strongest, of about a 25th of the input each; or the numbers of
                some; or the pixels of each as booleans, (R, *space). ``evidence.at(60)`` has
                regions of another size.
            example: which one, where the evidence is of several.
        """
        return coalitions_of(self, self._or_top(target, example), regions, example)

    def interactions(
        self,
        target: TargetType = None,
        regions: WhichRegions = 15,
        example: int | None = None,
        show_progress: bool = False,
    ) -> Interactions:
        """What pairs of regions say together: I(a, b) = R(a and b) - R(a) - R(b), in bits.

        R is what is lost without regions. Positive: each covers for the other. Negative: they
        speak only together. n regions take n (n + 1) / 2 passes, 120 for 15; times the samples of
        SampledPDA, which give standard errors. Every output is answered by the same passes.

        Args:
            target, regions, example: as in ``coalitions``.
            show_progress: whether a bar says how many passes there are, and how long they take.
        """
        own = self._or_top(target, example)
        return coalitions_of(self, own, regions, example).interactions(own, show_progress)

    def sufficient(
        self,
        target: TargetType = None,
        n: int = 3,
        at_least: float | None = None,
        regions: WhichRegions = None,
        example: int | None = None,
        max_passes: int = 100,
        show_progress: bool = False,
    ) -> list[DecidingPart]:
        """Few regions that keep the answer by themselves, and further ones that do so too.

        Only these regions are seen, in the input with nothing else seen. The regions are taken in
        the order of the map until the answer is kept, and those that are not needed are left out.
        A part is minimal: without any single region of it the answer is not kept. That there is
        no smaller part is not proven. Further parts have no region of an earlier one. An answer
        that is kept with nothing seen has one part, of no regions.

        Args:
            target: the class; without one, the class that is first.
            n: how many parts at most; fewer are returned where there are no more.
            at_least: the probability (or raw output) to keep; without one the class is to be first.
            regions: as in ``coalitions``; without them all regions of about a 60th of the input.
            example: which one, where the evidence is of several.
            max_passes: how many sets of regions are asked at most for each part, each by one pass
                (in ``necessary`` by one for each sample). A part that is not minimal by then says
                so.
            show_progress: whether to show a progress bar.
        """
        search = (regions, example, max_passes, show_progress)
        own = self._or_top(target, example)
        return deciding_parts(self, own, None, at_least, True, n, *search)

    def necessary(
        self,
        target: TargetType = None,
        expected: TargetType = None,
        below: float | None = None,
        regions: WhichRegions = None,
        example: int | None = None,
        max_passes: int = 100,
        show_progress: bool = False,
    ) -> DecidingPart | None:
        """Few regions whose removal changes the answer, and to which class.

        They are replaced by what the prior expects given all that is seen. The part is found and
        minimal as in ``sufficient``; None if no set of regions that was asked changed the answer.

        Args:
            target: the class; without one, the class that is first.
            expected: the class that is to become first; without one any other will do.
            below: the probability (or raw output) of the target to come under, instead.
            regions, example, max_passes, show_progress: as in ``sufficient``.
        """
        search = (regions, example, max_passes, show_progress)
        own = self._or_top(target, example)
        return next(iter(deciding_parts(self, own, expected, below, False, 1, *search)), None)

    def as_game(
        self,
        target: TargetType = None,
        regions: WhichRegions = 12,
        context: str = "full",
        example: int | None = None,
        show_progress: bool = False,
    ) -> RegionGame:
        """The regions as players of a cooperative game, for shapiq and the like.

        Args:
            target, regions, example: as in ``coalitions``.
            context: "full" (absent players are filled given all else) or "empty" (only the present
                players are seen).
            show_progress: whether each call shows a progress bar.
        """
        own = self._or_top(target, example)
        game = coalitions_of(self, own, regions, example)
        return RegionGame(game, own, context, show_progress)

    def _or_top(self, target: TargetType, example: int | None) -> TargetType:
        """The target, or the most probable output where there are several and none is given."""
        is_given = target is not None or self.outputs.summed or self.scores.shape[1] == 1
        return target if is_given else self.top(example)

    def asker(self) -> Asker:
        """What asks the model further questions."""
        if self.ask is None:
            raise ValueError(
                "this evidence has no model to ask: it was loaded from a file, or is of a layer's "
                "feature map. Make it anew with PDA(model).evidence(inputs)"
            )
        return self.ask

    def checked_example(self, example: int | None) -> int:
        """The number of one example of one input tensor; with a single example, None is it."""
        n = len(self.scores)
        if len(self.inputs) != 1:
            raise ValueError(
                f"evidence has {len(self.inputs)} input tensors; this needs one, so pass the "
                "others as additional_forward_args"
            )
        if example is None and n > 1:
            raise ValueError(f"evidence holds {n} examples; say which one, such as example=0")
        if not 0 <= (example or 0) < n:
            raise ValueError(f"example={example} is out of range; there are {n} examples")
        return example or 0

    def partial_attribution(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The map of a run that was stopped: each pixel has the mean of the finished regions that
        cover it, and NaN where there is none."""
        return self._maps(self.outputs.quantity(target), unfinished=True)

    def predictions_without(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """P(c|x without w) of ``target`` for each region w, or the raw output, (N, W)."""
        removing = self._only(
            lambda part: CONTEXTS[part.context].removes, "context that removes regions", "context"
        )
        prediction = self.outputs.prediction(target)
        return removing._each(lambda part: prediction(part.scores))

    @property
    def n_drawn(self) -> Tensor | tuple[Tensor, ...]:
        """How many contents of each region the model has seen, or how many random sets, (N, W)."""
        return self._each(lambda part: part.drawn)

    def standard_error(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The standard error of each of the ``window_values``, (N, W), from the samples' spread.

        By the delta method: with p the mean and s the standard deviation of the S samples'
        probabilities, s / sqrt(S) / (p (1 - p) ln 2) bits of log-odds; s / sqrt(S) for probability
        differences and raw outputs, and s / sqrt(S) / (p ln 2) for information differences.
        """
        return self._each(lambda part: part.standard_error(target))

    def standard_error_map(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The standard error of each value of ``attribution``, of the inputs' shape.

        A pixel is the mean of the n regions that cover it. They are sampled independently, so its
        error is the root of the sum of their squared errors, divided by n; over several parts, the
        root of the sum of the squared errors times squared weights.
        """
        maps = []
        for number, tensor in enumerate(self.inputs):
            questions, means = self._questions(number, self.outputs.quantity(target))
            total = torch.zeros_like(means[0])
            for parts, weight in zip(questions, question_weights(means, questions), strict=True):
                share = (weight / len(parts)).reshape(-1, *[1] * (total.dim() - 1))
                for part in parts:
                    square = part.density * part.standard_error(target) ** 2
                    square = part.map(square, tuple(tensor.shape[2:]))
                    total += share**2 * square / part.regions.coverage(tensor.device)
            maps.append(to_attribution(total.sqrt(), tensor))
        return format_output(self.is_tuple, tuple(maps))

    def _maps(self, quantity: Quantity, unfinished: bool = False) -> Tensor | tuple[Tensor, ...]:
        """One map per input tensor, of what a quantity gains by each region."""
        maps = []
        for number, tensor in enumerate(self.inputs):
            questions, means = self._questions(number, quantity, unfinished)
            mean = mean_map(means, unfinished, question_weights(means, questions))
            maps.append(to_attribution(mean, tensor))
        return format_output(self.is_tuple, tuple(maps))

    def _questions(
        self, tensor: int, quantity: Quantity, unfinished: bool = False
    ) -> tuple[list[list[EvidencePart]], list[Tensor]]:
        """The parts of a tensor by depth and context, and the mean map of each such question; those
        of feature maps with the outlines of the finest superpixels, or of a mask."""
        space = tuple(self.inputs[tensor].shape[2:])
        parts = [part for part in self.parts if part.tensor == tensor]
        groups = questions_of(parts)
        divisions = (part.regions for part in parts if part.regions.space == space)
        masks = (regions for regions in divisions if isinstance(regions, FeatureMaskRegions))
        finest = max(masks, key=len, default=None)
        maps = [
            [part.map(part.differences(quantity), space, unfinished, finest) for part in parts]
            for parts in groups
        ]
        return groups, [mean_map(own, unfinished) for own in maps]

    def _each(self, values: Callable[[EvidencePart], Tensor]) -> Tensor | tuple[Tensor, ...]:
        """Values of the regions (N, W), those of one tensor next to each other."""
        rows = [
            torch.cat([values(part) for part in self.parts if part.tensor == number], dim=1)
            for number in range(len(self.inputs))
        ]
        return format_output(self.is_tuple, tuple(rows))

    def _only(
        self, wanted: Callable[[EvidencePart], bool], missing: str, kind: str
    ) -> WindowEvidence:
        parts = tuple(part for part in self.parts if wanted(part))
        if not parts:
            found = ", ".join(dict.fromkeys(str(getattr(part, kind)) for part in self.parts))
            raise ValueError(f"this evidence holds no {missing}; there are {found}")
        return replace(self, parts=parts)


def questions_of(parts: Sequence[EvidencePart]) -> list[list[EvidencePart]]:
    """The parts of each question: of one depth and context, in their order."""
    questions: dict[tuple[str, str], list[EvidencePart]] = {}
    for part in parts:
        questions.setdefault((part.depth, part.context), []).append(part)
    return list(questions.values())


def to_attribution(values: Tensor, like: Tensor) -> Tensor:
    """A map (N, *space) for an input, every channel of a pixel alike."""
    averaged = values.to(attribution_dtype(like))
    return averaged.unsqueeze(1).expand(like.shape).contiguous()
