"""``--model package.module:function``: a model of one's own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from captum_pda.cli.classifier import Loaded, ModelChoice, Preprocessing
from captum_pda.cli.labels import default_labels
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line, optional_module

WHAT_IT_RETURNS = (
    "a model; a tuple (model, transform) or (model, transform, labels); or a dict with 'model' and "
    "any of 'transform', 'labels' and 'output_kind'"
)
NAMES = ("model", "transform", "labels", "output_kind")


def choose(name: str) -> ModelChoice:
    """What a function returns: a model, with its transform, labels and kind of output if given.

    Without a transform photos are prepared as for ImageNet: 224 pixels, its mean and deviation.
    """
    with _working_folder_on_path():
        made = _call(name, _function(name))
    if isinstance(made, dict):
        parts, is_known = made, made.keys() <= set(NAMES)
    else:
        several = made if isinstance(made, tuple) else (made,)
        parts, is_known = dict(zip(NAMES, several, strict=False)), len(several) <= 3
    model, transform, labels, kind = (parts.get(one) for one in NAMES)
    if not is_known or not isinstance(model, nn.Module) or not _is_transform(transform):
        raise UsageError(
            f"--model {name} returned {_kinds(made)} where it should return {WHAT_IT_RETURNS}"
        )
    preprocessing = Preprocessing.of(transform or _usual_transform())
    names = None if labels is None else tuple(str(label) for label in labels)
    load = partial(_load, name, model, preprocessing)
    return ModelChoice(name, preprocessing, names, load, kind)


@contextmanager
def _working_folder_on_path() -> Iterator[None]:
    """Let modules of the working folder be imported, also by the function that is called."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _function(name: str) -> Callable[[], Any]:
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


def _call(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        raise CommandError(
            f"--model {name} failed ({type(error).__name__}: {one_line(error)}); it is called "
            "without arguments"
        ) from error


def _load(name: str, model: nn.Module, preprocessing: Preprocessing) -> Loaded:
    """The model, with as many labels as it has outputs for a photo."""
    from PIL import Image

    image = preprocessing(Image.new("RGB", (256, 256)))
    with torch.no_grad():
        outputs = model.eval()(image)
    if not isinstance(outputs, torch.Tensor) or outputs.dim() != 2:
        raise CommandError(
            f"--model {name} must return a tensor (N, classes) for inputs (N, C, H, W)"
        )
    return Loaded(model, name, default_labels(outputs.shape[1]))


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
