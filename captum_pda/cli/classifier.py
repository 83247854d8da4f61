"""A classifier: its transforms, the names of its classes, and what its outputs are."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from captum_pda.cli.detectors import Detector, returns_boxes
from captum_pda.cli.photos import Array
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line, optional_module
from captum_pda.errors import warn_user
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.outputs import OUTPUT_KINDS, scores_of

IMAGENET_CLASSES, COCO_CLASSES = 1000, 91
#: Before a photo is scaled, its longer side is cut to this many times its shorter one. Models look
#: at the square in the middle only, and a strip of one pixel would grow beyond the memory.
MAX_ASPECT = 4
#: How many classes of a similar name are listed.
MAX_LISTED = 5
#: What comes before a number that is not to be taken for a name.
INDEX = "index:"
#: Modules whose outputs are probabilities.
PROBABILITY_MODULES = (nn.Sigmoid, nn.Softmax, nn.Softmax2d, nn.Hardsigmoid)
#: Modules that hand on the values that they get.
PASSING_MODULES = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout)
BLANK = Image.new("RGB", (256, 256))


@dataclass(frozen=True)
class Preprocessing:
    """From an image to a model's input.

    Args:
        transform: the model's own. It gets a Pillow image of 8 bits, RGB or for a model of one
            channel L. With ``takes_values`` it also gets images of other values, unchanged, as a
            Pillow image of mode F or a volume as an array; and the affine, if it has an argument
            of that name. It returns a tensor (C, *space), or one with its affine.
        mean, std: those of the normalisation, so that it can be undone for display; None where
            they are not known.
        takes_values: whether the transform was written for this model's images. Those of
            libraries are made for photos of 8 bits.
        channels: of the model's input.
    """

    transform: Callable[..., Any]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    takes_values: bool = False
    channels: int = 3

    def __call__(self, image: Image.Image | Array, affine: Array | None = None) -> Tensor:
        """The model's input for an image, (1, C, *space)."""
        return self.prepare(image, affine)[0].unsqueeze(0)

    def prepare(
        self, image: Image.Image | Array, affine: Array | None = None
    ) -> tuple[Tensor, Array | None]:
        """The model's input (C, *space), and its affine where that is known."""
        if isinstance(image, Image.Image) and image.mode != "F":
            image = image.convert("L" if self.channels == 1 else "RGB")
            image = image if self.takes_values else _trim(image)
        elif not self.takes_values:
            raise CommandError(_not_a_photo(image))
        has_affine = "affine" in _parameters(self.transform)
        made = self.transform(image, affine=affine) if has_affine else self.transform(image)
        made, given = made if isinstance(made, tuple) else (made, getattr(made, "affine", None))
        if not isinstance(made, Tensor):
            raise CommandError(
                f"the model's transform returned a {type(made).__name__}; it must return a tensor "
                "(channels, *space)"
            )
        shape = image.shape if not isinstance(image, Image.Image) else (image.height, image.width)
        if given is not None:
            affine = np.asarray(given, dtype=np.float64)
        elif tuple(made.shape[1:]) != tuple(shape):
            affine = None  # the transform has resampled or cut the image
        return made.as_subclass(Tensor), affine

    def colours(self, image: Tensor) -> tuple[Any, Any]:
        """The mean and deviation that turn an input into a picture; None for what is none."""
        if self.mean is None or self.std is None or len(self.mean) not in (1, image.shape[1]):
            return None, None
        shape = (1, -1, *[1] * (image.dim() - 2))
        mean, std = (image.new_tensor(one).reshape(shape) for one in (self.mean, self.std))
        low, high = (image * std + mean).aminmax()
        is_picture = float(low) > -0.1 and float(high) < 1.1
        return (self.mean, self.std) if is_picture else (None, None)

    @staticmethod
    def of(transform: Callable[..., Any], takes_values: bool = False) -> Preprocessing:
        """A transform, with the normalisation that is among its last steps."""
        steps: Sequence[Any] = getattr(transform, "transforms", [transform])
        for step in reversed(steps):
            if getattr(step, "mean", None) is not None and getattr(step, "std", None) is not None:
                mean, std = (
                    torch.as_tensor(one).flatten().tolist() for one in (step.mean, step.std)
                )
                return Preprocessing(transform, tuple(mean), tuple(std), takes_values)
        return Preprocessing(transform, None, None, takes_values)


def _parameters(function: Callable[..., Any]) -> Iterable[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()


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


def input_channels(model: nn.Module) -> int:
    """How many channels a model takes, as its first convolution says; 3 where there is none."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    found = (module.in_channels for module in model.modules() if isinstance(module, kinds))
    return next(found, 3)


def _trim(photo: Image.Image) -> Image.Image:
    width, height = photo.size
    longest = MAX_ASPECT * min(width, height)
    if max(width, height) <= longest:
        return photo
    left, top = max(width - longest, 0) // 2, max(height - longest, 0) // 2
    return photo.crop((left, top, left + min(width, longest), top + min(height, longest)))


@dataclass(frozen=True)
class ModelChoice:
    """A model that was named and is not loaded yet.

    Args:
        name: what it was chosen by.
        preprocessing: from a photo to its input.
        labels: the names of its classes, where they are known without its weights.
        load: returns the model, where its weights come from, and the names of its classes, or
            None where these are only known by asking it.
        output: what its outputs are, where its source says so: "logits", "multilabel",
            "probabilities" or "raw".
    """

    name: str
    preprocessing: Preprocessing
    labels: tuple[str, ...] | None
    load: Callable[[], tuple[nn.Module, str, tuple[str, ...] | None]]
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
        choice: ModelChoice,
        device: str | torch.device = "cpu",
        output: str | None = None,
        image: Tensor | None = None,
    ) -> Classifier:
        """Load a model that was chosen, and ask it about an image (default: a black photo); its
        outputs are read as ``output``, if that is given."""
        model, source, own_labels = choice.load()
        model = model.eval().to(device)
        image = (choice.preprocessing(BLANK) if image is None else image).to(device)
        outputs = _outputs(choice.name, model, image)
        if returns_boxes(outputs):
            labels = choice.labels or default_labels(COCO_CLASSES)
            detector = Detector(model)
            return Classifier(choice.name, detector, choice.preprocessing, labels, source, "raw")
        if own_labels is None:
            own_labels = default_labels(outputs.shape[1])
        labels = own_labels if choice.labels is None else choice.labels
        if len(labels) != len(own_labels):
            raise CommandError(
                f"there are {len(labels)} labels for a model of {len(own_labels)} classes; write "
                "one per line"
            )
        # Classifiers of these libraries return logits, unless their configuration says otherwise.
        of_library = choice.name.startswith(("hf/", "timm/"))
        stated = choice.output or ("logits" if of_library else None)
        kind = output_kind(output, stated, model, image)
        return Classifier(choice.name, model, choice.preprocessing, labels, source, kind)


def _outputs(name: str, model: nn.Module, image: Tensor) -> Any:
    """A model's outputs for an image: one row of scores, or the boxes of a detector."""
    try:
        with torch.no_grad():
            outputs = model(image)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise CommandError(
            f"--model {name} fails for an input of shape {tuple(image.shape)} ({one_line(error)}); "
            "return a transform that makes what it takes"
        ) from error
    if returns_boxes(outputs):
        return outputs
    scores = scores_of(outputs)
    if scores.dim() != 2:
        raise CommandError(
            f"--model {name} must return a tensor (N, classes) for inputs (N, C, *space)"
        )
    return scores


# What the outputs are


def output_kind(asked: str | None, stated: str | None, model: nn.Module, image: Tensor) -> str:
    """How to read a model's outputs: as asked, as the model's source states, or as logits.

    A model that ends in a sigmoid or softmax does not return logits: it is refused unless a kind
    was asked or stated, and a kind that contradicts it is warned of.
    """
    if stated is not None and stated not in OUTPUT_KINDS:
        raise UsageError(
            f"the model's output_kind is {stated!r}; it must be one of {', '.join(OUTPUT_KINDS)}"
        )
    kind = asked or stated
    are_logits = OUTPUT_KINDS[kind or "logits"].are_logits
    ending = probability_ending(model, image) if are_logits else None
    if ending is None:
        if kind is None and _looks_like_probabilities(model, image):
            raise UsageError(
                "all outputs of the model lie between 0 and 1, as probabilities do; add "
                "--output-kind probabilities, or logits if that is what they are"
            )
        return kind or "logits"
    name, module = ending
    found = (
        f"the model ends in a {type(module).__name__} ({name}), so its outputs are probabilities"
    )
    if kind is None:
        raise UsageError(f"{found}; add --output-kind probabilities")
    warn_user(f"{found}, and they are read as {kind}; use --output-kind probabilities")
    return kind


def _looks_like_probabilities(model: nn.Module, image: Tensor) -> bool:
    """Whether the outputs for an image and some others of its size all lie between 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(image.shape, generator=generator).to(image)
    with torch.no_grad(), evaluation_mode(model):
        # Far from any image, logits leave this range, and probabilities do not.
        for probe in (image, -image, noise, 30 * noise, -30 * noise):
            scores = scores_of(model(probe))
            if not bool(((scores >= 0) & (scores <= 1)).all()):
                return False
    return True


def probability_ending(model: nn.Module, image: Tensor) -> tuple[str, nn.Module] | None:
    """The sigmoid or softmax module that made a model's outputs, with its name."""
    last: list[tuple[str, nn.Module, object]] = []

    def remember(name: str, module: nn.Module, outputs: object) -> None:
        if not isinstance(module, PASSING_MODULES):
            last[:] = [(name, module, outputs)]

    handles = [
        module.register_forward_hook(
            lambda module, _, outputs, name=name: remember(name, module, outputs)
        )
        for name, module in model.named_modules()
        if not any(module.children())
    ]
    try:
        with torch.no_grad(), evaluation_mode(model):
            outputs = scores_of(model(image))
    finally:
        for handle in handles:
            handle.remove()
    if not last or not isinstance(last[0][1], PROBABILITY_MODULES):
        return None
    name, module, made = last[0]
    # A sigmoid may also be a gate inside of the last layer.
    is_output = isinstance(made, Tensor) and torch.equal(made.flatten(), outputs.flatten())
    return (name, module) if is_output else None


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
    """The class that a name, a number, or part of one name means.

    Where a number is also the name of another class it could mean either, and is refused;
    "index:3" is class number 3 whatever the names.
    """
    wanted = given.strip().casefold()
    names = [label.strip().casefold() for label in labels]
    found = [number for number, name in enumerate(names) if name == wanted]
    digits = wanted.removeprefix(INDEX)
    if not (found and digits != wanted) and digits.removeprefix("-").isdecimal():
        index = int(digits)
        is_class = 0 <= index < len(labels)
        if found and index not in found and is_class:
            choices = [f"{INDEX}{number} (named {labels[number]!r})" for number in (*found, index)]
            raise UsageError(
                f"{option} {given} may mean a class's name or its number; give "
                f"{' or '.join(choices)}"
            )
        if not found and not is_class:
            raise UsageError(
                f"{option} {given} is out of range; the model has classes 0 to {len(labels) - 1}"
            )
        found = found or [index]
    if not found and wanted:
        found = [number for number, name in enumerate(names) if wanted in name]
    if len(found) == 1:
        return found[0]
    if found:
        found.sort(key=lambda number: _distance(wanted, names[number]))
        more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        advice = f"{INDEX}{found[0]}" if wanted.isdecimal() else "the number"
        raise UsageError(
            f"{option} {given!r} may mean {_listed(found, labels)}{more}; give {advice}"
        )
    close = [names.index(name) for name in difflib.get_close_matches(wanted, names, n=3)]
    advice = (
        f"did you mean {_listed(close, labels)}?"
        if close
        else f"give a number from 0 to {len(labels) - 1}, or part of a class's name"
    )
    raise UsageError(f"{option} {given!r} is not a class of this model; {advice}")


def true_class(photo: Path, labels: Sequence[str]) -> int | None:
    """The class that the photo's folder is named after, as data sets are often kept."""
    folder = _folder_name(photo.absolute().parent.name)
    found = [number for number, label in enumerate(labels) if _folder_name(label) == folder]
    return found[0] if len(found) == 1 else None


def _folder_name(name: str) -> str:
    return name.replace("_", " ").strip().casefold()


def _distance(wanted: str, name: str) -> tuple[int, int, str]:
    """Sorts what fits best first: the whole word, then the start of one, then the shorter name."""
    if re.search(rf"\b{re.escape(wanted)}\b", name):
        fit = 0
    else:
        fit = 1 if re.search(rf"\b{re.escape(wanted)}", name) else 2
    return fit, len(name), name


def _listed(numbers: Sequence[int], labels: Sequence[str]) -> str:
    return ", ".join(f"{number} ({labels[number]})" for number in numbers[:MAX_LISTED])
