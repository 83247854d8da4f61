"""The page of a photo: what the command knows of it, for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from captum_pda.cli.classifier import Classifier
from captum_pda.cli.explanation import Explanation
from captum_pda.report.photo_report import report_page


def photo_page(
    photo: Path, explanation: Explanation, classifier: Classifier, settings: Mapping[str, Any]
) -> bytes:
    """The report of an explained photo."""
    if explanation.evidence is None:
        raise ValueError("a page needs the evidence of windows, which this method does not give")
    answers = [answer.classes for answer in explanation.answers]
    pair = next((classes for classes in answers if len(classes) == 2), None)
    return report_page(
        {explanation.method.partition(",")[0]: explanation.evidence},
        photo.name,
        classifier.labels,
        classifier.preprocessing.mean,
        classifier.preprocessing.std,
        truth=true_class(photo, classifier.labels),
        targets=[classes[0] for classes in answers],
        contrast=None if pair is None else (pair[0], pair[1]),
        settings=settings,
    )


def true_class(photo: Path, labels: Sequence[str]) -> int | None:
    """The class of which a photo's own folder has the name, as data sets are often kept."""
    name = _plain(photo.absolute().parent.name)
    found = [number for number, label in enumerate(labels) if _plain(label) == name]
    return found[0] if len(found) == 1 else None


def _plain(name: str) -> str:
    return name.replace("_", " ").strip().casefold()
