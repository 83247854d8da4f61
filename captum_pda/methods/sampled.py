"""Algorithm 1: the prediction averaged over samples of each window."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from captum_pda._captum import TargetType, TensorOrTupleOfTensorsGeneric, captum_method
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.methods.base import PerturbationPDA, arguments_of
from captum_pda.methods.efficient import EfficientPDA
from captum_pda.regions.choice import Extents, OwnRegions
from captum_pda.regions.protocol import Windows
from captum_pda.regions.superpixels import Granularities
from captum_pda.regions.windows import Scales
from captum_pda.running.sampling import Sampling


@arguments_of(PerturbationPDA)
class SampledPDA(PerturbationPDA):
    """Prediction difference analysis with samples (Algorithm 1; Zintgraf et al. 2017).

    Draws S contents of each window given its surroundings, averages the predicted probabilities
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
        scales: Scales = None,
        context: str = "full",
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        superpixels: Granularities = None,
        effort: str | int = "standard",
        regions: OwnRegions = None,
    ) -> TensorOrTupleOfTensorsGeneric:
        """The evidence of each pixel for and against the target.

        By default images and volumes from 64 pixels on are divided into superpixels; smaller ones
        and time series into windows of several sizes in proportion to the shorter side.
        ``sliding_window_shapes=10, strides=1`` is the papers' setting.

        Args:
            n_samples: how many contents to draw for each region; with a tolerance, at most.
            generator: makes the draws reproducible, and different from call to call. Without one
                they follow PyTorch's initial seed: the same seed gives the same map, and the
                global random state stays as it was. Every example of a batch gets the draws that
                it would get alone, and the batch size does not change them.
            tolerance: stop sampling a region once the standard error of its value is under this
                many bits (or units of another measure or raw output) with 95% confidence. A region
                gets 5 samples or more, and the same ones that it would get without a tolerance.
                What samples have not shown cannot be known: a rare content that changes
                everything may be missed.
            context: "full" asks what is lost without a region, with all else seen; "empty" what it
                says by itself, with nothing else seen; "both" asks both questions. In the empty
                context a region's true content is put in, so there is nothing to sample.

        Returns:
            Attributions of the inputs' shape; all channels of a pixel share one value.
        """
        return cast(TensorOrTupleOfTensorsGeneric, self._map(locals()))

    @arguments_of(attribute)
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
        scales: Scales = None,
        context: str = "full",
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        superpixels: Granularities = None,
        effort: str | int = "standard",
        regions: OwnRegions = None,
    ) -> WindowEvidence:
        """The evidence of each region for every output, from the forward passes of one map.

        ``evidence.standard_error(target)`` and ``evidence.n_drawn`` report what was reached. Memory
        grows with regions times outputs.

        Args:
            tolerance_target: the output whose standard error the tolerance bounds, as ``target`` of
                ``attribute``; the others get the same samples. Default: the predicted class of
                each example.
        """
        return self._all_evidence(locals())

    def settings(self) -> dict[str, object]:
        """As for EfficientPDA, with the seed that draws follow without a generator."""
        return {**super().settings(), "seed": torch.initial_seed()}

    def _fills(self, prior: Any, example: Tensor, windows: Windows, sampling: Sampling) -> Tensor:
        generator = sampling.generator(windows, example.device)
        return cast(Tensor, prior.sample(example, windows, sampling.n_samples, generator))
