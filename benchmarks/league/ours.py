"""Our maps, (H, W) for one photo and class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from captum_pda import PDA, EfficientPDA, GradientPDA, LayerPDA, SampledPDA
from captum_pda.evidence.combine import weighted_mean
from league.networks import BATCH, Network, Photo
from league.peers import MakeMap

#: Sizes and strides by themselves, for a side of 224.
SIZES = {10: 8, 16: 8, 32: 16, 64: 16, 96: 16}


def pda(network: Network, photo: Photo) -> Tensor:
    if network.fast is None:
        return PDA(network.model).attribute(photo.image, target=photo.target)[0, 0]
    # The same map from its three questions, of which the layer's alone needs the model's inside.
    questions = (
        efficient(context="full")(network, photo),
        efficient(context="empty")(network, photo),
        layer_pda(network, photo),
    )
    return weighted_mean([question[None] for question in questions])[0]


def layer_pda(network: Network, photo: Photo) -> Tensor:
    found = LayerPDA(network.model).attribute(photo.image, target=photo.target)
    shape = tuple(photo.image.shape[2:])
    return LayerPDA.interpolate(found, shape, "bilinear")[0, 0]


def efficient(**arguments: Any) -> MakeMap:
    """EfficientPDA with these arguments to ``attribute``; sizes are those for a side of 224."""

    def make(network: Network, photo: Photo) -> Tensor:
        method = EfficientPDA(_forward(network), engine=_engine(network))
        some = _for_side(arguments, photo)
        found = method.attribute(
            photo.image, target=photo.target, perturbations_per_eval=_batch(network), **some
        )
        return found[0, 0]

    return make


def sampled(size: int, n_samples: int) -> MakeMap:
    """SampledPDA, with windows side by side that overlap by half."""

    def make(network: Network, photo: Photo) -> Tensor:
        torch.manual_seed(0)
        method = SampledPDA(_forward(network), engine=_engine(network))
        some = _for_side({"sliding_window_shapes": size, "strides": size // 2}, photo)
        found = method.attribute(
            photo.image,
            target=photo.target,
            n_samples=n_samples,
            perturbations_per_eval=_batch(network),
            **some,
        )
        return found[0, 0]

    return make


def gradient(network: Network, photo: Photo) -> Tensor:
    some = _for_side({"sliding_window_shapes": 32, "strides": 16}, photo)
    return GradientPDA(network.model).attribute(photo.image, target=photo.target, **some)[0].sum(0)


def _forward(network: Network) -> Any:
    return network.model if network.fast is None else network.forward


def _engine(network: Network) -> str:
    return "auto" if network.fast is None else "dense"


def _batch(network: Network) -> int | None:
    return None if network.fast is None else BATCH


def _for_side(arguments: dict[str, Any], photo: Photo) -> dict[str, Any]:
    """Sizes and strides in proportion to the photo's side."""
    side = photo.image.shape[-1]

    def scaled(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(scaled(one) for one in value)
        return max(1, round(value * side / 224)) if isinstance(value, int) else value

    return {
        name: scaled(value) if name != "context" else value for name, value in arguments.items()
    }


def _one_size(size: int, context: str) -> MakeMap:
    return efficient(sliding_window_shapes=size, strides=SIZES[size], context=context)


OURS: dict[str, MakeMap] = {
    "PDA": pda,
    "LayerPDA": layer_pda,
    "EfficientPDA": efficient(),
    **{f"EfficientPDA, size {size}": _one_size(size, "full") for size in SIZES},
    "EfficientPDA, empty": efficient(context="empty"),
    **{f"EfficientPDA, size {size}, empty": _one_size(size, "empty") for size in (32, 64, 96)},
    "EfficientPDA, both": efficient(context="both"),
    "SampledPDA, size 32": sampled(32, 5),
    "GradientPDA": gradient,
}
