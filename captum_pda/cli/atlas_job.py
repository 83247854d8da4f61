"""Keeps the strongest regions of each photo, and its page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from captum_pda.atlas.class_regions import ClassRegion, regions_in_file, strongest_regions
from captum_pda.basics.files import remove_parts
from captum_pda.cli.explanation import Explanation, PhotoExplainer
from captum_pda.cli.pages import photo_page, true_class
from captum_pda.cli.places import Place, Plan
from captum_pda.cli.question import Question
from captum_pda.cli.results import write_result
from captum_pda.cli.usage_errors import UsageError
from captum_pda.datasets.records import Record
from captum_pda.datasets.result_folder import (
    SettingsError,
    keep_settings,
    stored_record,
)


def classes_of(
    plan: Plan, question: Question, labels: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """The classes to look for in each photo: those asked for, or that of its folder."""
    named, _ = question.named_classes(labels)
    if named is not None:
        return (tuple(named),) * len(plan.places)
    found = [true_class(place.photo, labels) for place in plan.places]
    if all(one is None for one in found):
        folder = plan.places[0].photo.absolute().parent.name
        raise UsageError(
            f"which class? Name it with --class; no photo is in a folder of a class's name (the "
            f"first is in {folder!r})"
        )
    return tuple(() if one is None else (one,) for one in found)


@dataclass(frozen=True)
class Enough:
    """Which regions of a photo are kept: so many of each kind, and of so many bits."""

    n_regions: int
    min_bits: float


@dataclass
class AtlasWriter:
    """Writes the regions and the page of each photo.

    Args:
        plan: where they go.
        explainer: who explains the photos.
        classes: the classes to look for in each photo.
        enough: which regions are kept, for each class and against it.
        overwrite: whether to replace files that this command did not write.
    """

    plan: Plan
    explainer: PhotoExplainer
    classes: Sequence[Sequence[int]]
    enough: Enough
    overwrite: bool = False
    _settings: dict[str, Any] = field(default_factory=dict)

    def start(self, settings: dict[str, Any]) -> None:
        """Keep the settings of the folder, or compare them with those that are there."""
        self._settings = {**settings, **asdict(self.enough)}
        if self.plan.folder is not None:
            try:
                keep_settings(self.plan.folder, self._settings, self.overwrite)
            except SettingsError as error:
                raise UsageError(f"--output {error}") from error
            remove_parts(self.plan.folder)

    def stored(self, number: int) -> Record | None:
        """What the regions of a photo were made from, if they are there."""
        place = self.plan.places[number]
        if place.numbers is None or place.page is None or not place.page.is_file():
            return None
        return stored_record(place.numbers, self._settings)

    def write(self, number: int, explanation: Explanation, record: Record) -> None:
        """Write the regions of a photo, and its page before them."""
        place = self.plan.places[number]
        settings = {**self._settings, **record.settings}
        if place.page is not None:
            page = photo_page(place.photo, explanation, self.explainer.classifier, settings)
            write_result(place.page, page, self.overwrite)
        if place.numbers is not None:
            outputs = {} if record.outputs is None else {"outputs": _plain(record.outputs)}
            content = regions_in_file(self._regions(number, explanation), settings, outputs)
            write_result(place.numbers, content, self.overwrite)

    def _regions(self, number: int, explanation: Explanation) -> list[ClassRegion]:
        classifier, place = self.explainer.classifier, self.plan.places[number]
        evidence = explanation.evidence
        if evidence is None:
            raise ValueError("regions need the evidence of windows; choose another --method")
        return [
            replace(region, link=self._link(place), label=classifier.labels[target])
            for target in self.classes[number]
            for region in strongest_regions(
                evidence,
                target,
                str(place.photo),
                classifier.model,
                mean=classifier.preprocessing.mean,
                std=classifier.preprocessing.std,
                n=self.enough.n_regions,
                min_bits=self.enough.min_bits,
            )
        ]

    def _link(self, place: Place) -> str:
        """The address of a photo's page, seen from the folder above all of them."""
        if place.page is None or self.plan.folder is None:
            return ""
        relative = place.page.relative_to(self.plan.folder.parent)
        return "./" + "/".join(quote(os.fsencode(part), safe="") for part in relative.parts)


def _plain(outputs: Tensor) -> Any:
    return (outputs if outputs.dtype == torch.float64 else outputs.float()).cpu().numpy()
