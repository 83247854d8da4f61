"""The explanation of one photo: classes, maps, strongest regions and tests."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from captum_pda.cli.classifier import Classifier, Detector, find_class
from captum_pda.cli.usage_errors import UsageError
from captum_pda.engines.auto import AutoEngine
from captum_pda.evidence.evidence import WindowEvidence
from captum_pda.evidence.self_test import SelfTest
from captum_pda.evidence.strongest import StrongRegion, strongest_regions
from captum_pda.evidence.words import joined
from captum_pda.fingerprints import fingerprint
from captum_pda.methods.layer import LayerPDA
from captum_pda.methods.pda import PDA
from captum_pda.methods.perturbation import EfficientPDA, SampledPDA
from captum_pda.priors import PatchPrior
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.superpixels import Superpixels

METHODS: dict[str, Any] = {
    "pda": PDA,
    "efficient": EfficientPDA,
    "sampled": SampledPDA,
    "layer": LayerPDA,
}
#: Methods with a choice of context; "pda" uses all of them.
WITH_CONTEXT = ("efficient", "sampled", "layer")
#: Methods that run the whole model for each window, by an engine.
WITH_ENGINE = ("pda", "efficient", "sampled")
#: The default numbers of superpixels in a region of interest.
ROI_SUPERPIXELS = (12, 25, 60)
#: The default number of explained boxes of a detector.
EXPLAINED_BOXES = 3
#: The number of regions that are listed for a class, and against it.
LISTED_REGIONS = 3
#: Options that results do not depend on, or that are stored under another name.
NO_SETTINGS = {"images", "output", "overwrite", "raw", "html", "quiet", "debug", "run", "device"}
NO_SETTINGS |= {"weights", "labels", "prior", "output_kind", "target", "target_option"}
NO_SETTINGS |= {"groups", "min_photos"}  # which come after the results


@dataclass(frozen=True)
class Answer:
    """The map of one class, or of one class rather than another."""

    name: str  # of the class, or of both
    classes: tuple[int, ...]
    bits: Tensor  # (H, W)
    speak_for: list[StrongRegion]
    speak_against: list[StrongRegion]
    test: SelfTest | None = None
    total: float | None = None  # all evidence, if the model was asked with nothing seen
    box: tuple[float, ...] | None = None  # of a detector: left, top, right, bottom


@dataclass(frozen=True, eq=False)
class Explanation:
    """All answers about one photo."""

    answers: list[Answer]
    method: str  # with its sizes, in a few words
    labels: Sequence[str]  # of classes, or of a detector's boxes
    evidence: WindowEvidence
    decided: tuple[str, ...] = ()  # which regions decide between the answer and the expected class
    roi: Tensor | None = None  # the region of interest (*space), if only that was asked

    @property
    def image(self) -> Tensor:
        """The model's input, (1, C, *space)."""
        return self.evidence.inputs[0]

    @property
    def predictions(self) -> Tensor:
        """The probability of every class, or the raw outputs."""
        return self.evidence.measure.prediction(self.evidence.scores[0])


def check_options(options: Namespace) -> None:
    """Refuse contradictory options; windows of one size get a stride of half of it."""
    method, stride, sizes = options.method, options.stride, options.scales
    refused = {
        "--superpixels are regions of the photo, and --method layer hides places of a feature map; "
        "leave them out, or choose another method": options.superpixels and method == "layer",
        "--roi is divided into --superpixels, for --method pda, efficient or sampled; leave out "
        "--window and other methods": options.roi and (sizes or method not in WITH_ENGINE),
        f"--expected hides several regions of the photo at once, and --method {method} hides none; "
        "choose another method": options.expected and method not in WITH_ENGINE,
        f"--window {sizes} holds a size twice": len(set(sizes)) < len(sizes),
        f"--stride {stride} steps over pixels that a window of {min(sizes, default=0)} does not "
        "reach; use a smaller one": stride and sizes and stride > min(sizes),
        f"--context {options.context} does not go with --method {method}; leave it out, or choose "
        f"--method {' or '.join(WITH_CONTEXT)}": options.context and method not in WITH_CONTEXT,
    }
    for message, is_wrong in refused.items():
        if is_wrong:
            raise UsageError(message)
    if len(sizes) == 1 and not stride:
        options.stride = max(1, sizes[0] // 2)


def named_classes(
    options: Namespace, labels: Sequence[str]
) -> tuple[list[int] | None, tuple[int, ...], int | None]:
    """The classes of --target (None without it), --contrast and --expected."""
    expected = find_class(options.expected, labels, "--expected") if options.expected else None
    pair = tuple(find_class(name, labels, "--contrast") for name in options.contrast or ())
    if pair and pair[0] == pair[1]:
        raise UsageError(f"--contrast needs two classes, and both are {labels[pair[0]]}")
    found = [find_class(name, labels, options.target_option) for name in options.target]
    return list(dict.fromkeys(found)) or None, pair, expected


class PhotoExplainer:
    """Answers the questions of the checked options; called like a Captum attribution."""

    def __init__(
        self,
        classifier: Classifier,
        options: Namespace,
        prior: PatchPrior | None = None,
        show_progress: bool = False,
    ) -> None:
        self.classifier, self.options, self.prior = classifier, options, prior
        self.show_progress = show_progress
        self.forward_func = classifier.model
        how: dict[str, Any] = {"prior": prior, "output": classifier.output}
        if options.method in WITH_ENGINE:
            # A trial of engines pays for many photos, which have no bar each.
            is_tried = options.engine == "auto" and not show_progress
            how["engine"] = AutoEngine(min_seconds=0.0) if is_tried else options.engine
        self.method = METHODS[options.method](classifier.model, **how)
        self._regions = {"strides": options.stride, "scales": options.scales or None}
        if options.method != "layer":
            self._regions["superpixels"] = options.superpixels

    def settings(self) -> dict[str, Any]:
        """The settings of the answers besides the weights, as plain values."""
        asked = vars(self.options)
        return {
            "labels_sha256": fingerprint(self.classifier.labels),
            **self.method.settings(),
            **{name: value for name, value in asked.items() if name not in NO_SETTINGS},
            "model": self.classifier.name,
            "targets": asked["target"],  # "target" is that of a data set
            "listed_regions": LISTED_REGIONS,
        }

    def attribute(self, image: Tensor, target: Tensor | None = None) -> Explanation:
        """Explain a model's input, with one set of forward passes for all answers. The options name
        the classes; ``target`` is the region of interest (*space), if any."""
        model, labels, options = self.classifier.model, self.classifier.labels, self.options
        if isinstance(model, Detector):
            return self._explain_boxes(image, model, target)
        named, pair, expected = named_classes(options, labels)
        kind = self.method.output_kind
        if expected is not None and not kind.has_probabilities:
            raise UsageError(
                f"--expected names the class that is to become first, and of {kind.name} outputs "
                "none is; leave it out, or give another --output-kind"
            )
        evidence = self.evidence(image, target)
        if named is None:
            n_top = options.classes or (0 if pair else 1)
            named = evidence.scores[0].topk(min(n_top, len(labels))).indices.tolist()
        asked = [*((number,) for number in named), *([pair] if pair else [])]
        answers = [self._answer(evidence, classes) for classes in asked]
        depths: dict[str, dict[str, None]] = {}
        for part in evidence.parts:
            depths.setdefault(part.depth, {})[part.title] = None
        words = [METHODS[options.method].__name__, *map(joined, map(tuple, depths.values()))]
        words += [] if target is None else ["region of interest only"]
        decided = () if expected is None else self._decided(evidence, expected)
        return Explanation(answers, ", ".join(words), labels, evidence, decided, target)

    def _decided(self, evidence: WindowEvidence, expected: int) -> tuple[str, ...]:
        """The parts that are sufficient for the answer, and necessary to change it as expected."""
        labels, top, shown = self.classifier.labels, evidence.top(), self.show_progress
        # The most probable of exclusive classes is the answer; labels are answers from 50% on.
        is_label = len(labels) == 1 or not self.method.output_kind.are_exclusive
        if evidence.scores[0, expected] >= 0 if is_label else expected == top:
            return (f"{labels[expected]} is the answer already; no region needs to be hidden",)
        enough = evidence.sufficient(top, n=1, show_progress=shown)
        needed = evidence.necessary(top, None if expected == top else expected, show_progress=shown)
        failed = f"hiding regions did not make {labels[expected]} the answer"
        found = [part.described(labels) for part in enough]
        return (*found, failed if needed is None else needed.described(labels))

    def _explain_boxes(self, image: Tensor, detector: Detector, roi: Tensor | None) -> Explanation:
        """Explain the boxes of a detector, each as an output of a model of matches."""
        options = self.options
        if options.method not in WITH_ENGINE or options.contrast or options.expected:
            raise UsageError(
                "boxes of a detector are explained one by one, with --method "
                f"{' or '.join(WITH_ENGINE)}; leave out --contrast and --expected"
            )
        named, _, _ = named_classes(options, self.classifier.labels)
        n_boxes = options.classes or (len(named) if named else EXPLAINED_BOXES)
        match, names = detector.boxes(image, self.classifier.labels, named, n_boxes)
        fixed: dict[str, Any] = {"target": [], "classes": len(names), "engine": "dense"}
        asked = Namespace(**vars(options) | fixed)
        boxed = replace(self.classifier, model=match, labels=names)
        other = PhotoExplainer(boxed, asked, self.prior, self.show_progress)
        found, boxes = other.attribute(image, roi), match.boxes.tolist()
        answers = [replace(one, box=tuple(boxes[one.classes[0]])) for one in found.answers]
        return replace(found, answers=answers)

    def evidence(self, image: Tensor, roi: Tensor | None = None) -> WindowEvidence:
        """The evidence of every region for every class."""
        options, arguments = self.options, dict(self._regions)
        if roi is not None:
            sizes = options.superpixels or ROI_SUPERPIXELS
            arguments = {"regions": (partial(Superpixels, roi=roi), sizes)}
        if options.method in WITH_CONTEXT:
            arguments["context"] = options.context or "full"
        if options.method == "sampled":
            arguments["n_samples"] = options.samples
            arguments["generator"] = torch.Generator().manual_seed(options.seed)
        if options.method == "pda":
            arguments["effort"] = options.effort
        found: WindowEvidence = self.method.evidence(
            image, show_progress=self.show_progress, **arguments
        )
        if roi is not None:
            found = found.at_depth("input")  # the feature map knows nothing of the region
        # Evidence of a layer's feature map is drawn over the image.
        return replace(found, inputs=(image,))

    def _answer(self, evidence: WindowEvidence, classes: tuple[int, ...]) -> Answer:
        strongest = strongest_regions(evidence, classes[0], LISTED_REGIONS, *classes[1:])
        test = total = None
        if len(classes) == 1 and self.options.method != "layer":
            # The map is 0 outside of a region of interest, and its test would be meaningless.
            if self.options.test and not self.options.roi:
                test = evidence.self_test(classes[0])
            if any(CONTEXTS[part.context].starts_from_nothing for part in evidence.parts):
                total = float(evidence.total(classes[0])[0])
        name = " rather than ".join(self.classifier.labels[number] for number in classes)
        return Answer(name, classes, evidence.map(*classes), *strongest, test, total)
