"""Captum's own Saliency and GradCAM, to put next to prediction difference analysis."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
from captum.attr import LayerAttribution, LayerGradCam, Saliency
from torch import Tensor, nn

from captum_pda.basics.device_sync import in_double

Floats = npt.NDArray[np.float64]


def captum_maps(model: nn.Module, image: Tensor, target: int) -> dict[str, Floats]:
    """The maps of Saliency and GradCAM, (H, W) each, by name."""
    with warnings.catch_warnings():
        # Captum says that it sets hooks and gradients for a while.
        warnings.simplefilter("ignore")
        saliency = Saliency(model).attribute(image.clone(), target=target)
        grad_cam = LayerGradCam(model, last_convolution(model)).attribute(image, target=target)
    upsampled = LayerAttribution.interpolate(grad_cam, tuple(image.shape[2:]), "bilinear")
    maps = {"Saliency": saliency, "GradCAM": upsampled}
    return {name: in_double(one[0].sum(dim=0).detach()).cpu().numpy() for name, one in maps.items()}


def last_convolution(model: nn.Module) -> nn.Module:
    """The last convolution, where GradCAM looks."""
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)][-1]
