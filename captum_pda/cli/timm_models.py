"""``--model timm/NAME``: classifiers of timm, with their own transforms and labels."""

from __future__ import annotations

import difflib
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import nn

from captum_pda.cli.checkpoints import load_into, number_of_classes, read_checkpoint
from captum_pda.cli.classifier import Loaded, ModelChoice, Preprocessing
from captum_pda.cli.labels import default_labels
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line, optional_module

PREFIX = "timm/"


def choose(name: str, weights: Path | None) -> ModelChoice:
    """A classifier of timm by name, such as timm/resnet18 or timm/resnet18.a1_in1k."""
    timm, data = optional_module("timm", "timm"), optional_module("timm.data", "timm")
    settings = _settings(timm, name)
    shape = data.resolve_data_config(pretrained_cfg=settings.to_dict())
    preprocessing = Preprocessing.of(data.create_transform(**shape))
    if weights is not None:
        return ModelChoice(name, preprocessing, None, partial(_from_checkpoint, name, weights))
    labels = _labels(settings)
    return ModelChoice(name, preprocessing, labels, partial(_downloaded, name, labels))


def _settings(timm: Any, name: str) -> Any:
    """What timm knows of a model without its weights."""
    plain = name.removeprefix(PREFIX)
    try:
        found = timm.get_pretrained_cfg(plain) if timm.is_model(plain) else None
    except RuntimeError as error:  # weights of a name that it has not
        raise UsageError(
            f"--model {name}: {one_line(error)}; leave out what follows the dot"
        ) from None
    if found is None:
        close = difflib.get_close_matches(plain, timm.list_models(), n=3)
        listed = " or ".join(PREFIX + one for one in close) or "timm/resnet50"
        raise UsageError(
            f"--model {name} is not known; use {listed}, or any other that timm.list_models() lists"
        )
    return found


def _labels(settings: Any) -> tuple[str, ...]:
    given = settings.label_names
    if given:
        told = settings.label_descriptions or {}
        return tuple(str(told.get(one, one)) for one in given)
    return default_labels(settings.num_classes)


def _downloaded(name: str, labels: tuple[str, ...]) -> Loaded:
    try:
        model = optional_module("timm").create_model(name.removeprefix(PREFIX), pretrained=True)
    except Exception as error:  # the hub's own errors, or those of whatever lies below
        raise CommandError(
            f"the weights of {name} cannot be downloaded ({one_line(error)}); fetch them on a "
            "machine that can, and add --weights FILE"
        ) from error
    return Loaded(model, name, labels)


def _from_checkpoint(name: str, weights: Path) -> Loaded:
    state = read_checkpoint(weights)
    create = partial(optional_module("timm").create_model, name.removeprefix(PREFIX))
    model = cast(nn.Module, create(pretrained=False))
    n_classes = number_of_classes(model, state)
    if n_classes != model.num_classes:
        model = create(pretrained=False, num_classes=n_classes)
    load_into(model, state, weights, name)
    return Loaded(model, str(weights), default_labels(n_classes))
