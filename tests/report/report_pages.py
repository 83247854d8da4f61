"""Small reports of every kind of evidence, and what they ought to show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from conftest import make_classifier, make_images

from captum_pda import PDA, ConstantPrior, EfficientPDA, LayerPDA, SampledPDA, WindowEvidence
from captum_pda.report import write_report

SPACE = (24, 32)
#: Names that are data, whatever they look like.
LABELS = (
    "<script>alert(1)</script>",
    "tabby",
    '"><img src=x onerror=alert(2)>',
    "\u202e\u05d7\u05ea\u05d5\u05dc \U0001f408 &amp; {{values}}",
)
TITLE = "</title><script>alert(3)</script>.jpg"


def make_evidence(context: str = "both") -> WindowEvidence:
    """Windows of two sizes on a small image, for four classes."""
    model = make_classifier(classes=len(LABELS))
    image = make_images(1, 3, *SPACE)
    pda = EfficientPDA(lambda x: 15 * model(x), prior=ConstantPrior(0.3), engine="dense")
    return pda.evidence(image, scales=(6, 12), strides=(3, 4), context=context)


def make_report(folder: Path, evidence: WindowEvidence, **settings: Any) -> Path:
    """A report with names that look like markup."""
    settings = {"labels": LABELS, "title": TITLE, **settings}
    return write_report(evidence, folder / "report.html", **settings)


def by_pda() -> WindowEvidence:
    pda = PDA(make_classifier(), prior=ConstantPrior(0.2), engine="dense")
    return pda.evidence(make_images(1, 3, *SPACE), scales=(5, 10), strides=5)


def by_default() -> WindowEvidence:
    """Windows of other sizes in one context than in the other, with one in common."""
    return PDA(make_classifier(), engine="dense").evidence(make_images(1, 3, *SPACE))


def by_superpixels() -> WindowEvidence:
    pda = EfficientPDA(make_classifier(), prior=ConstantPrior(0.2), engine="dense")
    return pda.evidence(make_images(1, 3, *SPACE), superpixels=(6, 15, 40), context="both")


def by_mask(examples: int = 1) -> WindowEvidence:
    """Regions of any shape; of several examples, each lacks the first regions of the others."""
    rows, columns = torch.arange(SPACE[0])[:, None], torch.arange(SPACE[1])[None]
    mask = rows // 7 * 3 + columns**2 // 300
    masks = torch.stack([mask.clamp_min(2 * number) for number in range(examples)])[:, None]
    pda = EfficientPDA(make_classifier(), prior=ConstantPrior(0.2), engine="dense")
    return pda.evidence(make_images(examples, 3, *SPACE), feature_mask=masks, context="both")


def by_samples() -> WindowEvidence:
    pda = SampledPDA(make_classifier(), engine="dense")
    generator = torch.Generator().manual_seed(0)
    image = make_images(1, 3, *SPACE)
    return pda.evidence(image, n_samples=3, sliding_window_shapes=8, strides=4, generator=generator)


def of_features() -> WindowEvidence:
    """Regions of a feature map, drawn over the image as the command does."""
    model, image = make_classifier(), make_images(1, 3, *SPACE)
    pda = LayerPDA(model, model[2])
    return replace(pda.evidence(image), inputs=(image,))


def of_outputs(output: str, measure: str) -> WindowEvidence:
    model = make_classifier()
    function = (lambda x: model(x).softmax(1)) if output == "probabilities" else model
    pda = EfficientPDA(function, ConstantPrior(0.0), output, measure, "dense")
    return pda.evidence(make_images(1, 3, *SPACE), sliding_window_shapes=8, strides=4)


def of_one_output() -> WindowEvidence:
    model = make_classifier(channels=1, classes=1)
    pda = EfficientPDA(model, prior=ConstantPrior(0.0), engine="dense")
    return pda.evidence(make_images(1, 1, *SPACE), sliding_window_shapes=8, strides=4)


KINDS = {
    "windows": make_evidence,
    "features too": by_pda,
    "default": by_default,
    "superpixels": by_superpixels,
    "mask": by_mask,
    "samples": by_samples,
    "feature map": of_features,
    "raw": lambda: of_outputs("raw", "weight_of_evidence"),
    "probabilities": lambda: of_outputs("probabilities", "probability_difference"),
    "information": lambda: of_outputs("logits", "information_difference"),
    "one output": of_one_output,
}


def order_of(evidence: WindowEvidence, example: int = 0) -> list[int]:
    """The classes as the page lists them."""
    return evidence.scores[example].argsort(descending=True).tolist()


def printed(words: str) -> str:
    """Words as the page prints them."""
    return words.replace("->", "\u2192").replace("(-", "(\u2212").replace(": -", ": \u2212")
