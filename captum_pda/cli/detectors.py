"""Object detectors: how well is a box still found?

A detector answers with boxes, whose number changes with the image. A box is explained by its match:
the largest product of overlap and score among the boxes of its class that are found in a changed
copy (as in docs/recipes/detector.md). All boxes of an image are explained by the same passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from captum_pda.cli.usage_errors import CommandError, optional_module

#: How many scores tell one image, or one model, from another.
COMPARED_SCORES = 20
#: Boxes with a lower score are not explained unless their class is named.
LEAST_SCORE = 0.5


class Detector(nn.Module):
    """A model that returns boxes, as those of torchvision, as a model of its highest scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """From images (N, C, H, W) to the highest scores of each, (N, COMPARED_SCORES)."""
        padding = images.new_zeros(COMPARED_SCORES)
        scores = [torch.cat([one["scores"], padding]) for one in self.model(images)]
        return torch.stack([one.sort(descending=True).values[:COMPARED_SCORES] for one in scores])

    def boxes(
        self, image: Tensor, labels: Sequence[str], wanted: Sequence[int] | None, n: int
    ) -> tuple[BoxMatch, tuple[str, ...]]:
        """The ``n`` boxes of an image (1, C, H, W) with the highest scores, and their names; of
        the classes ``wanted``, or of all that are found with some certainty."""
        with torch.no_grad():
            (found,) = self.model(image)
        scores, kinds = found["scores"], found["labels"]
        is_sure = scores >= LEAST_SCORE
        chosen = is_sure if wanted is None else torch.isin(kinds, kinds.new_tensor(wanted))
        order = [place for place in scores.argsort(descending=True).tolist() if chosen[place]][:n]
        if not order:
            raise CommandError(
                f"no box was found with a score of {LEAST_SCORE:.0%}; name a class with --target"
                if wanted is None
                else "no box of the --target was found"
            )
        names: list[str] = []
        for kind in kinds[order].tolist():
            name, count = labels[kind], kinds[order][: len(names)].eq(kind).sum()
            names.append(f"{name} {count + 1}" if count else name)
        return BoxMatch(self.model, found["boxes"][order], kinds[order]), tuple(names)


class BoxMatch(nn.Module):
    """How well each of some boxes is found: overlap times score of its best match, (N, boxes)."""

    def __init__(self, model: nn.Module, boxes: Tensor, kinds: Tensor) -> None:
        super().__init__()
        self.model, self.boxes, self.kinds = model, boxes, kinds

    def forward(self, images: Tensor) -> Tensor:
        """The matches in each image of (N, C, H, W)."""
        box_iou = optional_module("torchvision.ops").box_iou
        matches = []
        for found in self.model(images):
            overlap = box_iou(self.boxes, found["boxes"]) * found["scores"]
            overlap = overlap * (self.kinds[:, None] == found["labels"])
            nothing = overlap.new_zeros(len(self.boxes), 1)
            matches.append(torch.cat([overlap, nothing], dim=1).amax(dim=1))
        return torch.stack(matches)


def returns_boxes(outputs: object) -> bool:
    """Whether a model's outputs are those of a detector."""
    return isinstance(outputs, list) and all(
        isinstance(one, dict) and {"boxes", "labels", "scores"} <= one.keys() for one in outputs
    )


def detector_transform(name: str) -> Callable[[Any], Tensor]:
    """Photos as (3, H, W) from 0 to 1, no larger than torchvision's detector scales them itself."""
    functional = optional_module("torchvision.transforms.v2.functional")
    shortest, longest = (320, 640) if "320" in name or "300" in name else (800, 1333)

    def transform(photo: Any) -> Tensor:
        scale = min(shortest / min(photo.size), longest / max(photo.size), 1.0)
        size = tuple(max(1, round(scale * side)) for side in photo.size)
        image: Tensor = functional.pil_to_tensor(photo.resize(size)).float() / 255
        return image

    return transform
