"""The map to show first: several sizes, both contexts and the last feature map together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from captum_pda._captum import (
    TargetType,
    TensorOrTupleOfTensorsGeneric,
    captum_method,
    method_repr,
)
from captum_pda.engines import Engine
from captum_pda.errors import warn_user
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.methods.base import Pace, PerturbationPDA
from captum_pda.methods.layer import layer_call, layer_depth, layer_setting
from captum_pda.model.call import ModelCall
from captum_pda.model.layers import LayerCall, NoFeatureMapError, named_layer
from captum_pda.model.measures import Measure
from captum_pda.priors import MapMeanPrior, PatchPrior
from captum_pda.priors.field import DEFAULT_PRIOR
from captum_pda.regions.choice import Extents, RegionChoice
from captum_pda.regions.protocol import Windows
from captum_pda.regions.superpixels import Granularities
from captum_pda.regions.windows import Scales
from captum_pda.running.plan import Contents, Part, Request, conditional_mean, plan_parts
from captum_pda.running.sampling import Sampling

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

#: Of a feature map, each place by itself.
EACH_PLACE = RegionChoice(sliding_window_shapes=1)


class PDA(PerturbationPDA):
    """Prediction difference analysis of several sizes, in both contexts, and of features.

    Three questions are asked of each region: what is lost when it goes and all else is seen
    (context "full"), what it says by itself (context "empty"), and what the last feature map
    says there. A question's map M_q is the mean over the sizes of its regions, and the map is the
    weighted mean over the questions,

        M = sum_q (M_q / s_q) / sum_q (1 / s_q),

    with s_q the standard deviation of M_q over the pixels. So it stays in bits: positive values
    speak for the class, negative ones against it. A model without a spatial feature map,
    and one with several input tensors, is asked the first two questions only, and a warning says
    so once.

    Args:
        forward_func: the model, or any function of the inputs that returns one row of outputs per
            example.
        layer: the module, or its name, whose feature map is asked. Default: the last one, as for
            LayerPDA; ``layer_name`` tells which it was.
        prior, output, measure, engine, process_group: as for EfficientPDA.

    Example::

        >>> attributions = PDA(model).attribute(image, target=3)

        >>> evidence = PDA(model).evidence(image)         # every class, from the same passes
        >>> evidence.contrast(husky, wolf)                # why "husky" rather than "wolf"?
        >>> evidence.in_context("empty").attribution(husky)
        >>> evidence.parts                                # each size, context and depth
        >>> strongest_regions(evidence, husky)
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        layer: nn.Module | str | None = None,
        prior: PatchPrior | None = None,
        output: str = "logits",
        measure: str | Measure = "weight_of_evidence",
        engine: str | Engine = "auto",
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(forward_func, prior, output, measure, engine, process_group)
        if layer is not None:
            named_layer(forward_func, layer)  # refuses what is no layer
        self.layer = layer
        #: The layer whose feature map was asked last; None if there was none.
        self.layer_name: str | None = None
        self._has_told = False

    def __repr__(self) -> str:
        return method_repr(self, DEFAULT_PRIOR, layer=self.layer_name or self.layer or "last")

    def settings(self) -> dict[str, object]:
        """What the evidence depends on beside the model and the arguments, as plain values."""
        layer = layer_setting(self.forward_func, self.layer)
        return {**super().settings(), "layer": layer, "layer_prior": MapMeanPrior().settings()}

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
        context: str = "both",
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        superpixels: Granularities = None,
        effort: str = "standard",
    ) -> TensorOrTupleOfTensorsGeneric:
        """The evidence of each pixel for and against the target.

        Args:
            inputs, target, additional_forward_args, sliding_window_shapes, strides,
                perturbations_per_eval, show_progress, scales, feature_mask, superpixels: as in
                ``EfficientPDA.attribute``. Regions are those of the input; of the feature map,
                each place is asked by itself.
            context: which of the first two questions are asked of the input: "full" (what is lost
                without a region), "empty" (what it says by itself) or "both".
            effort: how many passes the default regions take. "standard" has about 12, 25, 60, 120
                and 250 superpixels in the full context and the first three in the empty one, about
                600 passes; "quick" the first three in both, about 200.

        Returns:
            Attributions of the inputs' shape; all channels of a pixel share one value.
        """
        regions = RegionChoice(
            sliding_window_shapes,
            strides,
            scales,
            feature_mask,
            superpixels=superpixels,
            effort=effort,
        )
        request = Request(inputs, target, additional_forward_args, regions, context)
        evidence = self._explain(request, Pace(perturbations_per_eval, show_progress))
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
        scales: Scales = None,
        context: str = "both",
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        superpixels: Granularities = None,
        effort: str = "standard",
    ) -> WindowEvidence:
        """The evidence of each region for every output, from the forward passes of one map.

        Arguments as in ``attribute``. Memory grows with regions times outputs.
        """
        regions = RegionChoice(
            sliding_window_shapes,
            strides,
            scales,
            feature_mask,
            superpixels=superpixels,
            effort=effort,
        )
        request = Request(inputs, None, additional_forward_args, regions, context, True)
        evidence = self._explain(request, Pace(perturbations_per_eval, show_progress))
        return cast(WindowEvidence, self._check_finite(evidence, evidence))

    def _parts(self, request: Request) -> tuple[Part, ...]:
        """Regions of the inputs in both contexts, and each place of the last feature map."""
        depth = self._input_depth(request)
        parts = plan_parts(depth, request.regions, request.context)
        call = self._feature_call(cast(ModelCall, depth.call))
        self.layer_name = None if call is None else call.layer.name
        if call is None:
            return parts
        features = layer_depth(call, Contents(MapMeanPrior(), self._needs, self._fills))
        return parts + plan_parts(features, EACH_PLACE, "full")

    def _feature_call(self, call: ModelCall) -> LayerCall | None:
        """The model from its last feature map on, if it has one that goes with the input."""
        try:
            if len(call.inputs) > 1:
                raise NoFeatureMapError("there are several input tensors")
            found = layer_call(call, self.forward_func, self.layer, at_input=False)
        except NoFeatureMapError as error:
            if not self._has_told:
                warn_user(f"PDA goes without the features of a layer: {error}")
            self._has_told = True
            return None
        if len(found.inputs) > 1:
            raise ValueError(
                f"layer {found.layer.name!r} returns {len(found.inputs)} feature maps; choose one "
                "that returns a single tensor, or use LayerPDA"
            )
        return found

    def _fills(self, prior: Any, example: Tensor, windows: Windows, sampling: Sampling) -> Tensor:
        return conditional_mean(prior, example, windows, sampling)
