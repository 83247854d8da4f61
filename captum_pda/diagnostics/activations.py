"""A layer's activations over sampled fills, against those at the conditional mean.

The paper's figures `alexnet_act` and `vgg16_act`: pushing an expectation through a ReLU is nearly
exact where an activation's mean is far from zero, measured in its standard deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from captum_pda.device_sync import in_double
from captum_pda.diagnostics.some_windows import SomeWindows, chosen_window
from captum_pda.methods.base import PerturbationPDA
from captum_pda.methods.efficient import EfficientPDA
from captum_pda.methods.sampled import SampledPDA
from captum_pda.model.inputs import check_choice, check_count, check_images
from captum_pda.regions.windows import WindowGrid


@dataclass(frozen=True, eq=False, repr=False)
class ActivationStatistics:
    """What a layer's units do over the samples of one window; all of shape (units,).

    Args:
        mean: over the samples.
        standard_deviation: over the samples.
        rectified_mean: the mean of ReLU(activation) over the samples.
        at_conditional_mean: the activation with the conditional mean in the window.
        unperturbed: the activation with everything seen.
        n_samples: how many samples there were.
    """

    mean: Tensor
    standard_deviation: Tensor
    rectified_mean: Tensor
    at_conditional_mean: Tensor
    unperturbed: Tensor
    n_samples: int

    @property
    def ratio(self) -> Tensor:
        """|mean| / standard deviation: where it is large, a ReLU is linear over the samples."""
        return self.mean.abs() / self.standard_deviation

    @property
    def error(self) -> Tensor:
        """The activation at the conditional mean less the mean activation."""
        return self.at_conditional_mean - self.mean

    @property
    def rectifier_error(self) -> Tensor:
        """E[ReLU(a)] - ReLU(E[a]): what exchanging this layer's ReLU and the mean costs."""
        return self.rectified_mean - self.mean.clamp_min(0)

    def __str__(self) -> str:
        size = float(self.mean.square().mean().sqrt())
        linear = float((self.ratio > 2).float().mean())
        return (
            f"{len(self.mean)} units over {self.n_samples} samples: activations {size:.3g} (root "
            f"mean square), their standard deviation {float(self.standard_deviation.median()):.3g} "
            f"(median), mean over 2 standard deviations from zero for {linear:.0%} of the units; "
            f"at the conditional mean they differ from their mean by "
            f"{float(self.error.square().mean().sqrt()):.3g}"
        )

    __repr__ = __str__


def activation_statistics(
    pda: PerturbationPDA,
    inputs: Tensor,
    layer: nn.Module,
    of: str = "output",
    *,
    additional_forward_args: object = None,
    windows: SomeWindows | WindowGrid | None = None,
    n_samples: int = 160,
    generator: torch.Generator | None = None,
    perturbations_per_eval: int | None = None,
) -> ActivationStatistics:
    """Fill one window with samples, and look at a layer's activations.

    Args:
        pda, additional_forward_args, generator, perturbations_per_eval: as in
            ``conditional_mean_error``.
        inputs: one image, (1, C, *space).
        layer: a module of the model, such as a fully connected layer.
        of: "output" of the layer (what the next ReLU gets, as in the paper) or its "input".
        windows: which window to look at. Default: the top left corner, as in the paper.
        n_samples: how many samples; 160 in the paper. Memory grows with samples times units.

    Example::

        >>> diagnostics.activation_statistics(EfficientPDA(model), image, model.classifier).ratio
    """
    n_samples = check_count("n_samples", n_samples)
    check_choice("of", of, ("output", "input"))
    if windows is None:
        windows = SomeWindows(corners=[(0,) * len(check_images("inputs", inputs).shape[2:])])
    window = chosen_window(windows, inputs, generator)
    units = _Activations(pda.forward_func, layer, of)
    common = (inputs, additional_forward_args, None, None, perturbations_per_eval)
    settings: dict[str, Any] = {"prior": pda.prior, "output": "raw", "engine": "dense"}
    settings["process_group"] = pda.process_group
    at_mean = EfficientPDA(units, **settings).evidence(*common, windows=window)
    # The same window many times with one sample each, so that every sample is kept apart.
    samples = SampledPDA(units, **settings).evidence(
        *common, n_samples=1, generator=generator, windows=window.pick([0] * n_samples)
    )
    activations = in_double(samples.parts[0].scores[0])
    return ActivationStatistics(
        activations.mean(dim=0),
        activations.std(dim=0) if n_samples > 1 else torch.zeros_like(activations[0]),
        activations.clamp_min(0).mean(dim=0),
        in_double(at_mean.parts[0].scores[0, 0]),
        in_double(at_mean.scores[0]),
        n_samples,
    )


class _Activations(nn.Module):
    """A model that returns what one of its layers got or gave, one row per example."""

    def __init__(self, forward_func: Callable[..., Any], layer: nn.Module, of: str) -> None:
        super().__init__()
        # A module among them is found by evaluation_mode, and put back after.
        self._forward_func = forward_func
        self._layer = layer
        self._of = of
        self.training = False

    def forward(self, *arguments: Any) -> Tensor:
        seen: list[Any] = []

        # Copies, since what comes after may write into the same memory.
        def before(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen.append(_copied(inputs[0] if inputs else None))

        def after(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            seen.append(_copied(output))

        if self._of == "input":
            hook = self._layer.register_forward_pre_hook(before)
        else:
            hook = self._layer.register_forward_hook(after)
        try:
            self._forward_func(*arguments)
        finally:
            hook.remove()
        if not seen:
            raise ValueError(
                f"the layer {type(self._layer).__name__} was not called by the model; give one of "
                "its own modules, such as model.classifier"
            )
        if not isinstance(seen[-1], Tensor):
            raise TypeError(
                f"the layer's {self._of} is a {type(seen[-1]).__name__}, not a tensor; give "
                "another layer"
            )
        return seen[-1].flatten(1)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
