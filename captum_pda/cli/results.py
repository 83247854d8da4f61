"""What was found about a photo, as a picture, numbers, a page and words; and its writer.

``explain_dataset`` does the rest: for one photo as for a folder, in one process or under torchrun.
Each result is written whole as soon as it exists, the picture first; the numbers say by what they
were made. So a folder's run that was stopped goes on where it was, and nothing is done twice.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from captum_pda.cli.classifier import Classifier, true_class
from captum_pda.cli.explainer import LISTED_REGIONS, Answer, Explanation
from captum_pda.cli.folders import Plan, write_figure, write_result
from captum_pda.cli.photos import nifti_file
from captum_pda.cli.usage_errors import CommandError, UsageError
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
from captum_pda.evidence.words import with_unit
from captum_pda.files import remove_parts
from captum_pda.model.measures import Measure
from captum_pda.report.report import report_page
from captum_pda.visualization import visualize_evidence_multiple, visualize_explanation
from captum_pda.visualization.regions import regions_in_words

MAX_COLUMNS = 4
#: Letters that fit above a panel.
TITLE_WIDTH = 30
#: Regions are not listed that all say less than this, in bits, or less than this share of what the
#: strongest one says.
LEAST_BITS, LEAST_SHARE = 0.01, 0.02
ROWS = ("upper", "middle", "lower")
COLUMNS = ("left", "middle", "right")


class PhotoWriter:
    """Writes the picture, the numbers and the page of each photo.

    Args:
        plan: where they go.
        classifier: what explained them.
        overwrite: whether to replace files that this command did not write.
        notes: further facts to store with the numbers.
        tell: called with each photo, its explanation and the files written.
    """

    def __init__(
        self,
        plan: Plan,
        classifier: Classifier,
        overwrite: bool = False,
        notes: Mapping[str, Any] | None = None,
        tell: Callable[[Path, Explanation, Sequence[Path]], None] | None = None,
    ) -> None:
        self.plan = plan
        self.classifier = classifier
        self.overwrite = overwrite
        self.notes = dict(notes or {})
        self.tell = tell
        self.settings: dict[str, Any] = {}

    def start(self, settings: dict[str, Any]) -> None:
        """Keep the settings of a folder, or compare them with those that it has."""
        self.settings = settings
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
        return stored_record(place.numbers, self.settings)

    def write(self, number: int, explanation: Explanation, record: Record) -> None:
        """Write what was found about a photo, the numbers last."""
        place = self.plan.places[number]
        is_flat = explanation.image.dim() == 4  # a page shows images only
        if place.picture is not None:
            figure = draw_picture(explanation, self.classifier)
            write_figure(place.picture, figure, self.overwrite)
        settings = {**self.settings, **self.notes, **record.settings}
        if place.volume is not None:
            maps = torch.stack([answer.bits for answer in explanation.answers]).cpu().float()
            content = nifti_file(maps.numpy(), np.array(record.settings["affine"]))
            write_result(place.volume, content, self.overwrite)
        title = place.photo.name
        if self.plan.folder is not None and place.picture is not None:
            below = place.picture.relative_to(self.plan.folder).parent
            title = (below / place.photo.name).as_posix()
        settings["summary"] = in_a_row(explanation)
        if place.page is not None and explanation.evidence is not None and is_flat:
            page = photo_page(place.photo, title, explanation, self.classifier, settings)
            write_result(place.page, page, self.overwrite)
        if place.numbers is not None:
            content = self.numbers(number, explanation, record, settings)
            write_result(place.numbers, content, self.overwrite)
        if self.tell is not None:
            self.tell(place.photo, explanation, place.files)

    def numbers(
        self, number: int, explanation: Explanation, record: Record, settings: dict[str, Any]
    ) -> bytes:
        """The content of the file of numbers of a photo."""
        place = self.plan.places[number]
        ending = "" if place.numbers is None else place.numbers.suffix
        return numbers_in_file(ending, explanation, record.outputs, settings)


def draw_picture(explanation: Explanation, classifier: Classifier) -> Figure:
    """One answer with its regions and its test; or the photo, and the maps of several answers on
    one scale."""
    mean, std = classifier.preprocessing.colours(explanation.image)
    titles = []
    for answer in explanation.answers:
        shares = [float(explanation.predictions[number]) for number in answer.classes]
        name = answer.name.replace(" rather than ", "\nrather than ")
        chances = " : ".join(explanation.measure.in_words(share) for share in shares)
        lines = [*name.splitlines(), chances]
        if explanation.evidence is None or len(explanation.answers) > 1:
            lines.append(explanation.method)
        titles.append("\n".join(textwrap.fill(line, TITLE_WIDTH) for line in lines))
    evidence, (first, *others) = explanation.evidence, explanation.answers
    is_volume = explanation.image.dim() != 4
    if evidence is not None and (is_volume or not others):
        target, rather_than = (*first.classes, None)[:2]
        figure, axes = visualize_explanation(
            evidence,
            target,
            rather_than,
            name=titles[0].replace("\n", " "),
            test=first.test or False,
            n=LISTED_REGIONS,
            mean=mean,
            std=std,
            note=explanation.method,
            use_pyplot=False,
        )
        if is_volume:
            return figure
        for panel in axes[:2]:
            _draw_box(panel, first)
        return figure
    n_panels = len(titles) + 1
    n_rows = math.ceil(n_panels / MAX_COLUMNS)
    figure, axes = visualize_evidence_multiple(
        [answer.bits for answer in explanation.answers],
        explanation.image,
        titles=titles,
        image_title="the photo as the model sees it",
        measure=explanation.measure,
        n_columns=math.ceil(n_panels / n_rows),
        mean=mean,
        std=std,
        use_pyplot=False,
    )
    panels = [panel for panel in np.ravel(np.asarray(axes, dtype=object)) if panel.images]
    for panel, answer in zip(panels[1:], explanation.answers, strict=False):
        _draw_box(panel, answer)
    return figure


def _draw_box(axes: Any, answer: Answer) -> None:
    """The box of a detector that an answer is about."""
    if answer.box is not None:
        left, top, right, bottom = answer.box
        size = right - left, bottom - top
        axes.add_patch(Rectangle((left, top), *size, fill=False, edgecolor="black", linewidth=3))
        axes.add_patch(Rectangle((left, top), *size, fill=False, edgecolor="yellow", linewidth=1.5))


def numbers_in_file(
    ending: str, explanation: Explanation, outputs: Tensor | None, settings: Mapping[str, Any]
) -> bytes:
    """The maps, with everything that is needed to know what they are.

    A file of NumPy's (npz) or of safetensors, by its ending: "bits" (answers, H, W; for raw
    outputs in their own unit), "first" and "second" (the class of each answer, and the one that it
    is contrasted with, or -1), "probabilities" (classes; not for raw outputs), "outputs" (the
    model's outputs for the whole photo); of the test of each map "test_shares" (of the pixels),
    "test_hidden" and "test_shown" (answers, shares; the probability without the strongest pixels,
    and of them alone); and the settings and names as JSON, in the array
    "settings" or the file's header.
    """
    second = [
        answer.classes[1] if len(answer.classes) > 1 else -1 for answer in explanation.answers
    ]
    tensors = {
        "bits": torch.stack([answer.bits for answer in explanation.answers]).cpu().float(),
        "first": torch.tensor([answer.classes[0] for answer in explanation.answers]),
        "second": torch.tensor(second),
    }
    if explanation.measure.needs_probabilities:
        tensors["probabilities"] = explanation.predictions.cpu().float()
    tests = [answer.test for answer in explanation.answers]
    if tests[0] is not None:
        tensors["test_shares"] = tests[0].shares.cpu().float()
        for name in ("hidden", "shown"):
            missing = torch.full_like(tests[0].shares, math.nan)
            curves = [missing if test is None else getattr(test, name) for test in tests]
            tensors[f"test_{name}"] = torch.stack(curves).cpu().float()
    if outputs is not None:
        tensors["outputs"] = plain_outputs(outputs)
    names = [answer.name for answer in explanation.answers]
    header = json_text({**settings, "answers": names})
    if ending == ".safetensors":
        return safetensors_file(tensors, {SETTINGS: header})
    file = io.BytesIO()
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    np.savez_compressed(file, settings=np.array(header), **arrays)
    return file.getvalue()


def plain_outputs(outputs: Tensor) -> Tensor:
    """Outputs in a precision that every file can hold."""
    return (outputs if outputs.dtype == torch.float64 else outputs.float()).cpu()


def photo_page(
    photo: Path,
    title: str,
    explanation: Explanation,
    classifier: Classifier,
    settings: Mapping[str, Any],
) -> bytes:
    """The report of an explained photo."""
    if explanation.evidence is None:
        raise ValueError("a page needs the evidence of windows, which this method does not give")
    answers = [answer.classes for answer in explanation.answers]
    pair = next((classes for classes in answers if len(classes) == 2), None)
    colours = classifier.preprocessing.colours(explanation.image)
    truth = true_class(photo, explanation.labels)
    return report_page(
        {explanation.method.partition(",")[0]: explanation.evidence},
        title,
        explanation.labels,
        *colours,
        truth=truth,
        targets=[classes[0] for classes in answers],
        contrast=None if pair is None else (pair[0], pair[1]),
        settings=settings,
        test=explanation.answers[0].test or False,
    )


# In words


def in_a_row(explanation: Explanation) -> dict[str, Any]:
    """What a table of many photos tells of the first answer."""
    answer, measure = explanation.answers[0], explanation.measure
    strongest = {
        kind: regions[0].value if regions else None
        for kind, regions in (("for", answer.speak_for), ("against", answer.speak_against))
    }
    return {
        "answer": answer.name,
        "prediction": float(explanation.predictions[answer.classes[0]]),
        "strongest_for": strongest["for"],
        "strongest_against": strongest["against"],
        "unit": measure.unit,
        "total": answer.total,
        "test": None if answer.test is None else str(answer.test),
    }


def top_classes(predictions: Tensor, labels: Sequence[str], measure: Measure, n: int = 5) -> str:
    """The classes with the highest predictions: "espresso 95.0%, cup 1.5%"."""
    best = predictions.topk(min(n, len(labels)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return ", ".join(f"{labels[number]} {measure.in_words(one)}" for number, one in pairs)


def answer_lines(answer: Answer, explanation: Explanation) -> Iterator[str]:
    """The question, the map's test, and each region that is listed with its answers."""
    measure = explanation.measure
    shares = [float(explanation.predictions[number]) for number in answer.classes]
    chances = " against ".join(measure.in_words(share) for share in shares)
    total = ""
    if answer.total is not None:
        amount = with_unit(answer.total, measure)
        total = f" In all {amount} over an input with nothing seen."
    yield f"Why {answer.name} ({chances})?{total}"
    if answer.test is not None:
        yield f"  {answer.test}"
    lines = regions_in_words(answer.speak_for, answer.speak_against)
    regions = [*answer.speak_for, *answer.speak_against]
    strongest = max((_says(region) for region in regions), default=0.0)
    least = LEAST_BITS if measure.needs_probabilities else 0.0
    if strongest <= least:
        yield "  no region says anything" + (f", to within {least} {measure.unit}" if least else "")
        return
    for line, region in zip(lines, regions, strict=True):
        if _says(region) > LEAST_SHARE * strongest:
            yield f"  {line} ({place(region)})"


def _says(region: StrongRegion) -> float:
    """The largest answer to a question about a region, without its sign."""
    answers = (region.value, region.lost, region.alone)
    return max(abs(answer) for answer in answers if answer is not None)


def place(region: StrongRegion) -> str:
    """Where a region lies: the ninth of a photo with its middle, and its rows and columns; in a
    volume, its box."""
    spans = [
        f"{start}-{start + width - 1}"
        for start, width in zip(region.corner, region.shape, strict=True)
    ]
    if len(spans) != 2:
        return f"voxels {', '.join(spans)}"
    middles = zip(region.corner, region.shape, region.pixels.shape, strict=True)
    thirds = [min(int(3 * (start + width / 2) / size), 2) for start, width, size in middles]
    ninth = "centre" if thirds == [1, 1] else f"{ROWS[thirds[0]]} {COLUMNS[thirds[1]]}"
    return f"{ninth}, rows {spans[0]}, columns {spans[1]}"
