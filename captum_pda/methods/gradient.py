"""Algorithm 3: the first-order form, one forward and one backward pass for all windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

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
from captum_pda.evidence.combine import mean_map
from captum_pda.evidence.window_evidence import to_attribution
from captum_pda.methods.first_order import FirstOrder
from captum_pda.methods.input_gradients import input_gradients
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import check_choice, check_inputs
from captum_pda.model.measures import Measure, measure_for
from captum_pda.model.model_call import ModelCall
from captum_pda.model.reader import Reader
from captum_pda.model.readout import OUTPUTS, Readout
from captum_pda.priors import PatchPrior
from captum_pda.priors.per_example import DEFAULT_PRIOR, prior_settings
from captum_pda.regions.choice import Extents, RegionChoice
from captum_pda.regions.protocol import Regions
from captum_pda.regions.superpixels import Granularities
from captum_pda.regions.windows import Scales
from captum_pda.running.contents import Contents, conditional_mean


class GradientPDA(GradientAttribution):  # type: ignore[misc]
    """The first-order form of prediction difference analysis (Algorithm 3 of Zhou and Kainz).

    With f the measured prediction (log2 odds of the class, for the weight of evidence) and x'_w
    the conditional mean of window w, a window's evidence is

        sum over w of df/dx (x - x'_w),

    averaged over the windows that cover a pixel. Much faster than EfficientPDA, and much noisier.

    Args:
        forward_func: the model, or any differentiable function of the inputs that returns one row
            of outputs per example.
        prior: as for EfficientPDA; its conditional mean is used.
        output: "logits", "probabilities" or "raw", as for EfficientPDA.
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
        output: str = "logits",
        measure: str | Measure = "weight_of_evidence",
    ) -> None:
        super().__init__(forward_func)
        check_choice("output", output, OUTPUTS)
        self.prior = prior
        self.output = output
        self.measure = measure_for(output, measure)

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
            "output": self.output,
            "measure": self.measure.settings(),
        }

    @captum_method
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
    ) -> TensorOrTupleOfTensorsGeneric:
        """The first-order evidence of each pixel for and against the target.

        Args:
            inputs, target, additional_forward_args, sliding_window_shapes, strides, scales,
                feature_mask, superpixels: as in ``EfficientPDA.attribute``.
            pixelwise: whether to return R_i = df/dx_i (x_i - x_i') for each value instead of
                averaged sums over windows, with x_i' the mean of what the windows over i expect
                there. With ``sliding_window_shapes=1``, x_i' is the conditional mean of a single
                pixel given its neighbours.

        Returns:
            Attributions of the inputs' shape; unless ``pixelwise``, all channels of a pixel share
            one value.
        """
        tensors = check_inputs(inputs)
        choice = RegionChoice(
            sliding_window_shapes, strides, scales, feature_mask, superpixels=superpixels
        )
        regions = choice.resolve(tensors)["full"]
        gradients = self._gradients(tensors, target, additional_forward_args)
        attributions = tuple(
            self._combine(gradient, tensor, sizes, pixelwise)
            for gradient, tensor, sizes in zip(gradients, tensors, regions, strict=True)
        )
        result = format_output(isinstance(inputs, tuple), attributions)
        if not all(device_sync.all_finite(gradient) for gradient in gradients):
            raise NonFiniteOutputError(
                "the gradient holds NaN or infinite values; the finished result is in this error's "
                ".result. Check the model's precision, or use EfficientPDA",
                result,
            )
        return cast(TensorOrTupleOfTensorsGeneric, result)

    def _gradients(
        self, tensors: tuple[Tensor, ...], target: TargetType, additional_forward_args: object
    ) -> tuple[Tensor, ...]:
        """The gradient of each example's measured prediction with respect to its inputs."""

        call = ModelCall(self.forward_func, tensors, additional_forward_args)
        found: list[Tensor] = []

        def measured(*arguments: Any) -> Tensor:
            outputs = call.as_given(*arguments)
            found.append(outputs.detach())
            readout = Readout.of(self.output, outputs.detach())
            reader = Reader.of_target(readout, target, len(outputs), tuple(outputs.shape[1:]))
            scores = reader.read(outputs)
            # Where a probability was rounded, its slope is lost: the map would be blank.
            readout.check_saturation(scores.detach())
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

    def _combine(
        self, gradient: Tensor, tensor: Tensor, sizes: tuple[Regions, ...], pixelwise: bool
    ) -> Tensor:
        """The attributions of a tensor from its gradient and its conditional means."""
        contents = Contents(self.prior, "conditional_mean", conditional_mean)
        examples = [
            FirstOrder(gradient[n : n + 1], tensor[n : n + 1], contents, n)
            for n in range(len(tensor))
        ]
        if pixelwise:
            each = [torch.cat([e.pixel_evidence(regions) for e in examples]) for regions in sizes]
            return mean_map(each)
        maps = [
            regions.average(torch.cat([e.region_evidence(regions) for e in examples]))
            for regions in sizes
        ]
        return to_attribution(mean_map(maps), tensor)
