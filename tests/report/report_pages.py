"""Small reports, and what they ought to show, computed from the evidence itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from conftest import make_classifier, make_images

from captum_pda import ConstantPrior, EfficientPDA, WindowEvidence
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


def strongest_at(
    evidence: WindowEvidence, target: int, place: tuple[int, int], second: int | None = None
) -> dict[str, Any]:
    """The region at a place that says most relative to the spread of its size, by brute force."""
    best: dict[str, Any] = {"strength": -1.0}
    sizes = dict.fromkeys(part.size for part in evidence.parts)
    for size in sizes:
        parts = [part for part in evidence.parts if part.size == size]
        bits = torch.stack([_bits(part, target, second) for part in parts]).mean(dim=0)
        spread = float(bits.std(correction=0)) if len(sizes) > 1 else 1.0
        for number, corner in enumerate(parts[0].regions.corners.tolist()):
            inside = all(
                start <= at < start + side
                for start, at, side in zip(corner, place, size, strict=True)
            )
            strength = abs(float(bits[number])) / spread
            if inside and strength > best["strength"]:
                full = [part for part in parts if part.context == "full"]
                best = {
                    "strength": strength,
                    "bits": float(bits[number]),
                    "size": size,
                    "corner": tuple(corner),
                    "without": [
                        float(torch.sigmoid(part.scores[0, number, target])) for part in full
                    ],
                }
    return best


def _bits(part: Any, target: int, second: int | None) -> torch.Tensor:
    def log_odds(scores: torch.Tensor) -> torch.Tensor:
        p = torch.sigmoid(scores.double())
        if second is None:
            return torch.log2(p[..., target] / (1 - p[..., target]))
        return torch.log2(p[..., target] / p[..., second])

    gained = log_odds(part.reference[0]) - log_odds(part.scores[0])
    return gained if part.context == "full" else -gained


def colour(value: float, stops: list[list[int]]) -> list[float]:
    """A colour between stops, from 0 to 1."""
    place = min(abs(value), 1) * (len(stops) - 1)
    below = min(math.floor(place), len(stops) - 2)
    share = place - below
    return [(1 - share) * a + share * b for a, b in zip(*stops[below : below + 2], strict=True)]
