"""What SampledPDA and EfficientPDA share: replace each window, and compare the predictions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import PerturbationAttribution, TargetType, readable_name
from captum_pda.distributed.ranks import Ranks
from captum_pda.engines import Engine, EngineReport, engine_for
from captum_pda.errors import NonFiniteOutputError, carry
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.execution.loop import Fill, read_unperturbed, scores_without_windows
from captum_pda.execution.rank_chunks import agree, bring_together
from captum_pda.execution.sampling_error import StoppingRule
from captum_pda.execution.window_scores import SampledScores
from captum_pda.prediction.inputs import check_choice, check_count, check_inputs
from captum_pda.prediction.measures import Measure, measure_for
from captum_pda.prediction.model_call import ModelCall, evaluation_mode
from captum_pda.prediction.readout import OUTPUTS, Readout
from captum_pda.prediction.targets import target_columns, watched_columns
from captum_pda.priors import PatchPrior, prior_for
from captum_pda.regions.arguments import Extents, given_grids, make_grids
from captum_pda.regions.window_grid import WindowGrid

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: Makes the fills of windows from a prior, the example they lie in, and a seed.
DrawFills = Callable[[Any, Tensor, int], Fill]


class PerturbationPDA(PerturbationAttribution):  # type: ignore[misc]
    """Prediction difference analysis by replacing each window; see SampledPDA and EfficientPDA.

    Args:
        forward_func: the model, or any function of the inputs that returns one row of outputs an
            example.
        prior: what could stand in a window (a GaussianPatchPrior, MarginalPrior, ConstantPrior or
            anything that follows PatchPrior). Default: a stationary Gaussian fitted to each
            example by itself.
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

    @classmethod
    def get_name(cls) -> str:
        """The name for titles: "Efficient PDA"."""
        return readable_name(cls.__name__)

    @property
    def engine_report(self) -> EngineReport | None:
        """Which engine ran last, and why: ``print(pda.engine_report)``. None before the first run,
        and for an engine of your own that keeps no ``report``."""
        return getattr(self.engine, "report", None)

    def _explain(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: TargetType,
        additional_forward_args: object,
        sliding_window_shapes: Extents,
        strides: Extents,
        perturbations_per_eval: int | None,
        show_progress: bool,
        *,
        draw: DrawFills,
        seed: int = 0,
        every: bool = False,
        windows: WindowGrid | tuple[WindowGrid, ...] | None = None,
        n_samples: int = 1,
        tolerance: float | None = None,
        tolerance_target: TargetType = None,
    ) -> WindowEvidence:
        """Evidence for every output, or (as the only column) for each example's target."""
        tensors = check_inputs(inputs)
        if windows is None:
            grids = make_grids(tensors, sliding_window_shapes, strides)
        else:
            grids = given_grids(tensors, windows)
        if perturbations_per_eval is not None:
            perturbations_per_eval = check_count("perturbations_per_eval", perturbations_per_eval)
        call = ModelCall(self.forward_func, tensors, additional_forward_args)
        ranks = Ranks(self.process_group)
        with evaluation_mode(self.forward_func):
            start = time.perf_counter()
            # Not in inference mode: what a model caches in its first pass must stay usable.
            with ranks.failing_together(), torch.no_grad():
                outputs = call.unperturbed()
                shape = tuple(outputs.shape[1:])
                columns = None if every else target_columns(target, len(outputs), shape)
                readout = Readout.of(self.output, outputs)
            # Reading the outputs has waited for the device.
            seconds_a_pass = (time.perf_counter() - start) / len(outputs)
            scores = read_unperturbed(readout, outputs, columns)
            stopping = None
            if tolerance is not None:
                bounded = [0] * len(scores)
                if every:
                    bounded = watched_columns(
                        tolerance_target, scores, shape, self.output, "tolerance_target"
                    )
                stopping = StoppingRule(tolerance, bounded, self.output, self.measure)
            keep_errors = every and n_samples > 1
            task = (grids, shape, columns, every, n_samples, perturbations_per_eval, tolerance)
            seed = agree((*task, self.output, tensors[0].device.type), tensors, seed, ranks)
            known: dict[int, SampledScores] = {}

            def all_known() -> dict[int, SampledScores]:
                """What is known of the windows of every tensor, by any rank."""
                nothing = SampledScores(
                    scores, scores if keep_errors else None, scores.new_zeros(0, dtype=torch.int64)
                )
                return {
                    n: bring_together(
                        known.get(n) or SampledScores.none_yet(nothing, len(outputs), len(grid)),
                        ranks,
                    )
                    for n, grid in enumerate(grids)
                }

            def evidence(sampled: dict[int, SampledScores]) -> WindowEvidence:
                return WindowEvidence(
                    tensors,
                    grids,
                    scores,
                    tuple(part.scores for part in sampled.values()),
                    shape if every else (),
                    self.output,
                    self.measure,
                    isinstance(inputs, tuple),
                    tuple(part.errors for part in sampled.values() if part.errors is not None),
                    tuple(part.n_drawn for part in sampled.values()),
                )

            shows = show_progress and ranks.rank == 0
            try:
                with ranks.failing_together():
                    for position, so_far in scores_without_windows(
                        call,
                        tensors,
                        grids,
                        lambda example, grid: draw(
                            prior_for(self.prior, self._needs, example[0], grid), example, seed
                        ),
                        self.engine,
                        readout,
                        columns,
                        math.prod(shape) if every else 1,
                        n_samples,
                        perturbations_per_eval,
                        self.get_name() if shows else None,
                        seconds_a_pass,
                        keep_errors,
                        stopping,
                        ranks,
                    ):
                        known[position] = so_far
            except BaseException as error:
                if not isinstance(error, Exception) or ranks.lost:
                    ranks = Ranks()  # the others are not here to tell what they know
                if known or ranks.count > 1:
                    unfinished = evidence(all_known())
                    carry(error, unfinished if every else unfinished.partial_attribution())
                raise
            found = all_known()
        readout.check_saturation(scores, *(part.scores for part in found.values()))
        return evidence(found)

    @staticmethod
    def _check_finite(evidence: WindowEvidence, result: Any) -> Any:
        """Hand on the result, unless some window had no finite output."""
        for scores in evidence.scores_without:
            if not device_sync.all_finite(scores):
                broken = int((~torch.isfinite(scores)).flatten(2).any(dim=2).sum())
                raise NonFiniteOutputError(
                    f"the model returned NaN or infinity without {broken} of the windows; the "
                    "finished result is in this error's .result, with NaN "
                    "there. Check the prior's fills and the model's precision",
                    result,
                )
        return result
