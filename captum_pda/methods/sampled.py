"""Algorithm 1: the prediction averaged over samples of each window."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType, TensorOrTupleOfTensorsGeneric, captum_method
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.methods.base import Pace, PerturbationPDA
from captum_pda.model.inputs import check_count, check_tolerance
from captum_pda.regions.choice import Extents, RegionChoice
from captum_pda.regions.protocol import Windows
from captum_pda.regions.superpixels import Granularities
from captum_pda.regions.windows import Scales, WindowGrid
from captum_pda.running.plan import Request, Tolerance
from captum_pda.running.sampling import Sampling


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
        n_samples: int = 10,
        generator: torch.Generator | None = None,
        tolerance: float | None = None,
        scales: Scales = None,
        context: str = "full",
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        superpixels: Granularities = None,
    ) -> TensorOrTupleOfTensorsGeneric:
        """The evidence of each pixel for and against the target.

        Args:
            inputs, target, additional_forward_args, sliding_window_shapes, strides,
                perturbations_per_eval, show_progress, scales, context, feature_mask,
                superpixels: as in ``EfficientPDA.attribute``. In the empty context a region's true
                content is put in and what surrounds it is at its expectation, so there is nothing
                to sample.
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
        regions = RegionChoice(
            sliding_window_shapes, strides, scales, feature_mask, superpixels=superpixels
        )
        request = Request(inputs, target, additional_forward_args, regions, context)
        evidence = self._explain(
            request,
            Pace(perturbations_per_eval, show_progress),
            _sampling(n_samples, generator),
            Tolerance(check_tolerance(tolerance)),
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
        scales: Scales = None,
        context: str = "full",
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        superpixels: Granularities = None,
    ) -> WindowEvidence:
        """The evidence of each region for every output, from the forward passes of one map.

        Arguments as in ``attribute``. A tolerance bounds the standard error for one output, and
        the other outputs get the same samples: ``tolerance_target``, as ``target`` of
        ``attribute``, or without one the predicted class of each example.
        ``evidence.standard_error(target)`` and ``evidence.n_drawn`` report what was reached.
        ``windows`` as in ``EfficientPDA.evidence``. Memory grows with windows times outputs.
        """
        regions = RegionChoice(
            sliding_window_shapes, strides, scales, feature_mask, windows, superpixels
        )
        request = Request(inputs, None, additional_forward_args, regions, context, True)
        evidence = self._explain(
            request,
            Pace(perturbations_per_eval, show_progress),
            _sampling(n_samples, generator, keep_errors=True),
            Tolerance(check_tolerance(tolerance), tolerance_target),
        )
        return cast(WindowEvidence, self._check_finite(evidence, evidence))

    def settings(self) -> dict[str, object]:
        """As for EfficientPDA, with the seed that draws follow without a generator."""
        return {**super().settings(), "seed": torch.initial_seed()}

    def _fills(self, prior: Any, example: Tensor, windows: Windows, sampling: Sampling) -> Tensor:
        generator = sampling.generator(windows, example.device)
        return cast(Tensor, prior.sample(example, windows, sampling.n_samples, generator))


def _sampling(
    n_samples: int, generator: torch.Generator | None, keep_errors: bool = False
) -> Sampling:
    n_samples = check_count("n_samples", n_samples)
    return Sampling(n_samples, device_sync.draw_seed(generator), keep_errors and n_samples > 1)
