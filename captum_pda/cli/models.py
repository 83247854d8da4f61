"""Choose a classifier by name: where each kind of name leads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from captum_pda.cli import huggingface_models, own_models, timm_models, torchvision_models
from captum_pda.cli.classifier import Classifier, ModelChoice, Preprocessing
from captum_pda.cli.labels import read_labels
from captum_pda.cli.torchvision_models import DEFAULT_MODEL
from captum_pda.cli.usage_errors import CommandError, UsageError


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
    brings_weights = ":" in name or name.startswith(huggingface_models.PREFIX)
    if brings_weights and weights is not None:
        raise UsageError(f"--weights does not go with --model {name}, which brings its own")
    if name.startswith(huggingface_models.PREFIX):
        choice = huggingface_models.choose(name)
    elif name.startswith(timm_models.PREFIX):
        choice = timm_models.choose(name, weights)
    elif brings_weights:
        choice = own_models.choose(name)
    else:
        choice = torchvision_models.choose(name, weights)
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


def preprocessing_for(name: str) -> Preprocessing:
    """The transforms of a model, without its weights."""
    return choose_model(name).preprocessing
