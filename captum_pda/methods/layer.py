"""Prediction difference analysis of a layer: regions of its feature map are replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from captum_pda._captum import LayerAttribution, TargetType, captum_method
from captum_pda.engines import DenseEngine, EngineReport
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.methods.perturbation import (
    EfficientPDA,
    PerturbationPDA,
    arguments_of,
    without_target,
)
from captum_pda.model.call import ModelCall
from captum_pda.model.layers import LayerCall, last_feature_map, named_layer
from captum_pda.model.measures import Measure
from captum_pda.model.outputs import OutputKind
from captum_pda.priors import MapMeanPrior, PatchPrior
from captum_pda.regions.choice import Extents
from captum_pda.regions.windows import Scales
from captum_pda.running.plan import Part, Place, parts_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class AsksLayer(PerturbationPDA):
    """A method that explains the feature map of a layer, by default the last one."""

    layer: nn.Module | str | None
    #: The layer of the last run; with ``layer=None``, the one that was found.
    layer_name: str | None = None

    def settings(self) -> dict[str, object]:
        layer = "the last feature map"
        if self.layer is not None:
            layer = named_layer(self.forward_func, self.layer).name
        return {**super().settings(), "layer": layer}

    def _layer_place(self, call: ModelCall, prior: Any, at_input: bool = False) -> Place:
        with torch.no_grad():
            if self.layer is None:
                found = last_feature_map(self.forward_func, call)
                if at_input:
                    found = LayerCall(call, replace(found.layer, at_input=True))
            else:
                found = LayerCall(call, named_layer(self.forward_func, self.layer, at_input))
        name = self.layer_name = found.layer.name
        reason = f"only what follows {name} is run for each copy"
        if not found.runs_rest_only:
            reason = (
                "the whole model is run for each copy, since it gave other outputs where modules "
                f"before {name} returned again what they had returned once"
            )
        engine = DenseEngine()
        engine.report = EngineReport("dense", reason)
        title = "input (layer)" if name == "input" else name
        return Place(title, found, engine, prior, self._needs, self._fills)


@arguments_of(PerturbationPDA)
class LayerPDA(LayerAttribution, AsksLayer):  # type: ignore[misc]
    """Prediction difference analysis of a layer's feature map, similar to Captum's LayerGradCam.

    Replaces each place w of the map h (or each window of places) by its prediction from the rest of
    the map, h'_w, and reports

        log2 odds(c|h) - log2 odds(c|h'),

    averaged over the windows that cover a place. Only the rest of the model is run, once for all
    classes. Exact where GradCAM is linear, and as cheap.

    Args:
        forward_func: the model, or a function that calls it.
        layer: a module or the name of one, whose output is (N, C, *space), or the tokens of a
            vision transformer (N, tokens, C), used as a grid without the class token, or a tuple
            with such tensors. Default: the last layer with a spatial feature map that influences
            the outputs; its name is then in ``layer_name``.
        prior: predicts windows of the map. Default: MapMeanPrior, the mean of each channel over the
            other places. ``GaussianPatchPrior(3, channels="independent").fit(maps)`` predicts each
            channel from its neighbours.

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

        Regions are those of the feature map; by default, each place separately.

        Args:
            context: "full" for what is lost without a region, "empty" for its evidence by itself,
                with the map's mean everywhere else, "both" for both.
            attribute_to_layer_input: whether to explain the layer's input instead of its output.

        Returns:
            Attributions of the shape of the layer's feature map, (N, C, *space), or a tuple of them
            if the layer returns one, equal for all channels of a place.
            ``LayerAttribution.interpolate`` resizes them to the input.
        """
        return cast(Tensor | tuple[Tensor, ...], self._result(locals()))

    @without_target(attribute)
    def evidence(self, given: dict[str, Any]) -> WindowEvidence:
        """The evidence of each region for every output; its ``inputs`` are the feature maps."""
        return cast(WindowEvidence, self._result(given, all_outputs=True))

    def _parts(
        self,
        call: ModelCall,
        context: str | None,
        attribute_to_layer_input: bool = False,
        **chosen: Any,
    ) -> tuple[Part, ...]:
        """Regions of the layer's feature maps; by default each place separately."""
        names = ("sliding_window_shapes", "scales", "feature_mask")
        if all(chosen[name] is None for name in names):
            chosen["sliding_window_shapes"] = 1
        place = self._layer_place(call, self.prior, attribute_to_layer_input)
        return parts_of(place, context=context, **chosen)
