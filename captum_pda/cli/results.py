"""The results of a photo as a picture, numbers, a page and text. Files are written atomically, the
picture first; the numbers contain the settings. An interrupted run of a folder is continued by
``explain_dataset``."""

from __future__ import annotations

import argparse
import io
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from captum_pda.atlas.atlas import ninth
from captum_pda.cli.classifier import Classifier, true_class
from captum_pda.cli.explainer import LISTED_REGIONS, Answer, Explanation
from captum_pda.cli.folders import Plan, write_figure, write_result
from captum_pda.cli.photos import nifti_file
from captum_pda.cli.usage_errors import UsageError
from captum_pda.datasets.result_folder import (
    SETTINGS,
    Record,
    SettingsError,
    json_text,
    keep_settings,
    safetensors_file,
    stored_record,
)
from captum_pda.evidence.strongest import StrongRegion
from captum_pda.evidence.words import scale_words, total_words
from captum_pda.files import remove_parts
from captum_pda.report.report import write_report
from captum_pda.visualization import drawing, visualize_evidence_multiple, visualize_explanation
from captum_pda.visualization.regions import regions_in_words

MAX_COLUMNS = 4
#: The number of letters above a panel, and the height of a line below one.
TITLE_WIDTH, LINE_INCHES = 30, 0.17


class PhotoWriter:
    """Writes the picture, numbers and page of each photo, and prints those of single photos."""

    def __init__(self, plan: Plan, classifier: Classifier, options: argparse.Namespace) -> None:
        self.plan, self.classifier, self.options = plan, classifier, options
        self.overwrite: bool = options.overwrite
        self.settings: dict[str, Any] = {}

    def start(self, settings: dict[str, Any]) -> None:
        """Store the settings of a folder, or compare them with existing ones."""
        self.settings = settings
        if self.plan.folder is None:
            return
        try:
            keep_settings(self.plan.folder, settings, self.overwrite)
        except (SettingsError, OSError) as error:
            raise UsageError(f"--output {error}") from error
        remove_parts(self.plan.folder)

    def stored(self, number: int) -> Record | None:
        """The record of a photo's result in a folder; a single photo is always explained again."""
        files = self.plan.places[number].files
        if self.plan.folder is None or not all(file.is_file() for file in files.values()):
            return None
        return stored_record(files["numbers"], self.settings)

    def write(self, number: int, explanation: Explanation, record: Record) -> None:
        """Write the results of a photo, the numbers last."""
        photo, files = self.plan.places[number]
        settings = {**self.settings, **record.settings, "weights": self.classifier.weights}
        settings |= {"prior_file": str(self.options.prior), "summary": summary_row(explanation)}
        if "picture" in files:
            figure = draw_picture(explanation, self.classifier, voxel(explanation, settings))
            write_figure(files["picture"], figure, self.overwrite)
        if "volume" in files:
            maps = torch.stack([answer.bits for answer in explanation.answers]).cpu().float()
            content = nifti_file(maps.numpy(), np.array(record.settings["affine"]))
            write_result(files["volume"], content, self.overwrite)
        if "page" in files:
            above = self.plan.folder or files["page"].parent
            title = (files["page"].relative_to(above).parent / photo.name).as_posix()
            page = self.page(photo, title, explanation, settings)
            write_result(files["page"], page, self.overwrite)
        if "numbers" in files:
            content = self.numbers(number, explanation, record, settings)
            write_result(files["numbers"], content, self.overwrite)
        if self.plan.folder is None and not self.options.quiet:
            print(f"{photo}: {top_classes(explanation)}")
            print("\n".join(explanation_lines(explanation)))
            print(f"Written: {', '.join(map(str, files.values()))}")

    def numbers(
        self, number: int, explanation: Explanation, record: Record, settings: dict[str, Any]
    ) -> bytes:
        """The content of the file of numbers of a photo."""
        ending = self.plan.places[number].files["numbers"].suffix
        return numbers_in_file(ending, explanation, record.tensors(), settings)

    def page(
        self, photo: Path, title: str, explanation: Explanation, settings: Mapping[str, Any]
    ) -> bytes:
        """The report of an explained photo."""
        answers = [answer.classes for answer in explanation.answers]
        is_flat = explanation.image.dim() == 4  # a page of a volume shows no contrast
        pair = next((pair for pair in answers if len(pair) == 2), None) if is_flat else None
        page = write_report(
            {explanation.method.partition(",")[0]: explanation.evidence},
            None,
            explanation.labels,
            *self.classifier.preprocessing.colours(explanation.image),
            title=title,
            truth=true_class(photo, explanation.labels),
            spacing=voxel(explanation, settings),
            targets=[classes[0] for classes in answers],
            contrast=None if pair is None else (pair[0], pair[1]),
            settings=settings,
            test=explanation.answers[0].test or False,
            boxes={one.classes[0]: one.box for one in explanation.answers if one.box is not None},
        )
        return str(page).encode()


def voxel(explanation: Explanation, settings: Mapping[str, Any]) -> list[float] | None:
    """The extent of a volume's voxels in mm, if known."""
    if settings.get("affine") is None or explanation.image.dim() != 5:
        return None
    sides = np.linalg.norm(np.array(settings["affine"])[:3, :3], axis=0)
    return sides.tolist() if (np.isfinite(sides) & (sides > 0)).all() else None


def draw_picture(
    explanation: Explanation, classifier: Classifier, spacing: Sequence[float] | None = None
) -> Figure:
    """One answer with its regions and its test; or the photo, and the maps of several answers on
    one scale. ``spacing`` is the extent of a volume's voxels."""
    mean, std = classifier.preprocessing.colours(explanation.image)
    colours = {"mean": mean, "std": std}
    evidence, (first, *others) = explanation.evidence, explanation.answers
    is_volume = explanation.image.dim() != 4
    titles = []
    for answer in explanation.answers:
        lines = answer.name.replace(" rather than ", "\nrather than ").splitlines()
        lines.append(predictions_in_words(answer, explanation, " : "))
        titles.append("\n".join(textwrap.fill(line, TITLE_WIDTH) for line in lines))
    if is_volume or not others:
        target, rather_than = (*first.classes, None)[:2]
        figure, axes = visualize_explanation(
            evidence,
            target,
            rather_than,
            name=titles[0].replace("\n", " "),
            test=first.test or False,
            n=LISTED_REGIONS,
            **colours,
            spacing=spacing,
            note=explanation.method,
            use_pyplot=False,
        )
        for panel in [] if is_volume else axes[:2]:
            _draw_box(panel, first)
        return figure
    n_panels = len(titles) + 1
    n_rows = math.ceil(n_panels / MAX_COLUMNS)
    figure, axes = visualize_evidence_multiple(
        [answer.bits for answer in explanation.answers],
        explanation.image,
        titles=titles,
        image_title="the photo as the model sees it",
        measure=explanation.evidence.measure,
        n_columns=math.ceil(n_panels / n_rows),
        **colours,
        use_pyplot=False,
    )
    panels = [panel for panel in np.ravel(np.asarray(axes, dtype=object)) if panel.images]
    below = [textwrap.wrap(str(one.test or ""), TITLE_WIDTH) for one in explanation.answers]
    for panel, answer, test in zip(panels[1:], explanation.answers, below, strict=True):
        _draw_box(panel, answer)
        panel.set_xlabel("\n".join(test), fontsize="small")
    bar = figure.axes[-1]
    words = drawing.wrapped([scale_words(evidence.parts), explanation.method], 2 * TITLE_WIDTH)
    bar.set_xlabel("\n".join([bar.get_xlabel(), *words]), fontsize="small")
    n_lines = n_rows * max(map(len, below)) + len(words)
    figure.set_figheight(figure.get_figheight() + LINE_INCHES * n_lines)
    return figure


def _draw_box(axes: Any, answer: Answer) -> None:
    if answer.box is not None:
        left, top, right, bottom = answer.box
        for colour, width in (("black", 3.0), ("yellow", 1.5)):
            place = (left, top), right - left, bottom - top
            axes.add_patch(Rectangle(*place, fill=False, edgecolor=colour, linewidth=width))


def numbers_in_file(
    ending: str,
    explanation: Explanation,
    outputs: Mapping[str, Tensor],
    settings: Mapping[str, Any],
) -> bytes:
    """The maps of a photo with their description, as a file of NumPy (npz) or safetensors.

    Entries are "bits" (answers, H, W; for raw outputs in their own unit), "first" and "second" (the
    class of each answer, and the one it is contrasted with, or -1), "probabilities" (classes; not
    for raw outputs), "outputs" (the model's outputs for the whole photo); for the test of each map
    "test_shares" (of the pixels), "test_hidden" and "test_shown" (answers, shares; the probability
    without the strongest pixels, and of them alone); and the settings and names as JSON, in the
    array "settings" or the file's header.
    """
    answers = explanation.answers
    tensors = {
        **outputs,
        "bits": torch.stack([answer.bits for answer in answers]).cpu().float(),
        "first": torch.tensor([answer.classes[0] for answer in answers]),
        "second": torch.tensor([(*answer.classes, -1)[1] for answer in answers]),
    }
    if explanation.evidence.measure.needs_probabilities:
        tensors["probabilities"] = explanation.predictions.cpu().float()
    first = answers[0].test
    if first is not None:
        tensors["test_shares"] = first.shares.cpu().float()
        missing = torch.full_like(first.shares, math.nan)
        for name in ("hidden", "shown"):
            curves = [getattr(answer.test, name, missing) for answer in answers]
            tensors[f"test_{name}"] = torch.stack(curves).cpu().float()
    header = json_text({**settings, "answers": [answer.name for answer in answers]})
    if ending == ".safetensors":
        return safetensors_file(tensors, {SETTINGS: header})
    file = io.BytesIO()
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    np.savez_compressed(file, settings=np.array(header), **arrays)
    return file.getvalue()


# In words


def summary_row(explanation: Explanation) -> dict[str, Any]:
    """The row of a photo in the table of a folder: its first answer."""
    answer = explanation.answers[0]
    return {
        "answer": answer.name,
        "prediction": float(explanation.predictions[answer.classes[0]]),
        "strongest_for": str(answer.speak_for[0]) if answer.speak_for else None,
        "strongest_against": str(answer.speak_against[0]) if answer.speak_against else None,
        "unit": explanation.evidence.measure.unit,
        "total": answer.total,
        "test": None if answer.test is None else str(answer.test),
    }


def top_classes(explanation: Explanation, n: int = 5) -> str:
    """The most probable classes: "espresso 95.0%, cup 1.5%"."""
    best, names = explanation.predictions.topk(min(n, len(explanation.labels))), explanation.labels
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return ", ".join(
        f"{names[one]} {explanation.evidence.measure.in_words(share)}" for one, share in pairs
    )


def predictions_in_words(answer: Answer, explanation: Explanation, between: str) -> str:
    """The predictions of an answer's classes."""
    shares = (float(explanation.predictions[number]) for number in answer.classes)
    return between.join(explanation.evidence.measure.in_words(share) for share in shares)


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Each question, the map's test, and each listed region with its answers."""
    measure = explanation.evidence.measure
    for answer in explanation.answers:
        chances = predictions_in_words(answer, explanation, " against ")
        yield f"Why {answer.name} ({chances})?"
        if answer.total is not None:
            yield f"  {total_words(explanation.evidence, 0, answer.classes[0])}"
        if answer.test is not None:
            yield f"  {answer.test}"
        kinds = answer.speak_for, answer.speak_against
        places = [f" ({place(region)})" for kind in kinds for region in kind] or [""]
        for line, where in zip(regions_in_words(measure, *kinds), places, strict=True):
            yield f"  {line}{where}"
    if explanation.roi is not None:
        share = float(explanation.roi.float().mean())
        yield f"  Only the region of interest was explained ({share:.1%}); the map is 0 elsewhere."
    yield from explanation.decided


def place(region: StrongRegion) -> str:
    """The place of a region: the ninth of a photo with its centre, and its rows and columns; in a
    volume, its box."""
    spans = [
        f"{start}-{start + width - 1}"
        for start, width in zip(region.corner, region.shape, strict=True)
    ]
    if len(spans) != 2:
        return f"voxels {', '.join(spans)}"
    where = ninth(region.corner, region.shape, region.pixels.shape)
    return f"{where}, rows {spans[0]}, columns {spans[1]}"
