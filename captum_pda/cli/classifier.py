"""A classifier: a model with its transform, its class names, and its kind of outputs."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from captum_pda.cli.photos import Array
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line, optional_module
from captum_pda.errors import warn_user
from captum_pda.files import counted
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.outputs import OUTPUT_KINDS, scores_of

IMAGENET_CLASSES, COCO_CLASSES = 1000, 91
#: The number of classes of a similar name that are listed.
MAX_LISTED = 5
#: Marks a number that is not a name.
INDEX = "index:"
#: The number of scores by which images and models are distinguished.
COMPARED_SCORES = 20
#: Boxes with a lower score are not explained unless their class is named.
LEAST_SCORE = 0.5
#: Larger values, before a normalisation for values from 0 to 1, have not been scaled to them.
NOT_SCALED = 10.0
BLANK = Image.new("RGB", (256, 256))


class Preprocessing:
    """Converts an image to a model's input.

    A transform gets a Pillow image of 8 bits, RGB or L for a model of one channel. With
    ``takes_values``, for transforms that were written for this model's images, it also gets other
    images unchanged, as a Pillow image of mode F or a volume as an array; and the affine, if it has
    an argument of that name. It returns a tensor (C, *space), or one with its affine. ``mean`` and
    ``std`` are those of its last step that has both, for display.
    """

    def __init__(
        self, transform: Callable[..., Any], takes_values: bool = False, channels: int = 3
    ) -> None:
        self.transform, self.takes_values, self.channels = transform, takes_values, channels
        try:
            self.wants_affine = "affine" in inspect.signature(transform).parameters
        except (TypeError, ValueError):  # a function without a known signature
            self.wants_affine = False
        self.is_noted = False  # that values are not scaled
        self.mean: Sequence[float] | None = None
        self.std: Sequence[float] | None = None
        for step in getattr(transform, "transforms", [transform]):
            mean, std = getattr(step, "mean", None), getattr(step, "std", None)
            if mean is not None and std is not None:
                self.mean, self.std = (tuple(np.ravel(one).tolist()) for one in (mean, std))

    def __call__(self, image: Image.Image | Array, affine: Array | None = None) -> Tensor:
        """The model's input for an image, (1, C, *space)."""
        return self.prepare(image, affine)[0].unsqueeze(0)

    def prepare(
        self, image: Image.Image | Array, affine: Array | None = None
    ) -> tuple[Tensor, Array | None]:
        """The model's input (C, *space), and its affine where that is known."""
        if is_photo := isinstance(image, Image.Image) and image.mode != "F":
            image = image.convert("L" if self.channels == 1 else "RGB")
        elif not self.takes_values:
            raise CommandError(_not_a_photo(image))
        arguments = {"affine": affine} if self.wants_affine else {}
        try:
            made = self.transform(image, **arguments)
        except Exception as error:
            raise CommandError(
                f"the model's transform failed ({type(error).__name__}: {one_line(error)}); it "
                "gets one image and returns a tensor (channels, *space)"
            ) from error
        made, given = made if isinstance(made, tuple) else (made, getattr(made, "affine", None))
        shape = image.shape if not isinstance(image, Image.Image) else (image.height, image.width)
        if not isinstance(made, Tensor) or not 1 < made.dim() <= 1 + len(shape):
            kind = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            raise CommandError(
                f"the model's transform returned {kind}; it must return a tensor (channels, *space)"
            )
        if self.mean is not None and self.std is not None and max(self.mean) <= 1:
            largest = float(made.max()) * max(self.std) + max(self.mean)  # before normalisation
        else:  # the transform tells no range
            largest = 0.0
        if not is_photo and largest > NOT_SCALED and not self.is_noted:
            self.is_noted = True
            warn_user(
                "the model's transform normalises values from 0 to 1, and those of this image are "
                "far larger; scale them there, or say what is black and white: --intensity LOW HIGH"
            )
        if given is not None:
            affine = np.asarray(given, dtype=np.float64)
        elif tuple(made.shape[1:]) != tuple(shape):
            affine = None  # the transform has resampled or cut the image
        return made.as_subclass(Tensor), affine

    def colours(self, image: Tensor) -> tuple[Any, Any]:
        """The mean and std for displaying an input; None if they do not give a picture."""
        if self.mean is None or self.std is None or len(self.mean) not in (1, image.shape[1]):
            return None, None
        shape = (1, -1, *[1] * (image.dim() - 2))
        mean, std = (image.new_tensor(one).reshape(shape) for one in (self.mean, self.std))
        low, high = (image * std + mean).aminmax()
        return (self.mean, self.std) if low > -0.1 and high < 1.1 else (None, None)


def _not_a_photo(image: Image.Image | Array) -> str:
    own = "give --model package.module:function, which returns a transform that takes it"
    if not isinstance(image, Image.Image):
        return f"this is a volume of {' x '.join(map(str, image.shape))}; {own}"
    low, high = image.getextrema()
    return (
        f"this image has values from {low:g} to {high:g}, and the model takes photos of 8 bits; "
        "say which values are black and white with --intensity LOW HIGH (or 'file', for the window "
        f"of a DICOM file), or {own}"
    )


@dataclass(frozen=True)
class Classifier:
    """A model by name, which ``loaded`` prepares."""

    name: str
    preprocessing: Preprocessing
    load: Callable[[], nn.Module]
    weights: str  # where they come from
    labels: tuple[str, ...] = ()  # empty where only the model knows how many there are
    output: str = ""  # a key of OUTPUT_KINDS, where it is known
    model: nn.Module = nn.Identity()  # noqa: RUF009 - stands for a model that is not loaded yet

    def loaded(
        self,
        device: str | torch.device = "cpu",
        output: str | None = None,
        image: Tensor | None = None,
    ) -> Classifier:
        """The classifier with its model on a device, after a run on an image (default: a black
        photo); ``output`` sets the kind of its outputs."""
        model = self.load().eval().to(device)
        image = (self.preprocessing(BLANK) if image is None else image).to(device)
        try:
            with torch.no_grad():
                outputs = model(image)
            is_detector = isinstance(outputs, list) and all(
                isinstance(one, dict) and one.keys() >= {"boxes", "labels", "scores"}
                for one in outputs
            )
            scores = None if is_detector else scores_of(outputs)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            step = "return a transform that makes what it takes"
            if image.dim() == 4 and any(isinstance(one, nn.Conv3d) for one in model.modules()):
                step = "it takes volumes: --series reads a folder of DICOM slices as one"
            raise CommandError(
                f"--model {self.name} fails for an input of shape {tuple(image.shape)} "
                f"({one_line(error)}); {step}"
            ) from error
        if scores is None:
            labels = self.labels or default_labels(COCO_CLASSES)
            return replace(self, model=Detector(model), labels=labels, output="raw")
        if scores.dim() != 2:
            raise CommandError(
                f"--model {self.name} must return a tensor (N, classes) for inputs (N, C, *space)"
            )
        labels = self.labels or default_labels(scores.shape[1])
        if len(labels) != scores.shape[1]:
            raise CommandError(
                f"{counted(len(labels), 'label')} for a model of "
                f"{counted(scores.shape[1], 'class', 'classes')}; write one per line"
            )
        given = output or self.output
        if given and given not in OUTPUT_KINDS:
            raise UsageError(
                f"the model's output_kind is {given!r}; it must be one of {', '.join(OUTPUT_KINDS)}"
            )
        if OUTPUT_KINDS[given or "logits"].are_logits and _returns_probabilities(model, image):
            found = "all outputs of the model lie between 0 and 1, as probabilities do"
            if not given:
                raise UsageError(
                    f"{found}; add --output-kind probabilities, or logits if that is what they are"
                )
            warn_user(f"{found}, and they are read as {given}; use --output-kind probabilities")
        return replace(self, model=model, labels=labels, output=given or "logits")


def _returns_probabilities(model: nn.Module, image: Tensor) -> bool:
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0)).to(image)
    with torch.no_grad(), evaluation_mode(model):
        # Far from any image, logits leave this range, and probabilities do not.
        probes = (scores_of(model(one)) for one in (image, -image, 30 * noise, -30 * noise))
        return all(bool(((scores >= 0) & (scores <= 1)).all()) for scores in probes)


# The names of classes


def default_labels(n_classes: int) -> tuple[str, ...]:
    """ImageNet's names for a thousand classes, and numbers for others."""
    if n_classes == IMAGENET_CLASSES:
        models = optional_module("torchvision.models")
        return tuple(models.ResNet18_Weights.IMAGENET1K_V1.meta["categories"])
    return tuple(f"class {number}" for number in range(n_classes))


def read_labels(file: Path) -> tuple[str, ...]:
    """The names in a file with one per line."""
    try:
        names = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"the labels in {file} cannot be read ({error}); write one name a line, in UTF-8"
        ) from error
    return tuple(name.strip() for name in names if name.strip())


def find_class(given: str, labels: Sequence[str], option: str = "--target") -> int:
    """The class of a name, a number, or part of one name.

    A number that is also the name of another class is refused as ambiguous; "index:3" is always
    class number 3.
    """
    wanted = given.strip().casefold()
    names = [label.strip().casefold() for label in labels]
    found = [number for number, name in enumerate(names) if name == wanted]
    digits = wanted.removeprefix(INDEX)
    if digits.removeprefix("-").isdecimal():
        if 0 <= int(digits) < len(labels):
            found = list(dict.fromkeys([*found, int(digits)]))
        elif not found:
            raise UsageError(
                f"{option} {given} is out of range; the model has classes 0 to {len(labels) - 1}"
            )
    elif wanted and not found:
        found = [number for number, name in enumerate(names) if wanted in name]
        # The whole word first, then the start of one, then the shorter name.
        fits = [re.compile(pattern.format(re.escape(wanted))) for pattern in (r"\b{}\b", r"\b{}")]
        found.sort(key=lambda one: (*(not fit.search(names[one]) for fit in fits), len(names[one])))
    if len(found) == 1:
        return found[0]
    if found:
        more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        raise UsageError(
            f"{option} {given!r} may mean {_listed(found, labels)}{more}; give one of these"
        )
    close = [names.index(name) for name in difflib.get_close_matches(wanted, names, n=3)]
    advice = (
        f"did you mean {_listed(close, labels)}?"
        if close
        else f"give a number from 0 to {len(labels) - 1}, or part of a class's name"
    )
    raise UsageError(f"{option} {given!r} is not a class of this model; {advice}")


def _listed(numbers: Sequence[int], labels: Sequence[str]) -> str:
    return ", ".join(f"{INDEX}{number} ({labels[number]})" for number in numbers[:MAX_LISTED])


def true_class(photo: Path, labels: Sequence[str]) -> int | None:
    """The class of the photo's folder, as in many data sets."""
    folder, *names = (
        name.replace("_", " ").strip().casefold()
        for name in (photo.absolute().parent.name, *labels)
    )
    return names.index(folder) if names.count(folder) == 1 else None


# Detectors return boxes, whose number changes with the image. A box is explained by its match: the
# largest product of overlap and score among the boxes of its class in a changed copy (as in
# docs/recipes/detector.md), for all boxes in the same passes.


class Detector(nn.Module):
    """A model that returns boxes, as in torchvision, as a model of its highest scores."""

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
        """The ``n`` boxes of an image (1, C, H, W) with the highest scores, and their names; of the
        classes ``wanted``, or of all with a sufficient score."""
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
            name = labels[kind] if kind < len(labels) else f"class {kind}"
            count = kinds[order][: len(names)].eq(kind).sum()
            names.append(f"{name} #{count + 1}" if count else name)
        return BoxMatch(self.model, found["boxes"][order], kinds[order]), tuple(names)


class BoxMatch(nn.Module):
    """The matches of given boxes: overlap times score of each best match, (N, boxes)."""

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


def detector_transform(shortest: int, longest: int) -> Callable[[Any], Tensor]:
    """Photos as (3, H, W) from 0 to 1, no larger than torchvision's detector uses them."""
    functional = optional_module("torchvision.transforms.v2.functional")

    def transform(photo: Any) -> Tensor:
        scale = min(shortest / min(photo.size), longest / max(photo.size), 1.0)
        size = tuple(max(1, round(scale * side)) for side in photo.size)
        image: Tensor = functional.pil_to_tensor(photo.resize(size)).float() / 255
        return image

    return transform
