"""What all methods by perturbation share: replace each region, and compare the predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import PerturbationAttribution, method_repr, readable_name
from captum_pda.distributed import Ranks
from captum_pda.engines import (
    Engine,
    EngineReport,
    engine_for,
    engine_settings,
)
from captum_pda.engines.audit import warn_of_disagreement, warn_of_rounding
from captum_pda.errors import NonFiniteOutputError, attach_result
from captum_pda.evidence.evidence import EvidencePart, Reading, WindowEvidence
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import check_choice, check_count, check_inputs
from captum_pda.model.measures import Measure, measure_for
from captum_pda.model.outputs import OUTPUTS
from captum_pda.priors import PatchPrior, prior_settings
from captum_pda.priors.field import DEFAULT_PRIOR
from captum_pda.regions.protocol import Regions, Windows
from captum_pda.running.ask import Asker
from captum_pda.running.plan import (
    Contents,
    Depth,
    Execution,
    Part,
    Request,
    Tolerance,
    plan_parts,
    resolve_task,
)
from captum_pda.running.run import Run, agree_on_model, resolve_sampling
from captum_pda.running.sampling import Sampling

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


ONE_FILL, NO_TOLERANCE = Sampling(), Tolerance()


@dataclass(frozen=True)
class Pace:
    """How many copies go through the model at once, and whether a progress bar shows it."""

    perturbations_per_eval: int | None = None
    show_progress: bool = False

    def checked_perturbations(self) -> int | None:
        """The batch size, refused unless it is a positive integer or None."""
        if self.perturbations_per_eval is None:
            return None
        return check_count("perturbations_per_eval", self.perturbations_per_eval)


class PerturbationPDA(PerturbationAttribution):  # type: ignore[misc]
    """Prediction difference analysis by replacing each window; see SampledPDA and EfficientPDA.

    Args:
        forward_func: the model, or any function of the inputs that returns one row of outputs per
            example.
        prior: what could stand in a region (a GaussianFieldPrior, GaussianPatchPrior,
            MarginalPrior, ConstantPrior or anything that follows PatchPrior). Default:
            GaussianFieldPrior(), which needs no fit.
        output: "logits" (softmax over dimension 1; a single column is one sigmoid logit),
            "probabilities", or "raw" (hidden units, regression: plain differences).
        measure: "weight_of_evidence" (bits of log-odds), "probability_difference", or
            "information_difference" (bits of probability), or a Measure of your own.
        engine: "dense" runs the whole model for every window, "incremental" only what a window
            can change, and "auto" tries both on a few windows (``engine_report`` says what it
            found); or an engine object.
        process_group: None explains in this process alone. With a process group of
            ``torch.distributed``, such as ``torch.distributed.group.WORLD``, its ranks share the
            windows: all call ``attribute`` or ``evidence`` with the same arguments, and all get
            the whole result. It is that of a single process: the same batches go through the
            model for EfficientPDA, and SampledPDA has the same draws. (``engine="auto"`` chooses
            on each rank for itself; name an engine for results that are equal bit by bit.)

    Whatever stops a run half-way (ctrl-C, an error of the model) is raised as it is, and carries
    what was finished as its ``result``: for ``attribute`` the map of the finished windows, and for
    ``evidence`` a WindowEvidence with NaN for the others.
    """

    #: The prior's method that this algorithm calls.
    _needs = "conditional_mean"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        prior: PatchPrior | None = None,
        output: str = "logits",
        measure: str | Measure = "weight_of_evidence",
        engine: str | Engine = "auto",
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(forward_func)
        check_choice("output", output, OUTPUTS)
        self.prior = prior
        self.output = output
        self.measure = measure_for(output, measure)
        self.engine = engine_for(engine)
        Ranks(process_group)  # refuses what is no process group
        self.process_group = process_group
        self._report: EngineReport | None = None

    @classmethod
    def get_name(cls) -> str:
        """The name for titles: "Efficient PDA"."""
        return readable_name(cls.__name__)

    def __repr__(self) -> str:
        return method_repr(self, DEFAULT_PRIOR)

    def settings(self) -> dict[str, object]:
        """What the evidence depends on beside the model and the arguments, as plain values."""
        return {
            "prior": prior_settings(self.prior),
            "engine": engine_settings(self.engine),
            "output": self.output,
            "measure": self.measure.settings(),
        }

    def attribute_future(self, *arguments: Any, **options: Any) -> None:
        """Not implemented: a model is asked here and now."""
        raise NotImplementedError(f"attribute_future is not implemented for {type(self).__name__}")

    @property
    def engine_report(self) -> EngineReport | None:
        """Which engine ran last, why, and how it compares with the dense one where some windows
        were run on both: ``print(pda.engine_report)``. None before the first run, and for an engine
        of your own that keeps no ``report``."""
        return self._report

    def _fills(self, prior: Any, example: Tensor, windows: Windows, sampling: Sampling) -> Tensor:
        """What is put in the place of windows of an example (C, *space), (S, W, C, *window)."""
        raise NotImplementedError

    def _parts(self, request: Request) -> tuple[Part, ...]:
        """What is hidden, and where: here, the regions of the inputs that were asked for."""
        return plan_parts(self._input_depth(request), request.regions, request.context)

    def _input_depth(self, request: Request) -> Depth:
        """The inputs themselves, as a place to hide regions in."""
        contents = Contents(self.prior, self._needs, self._fills)
        return Depth("input", self._model_call(request), contents, self.engine)

    def _model_call(self, request: Request) -> ModelCall:
        """The model with the inputs and arguments that were given."""
        return ModelCall(
            self.forward_func,
            check_inputs(request.inputs),
            request.additional_forward_args,
            is_tuple=isinstance(request.inputs, tuple),
        )

    def _explain(
        self,
        request: Request,
        pace: Pace,
        sampling: Sampling = ONE_FILL,
        tolerance: Tolerance = NO_TOLERANCE,
    ) -> WindowEvidence:
        """Evidence for every output, or (as the only column) for each example's target."""
        ranks = Ranks(self.process_group)
        title = self.get_name() if pace.show_progress and ranks.rank == 0 else None
        execution = Execution(pace.checked_perturbations(), ranks, title)
        with evaluation_mode(self.forward_func):
            with ranks.failing_together():
                task = resolve_task(self._parts(request), request, self.output)
            sampling = resolve_sampling(task, sampling, tolerance, execution, self.measure)
            agree_on_model(self.forward_func, self.prior, task.seen, ranks)
            run = Run.of(task, sampling, execution)
            try:
                with ranks.failing_together():
                    run.finish()
                if not run.agrees():
                    run = run.densely()
                    with ranks.failing_together():
                        warn_of_disagreement(run.audit)
                        run.finish()
            except BaseException as error:
                if not isinstance(error, Exception) or ranks.lost:
                    run = run.alone()  # the others are not here to tell what they know
                if run.has_begun or run.execution.ranks.count > 1:
                    unfinished = self._assemble(run)
                    attach_result(
                        error,
                        unfinished if request.all_outputs else unfinished.partial_attribution(),
                    )
                raise
            finally:
                self._report = run.report
            evidence = self._assemble(run)
        warn_of_rounding(run.audit)
        task.reader.readout.check_saturation(
            evidence.scores, *(part.scores for part in evidence.parts)
        )
        return evidence

    def _assemble(self, run: Run) -> WindowEvidence:
        """What is known of a run, by any rank, as evidence."""
        task = run.task
        call = task.parts[0].depth.call
        reading = Reading(
            task.reader.kept_shape, self.output, self.measure, task.reader.region is not None
        )
        known = zip(task.parts, task.references, run.together(), strict=True)
        parts = tuple(
            EvidencePart(
                part.tensor,
                part.regions,
                part.context,
                reading,
                reference,
                _with_absent(found.scores, reference, part.regions),
                found.n_drawn,
                _errors(found.errors, found.scores, part),
                part.depth.name,
            )
            for part, reference, found in known
        )
        ask = None
        if isinstance(call, ModelCall):
            depth = task.parts[0].depth
            rows = run.execution.perturbations_per_eval
            ask = Asker(
                call, depth.contents, depth.engine, task.reader, task.seen, run.sampling, rows
            )
        return WindowEvidence(
            call.inputs, task.seen, parts, reading, call.is_tuple, self.prior, ask
        )

    @staticmethod
    def _check_finite(evidence: WindowEvidence, result: Any) -> Any:
        """Hand on the result, unless some window had no finite output."""
        for part in evidence.parts:
            if not device_sync.all_finite(part.scores):
                broken = int((~torch.isfinite(part.scores)).flatten(2).any(dim=2).sum())
                raise NonFiniteOutputError(
                    f"the model returned NaN or infinity without {broken} of the windows; the "
                    "finished result is in this error's .result, with NaN "
                    "there. Check the prior's fills and the model's precision",
                    result,
                )
        return result


def _errors(errors: Tensor | None, scores: Tensor, part: Part) -> Tensor | None:
    """Standard errors (N, W, columns), 0 where nothing was sampled: of true contents in the empty
    context, and of regions that an example does not have."""
    if errors is None:
        return None
    certain = part.regions.absent(len(errors)).to(errors.device).unsqueeze(-1)
    if part.context == "empty":
        certain = certain | scores.isfinite()
    return errors.where(~certain, 0)


def _with_absent(scores: Tensor, reference: Tensor, regions: Regions) -> Tensor:
    """Scores (N, W, columns) in which regions that an example does not have change nothing."""
    absent = regions.absent(len(scores)).to(scores.device)
    return torch.where(absent.unsqueeze(-1), reference.unsqueeze(1), scores)
