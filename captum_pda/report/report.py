"""One photo, its maps and every region's values as one HTML page."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from captum_pda.basics.files import write_whole
from captum_pda.basics.fingerprints import fingerprint
from captum_pda.datasets.records import versions
from captum_pda.evidence.strongest import pick_strongest
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.prediction.inputs import check_count
from captum_pda.priors import prior_settings
from captum_pda.report.block import Block
from captum_pda.report.contents import Classes, add_methods, measure_header
from captum_pda.report.page_file import Page
from captum_pda.report.pictures import Display, Explained, photo_file, thumbnail
from captum_pda.report.settings_table import settings_rows

PAGE = Page(
    "Evidence",
    "report.html",
    ("base.css", "report.css"),
    (
        "block.js",
        "elements.js",
        "numbers.js",
        "colours.js",
        "evidence.js",
        "words.js",
        "view.js",
        "picture.js",
        "detail.js",
        "tables.js",
        "controls.js",
        "save.js",
        "report.js",
    ),
)
THUMBNAIL = 160


@dataclass(frozen=True)
class ReportOptions:
    """What a report offers, and what it shows at first.

    Args:
        targets: outputs to offer besides the most probable ones; the first is shown at first.
        contrast: two outputs; at first, what speaks for the one rather than the other is shown.
        n_classes: how many of the most probable outputs to offer.
        example: the number of the example, where the evidence is of several.
        settings: more to write at the foot, such as the model's name and the hash of its weights.
    """

    targets: Sequence[int] = ()
    contrast: tuple[int, int] | None = None
    n_classes: int = 8
    example: int | None = None
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ReportedPhoto:
    """What is known of a photo beside its evidence; ``write_report`` describes each of these."""

    title: str = ""
    labels: Sequence[str] | None = None
    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None
    truth: int | None = None


def write_report(
    evidence: WindowEvidence | Mapping[str, WindowEvidence],
    path: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    *,
    title: str | None = None,
    truth: int | None = None,
    options: ReportOptions | None = None,
) -> Path:
    """Write one HTML page that shows a photo with its evidence, and answers to pointer and keys.

    The page needs nothing but itself: no server, no network. It tells of each region what the
    prior puts in its place, its bits, and the class's probability with and without it; classes,
    pairs of classes, sizes, contexts and methods can be chosen.

    Args:
        evidence: of images with two spatial dimensions; or a table of names and evidence by
            several methods of one image.
        path: where to write; a file that is there is replaced.
        labels: the names of all outputs. Default: their numbers.
        mean, std: the normalisation of the image, to be undone, as for ``visualize_evidence``.
        title: the name of the photo. Default: the file's own name.
        truth: the true output, where it is known; an index then tells right from wrong.
        options: which classes are offered and shown at first, which example of several, and
            more for the foot. Default: the 8 most probable classes.

    Returns:
        The path.

    Example::

        >>> evidence = PDA(model).evidence(image)
        >>> write_report(evidence, "cat.html", labels=names, mean=[0.485, 0.456, 0.406],
        ...              std=[0.229, 0.224, 0.225], options=ReportOptions(contrast=(281, 285)))
    """
    path = Path(path)
    methods = {"": evidence} if not isinstance(evidence, Mapping) else evidence
    photo = ReportedPhoto(path.stem if title is None else title, labels, mean, std, truth)
    write_whole(path, report_page(methods, photo, options or ReportOptions()))
    return path


def report_page(
    methods: Mapping[str, WindowEvidence], photo: ReportedPhoto, options: ReportOptions
) -> bytes:
    """The page itself, of evidence by one or several named methods."""
    number, first = _check(methods, options.example)
    values = first.inputs[0][number].detach().cpu()
    display = Display.of(values, photo.mean, photo.std)
    explained = Explained(values, number, first.prior, display)
    classes = choose_classes(first.scores[number], photo, options)
    predicted = first.measure.prediction(first.scores[number])
    block = Block()
    pixels = display.bytes(values)
    picture = block.add_bytes(photo_file(pixels))
    header = {
        "title": photo.title,
        "photo": {"image": picture, "height": pixels.shape[0], "width": pixels.shape[1]},
        "classes": list(classes.columns),
        "labels": list(classes.names),
        "predictions": [_number(predicted[column]) for column in classes.columns],
        "truth": classes.truth,
        "first": classes.first,
        "second": classes.second,
        "measure": measure_header(first.measure),
        "methods": add_methods(block, methods, explained, classes),
        "settings": settings_rows(_settings(first, values, options.settings)),
    }
    small = Block()
    summary = {
        **_summary(photo.title, first, classes, number),
        "thumbnail": small.add_bytes(thumbnail(pixels, THUMBNAIL)),
    }
    return PAGE.render({"summary": small.pack(summary), "values": block.pack(header)})


def _settings(
    evidence: WindowEvidence, values: Tensor, further: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What the values depend on: as far as the evidence knows, and what else was given."""
    return {
        "input_sha256": fingerprint(values),
        "prior": prior_settings(evidence.prior),
        "output": evidence.output,
        "measure": evidence.measure.settings(),
        **versions(),
        **(further or {}),
    }


def choose_classes(scores: Tensor, photo: ReportedPhoto, options: ReportOptions) -> Classes:
    """The outputs asked for and the most probable ones, the most probable first."""
    if photo.labels is not None and len(photo.labels) != len(scores):
        raise ValueError(
            f"labels has {len(photo.labels)} names for {len(scores)} outputs; give one for each"
        )
    known = [] if photo.truth is None else [photo.truth]
    asked = [*(options.contrast or ()), *options.targets]
    for target in [*asked, *known]:
        if not 0 <= target < len(scores):
            raise ValueError(
                f"target {target} is out of range; the model has outputs 0 to {len(scores) - 1}"
            )
    top = scores.nan_to_num().topk(min(check_count("n_classes", options.n_classes), len(scores)))
    columns = sorted({*asked, *known, *top.indices.tolist()}, key=lambda one: -float(scores[one]))
    names = [str(one) if photo.labels is None else str(photo.labels[one]) for one in columns]
    first = columns.index(asked[0]) if asked else 0
    second = columns.index(options.contrast[1]) if options.contrast else None
    right = None if photo.truth is None else columns.index(photo.truth)
    return Classes(tuple(columns), tuple(names), first, second, right)


def _check(
    methods: Mapping[str, WindowEvidence], example: int | None
) -> tuple[int, WindowEvidence]:
    """The number of the example, and the evidence of the first method."""
    if not methods:
        raise ValueError("evidence is an empty table; give the evidence of at least one method")
    first = next(iter(methods.values()))
    for one in methods.values():
        if not isinstance(one, WindowEvidence):
            raise TypeError(
                f"evidence must be a WindowEvidence, got {type(one).__name__}; use "
                "EfficientPDA(model).evidence(image)"
            )
        if len(one.inputs) != 1 or one.inputs[0].dim() != 4:
            raise ValueError(
                f"a report shows one image with two spatial dimensions; the evidence is of "
                f"{len(one.inputs)} tensors, the first of shape {tuple(one.inputs[0].shape)}"
            )
        same = one.scores.shape == first.scores.shape and torch.equal(
            one.inputs[0], first.inputs[0]
        )
        if not same or one.measure != first.measure or one.output != first.output:
            raise ValueError(
                "the methods of one report must explain the same image and outputs in the same "
                "measure; write a report for each"
            )
    count = len(first.scores)
    if example is None and count > 1:
        raise ValueError(
            f"the evidence is of {count} examples; say which one to show, for example "
            "options=ReportOptions(example=0)"
        )
    number = example or 0
    if not 0 <= number < count:
        raise ValueError(f"example={number} is out of range; there are {count} examples")
    return number, first


def _summary(name: str, evidence: WindowEvidence, classes: Classes, number: int) -> dict[str, Any]:
    """What an index tells of a photo: the verdict, and its strongest evidence."""
    column = classes.columns[0]
    score = evidence.scores[number, column]
    quantity = evidence.measure.value
    sizes: dict[Any, list[Tensor]] = {}
    for part in evidence.parts:
        if part.depth == "input":
            change = quantity(part.scores[number, :, column]) - quantity(
                part.reference[number, column]
            )
            sizes.setdefault(part.regions, []).append(-change if part.context == "full" else change)
    found = [
        (regions.boxes(number), torch.stack(each).mean(dim=0)) for regions, each in sizes.items()
    ]
    kinds = pick_strongest(found, 1) if found else ([], [])
    strongest, against = (kind[0].value if kind else None for kind in kinds)
    return {
        "title": name,
        "verdict": classes.names[0],
        "truth": None if classes.truth is None else classes.names[classes.truth],
        "right": classes.truth == 0,
        "prediction": _number(evidence.measure.prediction(score)),
        "probabilities": evidence.measure.needs_probabilities,
        "unit": evidence.measure.unit,
        "for": strongest,
        "against": against,
    }


def _number(value: Tensor) -> float | None:
    """A plain number, or None for one that JSON cannot hold."""
    plain = float(value)
    return plain if math.isfinite(plain) else None
