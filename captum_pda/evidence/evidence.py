"""The evidence of every region for every output, and its maps."""

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
#: The interpolation between the places of a feature map, by its number of spatial dimensions.
INTERPOLATION = {1: "linear", 2: "bilinear", 3: "trilinear"}
#: Standard deviations below this share of the largest one are rounding errors.
ROUNDING = 1e-4


@dataclass(frozen=True)
class MeasuredOutputs:
    """The quantity that is measured, as a function of scores (N, W, columns)."""

    output_shape: tuple[int, ...]  #: Of one example's output, whose flat columns these are.
    output: str  #: The name of the output kind.
    measure: Measure
    summed: bool = False  #: Whether the columns are those of a mask, explained by their sum.

    def quantity(self, target: TargetType) -> Quantity:
        """The measured quantity of ``target``."""
        return lambda scores: self.measure.value(self.pick(scores, target)).sum(dim=2)

    def rather(self, first: TargetType, second: TargetType) -> Quantity:
        """The quantity for ``first`` rather than ``second``."""
        return lambda scores: self.measure.contrast(
            self.pick(scores, first, "first"), self.pick(scores, second, "second")
        ).sum(dim=2)

    def prediction(self, target: TargetType) -> Quantity:
        """The probability of ``target``, or its raw output; the mean over a mask of outputs."""
        return lambda scores: self.measure.prediction(self.pick(scores, target)).mean(dim=2)

    def pick(self, scores: Tensor, target: TargetType, name: str = "target") -> Tensor:
        """The explained columns of scores (N, W, columns): one, or those of a mask."""
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
    """The scores of regions of one size for every output.

    Args:
        tensor: the number of the input tensor that contains the regions.
        regions: the regions.
        context: "full" (the rest is visible), "empty" (nothing else is visible) or "random" (random
            other regions are visible).
        outputs: how scores are measured.
        reference: scores before a region is changed, (N, columns): log-odds in nats or raw outputs.
            In the random context those with half of the regions visible.
        scores: the same with each region changed, (N, W, columns).
        drawn: the number of samples of each region, or of random sets, (N, W).
        errors: the standard errors of ``scores``, if there were several samples.
        depth: "input", or the name of the layer whose feature map contains the regions.
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
        return self.regions.size

    def values(self, target: TargetType = None) -> Tensor:
        """The evidence of each region for ``target``, (N, W)."""
        return self.differences(self.outputs.quantity(target))

    def differences(self, quantity: Quantity) -> Tensor:
        """How much larger a quantity is with each region visible, (N, W)."""
        before, after = quantity(self.reference.unsqueeze(1)), quantity(self.scores)
        return before - after if CONTEXTS[self.context].removes else after - before

    def standard_error(self, target: TargetType = None) -> Tensor:
        """The standard error of each of the ``values``, (N, W)."""
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
        """The map's value in each region per unit of its evidence, (1 or N, W).

        What a region adds to random sets is proportional to its area, so the map shows it per area,
        times the mean area.
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

        For an ``unfinished`` run, those of the finished regions. Values of a feature map are
        interpolated between its places, and averaged inside the regions ``onto``, if any.
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
    """The mean of maps (N, *space) with ``weights`` (maps, N), or of the known values at each
    pixel."""
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
    """The weight of the map (N, *space) of each question, (maps, N); those of an example sum to 1.

    It is the weight of the question's context divided by the map's standard deviation over the
    pixels, because evidence by itself is several times as large as evidence that is lost, and would
    dominate. Maps that are flat up to rounding count only if all are flat.
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
    """The evidence of every region for every output, from one set of forward passes.

    Returned by the ``evidence`` method of EfficientPDA, SampledPDA, LayerPDA and PDA. Its parts are
    the regions of each size, context and depth. The parts of one context and depth form a question,
    whose map is the mean of theirs: a pixel has the mean evidence of its regions. The maps M_q of
    several questions are combined by their weighted mean,

        M = sum_q (w_q M_q / s_q) / sum_q (w_q / s_q),

    with s_q the standard deviation of M_q over its pixels, so that no question dominates, and w_q =
    2 for random sets and 1 for the other questions.

    Args:
        inputs: the explained tensors.
        scores: log-odds in nats (or raw outputs) of the unperturbed inputs, (N, columns).
        parts: the regions of each size, context and depth.
        outputs: how scores are measured.
        is_tuple: whether inputs and maps are tuples.
        prior: the prior that replaced regions; None is the default prior.
        ask: asks the model further questions; None without a model.

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
        # Evidence is pickled without the model.
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
        """The number of examples."""
        return len(self.scores)

    def __getitem__(self, examples: int | slice) -> WindowEvidence:
        """The evidence of one example or of a slice of them, without further passes."""
        try:
            chosen = range(len(self))[examples]
        except IndexError:
            holds = counted(len(self), "example")
            raise IndexError(f"evidence[{examples}] is out of range; it holds {holds}") from None
        kept = range(chosen, chosen + 1) if isinstance(chosen, int) else chosen
        if not kept or kept.step < 0:
            raise ValueError(f"evidence[{examples}] selects no examples in the batch's order")
        rows = slice(kept.start, kept.stop, kept.step)
        # Parts that share regions still share them afterwards.
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
        """Write the evidence to a file of tensors and JSON (safetensors), including the inputs.

        The model is not saved, and the prior only by its settings.

        Args:
            path: the file, such as "evidence.safetensors".
            overwrite: whether to replace saved evidence; other files are never replaced.
        """
        from captum_pda.evidence.storage import save_evidence

        save_evidence(self, path, overwrite)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], device: torch.device | str = "cpu", prior: Any = None
    ) -> WindowEvidence:
        """Read evidence that ``save`` wrote. No code in the file is run. There are the same maps,
        lists, pictures and reports, but without a model no ``self_test``.

        Args:
            path: the file.
            device: where to put the tensors.
            prior: the prior of the evidence, if it was not the default, so that reports can show
                the replaced regions.
        """
        from captum_pda.evidence.storage import load_evidence

        return load_evidence(path, device, prior)

    def top(self, example: int | None = None) -> int:
        """The most probable output of an example.

        Raises:
            ValueError: the outputs are not one list of classes.
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
            name: the name of the output.
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
        """The report as a single HTML page without external files.

        Args:
            path: the file to write, which is returned; None returns the page as a string.
            target: the output that is shown first. Default: the most probable one.
            example: the number of an example in a batch.
            options: as for ``captum_pda.report.write_report``, such as ``labels``.
        """
        from captum_pda.report import write_report

        targets = () if target is None else (target,)
        return write_report(self, path, targets=targets, example=example, **options)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of an example's output."""
        return self.outputs.output_shape

    @property
    def output(self) -> str:
        """The kind of the model's outputs: "logits", "multilabel", "probabilities" or "raw"."""
        return self.outputs.output

    @property
    def measure(self) -> Measure:
        """The measure of differences."""
        return self.outputs.measure

    @property
    def probabilities(self) -> Tensor:
        """P(c|x) of every output for the unperturbed inputs, (N, *output_shape)."""
        if not self.measure.needs_probabilities:
            raise ValueError(f"{self.output} outputs have no probabilities; use output='logits'")
        return torch.sigmoid(self.scores).reshape(-1, *self.output_shape)

    def at(self, size: int | Sequence[int]) -> WindowEvidence:
        """The evidence of regions of one size."""

        def is_wanted(part: EvidencePart) -> bool:
            return part.size == ((size,) * len(part.size) if isinstance(size, int) else tuple(size))

        return self._only(is_wanted, f"windows of size {size}", "size")

    def in_context(self, context: str) -> WindowEvidence:
        """The evidence in the "full", the "empty" or the "random" context."""
        return self._only(lambda part: part.context == context, f"context {context!r}", "context")

    def at_depth(self, depth: str) -> WindowEvidence:
        """The evidence of regions of the "input", or of a layer's feature map."""
        return self._only(lambda part: part.depth == depth, f"depth {depth!r}", "depth")

    def window_values(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The evidence of each region for ``target``, (N, W), part after part."""
        return self._each(lambda part: part.values(target))

    def attribution(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The map for ``target``, of the inputs' shape: the result of ``attribute``."""
        return self._maps(self.outputs.quantity(target))

    def contrast(self, first: TargetType, second: TargetType) -> Tensor | tuple[Tensor, ...]:
        """The map for ``first`` rather than ``second``.

        In bits, log2 P(first)/P(second) with each region visible minus that without it; for raw
        outputs and probability differences, the difference of the two maps.
        """
        return self._maps(self.outputs.rather(first, second))

    def map(
        self, target: TargetType, rather_than: TargetType = None, example: int | None = None
    ) -> Tensor:
        """The map of an ``example`` for ``target``, perhaps ``rather_than`` another, (*space)."""
        example = self.checked_example(example)
        quantity = self.outputs.quantity(target)
        if rather_than is not None:
            quantity = self.outputs.rather(target, rather_than)
        found = self._maps(quantity)
        return (found[0] if isinstance(found, tuple) else found)[example, 0]

    def total(self, target: TargetType = None) -> Tensor:
        """All evidence for ``target``, (N,): the measured quantity, such as log2 odds, with
        everything visible minus that with everything hidden. Needs an empty context, as PDA has."""
        quantity = self.outputs.quantity(target)
        for part in self.parts:
            if CONTEXTS[part.context].starts_from_nothing:
                both = torch.stack([self.scores, part.reference], dim=1)
                return -quantity(both).diff(dim=1)[:, 0]
        raise ValueError("this evidence has no empty context; use context='empty' or 'both'")

    def self_test(self, target: TargetType = None, example: int | None = None) -> SelfTest:
        """Test the map for ``target`` on its own input, with about 40 further passes.

        For 19 values of k the strongest k% of the pixels are hidden, and then only they are shown;
        hidden pixels have the prior's conditional mean. With a good map the answer is lost in the
        first case and kept in the second.
        """
        return self_test(self, target, example)

    def coalitions(
        self, target: TargetType = None, regions: WhichRegions = 15, example: int | None = None
    ) -> Coalitions:
        """Choose regions, to run the model with any set of them hidden.

        Args:
            target: the output whose map ranks the regions. Default: the most probable one.
            regions: the number of the strongest regions, of about a 25th of the input each; or the
                numbers of some; or the pixels of each as booleans, (R, *space). ``evidence.at(60)``
                has regions of another size.
            example: the number of an example in a batch.
        """
        return coalitions_of(self, self._or_top(target, example), regions, example)

    def interactions(
        self,
        target: TargetType = None,
        regions: WhichRegions = 15,
        example: int | None = None,
        show_progress: bool = False,
    ) -> Interactions:
        """The interactions of pairs of regions, I(a, b) = R(a and b) - R(a) - R(b), in bits.

        R is the evidence that is lost without regions. A positive interaction means that each
        covers for the other, a negative one that they speak only together. n regions take n (n + 1)
        / 2 passes, 120 for 15, for all outputs; times the samples of SampledPDA, which give
        standard errors.

        Args:
            target, regions, example: as in ``coalitions``.
            show_progress: whether to show a bar with the number of passes and their time.
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
        """Find a few regions that are sufficient for the answer, and further such parts.

        Only these regions are visible. Regions are added in the order of the map until the answer
        is kept, and then those that are not needed are left out. A part is minimal: without any
        single one of its regions the answer is not kept (a smaller part may exist). Parts do not
        overlap. If the answer is kept with everything hidden, the only part has no regions.

        Args:
            target: the class. Default: the most probable one.
            n: the maximum number of parts.
            at_least: the probability (or raw output) to keep. Default: the class stays first, or a
                label that excludes no other stays above (or below) 50%.
            regions: as in ``coalitions``. Default: all regions of about a 60th of the input.
            example: the number of an example in a batch.
            max_passes: the maximum number of sets of regions that are tried for each part, each in
                one pass (in ``necessary``, one for each sample). A part that is not minimal by then
                says so.
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
        """Find a few regions without which the answer changes, and the class that it changes to.

        They are replaced by the prior's prediction from the rest of the input. The part is found as
        in ``sufficient``, and is minimal in the same sense; None if no set that was tried changed
        the answer.

        Args:
            target: the class. Default: the most probable one.
            expected: the class that is to become first, or the label that is to pass 50%. Default:
                any change.
            below: instead, a bound for the probability (or raw output) of the target.
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
        """The regions as players of a cooperative game, for shapiq and similar libraries.

        Args:
            target, regions, example: as in ``coalitions``.
            context: "full" (absent players are filled from the rest of the input) or "empty" (only
                present players are visible).
            show_progress: whether each call shows a progress bar.
        """
        own = self._or_top(target, example)
        game = coalitions_of(self, own, regions, example)
        return RegionGame(game, own, context, show_progress)

    def _or_top(self, target: TargetType, example: int | None) -> TargetType:
        is_given = target is not None or self.outputs.summed or self.scores.shape[1] == 1
        return target if is_given else self.top(example)

    def asker(self) -> Asker:
        """The object that asks the model further questions."""
        if self.ask is None:
            raise ValueError(
                "this evidence has no model to ask: it was loaded from a file, or is of a layer's "
                "feature map. Use PDA(model).evidence(inputs)"
            )
        return self.ask

    def checked_example(self, example: int | None) -> int:
        """The number of an example, for a single input tensor; None for a single example."""
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
        """The map of an interrupted run: the mean of each pixel's finished regions, or NaN."""
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
        """The number of samples of each region, or of random sets, (N, W)."""
        return self._each(lambda part: part.drawn)

    def standard_error(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The standard error of each of the ``window_values``, (N, W), from the spread of the
        samples.

        By the delta method: with p the mean and s the standard deviation of the S samples'
        probabilities, s / sqrt(S) / (p (1 - p) ln 2) bits of log-odds; s / sqrt(S) for probability
        differences and raw outputs, and s / sqrt(S) / (p ln 2) for information differences.
        """
        return self._each(lambda part: part.standard_error(target))

    def standard_error_map(self, target: TargetType = None) -> Tensor | tuple[Tensor, ...]:
        """The standard error of each value of ``attribution``, of the inputs' shape.

        A pixel is the mean of its n regions, which are sampled independently, so its error is the
        root of the sum of their squared errors, divided by n; over several parts, the root of the
        sum of the squared errors times squared weights.
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
        """A map per input tensor of the increase of a quantity by each region."""
        maps = []
        for number, tensor in enumerate(self.inputs):
            questions, means = self._questions(number, quantity, unfinished)
            mean = mean_map(means, unfinished, question_weights(means, questions))
            maps.append(to_attribution(mean, tensor))
        return format_output(self.is_tuple, tuple(maps))

    def _questions(
        self, tensor: int, quantity: Quantity, unfinished: bool = False
    ) -> tuple[list[list[EvidencePart]], list[Tensor]]:
        """The parts of each question about a tensor, and the question's mean map; maps of a layer
        have the outlines of the finest superpixels, or of a mask."""
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
        """Values of the regions (N, W), joined for each tensor."""
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
    """The parts of each question, that is of one depth and context, in their order."""
    questions: dict[tuple[str, str], list[EvidencePart]] = {}
    for part in parts:
        questions.setdefault((part.depth, part.context), []).append(part)
    return list(questions.values())


def to_attribution(values: Tensor, like: Tensor) -> Tensor:
    """A map (N, *space) as an attribution, with the same values in every channel."""
    averaged = values.to(attribution_dtype(like))
    return averaged.unsqueeze(1).expand(like.shape).contiguous()
