"""Algorithm 3: the first-order form, one forward and one backward pass for all regions."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
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
    method_repr,
    readable_name,
)
from captum_pda.errors import NonFiniteOutputError
from captum_pda.evidence.evidence import mean_map, to_attribution
from captum_pda.methods.base import PerturbationPDA, arguments_of
from captum_pda.methods.efficient import EfficientPDA
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import attribution_dtype
from captum_pda.model.measures import Measure
from captum_pda.model.outputs import ExplainedOutputs, OutputKind, find_output_kind
from captum_pda.priors import PatchPrior, prior_for, prior_settings
from captum_pda.priors.field import DEFAULT_PRIOR
from captum_pda.regions.choice import Extents, OwnRegions, choose_regions
from captum_pda.regions.masks import sum_shared
from captum_pda.regions.protocol import Regions, Windows
from captum_pda.regions.superpixels import Granularities
from captum_pda.regions.windows import Scales
from captum_pda.running.plan import checked_fills
from captum_pda.running.run import fill_chunks


@arguments_of(PerturbationPDA)
class GradientPDA(GradientAttribution):  # type: ignore[misc]
    """The first-order form of prediction difference analysis (Algorithm 3 of Zhou and Kainz).

    With f the measured prediction (log2 odds of the class, for the weight of evidence) and x'_w
    the conditional mean of window w, a window's evidence is

        sum over w of df/dx (x - x'_w),

    averaged over the windows that cover a pixel. Much faster than EfficientPDA, and much noisier.

    Args:
        forward_func: the model, or any differentiable function of the inputs that returns one row
            of outputs per example.
        measure: "weight_of_evidence", "probability_difference" (the paper's Algorithm 3) or
            "information_difference", or a Measure of your own.

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
        super().__init__(forward_func)
        self.prior = prior
        self.output_kind = find_output_kind(output)
        self.output = self.output_kind.name
        self.measure = self.output_kind.measure(measure)

    def __repr__(self) -> str:
        return method_repr(self, DEFAULT_PRIOR)

    @classmethod
    def get_name(cls) -> str:
        """The name for titles: "Gradient PDA"."""
        return readable_name(cls.__name__)

    @property
    def multiplies_by_inputs(self) -> bool:
        """True: the gradient is multiplied by what would change in the input."""
        return True

    def settings(self) -> dict[str, object]:
        """What the evidence depends on beside the model and the arguments, as plain values."""
        return {
            "prior": prior_settings(self.prior),
            "output": self.output_kind.settings(),
            "measure": self.measure.settings(),
        }

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
                averaged sums over regions, with x_i' the mean of what the regions of i expect
                there. With ``sliding_window_shapes=1``, x_i' is the conditional mean of a single
                pixel given its neighbours.

        Returns:
            Attributions of the inputs' shape; unless ``pixelwise``, all channels of a pixel share
            one value.
        """
        call = ModelCall.of(self.forward_func, inputs, additional_forward_args)
        tensors = call.inputs
        # First, as the model says what is wrong with the inputs.
        gradients = self._gradients(call, target, additional_forward_args)
        sets = choose_regions(
            tensors,
            "full",
            sliding_window_shapes,
            strides,
            scales,
            feature_mask,
            superpixels,
            regions,
        )["full"]
        each = [
            self._first_order(gradient, tensor, sizes, pixelwise)
            for gradient, tensor, sizes in zip(gradients, tensors, sets, strict=True)
        ]
        if pixelwise:
            attributions = tuple(mean_map(values) for values in each)
        else:
            sum_shared([sizes[0] for sizes in sets], [values[0] for values in each])
            attributions = tuple(
                to_attribution(mean_map([r.average(v) for r, v in zip(*pair, strict=True)]), tensor)
                for *pair, tensor in zip(sets, each, tensors, strict=True)
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
        """The gradient of each example's measured prediction with respect to its inputs."""
        tensors = call.inputs
        found: list[Tensor] = []

        def measured(*arguments: Any) -> Tensor:
            outputs = call.as_given(*arguments)
            found.append(outputs.detach())
            explained = ExplainedOutputs.of_target(self.output_kind, outputs.detach(), target)
            scores = explained.scores(outputs)
            # Where a probability was rounded, its slope is lost: the map would be blank.
            explained.warn_of_rounding(scores.detach())
            return self.measure.value(scores).sum(dim=1)

        additional = format_additional_forward_args(additional_forward_args)
        # Copies that can carry gradients, whatever mode the caller is in.
        with torch.inference_mode(False), evaluation_mode(self.forward_func):
            leaves = tuple(tensor.clone().requires_grad_() for tensor in tensors)
            gradients = input_gradients(self.gradient_func, measured, leaves, additional)
            with torch.no_grad():
                is_settled = call.check_batch(found[-1])
            if not is_settled:
                gradients = input_gradients(self.gradient_func, measured, leaves, additional)
            return gradients

    def _first_order(
        self, gradient: Tensor, tensor: Tensor, sizes: tuple[Regions, ...], pixelwise: bool
    ) -> list[Tensor]:
        """What the gradient and conditional means of a tensor say of its pixels, or of the regions
        of each size, (N, W)."""
        evidence = pixel_evidence if pixelwise else region_evidence
        prior = prior_for(self.prior, "conditional_mean")
        return [
            torch.cat(
                [
                    evidence(gradient[n], tensor[n], regions, n, prior).unsqueeze(0)
                    for n in range(len(tensor))
                ]
            )
            for regions in sizes
        ]


def region_evidence(
    gradient: Tensor, example: Tensor, regions: Regions, number: int, prior: Any
) -> Tensor:
    """The sum over each region of df/dx (x - x'), (W,).

    Args:
        gradient: df/dx, (C, *space).
        example: x, (C, *space).
        regions: the regions of all examples.
        number: which example this is.
        prior: gives the conditional mean x' of each region.
    """
    slopes, values = (
        tensor.flatten(1).to(attribution_dtype(tensor)) for tensor in (gradient, example)
    )
    evidence = []
    # Regions come in groups of one box shape, and perhaps not all of them are in this example.
    found = slopes.new_zeros(len(regions))
    for windows, means in _conditional_means(example, regions, number, prior):
        pixels = windows.pixels(example.device)
        change = values[:, pixels] - means.flatten(2).transpose(0, 1)
        evidence.append((slopes[:, pixels] * change).sum(dim=(0, 2)))
    members = np.concatenate(regions.members(number))
    found[torch.from_numpy(members).to(found.device)] = torch.cat(evidence)
    return found


def pixel_evidence(
    gradient: Tensor, example: Tensor, regions: Regions, number: int, prior: Any
) -> Tensor:
    """R_i = df/dx_i (x_i - x_i'), with x_i' averaged over the regions of i, (C, *space).

    Arguments as for ``region_evidence``.
    """
    n_channels, *space = example.shape
    dtype = attribution_dtype(example)
    total = torch.zeros(n_channels, math.prod(space), dtype=dtype, device=example.device)
    for windows, means in _conditional_means(example, regions, number, prior):
        if windows.hidden is not None:
            means = means * windows.hidden.to(means).unsqueeze(1)
        flat = means.flatten(2).transpose(0, 1).flatten(1)
        total.index_add_(1, windows.pixels(total.device).reshape(-1), flat)
    mean = total.reshape(n_channels, *space) / regions.coverage(total.device)
    return (gradient * (example - mean)).to(dtype)


def _conditional_means(
    example: Tensor, regions: Regions, number: int, prior: Any
) -> Iterator[tuple[Windows, Tensor]]:
    """The conditional means (W, C, *window) of an example's regions, some at a time."""
    for windows in regions.boxes(number):
        for start, stop in fill_chunks(windows, len(example)):
            some = windows[start:stop]
            means = prior.conditional_mean(example, some).unsqueeze(0)
            yield some, checked_fills(means, example, some, 1)[0].to(attribution_dtype(example))


#: In PyTorch's message, where a layer wrote over what the backward pass needs to know.
OVERWRITTEN = "modified by an inplace operation"
#: In its message, where the output does not depend on an input.
UNUSED = "not have been used in the graph"

#: PyTorch lets only one thread at a time copy what is overwritten.
_copying = threading.Lock()

NO_GRADIENT = (
    "the model's output has no gradient with respect to {which}: it does not depend on it, or "
    "through a step that has no gradient, such as torch.no_grad(), detach(), NumPy, argmax or a "
    "comparison; use EfficientPDA, which needs no gradient{another_way}"
)


def input_gradients(
    gradient_func: Callable[..., tuple[Tensor, ...]],
    measured: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    additional_forward_args: Any,
) -> tuple[Tensor, ...]:
    """The gradient of the measured predictions with respect to each of the inputs.

    Some models write over their own activations, as an in-place ReLU after another ReLU does.
    Where that leaves PyTorch without what it needs, the passes are run again on copies.
    """

    def differentiable(*arguments: Any) -> Tensor:
        predictions = measured(*arguments)
        if not predictions.requires_grad:
            raise ValueError(NO_GRADIENT.format(which="inputs", another_way=""))
        return predictions

    def gradients() -> tuple[Tensor, ...]:
        return gradient_func(differentiable, inputs, None, additional_forward_args)

    try:
        return gradients()
    except RuntimeError as error:
        if UNUSED in str(error):
            raise _unused(str(error)) from error
        if OVERWRITTEN not in str(error):
            raise
    with _copying, allow_mutation_on_saved_tensors():
        return gradients()


def _unused(message: str) -> ValueError:
    """Which input has no gradient, as far as PyTorch says it."""
    index = re.search(r"index (\d+)", message)
    which = f"inputs[{index[1]}]" if index else "one of the inputs"
    another_way = ", or pass what is not to be explained as additional_forward_args"
    return ValueError(NO_GRADIENT.format(which=which, another_way=another_way))
