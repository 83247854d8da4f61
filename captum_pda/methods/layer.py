"""Prediction difference analysis in depth: regions of a layer's feature map are replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from captum_pda._captum import LayerAttribution, TargetType, captum_method, method_repr
from captum_pda.engines import DenseEngine, EngineReport
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.methods.base import Pace, PerturbationPDA
from captum_pda.model.call import ModelCall
from captum_pda.model.layers import LayerCall, last_feature_map, named_layer
from captum_pda.model.measures import Measure
from captum_pda.priors import MapMeanPrior, PatchPrior
from captum_pda.regions.choice import Extents, RegionChoice
from captum_pda.regions.protocol import Windows
from captum_pda.regions.windows import Scales
from captum_pda.running.plan import Contents, Depth, Part, Request, conditional_mean, plan_parts
from captum_pda.running.sampling import Sampling

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, eq=False)
class LayerRequest(Request):
    """What a user asks of a layer.

    Args:
        at_layer_input: whether what the layer is called with is meant.
    """

    at_layer_input: bool = False


class LayerPDA(LayerAttribution, PerturbationPDA):  # type: ignore[misc]
    """Prediction difference analysis of a layer's feature map, beside Captum's LayerGradCam.

    Replaces each place w of the map h (or each window of places) by what the rest of the map lets
    one expect, h'_w, and reports

        log2 odds(c|h) - log2 odds(c|h'),

    averaged over the windows that cover a place. Only what follows the layer is run, once for all
    classes: exact where GradCAM is linear, and as cheap.

    Args:
        forward_func: the model, or a function that calls it.
        layer: a module of it, or the name of one, whose output is (N, C, *space), the tokens of a
            vision transformer (N, tokens, C), which are taken as a grid without the class token,
            or a tuple with such tensors. Default: the last layer with a spatial feature map that
            has a say in the outputs; ``layer_name`` tells which it was.
        prior: what could stand in a window of the map, as for EfficientPDA. Default: MapMeanPrior,
            the mean of each channel over the other places. ``GaussianPatchPrior(3,
            channels="independent").fit(maps)`` conditions each channel by itself on its
            neighbours.
        output, measure, process_group: as for EfficientPDA.

    Example::

        >>> pda = LayerPDA(model)
        >>> evidence = pda.attribute(image, target=3)
        >>> evidence.shape, pda.layer_name
        (torch.Size([1, 512, 7, 7]), 'layer4')
        >>> LayerAttribution.interpolate(evidence, (224, 224), "bilinear")
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        layer: nn.Module | str | None = None,
        prior: PatchPrior | None = None,
        output: str = "logits",
        measure: str | Measure = "weight_of_evidence",
        process_group: ProcessGroup | None = None,
    ) -> None:
        LayerAttribution.__init__(self, forward_func, layer)
        own = MapMeanPrior() if prior is None else prior
        PerturbationPDA.__init__(
            self, forward_func, own, output, measure, DenseEngine(), process_group
        )
        if layer is not None:
            named_layer(forward_func, layer)  # refuses what is no layer
        #: The layer that was explained last; with ``layer=None``, the one that was found.
        self.layer_name: str | None = None
        self._layer_report: EngineReport | None = None

    def __repr__(self) -> str:
        return method_repr(self, self.prior, layer=self.layer_name or self.layer)

    def settings(self) -> dict[str, object]:
        """What the evidence depends on beside the model and the arguments, as plain values."""
        return {**super().settings(), "layer": layer_setting(self.forward_func, self.layer)}

    @property
    def engine_report(self) -> EngineReport | None:
        """Whether only the rest of the model was run, and if not, why. None before a first run."""
        return self._layer_report

    @captum_method
    @torch.no_grad()
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: TargetType = None,
        additional_forward_args: object = None,
        sliding_window_shapes: Extents = None,
        strides: Extents = None,
        perturbations_per_eval: int | None = None,
        show_progress: bool = False,
        scales: Scales = None,
        context: str = "full",
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        attribute_to_layer_input: bool = False,
    ) -> Tensor | tuple[Tensor, ...]:
        """The evidence of each place of the layer's feature map for and against the target.

        Args:
            inputs, target, additional_forward_args, perturbations_per_eval, show_progress: as in
                ``EfficientPDA.attribute``.
            sliding_window_shapes, strides, scales, feature_mask: regions of the feature map, as
                ``EfficientPDA.attribute`` has them of the input. Default: each place by itself.
            context: "full", "empty" or "both", as in ``EfficientPDA.attribute``; nothing seen is
                the map's mean.
            attribute_to_layer_input: whether to explain what the layer is called with, in place of
                what it returns.

        Returns:
            Attributions of the shape of the layer's feature map, (N, C, *space), a tuple of them
            where the layer returns one; all channels of a place share one value.
            ``LayerAttribution.interpolate`` brings them to the input's shape.
        """
        regions = _places(RegionChoice(sliding_window_shapes, strides, scales, feature_mask))
        request = LayerRequest(
            inputs,
            target,
            additional_forward_args,
            regions,
            context,
            at_layer_input=attribute_to_layer_input,
        )
        evidence = self._explain(request, Pace(perturbations_per_eval, show_progress))
        attributions: Tensor | tuple[Tensor, ...] = self._check_finite(
            evidence, evidence.attribution()
        )
        return attributions

    def evidence(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        additional_forward_args: object = None,
        sliding_window_shapes: Extents = None,
        strides: Extents = None,
        perturbations_per_eval: int | None = None,
        show_progress: bool = False,
        scales: Scales = None,
        context: str = "full",
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        attribute_to_layer_input: bool = False,
    ) -> WindowEvidence:
        """The evidence of each region of the feature map for every output; ``inputs`` of what is
        returned are the feature maps. Arguments as in ``attribute``."""
        regions = _places(RegionChoice(sliding_window_shapes, strides, scales, feature_mask))
        request = LayerRequest(
            inputs,
            None,
            additional_forward_args,
            regions,
            context,
            all_outputs=True,
            at_layer_input=attribute_to_layer_input,
        )
        evidence = self._explain(request, Pace(perturbations_per_eval, show_progress))
        found: WindowEvidence = self._check_finite(evidence, evidence)
        return found

    def _parts(self, request: Request) -> tuple[Part, ...]:
        """Regions of the layer's feature maps."""
        at_input = isinstance(request, LayerRequest) and request.at_layer_input
        call = layer_call(self._model_call(request), self.forward_func, self.layer, at_input)
        self.layer_name, self._layer_report = call.layer.name, layer_report(call)
        depth = layer_depth(call, Contents(self.prior, self._needs, self._fills))
        return plan_parts(depth, request.regions, request.context)

    def _fills(self, prior: Any, example: Tensor, windows: Windows, sampling: Sampling) -> Tensor:
        return conditional_mean(prior, example, windows, sampling)


def layer_call(
    call: ModelCall, forward_func: Callable[..., Any], layer: nn.Module | str | None, at_input: bool
) -> LayerCall:
    """The model as a function of a layer's feature maps; of its last one, where none is named."""
    with torch.no_grad():
        call.unperturbed()  # says what is wrong with the inputs, before a layer is looked for
        if layer is not None:
            return LayerCall(call, named_layer(forward_func, layer, at_input))
        found = last_feature_map(forward_func, call)
        return LayerCall(call, replace(found.layer, at_input=True)) if at_input else found


def layer_depth(call: LayerCall, contents: Contents) -> Depth:
    """A layer's feature maps, as a place to hide regions in."""
    name = call.layer.name
    return Depth("input (layer)" if name == "input" else name, call, contents, DenseEngine())


def layer_setting(forward_func: Callable[..., Any], layer: nn.Module | str | None) -> str:
    """What to call the layer that is to be explained."""
    return "the last feature map" if layer is None else named_layer(forward_func, layer).name


def layer_report(call: LayerCall) -> EngineReport:
    """What is run for each copy of a layer's feature maps."""
    name = call.layer.name
    if call.runs_rest_only:
        return EngineReport("dense", f"only what follows {name} is run for each copy")
    return EngineReport(
        "dense",
        f"the whole model is run for each copy, since it looks at its batch, or joins what {name} "
        "returns with earlier tensors",
    )


def _places(choice: RegionChoice) -> RegionChoice:
    """The regions that were chosen; each place by itself, where none were."""
    chosen = choice.sliding_window_shapes, choice.scales, choice.feature_mask
    if all(each is None for each in chosen):
        return replace(choice, sliding_window_shapes=1)
    return choice
