"""A classifier with its transforms and the names of its classes: chosen first, loaded later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from captum_pda.cli.output_kinds import output_kind
from captum_pda.cli.usage_errors import CommandError

#: Before a photo is scaled, its longer side is cut to so many times its shorter one. Models look
#: at the square in the middle only, and a strip of one pixel would grow beyond the memory.
MAX_ASPECT = 4


@dataclass(frozen=True)
class Preprocessing:
    """What a model does to a photo: scale its shorter side, cut the middle out, normalise.

    ``mean`` and ``std`` are those of the normalisation, so that it can be undone for display; None
    where they are not known.
    """

    transform: Callable[[Image.Image], Tensor]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    def __call__(self, photo: Image.Image) -> Tensor:
        """The model's input for a photo, (1, C, H, W)."""
        return self.transform(_trim(photo)).unsqueeze(0)

    @staticmethod
    def of(transform: Callable[[Image.Image], Tensor]) -> Preprocessing:
        """A transform, with the normalisation that it says to end in."""
        steps: Sequence[Any] = getattr(transform, "transforms", [transform])
        for step in reversed(steps):
            if getattr(step, "mean", None) is not None and getattr(step, "std", None) is not None:
                mean, std = (
                    torch.as_tensor(one).flatten().tolist() for one in (step.mean, step.std)
                )
                return Preprocessing(transform, tuple(mean), tuple(std))
        return Preprocessing(transform, None, None)


@dataclass(frozen=True)
class Loaded:
    """A model with its weights.

    Args:
        model: the network.
        source: where its weights come from.
        labels: the names of its classes.
    """

    model: nn.Module
    source: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class ModelChoice:
    """A model that was named and is not loaded yet.

    Args:
        name: what it was chosen by.
        preprocessing: from a photo to its input.
        labels: the names of its classes, where they are known without its weights.
        load: loads it.
        output: what its outputs are, where its source says so: "logits", "multilabel",
            "probabilities" or "raw".
    """

    name: str
    preprocessing: Preprocessing
    labels: tuple[str, ...] | None
    load: Callable[[], Loaded]
    output: str | None = None


@dataclass(frozen=True)
class Classifier:
    """A model that is ready to explain.

    Args:
        name: what it was chosen by.
        model: in evaluation mode, on its device.
        preprocessing: from a photo to its input.
        labels: the names of its classes, or their numbers where names are not known.
        weights: where its weights come from.
        output: what its outputs are: "logits", "multilabel", "probabilities" or "raw".
    """

    name: str
    model: nn.Module
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    weights: str
    output: str = "logits"

    @staticmethod
    def of(
        choice: ModelChoice, device: str | torch.device = "cpu", output: str | None = None
    ) -> Classifier:
        """Load a model that was chosen; its outputs are read as ``output``, if that is given."""
        loaded = choice.load()
        labels = loaded.labels if choice.labels is None else choice.labels
        if len(labels) != len(loaded.labels):
            raise CommandError(
                f"there are {len(labels)} labels for a model of {len(loaded.labels)} classes; "
                "write one per line"
            )
        model = loaded.model.eval().to(device)
        blank = choice.preprocessing(Image.new("RGB", (256, 256))).to(device)
        kind = output_kind(output, choice.output, model, blank)
        return Classifier(choice.name, model, choice.preprocessing, labels, loaded.source, kind)


def _trim(photo: Image.Image) -> Image.Image:
    width, height = photo.size
    longest = MAX_ASPECT * min(width, height)
    if max(width, height) <= longest:
        return photo
    left, top = max(width - longest, 0) // 2, max(height - longest, 0) // 2
    return photo.crop((left, top, left + min(width, longest), top + min(height, longest)))
