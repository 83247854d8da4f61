"""``--model hf/NAME-OR-FOLDER``: image classifiers of transformers, with all that they bring."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

from PIL import Image
from torch import Tensor, nn

from captum_pda.cli.classifier import Loaded, ModelChoice, Preprocessing
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line, optional_module

PREFIX = "hf/"
#: What the outputs of a model are, by the ``problem_type`` of its configuration.
OUTPUT_KINDS = {
    "multi_label_classification": "multilabel",
    "single_label_classification": "logits",
    "regression": "raw",
}


class Logits(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        """From inputs (N, C, H, W) to logits (N, classes)."""
        return cast(Tensor, self.model(pixel_values=pixel_values).logits)


def choose(name: str) -> ModelChoice:
    """A classifier by its name on the hub, or by a folder of ``save_pretrained``."""
    place = name.removeprefix(PREFIX)
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
    return ModelChoice(name, preprocessing, labels, partial(_load, name, labels), kind)


def _load(name: str, labels: tuple[str, ...]) -> Loaded:
    kind = optional_module("transformers", "transformers").AutoModelForImageClassification
    model = _fetched(name, partial(kind.from_pretrained, name.removeprefix(PREFIX)))
    return Loaded(Logits(model), name, labels)


def _fetched(name: str, load: Any) -> Any:
    try:
        return load()
    except (OSError, ValueError, RuntimeError) as error:
        place = Path(name.removeprefix(PREFIX))
        where = "the folder" if place.is_dir() else "the hub"
        raise CommandError(
            f"{name} cannot be loaded from {where} ({one_line(error)[:300]}); check the name, or "
            "give a folder of model.save_pretrained as hf/FOLDER"
        ) from error
