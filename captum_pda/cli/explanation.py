"""One photo explained: which classes, their maps, and the windows that say most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from captum_pda.cli.labels import find_class
from captum_pda.cli.models import Classifier
from captum_pda.cli.usage_errors import UsageError
from captum_pda.evidence.strongest import StrongWindow, pick_strongest, strongest_windows
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.methods.efficient import EfficientPDA
from captum_pda.methods.gradient import GradientPDA
from captum_pda.methods.sampled import SampledPDA
from captum_pda.priors import PatchPrior
from captum_pda.regions.arguments import make_grids
from captum_pda.regions.window_grid import WindowGrid

METHODS = ("efficient", "sampled", "gradient")


@dataclass(frozen=True)
class Question:
    """What to ask of a photo.

    Args:
        method: "efficient", "sampled" or "gradient".
        window, stride: in pixels of the model's input.
        n_samples, seed: for "sampled"; the same seed draws the same samples.
        targets: classes by number or name; without any, the ``n_top`` classes with the highest
            probability.
        contrast: two classes to tell apart.
        n_windows: how many of the strongest windows to list.
        engine: "auto", "dense" or "incremental"; for "efficient" and "sampled".
    """

    method: str = "efficient"
    window: int = 10
    stride: int = 5
    n_samples: int = 10
    seed: int = 0
    targets: tuple[str, ...] = ()
    n_top: int = 1
    contrast: tuple[str, str] | None = None
    n_windows: int = 3
    engine: str = "auto"


@dataclass(frozen=True)
class Answer:
    """The map of one class, or of one class rather than another, in bits (H, W)."""

    name: str
    classes: tuple[int, ...]
    bits: Tensor
    speak_for: tuple[StrongWindow, ...]
    speak_against: tuple[StrongWindow, ...]


@dataclass(frozen=True)
class Explanation:
    """All answers about one photo, with the input (1, C, H, W) and every class's probability."""

    image: Tensor
    probabilities: Tensor
    answers: tuple[Answer, ...]


def explain_image(
    classifier: Classifier,
    image: Tensor,
    question: Question,
    prior: PatchPrior | None = None,
    show_progress: bool = False,
) -> Explanation:
    """Explain a model's input; all answers come from one set of forward passes."""
    check_window(question, image)
    with torch.no_grad():
        probabilities = classifier.model(image).softmax(dim=1)[0]
    classes, pair = choose_classes(question, classifier.labels, probabilities)
    if question.method == "gradient":
        answers = _by_gradient(classifier, image, question, prior, classes, pair)
    else:
        evidence = gather_evidence(classifier, image, question, prior, show_progress)
        answers = _from_evidence(classifier, evidence, question, classes, pair)
    return Explanation(image, probabilities, tuple(answers))


def choose_classes(
    question: Question, labels: Sequence[str], probabilities: Tensor
) -> tuple[list[int], tuple[int, int] | None]:
    """The classes to explain, and the two to tell apart."""
    pair = None
    if question.contrast:
        first, second = (find_class(name, labels, "--contrast") for name in question.contrast)
        if first == second:
            raise UsageError(f"--contrast needs two classes, and both are {labels[first]}")
        pair = first, second
    if question.targets:
        named = [find_class(name, labels) for name in question.targets]
        return list(dict.fromkeys(named)), pair
    return probabilities.topk(min(question.n_top, len(labels))).indices.tolist(), pair


def check_window(question: Question, image: Tensor) -> None:
    """Refuse windows that do not fit, in the command's own words."""
    smallest = min(image.shape[2:])
    if question.window > smallest:
        raise UsageError(
            f"--window {question.window} is larger than the model's input of {smallest} pixels; "
            "use a smaller one"
        )
    if question.stride > question.window:
        raise UsageError(
            f"--stride {question.stride} steps over pixels that a window of {question.window} does "
            f"not reach; use at most {question.window}"
        )


def gather_evidence(
    classifier: Classifier,
    image: Tensor,
    question: Question,
    prior: PatchPrior | None = None,
    show_progress: bool = False,
) -> WindowEvidence:
    """The evidence of every window for every class."""
    method = SampledPDA if question.method == "sampled" else EfficientPDA
    settings: dict[str, Any] = {
        "sliding_window_shapes": question.window,
        "strides": question.stride,
        "show_progress": show_progress,
    }
    if question.method == "sampled":
        settings["n_samples"] = question.n_samples
        settings["generator"] = torch.Generator().manual_seed(question.seed)
    pda = method(classifier.model, prior=prior, engine=question.engine)
    return pda.evidence(image, **settings)


def _from_evidence(
    classifier: Classifier,
    evidence: WindowEvidence,
    question: Question,
    classes: Sequence[int],
    pair: tuple[int, int] | None,
) -> list[Answer]:
    answers = []
    for number in classes:
        bits = cast(Tensor, evidence.attribution(number))[0, 0]
        strongest = strongest_windows(evidence, number, question.n_windows)
        answers.append(_answer(classifier, (number,), bits, strongest))
    if pair:
        bits = cast(Tensor, evidence.contrast(*pair))[0, 0]
        strongest = strongest_windows(evidence, pair[0], question.n_windows, pair[1])
        answers.append(_answer(classifier, pair, bits, strongest))
    return answers


def _by_gradient(
    classifier: Classifier,
    image: Tensor,
    question: Question,
    prior: PatchPrior | None,
    classes: Sequence[int],
    pair: tuple[int, int] | None,
) -> list[Answer]:
    """A backward pass for each class; there are no forward passes to share."""
    (grid,) = make_grids((image,), question.window, question.stride)

    def bits_of(number: int, measure: str = "weight_of_evidence") -> Tensor:
        method = GradientPDA(classifier.model, prior=prior, measure=measure)
        attribution: Tensor = method.attribute(
            image,
            target=number,
            sliding_window_shapes=question.window,
            strides=question.stride,
        )
        return attribution[0, 0]

    maps: dict[tuple[int, ...], Tensor] = {(number,): bits_of(number) for number in classes}
    if pair:
        # log2 P(first)/P(second) is a difference, and so is its gradient.
        first, second = (bits_of(number, "information_difference") for number in pair)
        maps[pair] = first - second
    return [
        _answer(classifier, chosen, bits, _on_map(bits, grid, question.n_windows))
        for chosen, bits in maps.items()
    ]


def _on_map(
    bits: Tensor, grid: WindowGrid, n: int
) -> tuple[list[StrongWindow], list[StrongWindow]]:
    """The windows in which a map's mean is highest and lowest."""
    values = bits.flatten()[grid.pixels(bits.device)].mean(dim=1)
    return pick_strongest([((grid,), values)], n)


def _answer(
    classifier: Classifier,
    classes: tuple[int, ...],
    bits: Tensor,
    strongest: tuple[list[StrongWindow], list[StrongWindow]],
) -> Answer:
    name = " rather than ".join(classifier.labels[number] for number in classes)
    return Answer(name, classes, bits, tuple(strongest[0]), tuple(strongest[1]))
