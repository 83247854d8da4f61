"""The default method: several sizes, contexts and the last feature map in one map."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from captum_pda.engines import Engine
from captum_pda.errors import warn_user
from captum_pda.methods.layer import AsksLayer
from captum_pda.methods.perturbation import EfficientPDA, PerturbationPDA, arguments_of
from captum_pda.model.call import ModelCall
from captum_pda.model.layers import NoFeatureMapError, named_layer
from captum_pda.model.measures import Measure
from captum_pda.model.outputs import OutputKind
from captum_pda.priors import MapMeanPrior, PatchPrior
from captum_pda.regions.windows import MOST_WINDOWS
from captum_pda.running.plan import Part, parts_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@arguments_of(PerturbationPDA)
class PDA(AsksLayer, EfficientPDA):
    """Prediction difference analysis of several sizes, in several contexts, and of features.

    Combines four questions about each region: what is lost without it while the rest is visible
    (context "full"), its evidence by itself (context "empty"), what it adds to random sets of other
    regions (context "random"), and the evidence of the last feature map at its place. A question's
    map M_q is the mean over the sizes of its regions, and the map is the weighted mean over the
    questions,

        M = sum_q (w_q M_q / s_q) / sum_q (w_q / s_q),

    with s_q the standard deviation of M_q over the pixels, and w_q = 2 for random sets and 1 for
    the other questions. So the map is in bits, positive for the class and negative against it. The
    map of random sets is per area, and that of the layer is averaged inside the finest superpixels;
    maps of more than 1,500 places are divided into blocks. Without a spatial feature map, and for
    several input tensors, features are left out with a warning; also with a ``feature_mask``,
    unless ``layer`` is given. Random sets consist of the default superpixels; ``context="random"``
    uses other superpixels or masks.

    Args:
        forward_func: the model, or any function of the inputs that returns one row of outputs per
            example.
        layer: the module with the feature map, or its name. Default: the last one, as for LayerPDA;
            its name is then in ``layer_name``.

    Example::

        >>> attributions = PDA(model).attribute(image, target=3)

        >>> evidence = PDA(model).evidence(image)         # every class, from the same passes
        >>> evidence.contrast(husky, wolf)                # why "husky" rather than "wolf"?
        >>> evidence.in_context("empty").attribution(husky)
        >>> evidence.parts                                # each size, context and depth
        >>> strongest_regions(evidence, husky)
    """

    _context = "all"

    def __init__(
        self,
        forward_func: Callable[..., Any],
        layer: nn.Module | str | None = None,
        prior: PatchPrior | None = None,
        output: str | OutputKind = "logits",
        measure: str | Measure = "weight_of_evidence",
        engine: str | Engine = "auto",
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(forward_func, prior, output, measure, engine, process_group)
        if layer is not None:
            named_layer(forward_func, layer)  # checks that it is one
        self.layer = layer
        self._has_told = False

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "layer_prior": MapMeanPrior().settings()}

    def _parts(self, call: ModelCall, context: str | None, **chosen: Any) -> tuple[Part, ...]:
        parts = super()._parts(call, context, **chosen)
        self.layer_name = None
        # A user's regions keep one value each, which places of a feature map would mix.
        if chosen["feature_mask"] is not None and self.layer is None:
            return parts
        try:
            if len(call.inputs) > 1:
                raise NoFeatureMapError("there are several input tensors")
            place = self._layer_place(call, MapMeanPrior())
        except NoFeatureMapError as error:
            if not self._has_told:
                warn_user(f"PDA goes without the features of a layer: {error}")
            self._has_told = True
            return parts
        if len(place.call.inputs) > 1:
            raise ValueError(
                f"layer {self.layer_name!r} returns {len(place.call.inputs)} feature maps; choose "
                "one that returns a single tensor, or use LayerPDA"
            )
        # A superpixel contains several places of a large map, which need no passes of their own.
        space = tuple(place.call.inputs[0].shape[2:])
        side = math.ceil((math.prod(space) / MOST_WINDOWS) ** (1 / len(space)))
        block = tuple(min(side, size) for size in space)
        return parts + parts_of(place, sliding_window_shapes=block, strides=block)
