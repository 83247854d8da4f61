"""Algorithm 1: the prediction averaged over samples of each window."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType, TensorOrTupleOfTensorsGeneric, log_usage
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.execution.loop import Fill
from captum_pda.methods.perturbation import DrawFills, PerturbationPDA
from captum_pda.prediction.inputs import check_count, check_tolerance
from captum_pda.regions.arguments import Extents
from captum_pda.regions.window_grid import WindowGrid


class SampledPDA(PerturbationPDA):
    """Prediction difference analysis with samples (Algorithm 1; Zintgraf et al. 2017).

    Draws S contents of each window given its surroundings, averages the predicted probabilities
    p(c|x without w) = 1/S sum_s p(c|x_s), and reports

        log2 odds(c|x) - log2 odds(c|x without w),

    averaged over the windows that cover a pixel. The constructor's arguments are those of
    PerturbationPDA.

    Example::

        >>> attributions = SampledPDA(model).attribute(image, target=3, n_samples=10)
    """

    _needs = "sample"

    @log_usage()  # type: ignore[untyped-decorator]
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
    ) -> TensorOrTupleOfTensorsGeneric:
        """The evidence of each pixel for and against the target.

        Args:
            inputs, target, additional_forward_args, sliding_window_shapes, strides,
                perturbations_per_eval, show_progress: as in ``EfficientPDA.attribute``.
            n_samples: how many contents to draw for each window; with a tolerance, at most.
            generator: makes the draws reproducible, and different from call to call. Without one
                they follow PyTorch's initial seed: the same seed gives the same map, and the
                global random state stays as it was. Every example of a batch gets the draws that
                it would get alone, and the batch size does not change them.
            tolerance: stop sampling a window once the standard error of its value is under this
                many bits (or units of another measure or raw output) with 95% confidence. A window
                gets 5 samples or more, and the same ones that it would get without a tolerance.
                What samples have not shown cannot be known: a rare content that changes
                everything may be missed.

        Returns:
            Attributions of the inputs' shape; all channels of a pixel share one value.
        """
        n_samples = check_count("n_samples", n_samples)
        evidence = self._explain(
            inputs,
            target,
            additional_forward_args,
            sliding_window_shapes,
            strides,
            perturbations_per_eval,
            show_progress,
            draw=_samples(n_samples),
            seed=device_sync.draw_seed(generator),
            n_samples=n_samples,
            tolerance=check_tolerance(tolerance),
        )
        attributions = self._check_finite(evidence, evidence.attribution())
        return cast(TensorOrTupleOfTensorsGeneric, attributions)

    def evidence(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        additional_forward_args: object = None,
        sliding_window_shapes: Extents = None,
        strides: Extents = None,
        perturbations_per_eval: int | None = None,
        show_progress: bool = False,
        n_samples: int = 10,
        generator: torch.Generator | None = None,
        tolerance: float | None = None,
        tolerance_target: TargetType = None,
        windows: WindowGrid | tuple[WindowGrid, ...] | None = None,
    ) -> WindowEvidence:
        """The evidence of each window for every output, from the forward passes of one map.

        Arguments as in ``attribute``. A tolerance bounds the standard error for one output, and
        the other outputs get the same samples: ``tolerance_target``, as ``target`` of
        ``attribute``, or without one the predicted class of each example.
        ``evidence.standard_error(target)`` and ``evidence.n_drawn`` report what was reached.
        ``windows`` as in ``EfficientPDA.evidence``. Memory grows with windows times outputs.
        """
        n_samples = check_count("n_samples", n_samples)
        evidence = self._explain(
            inputs,
            None,
            additional_forward_args,
            sliding_window_shapes,
            strides,
            perturbations_per_eval,
            show_progress,
            every=True,
            windows=windows,
            draw=_samples(n_samples),
            seed=device_sync.draw_seed(generator),
            n_samples=n_samples,
            tolerance=check_tolerance(tolerance),
            tolerance_target=tolerance_target,
        )
        return cast(WindowEvidence, self._check_finite(evidence, evidence))


def _samples(n_samples: int) -> DrawFills:
    def draw(prior: Any, example: Tensor, seed: int) -> Fill:
        return lambda grid: prior.sample(
            example[0], grid, n_samples, device_sync.generator_for(seed, grid.first, example.device)
        )

    return draw
