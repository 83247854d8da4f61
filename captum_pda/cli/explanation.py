"""One photo explained: which classes, their maps, and the windows that say most."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from captum_pda.basics.fingerprints import fingerprint
from captum_pda.cli.classifier import Classifier
from captum_pda.cli.question import WITH_CONTEXT, Question
from captum_pda.engines import EngineReport
from captum_pda.evidence.strongest import StrongWindow, pick_strongest, strongest_windows
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.methods.efficient import EfficientPDA
from captum_pda.methods.gradient import GradientPDA
from captum_pda.methods.layer import LayerPDA
from captum_pda.methods.pda import PDA
from captum_pda.methods.sampled import SampledPDA
from captum_pda.prediction.measures import Measure, WeightOfEvidence
from captum_pda.prediction.outputs import scores_of
from captum_pda.prediction.readout import Readout
from captum_pda.priors import PatchPrior
from captum_pda.regions.protocol import Regions

#: What each method of the command is called elsewhere.
METHOD_CLASSES: dict[str, Any] = {
    "pda": PDA,
    "efficient": EfficientPDA,
    "sampled": SampledPDA,
    "gradient": GradientPDA,
    "layer": LayerPDA,
}
#: The windows that speak for a class, and those against it.
Strongest = tuple[list[StrongWindow], list[StrongWindow]]


@dataclass(frozen=True)
class Answer:
    """The map of one class, or of one class rather than another, in bits (H, W)."""

    name: str
    classes: tuple[int, ...]
    bits: Tensor
    speak_for: tuple[StrongWindow, ...]
    speak_against: tuple[StrongWindow, ...]


@dataclass(frozen=True, eq=False)
class Explanation:
    """All answers about one photo.

    Args:
        image: the model's input, (1, C, H, W).
        predictions: the probability of every class, or its output as it is where it has none.
        answers: a map for each class that was asked about.
        method: which method and sizes, in a few words.
        evidence: what every window says about every class; None for "gradient".
        measure: what the maps are measured in.
    """

    image: Tensor
    predictions: Tensor
    answers: tuple[Answer, ...]
    method: str
    evidence: WindowEvidence | None = None
    measure: Measure = field(default_factory=WeightOfEvidence)


@dataclass(frozen=True, eq=False)
class PhotoExplainer:
    """Answers one question about photos; asked as Captum's attributions are, by ``attribute``.

    Args:
        classifier: the model, with the names of its classes.
        question: what is asked.
        prior: what to expect in a window; None fits one to each photo.
        show_progress: whether each photo has a progress bar of its own.
        engines: the engine for windows of each side, where they are chosen for many photos.
    """

    classifier: Classifier
    question: Question
    prior: PatchPrior | None = None
    show_progress: bool = False
    engines: Mapping[str, str] = field(default_factory=dict)

    @property
    def forward_func(self) -> torch.nn.Module:
        """The model."""
        return self.classifier.model

    def settings(self) -> dict[str, Any]:
        """What the answers depend on beside the weights, as plain values."""
        return {
            "model": self.classifier.name,
            "labels_sha256": fingerprint(self.classifier.labels),
            **self._method().settings(),
            **self.question.settings(),
            **({"engine": dict(self.engines)} if self.engines else {}),
        }

    def attribute(self, image: Tensor, target: None = None) -> Explanation:
        """Explain a model's input; all answers come from one set of forward passes."""
        del target  # the question names the classes
        measure: Measure = self._method().measure
        with torch.no_grad():
            outputs = scores_of(self.classifier.model(image))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the method says the same
            scores = Readout.of(self.classifier.output, outputs).every(outputs)[0]
        predictions = measure.prediction(scores)
        classes, pair = self._classes(predictions)
        asked: list[tuple[int, ...]] = [(number,) for number in classes]
        if pair:
            asked.append(pair)
        name = METHOD_CLASSES[self.question.method].__name__
        if self.question.method == "gradient":
            regions = self.question.regions(image)
            answers = [self._by_gradient(image, chosen, regions) for chosen in asked]
            words = f"{name}, {sizes_in_words(regions)}"
            return Explanation(image, predictions, tuple(answers), words, measure=measure)
        evidence = self.evidence(image)
        answers = [self._from_evidence(evidence, chosen) for chosen in asked]
        words = f"{name}, {parts_in_words(evidence)}"
        return Explanation(image, predictions, tuple(answers), words, evidence, measure)

    def evidence(self, image: Tensor) -> WindowEvidence:
        """The evidence of every window for every class."""
        arguments = {**self.question.region_arguments, "show_progress": self.show_progress}
        if self.question.method in WITH_CONTEXT:
            arguments["context"] = self.question.context or "full"
        if self.question.method == "sampled":
            arguments["n_samples"] = self.question.n_samples
            arguments["generator"] = torch.Generator().manual_seed(self.question.seed)
        method = self._method()
        for side, name in self.engines.items():
            kind = (image.shape, image.dtype, image.device, (int(side),) * (image.dim() - 2))
            method.engine.choices[kind] = EngineReport(name, "chosen once for all photos")
        found: WindowEvidence = method.evidence(image, **arguments)
        # That of a layer's feature map is drawn over the image.
        return replace(found, inputs=(image,))

    def _method(self, measure: str = "weight_of_evidence") -> Any:
        kind = METHOD_CLASSES[self.question.method]
        output = self.classifier.output
        options: dict[str, Any] = {"prior": self.prior, "output": output, "measure": measure}
        if kind not in (GradientPDA, LayerPDA):
            options["engine"] = self.question.engine
        return kind(self.classifier.model, **options)

    def _classes(self, predictions: Tensor) -> tuple[list[int], tuple[int, int] | None]:
        """The classes to explain, and the two to tell apart."""
        named, pair = self.question.named_classes(self.classifier.labels)
        if named is not None:
            return named, pair
        n_top = min(self.question.n_top, len(predictions))
        return predictions.topk(n_top).indices.tolist(), pair

    def _from_evidence(self, evidence: WindowEvidence, classes: tuple[int, ...]) -> Answer:
        strongest = strongest_windows(evidence, classes[0], self.question.n_windows, *classes[1:])
        whole = evidence.contrast(*classes) if len(classes) > 1 else evidence.attribution(*classes)
        bits = cast(Tensor, whole)[0, 0]
        return self._answer(classes, bits, strongest)

    def _by_gradient(
        self, image: Tensor, classes: tuple[int, ...], regions: Sequence[Regions]
    ) -> Answer:
        """A backward pass for each class; there are no forward passes to share."""
        # log2 P(first)/P(second) is a difference, and so is its gradient.
        is_ratio = len(classes) > 1 and self.classifier.output != "raw"
        measure = "information_difference" if is_ratio else "weight_of_evidence"
        method = self._method(measure)
        first, *others = (
            method.attribute(image, target=number, **self.question.region_arguments)[0, 0]
            for number in classes
        )
        bits: Tensor = first - others[0] if others else first
        sizes = []
        for one in regions:
            (boxes,) = one.boxes(0)
            values = bits.flatten()[boxes.pixels(bits.device)].mean(dim=1)
            sizes.append(((boxes,), values))
        return self._answer(classes, bits, pick_strongest(sizes, self.question.n_windows))

    def _answer(
        self,
        classes: tuple[int, ...],
        bits: Tensor,
        strongest: Strongest,
    ) -> Answer:
        name = " rather than ".join(self.classifier.labels[number] for number in classes)
        return Answer(name, classes, bits, tuple(strongest[0]), tuple(strongest[1]))


def sizes_in_words(regions: Sequence[Regions]) -> str:
    """The sizes of windows: "windows of 16, 32, 64 px"."""
    sides = dict.fromkeys(max(one.size) for one in regions)
    return f"windows of {', '.join(map(str, sides))} px"


def parts_in_words(evidence: WindowEvidence) -> str:
    """The sizes, contexts and layers that evidence is made of."""
    of_input = [part for part in evidence.parts if part.depth == "input"]
    words = [sizes_in_words([part.regions for part in of_input])] if of_input else []
    contexts = dict.fromkeys(part.context for part in of_input or evidence.parts)
    if "empty" in contexts:
        words.append("both contexts" if len(contexts) > 1 else "empty context")
    layers = dict.fromkeys(part.depth for part in evidence.parts if part.depth != "input")
    return ", ".join([*words, *(f"features of {name}" for name in layers)])
