"""Methods by perturbation: replace each region, and compare the predictions.

EfficientPDA replaces a region by its conditional mean (Algorithm 2), SampledPDA by samples
(Algorithm 1), and PerturbationPDA is their base class.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import Module

from captum_pda import device_sync
from captum_pda._captum import (
    PerturbationAttribution,
    TargetType,
    TensorOrTupleOfTensorsGeneric,
    captum_method,
    refusing_unknown,
)
from captum_pda.distributed import Ranks
from captum_pda.engines import Engine, EngineReport, engine_for, engine_settings
from captum_pda.engines.audit import warn_of_rounding
from captum_pda.errors import NonFiniteOutputError, attach_result
from captum_pda.evidence.evidence import EvidencePart, MeasuredOutputs, WindowEvidence
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import check_count, check_tolerance
from captum_pda.model.measures import Measure
from captum_pda.model.outputs import ExplainedOutputs, OutputKind, find_output_kind
from captum_pda.priors import PatchPrior, prior_settings
from captum_pda.priors.field import DEFAULT_PRIOR
from captum_pda.regions.choice import Extents, OwnRegions
from captum_pda.regions.protocol import Windows
from captum_pda.regions.random_sets import RandomSets
from captum_pda.regions.superpixels import Granularities
from captum_pda.regions.windows import Scales
from captum_pda.running.ask import Asker
from captum_pda.running.plan import Part, Place, make_plan, parts_of, with_tolerance
from captum_pda.running.run import Run, agree_on_plan
from captum_pda.running.sampling import RegionScores, Sampling

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Documented = TypeVar("Documented", bound=Callable[..., Any])
Method = TypeVar("Method")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Tensors: TypeAlias = Tensor | tuple[Tensor, ...]

#: The arguments in a docstring, and one of them: its name and its text.
SECTION = re.compile(r"^Args:\n((?: {4}.*\n?)*)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def arguments_of(other: Callable[..., Any]) -> Callable[[Documented], Documented]:
    """Copy the documentation of arguments from another object; own entries take precedence."""

    def document(own: Documented) -> Documented:
        text = inspect.cleandoc(own.__doc__ or "")
        if not SECTION.search(text):
            text = re.sub(r"\n\n(?=Returns:|Example::)|\Z", "\n\nArgs:\n\n", text, count=1)
        entries = dict(ENTRY.findall(f"{inspect.getdoc(other)}\n{text}"))
        names = inspect.signature(own).parameters
        listed = [f"    {name}: {entries[name]}\n" for name in names if name in entries]
        own.__doc__ = SECTION.sub(lambda _: "Args:\n" + "".join(listed), text).rstrip()
        return own

    return document


def without_target(
    attribute: Callable[Concatenate[Method, Any, TargetType, Arguments], Any],
) -> Callable[
    [Callable[[Method, dict[str, Any]], Result]],
    Callable[Concatenate[Method, Tensors, Arguments], Result],
]:
    """Give a method that takes a dict the arguments of ``attribute`` except for the target."""
    full = inspect.signature(attribute)
    names = [name for name in full.parameters if name != "target"]
    signature = full.replace(parameters=[full.parameters[name] for name in names])

    def decorate(method: Callable[[Method, dict[str, Any]], Result]) -> Callable[..., Result]:
        refuse = refusing_unknown(method.__name__, names)

        @wraps(method)
        def taken(*args: Any, **kwargs: Any) -> Result:
            refuse(args[0], kwargs)
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            return method(given.arguments.pop("self"), given.arguments)

        taken.__signature__ = signature.replace(  # type: ignore[attr-defined]
            return_annotation=method.__annotations__["return"]
        )
        return arguments_of(attribute)(taken)

    return decorate


class MethodSettings:
    """The attributes of every method: a model, a prior, and how outputs are read."""

    forward_func: Callable[..., Any]

    def _set(self, prior: Any, output: str | OutputKind, measure: str | Measure) -> None:
        self.prior = prior
        self.output_kind = find_output_kind(output)
        self.output = self.output_kind.name
        self.measure = self.output_kind.measure(measure)

    @classmethod
    def get_name(cls) -> str:
        """The name for titles: "Efficient PDA"."""
        return f"{cls.__name__.removesuffix('PDA')} PDA".strip()

    def __repr__(self) -> str:
        model: Any = self.forward_func
        shown = {
            "prior": DEFAULT_PRIOR if self.prior is None else self.prior,
            "output": self.output,
            "measure": self.measure.name,
        }
        if hasattr(self, "layer"):
            layer = getattr(self, "layer_name", None) or self.layer or "last"
            shown = {"layer": type(layer).__name__ if isinstance(layer, Module) else layer, **shown}
        arguments = [getattr(model, "__name__", type(model).__name__)]
        arguments += [f"{name}={value!r}" for name, value in shown.items()]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def settings(self) -> dict[str, object]:
        """The settings of the evidence besides the model and the arguments, as plain values."""
        return {
            "prior": prior_settings(self.prior),
            "output": self.output_kind.settings(),
            "measure": self.measure.settings(),
        }


class PerturbationPDA(MethodSettings, PerturbationAttribution):  # type: ignore[misc]
    """Prediction difference analysis by replacing regions; see SampledPDA and EfficientPDA.

    Args:
        forward_func: the model, or any function of the inputs that returns one row of outputs per
            example.
        prior: predicts the content of hidden regions (a GaussianFieldPrior, GaussianPatchPrior,
            MarginalPrior, ConstantPrior or any PatchPrior). Default: GaussianFieldPrior(), which
            needs no fit.
        output: "logits" (softmax over dimension 1; a single column is one sigmoid logit),
            "multilabel" (a sigmoid logit for each label), "probabilities", or "raw" (hidden units,
            regression: plain differences); or an OutputKind object.
        measure: "weight_of_evidence" (bits of log-odds), "probability_difference", or
            "information_difference" (bits of probability); or a Measure object.
        engine: "dense" runs the whole model for every window, "incremental" only what a window can
            change, and "auto" tries both on a few windows (``engine_report`` has the result); or an
            engine object.
        process_group: a process group of ``torch.distributed``, such as
            ``torch.distributed.group.WORLD``, whose ranks share the windows: all call ``attribute``
            or ``evidence`` with the same arguments, and all get the result of a single process.
            (``engine="auto"`` chooses on each rank; name an engine for bitwise equal results.) None
            uses this process only.

    Whatever stops a run half-way (Ctrl-C, an error of the model) is raised unchanged, with the
    finished part as its ``result``: for ``attribute`` the map of the finished windows, and for
    ``evidence`` a WindowEvidence with NaN for the others.
    """

    #: The prior's method that this algorithm calls, and the default contexts.
    _needs = "conditional_mean"
    _context = "full"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        prior: PatchPrior | None = None,
        output: str | OutputKind = "logits",
        measure: str | Measure = "weight_of_evidence",
        engine: str | Engine = "auto",
        process_group: ProcessGroup | None = None,
    ) -> None:
        PerturbationAttribution.__init__(self, forward_func)
        self._set(prior, output, measure)
        self.engine = engine_for(engine)
        Ranks(process_group)  # checks that it is one
        self.process_group = process_group
        self._report: EngineReport | None = None

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "engine": engine_settings(self.engine)}

    @property
    def engine_report(self) -> EngineReport | None:
        """The engine of the last run, the reason for it, and its comparison with the dense one.
        None before the first run, and for engine objects without a ``report``."""
        return self._report

    def _fills(self, prior: Any, example: Tensor, windows: Windows, sampling: Sampling) -> Tensor:
        """The contents that replace windows of an example (C, *space), (S, W, C, *window)."""
        means: Tensor = prior.conditional_mean(example, windows)
        return means.unsqueeze(0)

    def _place(self, call: ModelCall) -> Place:
        return Place("input", call, self.engine, self.prior, self._needs, self._fills)

    def _parts(self, call: ModelCall, context: str | None, **chosen: Any) -> tuple[Part, ...]:
        asked = self._context if context is None else context
        return parts_of(self._place(call), context=asked, **chosen)

    def _result(self, given: dict[str, Any], all_outputs: bool = False) -> Any:
        """The result of ``attribute`` or ``evidence``, from a dict of its arguments."""
        given.pop("self", None)
        evidence = self._explain(**given, all_outputs=all_outputs)
        result = evidence if all_outputs else evidence.attribution()
        for part in evidence.parts:
            if not device_sync.all_finite(part.scores):
                broken = int((~torch.isfinite(part.scores)).flatten(2).any(dim=2).sum())
                raise NonFiniteOutputError(
                    f"the model returned NaN or infinity without {broken} of the windows; the "
                    "finished result is in this error's .result, with NaN there. Check the prior's "
                    "fills and the model's precision",
                    result,
                )
        return result

    def _explain(
        self,
        inputs: Tensors,
        additional_forward_args: object,
        perturbations_per_eval: int | None,
        show_progress: bool,
        target: TargetType = None,
        all_outputs: bool = False,
        n_samples: int = 1,
        generator: torch.Generator | None = None,
        tolerance: float | None = None,
        tolerance_target: TargetType = None,
        **hidden: Any,
    ) -> WindowEvidence:
        """Evidence for every output, or for the target only; ``hidden`` are the arguments of
        ``_parts``."""
        ranks = Ranks(self.process_group)
        title = self.get_name() if show_progress and ranks.rank == 0 else None
        rows = perturbations_per_eval
        if rows is not None:
            rows = check_count("perturbations_per_eval", rows)
        n_samples = check_count("n_samples", n_samples)
        tolerance = check_tolerance(tolerance)
        if tolerance_target is not None and not all_outputs:
            raise ValueError("tolerance_target is for evidence(); attribute bounds its target")
        keeps_errors = all_outputs and n_samples > 1
        sampling = Sampling(n_samples, device_sync.draw_seed(generator), keeps_errors)
        with evaluation_mode(self.forward_func) as modules:
            with ranks.failing_together():
                call = ModelCall.of(self.forward_func, inputs, additional_forward_args)
                with torch.no_grad():
                    call.unperturbed()  # says what is wrong with inputs, before regions are chosen
                parts = self._parts(call, **hidden)
                plan = make_plan(parts, target, all_outputs, self.output_kind)
            sampling = with_tolerance(plan, sampling, tolerance, tolerance_target, self.measure)
            given = (self.measure, modules, self.prior)
            sampling = agree_on_plan(plan, sampling, rows, *given, ranks)
            run = Run(plan, sampling, rows, ranks, title)
            try:
                run.finish()
            except BaseException as error:
                if not isinstance(error, Exception) or ranks.lost:
                    run.ranks = Ranks()  # the others are not here to tell what they know
                if run.ranks.count > 1 or any(bool(part.n_drawn.any()) for part in run.known):
                    known = self._evidence_of(run)
                    attach_result(error, known if all_outputs else known.partial_attribution())
                raise
            finally:
                self._report = run.report
            evidence = self._evidence_of(run)
        if run.audit is not None:
            warn_of_rounding(run.audit)
        plan.explained.warn_of_rounding(evidence.scores, *(part.scores for part in evidence.parts))
        return evidence

    def _measured(self, explained: ExplainedOutputs) -> MeasuredOutputs:
        summed = explained.region is not None
        return MeasuredOutputs(explained.kept_shape, self.output, self.measure, summed)

    def _evidence_of(self, run: Run) -> WindowEvidence:
        plan, place = run.plan, run.plan.parts[0].place
        call, outputs = place.call, self._measured(plan.explained)
        known = zip(plan.parts, plan.references, run.known_by_all(), strict=True)
        parts = tuple(_evidence_part(*each, outputs) for each in known)
        ask = None
        if isinstance(call, ModelCall):
            ask = Asker(place, plan.explained, plan.seen, run.sampling, run.rows)
        return WindowEvidence(
            call.inputs, plan.seen, parts, outputs, call.is_tuple, self.prior, ask
        )


def _evidence_part(
    part: Part, reference: Tensor, known: RegionScores, outputs: MeasuredOutputs
) -> EvidencePart:
    """The results of the regions of a part. Regions that an example lacks change nothing, and the
    standard error without samples is 0. What regions add to random sets is fitted to the scores of
    all sets."""
    regions, scores, drawn, errors = part.regions, known.scores, known.n_drawn, known.errors
    if isinstance(regions, RandomSets):
        reference, added, error = regions.fit(scores, drawn > 0)
        regions, scores = regions.regions, reference.unsqueeze(1) + added
        drawn = drawn.sum(dim=1, keepdim=True).expand(-1, len(regions)).contiguous()
        errors = None if errors is None else error
    else:
        absent = regions.absent(len(reference)).to(reference.device).unsqueeze(-1)
        if errors is not None:
            certain = absent if part.context.is_sampled else absent | scores.isfinite()
            errors = errors.where(~certain, 0)
        scores = torch.where(absent, reference.unsqueeze(1), scores)
    where = part.tensor, regions, part.context.name, outputs
    return EvidencePart(*where, reference, scores, drawn, errors, part.place.name)


@arguments_of(PerturbationPDA)
class EfficientPDA(PerturbationPDA):
    """Efficient prediction difference analysis (Algorithm 2 of Zhou and Kainz).

    Replaces each region by its conditional mean x'_w given its surroundings, and reports

        log2 odds(c|x) - log2 odds(c|x'),

    averaged over the regions that cover a pixel: positive for the class, negative against it. About
    S times faster than SampledPDA with S samples, and without its noise.

    Example::

        >>> attributions = EfficientPDA(model).attribute(image, target=3)
    """

    @captum_method
    @torch.no_grad()
    def attribute(
        self,
        inputs: TensorOrTupleOfTensorsGeneric,
        target: TargetType = None,
        additional_forward_args: object = None,
        sliding_window_shapes: Extents = None,
        strides: Extents = None,
        perturbations_per_eval: int | None = None,
        show_progress: bool = False,
        scales: Scales = None,
        context: str | None = None,
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        superpixels: Granularities = None,
        effort: str | int = "standard",
        regions: OwnRegions = None,
    ) -> TensorOrTupleOfTensorsGeneric:
        """The evidence of each pixel for and against the target.

        By default images from 64 x 64 pixels on, and volumes from 26 x 26 x 26, are divided into
        superpixels; smaller ones and time series into windows of several sizes in proportion to the
        shorter side, such as 4 and 8 of 28. The papers' setting is ``sliding_window_shapes=10,
        strides=1``.

        Args:
            inputs: a tensor (N, C, *space) with 1 to 3 spatial dimensions, or a tuple of them, of
                which one at a time is perturbed. A dict with one tensor is used as that tensor, and
                the model gets the dict.
            target: the output to explain, as in `Captum <https://captum.ai/api/occlusion.html>`_:
                an int, a tuple for outputs of more than two dimensions, or a list or tensor with
                one of those for each example.
            additional_forward_args: further arguments of the model. Tensors with N rows are divided
                among the examples if the model takes them that way; all else is passed on
                unchanged.
            sliding_window_shapes: windows of one size: an int, a spatial tuple, or Captum's tuple
                with channels.
            strides: the step between windows, one for all sizes or one for each. Default: a quarter
                of the window. 1 gives the finest map.
            perturbations_per_eval: the number of perturbed copies in a batch. Default: chosen by
                their size. It is halved whenever memory runs out.
            show_progress: whether to show a progress bar with the estimated time.
            scales: windows of several sizes, such as (16, 32, 64). The map is the mean of theirs.
            context: "full" for what is lost without a region while the rest is visible; "empty" for
                its evidence by itself, with everything else hidden; "random" for what it adds to
                random sets of other regions (superpixels or masks only); "both" for the first two;
                "all" also for the third if regions are the default superpixels. Default: "full";
                for PDA, "all".
            feature_mask: regions of any shape, as in Captum's FeatureAblation: integers, (1 or N, 1
                or C, *space), or (*space) for all examples. Pixels with one number are hidden
                together, also in several tensors of a tuple. (In the empty context a region is
                shown in one tensor.)
            superpixels: the approximate number of regions that follow the image (SLIC), such as 60
                or (25, 60, 120); their maps are combined as those of ``scales``. More of them find
                smaller things, at one pass for each.
            effort: the number of passes for the default superpixels: "quick", "standard" or
                "thorough", or an approximate number such as 800. With PDA these are about 240
                passes (100 of them random sets), 340 (200) and 640 (400), of which 49 are short,
                for a last feature map of 7 x 7 places. In the full context alone, "standard" is
                about 410.
            regions: an object with the methods of ``captum_pda.regions.protocol.Regions``, or one
                for each tensor of a tuple; or a kind of regions that is found in each image and its
                size, such as ("superpixels", 60).

        Returns:
            Attributions of the inputs' shape, equal for all channels of a pixel.
        """
        return cast(TensorOrTupleOfTensorsGeneric, self._result(locals()))

    @without_target(attribute)
    def evidence(self, given: dict[str, Any]) -> WindowEvidence:
        """The evidence of each region for every output, from the forward passes of one map.

        Memory grows with regions times outputs. To explain some windows only, pass for example
        ``regions=WindowGrid((224, 224), (10, 10), (1, 1)).pick([0, 500])``.
        """
        return cast(WindowEvidence, self._result(given, all_outputs=True))


@arguments_of(PerturbationPDA)
class SampledPDA(PerturbationPDA):
    """Prediction difference analysis with samples (Algorithm 1; Zintgraf et al. 2017).

    Draws S samples of each window given its surroundings, averages the predicted probabilities
    p(c|x without w) = 1/S sum_s p(c|x_s), and reports

        log2 odds(c|x) - log2 odds(c|x without w),

    averaged over the regions that cover a pixel.

    Example::

        >>> attributions = SampledPDA(model).attribute(image, target=3, n_samples=10)
    """

    _needs = "sample"

    @captum_method
    @torch.no_grad()
    @arguments_of(EfficientPDA.attribute)
    def attribute(
        self,
        inputs: TensorOrTupleOfTensorsGeneric,
        target: TargetType = None,
        additional_forward_args: object = None,
        sliding_window_shapes: Extents = None,
        strides: Extents = None,
        perturbations_per_eval: int | None = None,
        show_progress: bool = False,
        n_samples: int = 10,
        generator: torch.Generator | None = None,
        tolerance: float | None = None,
        tolerance_target: TargetType = None,
        scales: Scales = None,
        context: str = "full",
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        superpixels: Granularities = None,
        effort: str | int = "standard",
        regions: OwnRegions = None,
    ) -> TensorOrTupleOfTensorsGeneric:
        """The evidence of each pixel for and against the target.

        Args:
            n_samples: the number of samples of each region; with a tolerance, the maximum. Only the
                full context needs samples.
            generator: makes the samples reproducible, and different from call to call. Default:
                PyTorch's initial seed, so that the same seed gives the same map. The global random
                state does not change. An example has the same samples in any batch and with any
                batch size.
            tolerance: stop sampling a region once the standard error of its value is below this
                many bits (or units of another measure or raw output) with 95% confidence, after at
                least 5 samples, which are the same as without a tolerance. Rare contents that
                change everything may be missed.
            tolerance_target: for ``evidence``, the output whose standard error is compared with the
                tolerance. Default: the predicted class of each example.

        Returns:
            Attributions of the inputs' shape, equal for all channels of a pixel.
        """
        return cast(TensorOrTupleOfTensorsGeneric, self._result(locals()))

    @without_target(attribute)
    def evidence(self, given: dict[str, Any]) -> WindowEvidence:
        """The evidence of each region for every output, from the forward passes of one map.

        ``evidence.standard_error(target)`` and ``evidence.n_drawn`` report the precision. Memory
        grows with regions times outputs.
        """
        return cast(WindowEvidence, self._result(given, all_outputs=True))

    def settings(self) -> dict[str, object]:
        """The settings as for EfficientPDA, with the seed of samples without a generator."""
        return {**super().settings(), "seed": torch.initial_seed()}

    def _fills(self, prior: Any, example: Tensor, windows: Windows, sampling: Sampling) -> Tensor:
        generator = sampling.generator(windows, example.device)
        return cast(Tensor, prior.sample(example, windows, sampling.n_samples, generator))
