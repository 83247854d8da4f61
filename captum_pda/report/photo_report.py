"""One photo, its maps and every region's values as one HTML page."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
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
from captum_pda.report.evidence_values import EvidenceValues, measure_header
from captum_pda.report.page_file import Block, Page
from captum_pda.report.pictures import Display, photo_file, thumbnail

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
#: The longer side of a report's small picture, in pixels.
THUMBNAIL_SIDE = 160
#: Longer values of settings are abbreviated, in characters.
LONGEST_SETTING = 300


def write_report(
    evidence: WindowEvidence | Mapping[str, WindowEvidence],
    path: str | os.PathLike[str],
    labels: Sequence[str] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    *,
    title: str | None = None,
    truth: int | None = None,
    targets: Sequence[int] = (),
    contrast: tuple[int, int] | None = None,
    n_classes: int = 8,
    example: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write one HTML page that shows a photo with its evidence, and answers to pointer and keys.

    The page needs nothing but itself: no server, no network. It shows for each region what the
    prior puts in its place, its bits, and the class's probability with and without it; classes,
    pairs of classes, sizes, contexts and methods can be chosen.

    Args:
        evidence: of images with two spatial dimensions; or a table of names and evidence by
            several methods of one image.
        path: where to write; an existing file is replaced.
        labels: the names of all outputs. Default: their numbers.
        mean, std: the normalisation of the image, to be undone, as for ``visualize_evidence``.
        title: the name of the photo. Default: the file's own name.
        truth: the true output, where it is known; an index can then show right and wrong ones.
        targets: outputs to offer besides the most probable ones; the first is shown at first.
        contrast: two outputs; at first, what speaks for the one rather than the other is shown.
        n_classes: how many of the most probable outputs to offer.
        example: the number of the example, where the evidence is of several.
        settings: more to write at the foot, such as the model's name and the hash of its weights.

    Returns:
        The path.

    Example::

        >>> evidence = PDA(model).evidence(image)
        >>> write_report(evidence, "cat.html", labels=names, mean=[0.485, 0.456, 0.406],
        ...              std=[0.229, 0.224, 0.225], contrast=(281, 285))
    """
    path = Path(path)
    page = report_page(
        evidence if isinstance(evidence, Mapping) else {"": evidence},
        path.stem if title is None else title,
        labels,
        mean,
        std,
        truth=truth,
        targets=targets,
        contrast=contrast,
        n_classes=n_classes,
        example=example,
        settings=settings,
    )
    write_whole(path, page)
    return path


def report_page(
    methods: Mapping[str, WindowEvidence],
    title: str,
    labels: Sequence[str] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    *,
    truth: int | None = None,
    targets: Sequence[int] = (),
    contrast: tuple[int, int] | None = None,
    n_classes: int = 8,
    example: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> bytes:
    """The page itself, of evidence by one or several named methods; as for ``write_report``."""
    number, evidence = _check(methods, example)
    values = evidence.inputs[0][number].detach().cpu()
    scores = evidence.scores[number]
    if labels is not None and len(labels) != len(scores):
        raise ValueError(
            f"labels has {len(labels)} names for {len(scores)} outputs; give one for each"
        )
    asked = [*(contrast or ()), *targets]
    known = [*asked, *([] if truth is None else [truth])]
    columns = _offered(scores, known, n_classes)
    names = [str(one) if labels is None else str(labels[one]) for one in columns]
    predicted = evidence.measure.prediction(scores)
    display = Display.of(values, mean, std)
    pixels = display.bytes(values)
    block = Block()
    held = EvidenceValues(block, values, number, display, columns)
    header = {
        "title": title,
        "photo": {
            "image": block.add_bytes(photo_file(pixels)),
            "height": pixels.shape[0],
            "width": pixels.shape[1],
        },
        "classes": columns,
        "labels": names,
        "predictions": [_number(predicted[column]) for column in columns],
        "truth": None if truth is None else columns.index(truth),
        "first": columns.index(asked[0]) if asked else 0,
        "second": columns.index(contrast[1]) if contrast else None,
        "measure": measure_header(evidence.measure),
        "methods": [{"name": name, "groups": held.groups(own)} for name, own in methods.items()],
        "settings": settings_rows(
            {
                "input_sha256": fingerprint(values),
                "prior": prior_settings(evidence.prior),
                "output": evidence.output,
                "measure": evidence.measure.settings(),
                **versions(),
                **(settings or {}),
            }
        ),
    }
    small = Block()
    summary = {
        "title": title,
        "verdict": names[0],
        "truth": None if truth is None else names[columns.index(truth)],
        "right": truth == columns[0],
        "thumbnail": small.add_bytes(thumbnail(pixels, THUMBNAIL_SIDE)),
        **_summary(evidence, columns[0], number),
    }
    return PAGE.render({"summary": small.pack(summary), "values": block.pack(header)})


def _offered(scores: Tensor, known: Sequence[int], n_classes: int) -> list[int]:
    """The outputs that are known to matter and the most probable ones, the most probable first."""
    for target in known:
        if not 0 <= target < len(scores):
            raise ValueError(
                f"target {target} is out of range; the model has outputs 0 to {len(scores) - 1}"
            )
    top = scores.nan_to_num().topk(min(check_count("n_classes", n_classes), len(scores)))
    return sorted({*known, *top.indices.tolist()}, key=lambda one: -float(scores[one]))


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
            f"the evidence is of {count} examples; say which one to show, for example example=0"
        )
    number = example or 0
    if not 0 <= number < count:
        raise ValueError(f"example={number} is out of range; there are {count} examples")
    return number, first


def _summary(evidence: WindowEvidence, column: int, number: int) -> dict[str, Any]:
    """What an index shows of an output: its prediction, and its strongest evidence."""
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


def settings_rows(settings: Mapping[str, Any]) -> list[list[str]]:
    """Each setting as a name and a text; tables within tables get joined names."""
    return [[name, text] for name, text in _rows("", settings)]


def _rows(before: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        whole = f"{before} {name}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            yield from _rows(whole, value)
        elif value is not None and value != []:
            yield whole, _text(value)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= LONGEST_SETTING else f"{text[:LONGEST_SETTING]}..."
