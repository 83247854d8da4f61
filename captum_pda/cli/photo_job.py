"""Photos as a data set, and a writer that keeps what is found about each of them.

``explain_dataset`` does the rest: for one photo as for a folder, in one process or under torchrun.
Each result is written whole as soon as it is there, the picture first; the numbers say by what they
were made. So a folder's run that was stopped goes on where it was, and what is done is never done
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from captum_pda.basics.files import remove_parts
from captum_pda.cli.classifier import Preprocessing
from captum_pda.cli.explanation import Explanation, PhotoExplainer
from captum_pda.cli.pages import photo_page
from captum_pda.cli.photos import read_photo
from captum_pda.cli.places import Place, Plan
from captum_pda.cli.results import draw_picture, numbers_in_file, write_figure, write_result
from captum_pda.cli.usage_errors import CommandError, UsageError
from captum_pda.datasets.records import Example, Record
from captum_pda.datasets.result_folder import (
    SettingsError,
    keep_settings,
    read_settings,
    stored_record,
)
from captum_pda.engines.auto import WORTH_A_PROBE, AutoEngine
from captum_pda.methods.efficient import EfficientPDA
from captum_pda.regions.protocol import Regions
from captum_pda.regions.window_grid import WindowGrid


@dataclass(frozen=True)
class PhotoSet:
    """Photos as a data set of a model's inputs; each is read once, when it is its turn."""

    places: Sequence[Place]
    preprocessing: Preprocessing

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Example:
        path = self.places[number].photo
        photo = read_photo(path)
        source = {"photo": str(path), "photo_sha256": photo.sha256}
        return Example(self.preprocessing(photo.image)[0], source=source)


@dataclass
class PhotoWriter:
    """Writes the picture and the numbers of each photo.

    Args:
        plan: where they go.
        explainer: who explains them.
        notes: further facts to store with the numbers.
        overwrite: whether to replace files that this command did not write.
        tell: called with each photo, its explanation and the files written.
    """

    plan: Plan
    explainer: PhotoExplainer
    notes: dict[str, Any] = field(default_factory=dict)
    overwrite: bool = False
    tell: Callable[[Path, Explanation, Sequence[Path]], None] | None = None
    _settings: dict[str, Any] = field(default_factory=dict)

    def start(self, settings: dict[str, Any]) -> None:
        """Keep the settings of a folder, or compare them with those that are there."""
        self._settings = settings
        folder = self.plan.folder
        if folder is None:
            return
        try:
            keep_settings(folder, settings, self.overwrite)
        except SettingsError as error:
            raise UsageError(f"--output {error}") from error
        except OSError as error:
            raise CommandError(
                f"--output {folder} cannot be written ({error.strerror or error}); choose another "
                "place"
            ) from error
        remove_parts(folder)

    def stored(self, number: int) -> Record | None:
        """What a photo's result in a folder was made from; a single photo is explained anew."""
        place = self.plan.places[number]
        whole = all(file.is_file() for file in place.files)
        if self.plan.folder is None or place.numbers is None or not whole:
            return None
        return stored_record(place.numbers, self._settings)

    def write(self, number: int, explanation: Explanation, record: Record) -> None:
        """Write what was found about a photo: the one place where results become files."""
        place = self.plan.places[number]
        figure = draw_picture(explanation, self.explainer.classifier)
        write_figure(place.picture, figure, self.overwrite)
        settings = {**self._settings, **self.notes, **record.settings}
        if place.page is not None and explanation.evidence is not None:
            page = photo_page(place.photo, explanation, self.explainer.classifier, settings)
            write_result(place.page, page, self.overwrite)
        if place.numbers is not None:
            content = numbers_in_file(place.numbers.suffix, explanation, record.outputs, settings)
            write_result(place.numbers, content, self.overwrite)
        if self.tell is not None:
            self.tell(place.photo, explanation, place.files)


def engines_for_all(
    explainer: PhotoExplainer, folder: Path | None, overwrite: bool = False
) -> dict[str, str]:
    """The engine of each size of windows, chosen once for all photos of a folder, ranks and reruns.

    Two engines agree up to rounding only. Which one is faster is tried on noise, or known from
    the results that are there.
    """
    question = explainer.question
    if folder is None or question.engine != "auto" or question.settings()["engine"] is None:
        return {}
    found = read_settings(folder, overwrite) if folder.is_dir() else None
    if found and isinstance(found.get("engine"), dict):
        return {str(side): str(name) for side, name in found["engine"].items()}
    values = np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8)
    model = explainer.classifier.model
    first = next(model.parameters(), None)
    device = None if first is None else first.device
    image = explainer.classifier.preprocessing(Image.fromarray(values)).to(device)
    # What one photo would not repay is repaid by a folder.
    pda = EfficientPDA(model, prior=explainer.prior, engine=AutoEngine(patience=math.inf))
    chosen = {}
    for context in question.contexts:
        for grid in question.regions(image, context):
            side = str(max(grid.size))
            if side not in chosen:
                chosen[side] = _faster_engine(pda, image, grid)
    return chosen


def _faster_engine(pda: EfficientPDA, image: Tensor, grid: Regions) -> str:
    """The engine that is faster for windows of a size, tried on a few of them."""
    if len(grid) < WORTH_A_PROBE or not isinstance(grid, WindowGrid):
        return "dense"
    some = np.linspace(0, len(grid) - 1, WORTH_A_PROBE).astype(int).tolist()
    pda.evidence(image, windows=grid.pick(some))
    report = pda.engine_report
    return report.engine if report else "dense"
