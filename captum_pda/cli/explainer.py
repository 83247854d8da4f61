"""Explain one photo: which classes, their maps, the strongest regions, and the maps' tests."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from captum_pda.cli.classifier import Classifier, find_class
from captum_pda.cli.detectors import Detector
from captum_pda.cli.usage_errors import UsageError
from captum_pda.datasets.result_folder import read_settings
from captum_pda.engines import ENGINES
from captum_pda.engines.auto import FEWEST_COPIES, AutoEngine
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.evidence.self_test import SelfTest
from captum_pda.evidence.strongest import StrongRegion, regions_of_map, strongest_regions
from captum_pda.fingerprints import fingerprint
from captum_pda.methods.gradient import GradientPDA
from captum_pda.methods.layer import LayerPDA
from captum_pda.methods.pda import PDA
from captum_pda.methods.perturbation import EfficientPDA, SampledPDA
from captum_pda.model.measures import Measure
from captum_pda.model.outputs import ExplainedOutputs, find_output_kind, scores_of
from captum_pda.priors import PatchPrior
from captum_pda.regions.choice import choose_regions
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.protocol import Regions
from captum_pda.regions.superpixels import Superpixels
from captum_pda.regions.windows import WindowGrid

METHOD_CLASSES: dict[str, Any] = {
    "pda": PDA,
    "efficient": EfficientPDA,
    "sampled": SampledPDA,
    "gradient": GradientPDA,
    "layer": LayerPDA,
}
#: Methods that leave the choice of a context to the user; "pda" asks in both, "gradient" in none.
WITH_CONTEXT = ("efficient", "sampled", "layer")
#: Methods that run the whole model for each window, by an engine.
WITH_ENGINE = ("pda", "efficient", "sampled")
#: How many superpixels a region of interest is divided into by default.
ROI_SUPERPIXELS = (12, 25, 60)
#: How many boxes of a detector are explained by default.
EXPLAINED_BOXES = 3
#: How many of the strongest regions are listed, for a class and against it.
LISTED_REGIONS = 3


@dataclass(frozen=True)
class Answer:
    """The map of one class, or of one class rather than another, (H, W).

    Args:
        name: of the class, or of both.
        classes: their numbers.
        bits: the map.
        speak_for, speak_against: the regions that say most.
        test: what the model says without the strongest pixels, and of them alone, if it was asked.
        total: all evidence, if the model was asked with nothing seen.
        box: of a detector, (left, top, right, bottom).
    """

    name: str
    classes: tuple[int, ...]
    bits: Tensor
    speak_for: list[StrongRegion]
    speak_against: list[StrongRegion]
    test: SelfTest | None = None
    total: float | None = None
    box: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class Explanation:
    """All answers about one photo.

    Args:
        image: the model's input, (1, C, H, W).
        predictions: the probability of every class, or the raw output.
        answers: a map for each class that was asked about.
        method: which method and sizes, in a few words.
        measure: what the maps are measured in.
        labels: the names of classes, or of a detector's boxes.
        evidence: the evidence of every window for every class; None for "gradient".
        roi: the region of interest (H, W), if only that was asked.
        decided: which regions decide between the answer and the class that was expected.
    """

    image: Tensor
    predictions: Tensor
    answers: list[Answer]
    method: str
    measure: Measure
    labels: Sequence[str]
    evidence: WindowEvidence | None = None
    decided: tuple[str, ...] = ()
    roi: Tensor | None = None


def check_options(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other."""
    if options.target and options.classes:
        raise UsageError("--target names the classes and --classes counts them; give one of them")
    given = [name for name in ("window", "scales", "superpixels") if getattr(options, name)]
    if len(given) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]} both say what to hide; give one of them")
    if options.superpixels and options.method == "layer":
        raise UsageError(
            "--superpixels are regions of the photo, and --method layer hides places of a feature "
            "map; leave them out, or choose another method"
        )
    if options.roi and (options.window or options.scales or options.method not in WITH_ENGINE):
        raise UsageError(
            "--roi is divided into --superpixels, for --method pda, efficient or sampled; leave "
            "out --window, --scales and other methods"
        )
    if getattr(options, "expected", None) and options.method in ("gradient", "layer"):
        raise UsageError(
            f"--expected hides several regions of the photo at once, and --method {options.method} "
            "hides none; choose another method"
        )
    if options.html and options.method == "gradient":
        raise UsageError(
            "--html shows the evidence of each window, which --method gradient does not compute; "
            "choose another method"
        )
    sizes, stride = window_sizes(options), options.stride
    if len(set(sizes)) < len(sizes):
        raise UsageError(f"--scales {' '.join(map(str, sizes))} holds a size twice")
    if stride is not None and sizes and stride > min(sizes):
        raise UsageError(
            f"--stride {stride} steps over pixels that a window of {min(sizes)} does not reach; "
            f"use at most {min(sizes)}"
        )
    if options.context and options.method not in WITH_CONTEXT:
        raise UsageError(
            f"--context {options.context} does not go with --method {options.method}; leave it "
            f"out, or choose --method {' or '.join(WITH_CONTEXT)}"
        )


def check_size(options: argparse.Namespace, image: Tensor) -> None:
    """Refuse windows that do not fit a model's input."""
    sizes, smallest = window_sizes(options), min(image.shape[2:])
    if sizes and options.method != "layer" and max(sizes) > smallest:
        raise UsageError(
            f"a window of {max(sizes)} is larger than the model's input of {smallest} pixels; use "
            "a smaller one"
        )


def named_classes(
    options: argparse.Namespace, labels: Sequence[str]
) -> tuple[list[int] | None, tuple[int, int] | None]:
    """The classes that were named (None where none was), and the two to tell apart."""
    pair = None
    if getattr(options, "expected", None):
        find_class(options.expected, labels, "--expected")  # refuses unknown names
    if options.contrast:
        first, second = (find_class(name, labels, "--contrast") for name in options.contrast)
        if first == second:
            raise UsageError(f"--contrast needs two classes, and both are {labels[first]}")
        pair = first, second
    if not options.target:
        return None, pair
    found = (find_class(name, labels, options.target_option) for name in options.target)
    return list(dict.fromkeys(found)), pair


def window_sizes(options: argparse.Namespace) -> tuple[int, ...]:
    """The windows' sides that were asked for, in pixels of the model's input (for "layer" in places
    of its feature map); none for the library's default."""
    return (options.window,) if options.window else tuple(options.scales or ())


class PhotoExplainer:
    """Answers what the options ask about photos; called as Captum's attributions are.

    Args:
        classifier: the model, with the names of its classes.
        options: those of the command, checked.
        prior: what to expect in a region; None is the default prior.
        show_progress: whether each photo has a progress bar of its own.
    """

    def __init__(
        self,
        classifier: Classifier,
        options: argparse.Namespace,
        prior: PatchPrior | None = None,
        show_progress: bool = False,
    ) -> None:
        self.classifier = classifier
        self.options = options
        self.prior = prior
        self.show_progress = show_progress
        #: The engine, where it is chosen once for many photos.
        self.engine: str = options.engine
        stride = options.stride
        if options.window and not stride:
            stride = max(1, options.window // 2)
        self._regions: dict[str, Any] = {
            "strides": stride,
            "scales": window_sizes(options) or None,
            "superpixels": options.superpixels,
        }
        if options.method == "layer":
            del self._regions["superpixels"]
        only_contrast = options.contrast and not options.target and not options.classes
        self._n_top = 0 if only_contrast else options.classes or 1

    @property
    def forward_func(self) -> torch.nn.Module:
        """The model."""
        return self.classifier.model

    def settings(self) -> dict[str, Any]:
        """What the answers depend on beside the weights, as plain values."""
        options, sampled = self.options, self.options.method == "sampled"
        return {
            "model": self.classifier.name,
            "labels_sha256": fingerprint(self.classifier.labels),
            **self._method().settings(),
            "method": options.method,
            "sizes": self._regions["scales"] or "default",
            "superpixels": options.superpixels or "default",
            "effort": options.effort if options.method == "pda" else None,
            "test": options.test,
            "stride": self._regions["strides"] or "default",
            "context": options.context or "default",
            "samples": options.samples if sampled else None,
            "seed": options.seed if sampled else None,
            "roi": options.roi,
            "intensity": options.intensity,
            "frame": options.frame,
            "targets": options.target,
            "classes": self._n_top,
            "contrast": options.contrast,
            "expected": getattr(options, "expected", None),
            "regions": LISTED_REGIONS,
            "engine": self.engine if options.method in WITH_ENGINE else None,
        }

    def attribute(self, image: Tensor, target: Tensor | None = None) -> Explanation:
        """Explain a model's input; all answers come from one set of forward passes.

        The options name the classes; ``target`` is the region of interest (*space), if any.
        """
        if isinstance(self.classifier.model, Detector):
            return self._explain_boxes(image, self.classifier.model, target)
        measure: Measure = self._method().measure
        with torch.no_grad():
            outputs = scores_of(self.classifier.model(image))
        kind = find_output_kind(self.classifier.output)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the method warns of the same
            scores = ExplainedOutputs.all_of(kind, outputs).scores(outputs)[0]
        predictions = measure.prediction(scores)
        named, pair = named_classes(self.options, self.classifier.labels)
        if named is None:
            named = predictions.topk(min(self._n_top, len(predictions))).indices.tolist()
        asked: list[tuple[int, ...]] = [*((number,) for number in named), *([pair] if pair else [])]
        name = METHOD_CLASSES[self.options.method].__name__
        if self.options.method == "gradient":
            regions = self.regions(image)
            answers = [self._by_gradient(image, classes, regions) for classes in asked]
            return Explanation(
                image,
                predictions,
                answers,
                f"{name}, {sizes_in_words(regions)}",
                measure,
                self.classifier.labels,
            )
        evidence = self.evidence(image, target)
        answers = [self._from_evidence(evidence, classes) for classes in asked]
        words = f"{name}, {parts_in_words(evidence)}"
        words += "" if target is None else ", region of interest only"
        decided = self._decided(evidence)
        labels = self.classifier.labels
        return Explanation(
            image, predictions, answers, words, measure, labels, evidence, decided, target
        )

    def _decided(self, evidence: WindowEvidence) -> tuple[str, ...]:
        """Which regions are enough for the answer, and which must go for the expected class."""
        if not getattr(self.options, "expected", None):
            return ()
        labels = self.classifier.labels
        expected = find_class(self.options.expected, labels, "--expected")
        top = evidence.top()
        if expected == top:
            return (f"{labels[expected]} is the answer with everything seen: nothing must go",)
        enough = evidence.sufficient(top, n=1, show_progress=self.show_progress)
        needed = evidence.necessary(top, expected, show_progress=self.show_progress)
        lines = [part.described(labels) for part in enough]
        if needed is None:
            return (*lines, f"hiding regions did not make it say {labels[expected]}")
        return (*lines, needed.described(labels))

    def _explain_boxes(self, image: Tensor, detector: Detector, roi: Tensor | None) -> Explanation:
        """Explain the boxes that a detector finds, each as an output of a model of matches."""
        if self.options.method not in WITH_ENGINE or self.options.contrast:
            raise UsageError(
                "boxes of a detector are explained one by one, with --method "
                f"{' or '.join(WITH_ENGINE)}; leave out --contrast"
            )
        named, _ = named_classes(self.options, self.classifier.labels)
        n_boxes = self.options.classes or (len(named) if named else EXPLAINED_BOXES)
        match, names = detector.boxes(image, self.classifier.labels, named, n_boxes)
        other = copy(self)
        other.classifier = replace(self.classifier, model=match, labels=names)
        other.options = argparse.Namespace(**{**vars(self.options), "target": [], "expected": None})
        other.engine, other._n_top = "dense", len(names)
        found = other.attribute(image, roi)
        boxes = [tuple(match.boxes[one.classes[0]].tolist()) for one in found.answers]
        answers = [replace(one, box=box) for one, box in zip(found.answers, boxes, strict=True)]
        return replace(found, answers=answers)

    def evidence(self, image: Tensor, roi: Tensor | None = None) -> WindowEvidence:
        """The evidence of every region for every class."""
        arguments = {**self._regions, "show_progress": self.show_progress}
        if roi is not None:
            sizes = self.options.superpixels or ROI_SUPERPIXELS
            find = partial(Superpixels, roi=roi)
            arguments = {"regions": (find, sizes), "show_progress": self.show_progress}
        if self.options.method in WITH_CONTEXT:
            arguments["context"] = self.options.context or "full"
        if self.options.method == "sampled":
            arguments["n_samples"] = self.options.samples
            arguments["generator"] = torch.Generator().manual_seed(self.options.seed)
        if self.options.method == "pda":
            arguments["effort"] = self.options.effort
        found: WindowEvidence = self._method().evidence(image, **arguments)
        if roi is not None:
            found = found.at_depth("input")  # the feature map knows nothing of the region
        # That of a layer's feature map is drawn over the image.
        return replace(found, inputs=(image,))

    def regions(self, image: Tensor, context: str = "full") -> tuple[Regions, ...]:
        """What is hidden of a model's input, size by size."""
        (regions,) = choose_regions((image,), context, **self._regions)[context]
        return regions

    def choose_engine(self, folder: Path | None, overwrite: bool, photos: Any) -> str:
        """The engine, chosen once for all photos, processes and reruns of a folder.

        Two engines agree up to rounding only. Which one is faster is tried on noise of the shape of
        the first input, or known from the results in the folder.
        """
        options = self.options
        if folder is None or options.engine != "auto" or options.method not in WITH_ENGINE:
            return str(options.engine)
        found = read_settings(folder, overwrite) if folder.is_dir() else None
        if found and found.get("engine") in ENGINES:
            return str(found["engine"])
        noise = np.random.default_rng(0).standard_normal(
            photos.first_input().shape, dtype=np.float32
        )
        first = next(self.classifier.model.parameters(), None)
        image = torch.from_numpy(noise).to(None if first is None else first.device)
        # What one photo would not repay is repaid by a folder.
        engine = AutoEngine(min_seconds=0.0)
        pda = EfficientPDA(self.classifier.model, self.prior, self.classifier.output, engine=engine)
        regions = self.regions(image)
        middle = regions[len(regions) // 2]
        if isinstance(middle, WindowGrid):
            some = np.linspace(0, len(middle) - 1, FEWEST_COPIES).astype(int).tolist()
            pda.evidence(image, regions=middle.pick(some))
        else:
            pda.evidence(image, superpixels=middle.size[0])
        report = pda.engine_report
        return report.engine if report else "dense"

    def _method(self, measure: str = "weight_of_evidence") -> Any:
        options = {"prior": self.prior, "output": self.classifier.output, "measure": measure}
        if self.options.method in WITH_ENGINE:
            options["engine"] = self.engine
        return METHOD_CLASSES[self.options.method](self.classifier.model, **options)

    def _from_evidence(self, evidence: WindowEvidence, classes: tuple[int, ...]) -> Answer:
        strongest = strongest_regions(evidence, classes[0], LISTED_REGIONS, *classes[1:])
        whole = evidence.contrast(*classes) if len(classes) > 1 else evidence.attribution(*classes)
        test = total = None
        if len(classes) == 1 and self.options.method != "layer":
            # Outside of a region of interest the map says nothing, so its test would not either.
            if self.options.test and not self.options.roi:
                test = evidence.self_test(classes[0])
            if any(CONTEXTS[part.context].starts_from_nothing for part in evidence.parts):
                total = float(evidence.total(classes[0])[0])
        bits = cast(Tensor, whole)[0, 0]
        return Answer(self._name(classes), classes, bits, *strongest, test, total)

    def _by_gradient(
        self, image: Tensor, classes: tuple[int, ...], regions: Sequence[Regions]
    ) -> Answer:
        """A backward pass for each class; there are no forward passes to share."""
        # log2 P(first)/P(second) is a difference, and so is its gradient.
        is_ratio = len(classes) > 1 and self._method().measure.needs_probabilities
        method = self._method("information_difference" if is_ratio else "weight_of_evidence")
        first, *others = (
            method.attribute(image, target=number, **self._regions)[0, 0] for number in classes
        )
        bits: Tensor = first - others[0] if others else first
        strongest = regions_of_map(bits, regions, method.measure, LISTED_REGIONS)
        return Answer(self._name(classes), classes, bits, *strongest)

    def _name(self, classes: tuple[int, ...]) -> str:
        return " rather than ".join(self.classifier.labels[number] for number in classes)


def sizes_in_words(regions: Sequence[Regions]) -> str:
    """The sizes of regions: "12, 25, 60 superpixels", or "windows of 16, 32 px"."""
    sides = ", ".join(map(str, dict.fromkeys(max(one.size) for one in regions)))
    is_superpixels = any(isinstance(one, Superpixels) for one in regions)
    return f"{sides} superpixels" if is_superpixels else f"windows of {sides} px"


def parts_in_words(evidence: WindowEvidence) -> str:
    """The sizes, contexts and layers that evidence is made of."""
    of_input = [part for part in evidence.parts if part.depth == "input"]
    words = [sizes_in_words([part.regions for part in of_input])] if of_input else []
    contexts = list(dict.fromkeys(part.context for part in of_input or evidence.parts))
    if contexts != ["full"]:
        several = "both contexts" if len(contexts) == 2 else f"{len(contexts)} contexts"
        words.append(several if len(contexts) > 1 else f"{contexts[0]} context")
    layers = dict.fromkeys(part.depth for part in evidence.parts if part.depth != "input")
    return ", ".join([*words, *(f"features of {name}" for name in layers)])
