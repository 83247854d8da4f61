"""Prediction difference analysis in depth: regions of a layer's feature map are replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from captum_pda._captum import LayerAttribution, TargetType, captum_method, method_repr
from captum_pda.engines import DenseEngine, EngineReport
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.methods.base import PerturbationPDA, arguments_of
from captum_pda.methods.efficient import EfficientPDA
from captum_pda.model.call import ModelCall
from captum_pda.model.layers import LayerCall, last_feature_map, named_layer
from captum_pda.model.measures import Measure
from captum_pda.model.outputs import OutputKind
from captum_pda.priors import MapMeanPrior, PatchPrior
from captum_pda.regions.choice import Extents
from captum_pda.regions.windows import Scales
from captum_pda.running.plan import Fill, Part, Place, parts_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@arguments_of(PerturbationPDA)
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
            the outputs depend on; ``layer_name`` tells which it was.
        prior: what could stand in a window of the map. Default: MapMeanPrior, the mean of each
            channel over the other places. ``GaussianPatchPrior(3, channels="independent")
            .fit(maps)`` conditions each channel by itself on its neighbours.

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
        output: str | OutputKind = "logits",
        measure: str | Measure = "weight_of_evidence",
        process_group: ProcessGroup | None = None,
    ) -> None:
        LayerAttribution.__init__(self, forward_func, layer)
        own = MapMeanPrior() if prior is None else prior
        PerturbationPDA.__init__(
            self, forward_func, own, output, measure, DenseEngine(), process_group
        )
        if layer is not None:
            named_layer(forward_func, layer)  # checks that it is one
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
    @arguments_of(EfficientPDA.attribute)
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

        Regions are those of the feature map; by default, each place by itself.

        Args:
            context: "full" asks what is lost without a region, with all else seen; "empty" what it
                says by itself, where nothing seen is the map's mean; "both" asks both questions.
            attribute_to_layer_input: whether to explain what the layer is called with, in place of
                what it returns.

        Returns:
            Attributions of the shape of the layer's feature map, (N, C, *space), a tuple of them
            where the layer returns one; all channels of a place share one value.
            ``LayerAttribution.interpolate`` brings them to the input's shape.
        """
        evidence = self._explain(
            inputs,
            target,
            additional_forward_args,
            perturbations_per_eval,
            show_progress,
            at_layer_input=attribute_to_layer_input,
            context=context,
            sliding_window_shapes=sliding_window_shapes,
            strides=strides,
            scales=scales,
            feature_mask=feature_mask,
        )
        attributions: Tensor | tuple[Tensor, ...] = self._check_finite(
            evidence, evidence.attribution()
        )
        return attributions

    @arguments_of(attribute)
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
        """The evidence of each region of the feature map for every output; the ``inputs`` of what
        is returned are the feature maps."""
        evidence = self._explain(
            inputs,
            None,
            additional_forward_args,
            perturbations_per_eval,
            show_progress,
            all_outputs=True,
            at_layer_input=attribute_to_layer_input,
            context=context,
            sliding_window_shapes=sliding_window_shapes,
            strides=strides,
            scales=scales,
            feature_mask=feature_mask,
        )
        found: WindowEvidence = self._check_finite(evidence, evidence)
        return found

    def _parts(
        self, call: ModelCall, at_layer_input: bool = False, **arguments: Any
    ) -> tuple[Part, ...]:
        """Regions of the layer's feature maps; each place by itself, where none are asked for."""
        layer = layer_call(call, self.forward_func, self.layer, at_layer_input)
        self.layer_name, self._layer_report = layer.layer.name, layer_report(layer)
        chosen = ("sliding_window_shapes", "scales", "feature_mask")
        if all(arguments[name] is None for name in chosen):
            arguments["sliding_window_shapes"] = 1
        return parts_of(layer_place(layer, self.prior, self._needs, self._fills), **arguments)


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


def layer_place(call: LayerCall, prior: Any, needs: str, fill: Fill) -> Place:
    """A layer's feature maps, as a place to hide regions in."""
    name = "input (layer)" if call.layer.name == "input" else call.layer.name
    return Place(name, call, DenseEngine(), prior, needs, fill)


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
