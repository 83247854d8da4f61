"""Algorithm 3: the first-order approximation, with one forward and one backward pass."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors

from captum_pda import device_sync
from captum_pda._captum import (
    GradientAttribution,
    TargetType,
    TensorOrTupleOfTensorsGeneric,
    captum_method,
    format_additional_forward_args,
    format_output,
)
from captum_pda.errors import NonFiniteOutputError
from captum_pda.evidence.evidence import mean_map, to_attribution
from captum_pda.methods.perturbation import (
    EfficientPDA,
    MethodSettings,
    PerturbationPDA,
    arguments_of,
)
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import attribution_dtype
from captum_pda.model.measures import Measure
from captum_pda.model.outputs import ExplainedOutputs, OutputKind
from captum_pda.priors import PatchPrior, prior_for
from captum_pda.regions.choice import Extents, OwnRegions, choose_regions
from captum_pda.regions.masks import sum_shared
from captum_pda.regions.protocol import Regions
from captum_pda.regions.superpixels import Granularities
from captum_pda.regions.windows import Scales
from captum_pda.running.plan import checked_fills
from captum_pda.running.run import fill_chunks


@arguments_of(PerturbationPDA)
class GradientPDA(MethodSettings, GradientAttribution):  # type: ignore[misc]
    """The first-order form of prediction difference analysis (Algorithm 3 of Zhou and Kainz).

    With f the measured prediction (log2 odds of the class, for the weight of evidence) and x'_w the
    conditional mean of window w, a window's evidence is

        sum over w of df/dx (x - x'_w),

    averaged over the windows that cover a pixel. Much faster than EfficientPDA, and much noisier.

    Args:
        forward_func: the model, or any differentiable function of the inputs that returns one row
            of outputs per example.
        measure: "weight_of_evidence", "probability_difference" (the paper's Algorithm 3) or
            "information_difference", or a Measure object.

    Example::

        >>> attributions = GradientPDA(model).attribute(image, target=3)
        >>> smooth = NoiseTunnel(GradientPDA(model)).attribute(image, target=3, nt_samples=20)
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        prior: PatchPrior | None = None,
        output: str | OutputKind = "logits",
        measure: str | Measure = "weight_of_evidence",
    ) -> None:
        GradientAttribution.__init__(self, forward_func)
        self._set(prior, output, measure)

    @property
    def multiplies_by_inputs(self) -> bool:
        """True: gradients are multiplied by changes of the input."""
        return True

    @captum_method
    @arguments_of(EfficientPDA.attribute)
    def attribute(
        self,
        inputs: TensorOrTupleOfTensorsGeneric,
        target: TargetType = None,
        additional_forward_args: object = None,
        sliding_window_shapes: Extents = None,
        strides: Extents = None,
        pixelwise: bool = False,
        scales: Scales = None,
        feature_mask: Tensor | tuple[Tensor, ...] | None = None,
        superpixels: Granularities = None,
        regions: OwnRegions = None,
    ) -> TensorOrTupleOfTensorsGeneric:
        """The first-order evidence of each pixel for and against the target.

        Args:
            pixelwise: whether to return R_i = df/dx_i (x_i - x_i') for each value instead of
                averaged sums over regions, with x_i' the mean prediction of i by its regions. With
                ``sliding_window_shapes=1``, x_i' is the conditional mean of a single pixel given
                its neighbours.

        Returns:
            Attributions of the inputs' shape; unless ``pixelwise``, equal for all channels of a
            pixel.
        """
        call = ModelCall.of(self.forward_func, inputs, additional_forward_args)
        # First, because the model reports what is wrong with the inputs.
        gradients = self._gradients(call, target, additional_forward_args)
        tensors = call.inputs
        chosen = (sliding_window_shapes, strides, scales, feature_mask, superpixels, regions)
        sets = choose_regions(tensors, "full", *chosen)["full"]
        prior = prior_for(self.prior, "conditional_mean")
        found = [
            [first_order(gradient, tensor, one, prior, pixelwise) for one in sizes]
            for gradient, tensor, sizes in zip(gradients, tensors, sets, strict=True)
        ]
        if pixelwise:
            attributions = tuple(mean_map(values) for values in found)
        else:
            sum_shared([sizes[0] for sizes in sets], [values[0] for values in found])
            attributions = tuple(
                to_attribution(mean_map([r.average(v) for r, v in zip(*pair, strict=True)]), tensor)
                for *pair, tensor in zip(sets, found, tensors, strict=True)
            )
        result = format_output(call.is_tuple, attributions)
        if not all(device_sync.all_finite(gradient) for gradient in gradients):
            raise NonFiniteOutputError(
                "the gradient holds NaN or infinite values; the finished result is in this error's "
                ".result. Check the model's precision, or use EfficientPDA",
                result,
            )
        return cast(TensorOrTupleOfTensorsGeneric, result)

    def _gradients(
        self, call: ModelCall, target: TargetType, additional_forward_args: object
    ) -> tuple[Tensor, ...]:
        found: list[Tensor] = []

        def measured(*arguments: Any) -> Tensor:
            outputs = call.as_given(*arguments)
            found.append(outputs.detach())
            explained = ExplainedOutputs.of_target(self.output_kind, outputs.detach(), target)
            scores = explained.scores(outputs)
            # The slope of a rounded probability is lost, and the map would be blank.
            explained.warn_of_rounding(scores.detach())
            values = self.measure.value(scores).sum(dim=1)
            if not values.requires_grad:
                raise ValueError(NO_GRADIENT.format(which="inputs", another_way=""))
            return values

        additional = format_additional_forward_args(additional_forward_args)
        # Copies that can carry gradients in any mode of the caller.
        with torch.inference_mode(False), evaluation_mode(self.forward_func):
            leaves = tuple(tensor.clone().requires_grad_() for tensor in call.inputs)
            run = partial(self.gradient_func, measured, leaves, None, additional)
            gradients = rerun_on_copies(run)
            with torch.no_grad():
                is_settled = call.check_batch(found[-1])
            return gradients if is_settled else rerun_on_copies(run)


def first_order(
    gradient: Tensor, tensor: Tensor, regions: Regions, prior: Any, pixelwise: bool
) -> Tensor:
    """The sum over each region of df/dx (x - x'), (N, W); or df/dx_i (x_i - x_i') of each value,
    with x_i' averaged over the regions of i, (N, C, *space)."""
    dtype = attribution_dtype(tensor)
    slopes, values = (each.flatten(2).to(dtype) for each in (gradient, tensor))
    sums = slopes.new_zeros(len(tensor), len(regions))
    expected = torch.zeros_like(values)
    for n, example in enumerate(tensor):
        # Regions come in groups of one box shape, and some may be absent from this example.
        for windows, members in zip(regions.boxes(n), regions.members(n), strict=True):
            for start, stop in fill_chunks(windows, len(example)):
                some = windows[start:stop]
                fills = prior.conditional_mean(example, some).unsqueeze(0)
                boxes = checked_fills(fills, example, some, 1)[0].to(dtype)
                means = boxes.flatten(2).transpose(0, 1)
                pixels = some.pixels(example.device)
                if not pixelwise:
                    numbers = torch.from_numpy(members[start:stop]).to(example.device)
                    change = values[n][:, pixels] - means
                    sums[n, numbers] = (slopes[n][:, pixels] * change).sum(dim=(0, 2))
                    continue
                if some.hidden is not None:
                    means = means * some.hidden.flatten(1).to(means)
                expected[n].index_add_(1, pixels.reshape(-1), means.flatten(1))
    if not pixelwise:
        return sums
    coverage = regions.coverage(tensor.device).reshape(-1, 1, *regions.space)
    mean = expected.reshape(tensor.shape) / coverage
    return (gradient * (tensor - mean)).to(dtype)


#: Parts of PyTorch's messages for a layer that wrote over what the backward pass needs, and for an
#: output that does not depend on an input.
OVERWRITTEN, UNUSED = "modified by an inplace operation", "not have been used in the graph"

#: PyTorch lets only one thread at a time copy overwritten tensors.
_copying = threading.Lock()

NO_GRADIENT = (
    "the model's output has no gradient with respect to {which}: it does not depend on it, or "
    "through a step that has no gradient, such as torch.no_grad(), detach(), NumPy, argmax or a "
    "comparison; use EfficientPDA, which needs no gradient{another_way}"
)


def rerun_on_copies(run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The gradients that ``run`` returns. If a model writes over its own activations, such as an
    in-place ReLU after another ReLU, it is run again on copies of them."""
    try:
        return run()
    except RuntimeError as error:
        if UNUSED in str(error):
            index = re.search(r"index (\d+)", str(error))
            which = f"inputs[{index[1]}]" if index else "one of the inputs"
            another_way = ", or pass what is not to be explained as additional_forward_args"
            raise ValueError(NO_GRADIENT.format(which=which, another_way=another_way)) from error
        if OVERWRITTEN not in str(error):
            raise
    with _copying, allow_mutation_on_saved_tensors():
        return run()
