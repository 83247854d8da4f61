"""One photo, its maps and every region's values as one HTML page."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captum_pda.datasets.result_folder import versions
from captum_pda.device_sync import in_double
from captum_pda.evidence import words
from captum_pda.evidence.evidence import EvidencePart, WindowEvidence
from captum_pda.evidence.self_test import SelfTest
from captum_pda.evidence.storage import PriorOfFile
from captum_pda.evidence.strongest import (
    CLOSE_SHARE,
    LEAST_SHARE,
    StrongRegion,
    listed_regions,
    strongest_regions,
)
from captum_pda.evidence.together import Interactions
from captum_pda.files import write_whole
from captum_pda.fingerprints import fingerprint
from captum_pda.model.inputs import check_count
from captum_pda.model.measures import Measure, WeightOfEvidence
from captum_pda.priors import EmptyContext, prior_settings
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.report.page_file import Block, Page
from captum_pda.report.pictures import (
    Display,
    filled_photo,
    fills_sprite,
    jpeg,
    map_over,
    photo_file,
    thumbnail,
)
from captum_pda.report.space import PAGE as SPACE_PAGE
from captum_pda.report.space import space_header
from captum_pda.report.together import together_header
from captum_pda.visualization.drawing import AGAINST, FOR

PAGE = Page(
    "Evidence",
    "report.html",
    ("base.css", "report.css", "together.css"),
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
        "curves.js",
        "test.js",
        "together.js",
        "tables.js",
        "controls.js",
        "save.js",
        "report.js",
    ),
)
THUMBNAIL = 160
#: How many regions are listed for a class, and how many against it.
N_LISTED = 3
#: How many of the most probable classes the page of a volume offers: each has a map of its own.
MAX_SPACE_CLASSES = 4
#: More values than these are kept with 16 bits each, exact to 0.05% down to a billionth of the
#: largest of their class.
MAX_FLOAT32_VALUES = 250_000
#: Longer settings are cut at the foot of the page.
MAX_SETTING_LETTERS = 300


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
    spacing: float | Sequence[float] | None = None


@dataclass(frozen=True)
class Classes:
    """The outputs that a page tells of.

    Args:
        columns: their numbers among the model's outputs, the most probable first.
        names: what they are called.
        first: the place of the one shown at first.
        second: the place of the one it is told apart from at first, if any.
        truth: the place of the true one, if it is known.
    """

    columns: tuple[int, ...]
    names: tuple[str, ...]
    first: int
    second: int | None = None
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
    example: int | None = None,
    test: SelfTest | bool = True,
    spacing: float | Sequence[float] | None = None,
    interactions: Interactions | None = None,
) -> Path:
    """Write one HTML page that shows a photo with its evidence, and answers to pointer and keys.

    The page needs nothing but itself: no server, no network. It tells of each region what the
    prior puts in its place, what is lost without it, and what it says by itself; classes, pairs of
    classes, sizes, questions and methods can be chosen. The map of the class shown at first is
    tested on its own photo. A volume is shown by three slices with sliders, and a signal by a line
    for each channel over its evidence; their classes can be chosen.

    Args:
        evidence: of an image, a signal or a volume; or a table of names and evidence by several
            methods of one image.
        path: where to write; a file that is there is replaced.
        labels: the names of all outputs. Default: their numbers.
        mean, std: the normalisation of the image, to be undone, as for ``visualize_evidence``.
        title: the name of the photo. Default: the file's own name.
        truth: the true output, where it is known; an index then tells right from wrong.
        options: which classes are offered and shown at first, which example of several, and
            more for the foot. Default: the 8 most probable classes.
        example: which example of several; the same as ``ReportOptions(example=...)``.
        test: the test of the map that is shown at first; True makes it, with about 40 passes for
            each method, where the evidence has a model to ask, and False leaves it out.
        spacing: the extent of a voxel along each axis of a volume, or the time between two samples
            of a signal.
        interactions: what ``evidence.interactions(target)`` returned, for a part of the page in
            which a region can be chosen to see its partners.

    Returns:
        The path.

    Example::

        >>> evidence = PDA(model).evidence(image)
        >>> write_report(evidence, "cat.html", labels=names, mean=[0.485, 0.456, 0.406],
        ...              std=[0.229, 0.224, 0.225], options=ReportOptions(contrast=(281, 285)))
    """
    path = Path(path)
    methods = {"": evidence} if not isinstance(evidence, Mapping) else evidence
    photo = ReportedPhoto(path.stem if title is None else title, labels, mean, std, truth, spacing)
    options = options or ReportOptions()
    if example is not None:
        if options.example not in (None, example):
            raise ValueError(
                f"example={example} and ReportOptions(example={options.example}) differ; give one"
            )
        options = replace(options, example=example)
    write_whole(path, report_page(methods, photo, options, test=test, interactions=interactions))
    return path


def evidence_html(
    evidence: WindowEvidence,
    path: str | os.PathLike[str] | None = None,
    target: int | None = None,
    example: int | None = None,
    *,
    labels: Sequence[str] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    title: str | None = None,
    truth: int | None = None,
    test: SelfTest | bool = True,
    spacing: float | Sequence[float] | None = None,
    interactions: Interactions | None = None,
) -> str | Path:
    """The page of ``write_report`` as a string, or written to a path; see
    ``WindowEvidence.to_html``."""
    options = ReportOptions(targets=() if target is None else (target,), example=example)
    if path is not None:
        return write_report(
            evidence,
            path,
            labels,
            mean,
            std,
            title=title,
            truth=truth,
            options=options,
            test=test,
            spacing=spacing,
            interactions=interactions,
        )
    photo = ReportedPhoto(title or "Evidence", labels, mean, std, truth, spacing)
    page = report_page({"": evidence}, photo, options, test=test, interactions=interactions)
    return page.decode()


def report_page(
    methods: Mapping[str, WindowEvidence],
    photo: ReportedPhoto,
    options: ReportOptions,
    *,
    test: SelfTest | bool = True,
    interactions: Interactions | None = None,
) -> bytes:
    """The page itself, of evidence by one or several named methods."""
    number, first = _check(methods, options.example)
    values = first.inputs[0][number].detach().cpu()
    if values.dim() != 3:
        if len(methods) > 1 or options.contrast is not None or interactions is not None:
            raise ValueError(
                "a report of a signal or a volume shows one method, and no contrast or "
                "interactions; write a report for each method, and draw a contrast with "
                "visualize_explanation(rather_than=...)"
            )
        return _space_page(first, photo, options, number, test)
    display = Display.of(values, photo.mean, photo.std)
    classes = choose_classes(first.scores[number], photo, options)
    block = Block()
    pixels = display.bytes(values)
    picture = block.add_bytes(photo_file(pixels))
    shown: list[dict[str, Any]] = []
    for name, evidence in methods.items():
        # A test that was made before is that of the first method.
        own = test if isinstance(test, bool) or not shown else False
        made = _method_header(block, name, evidence, number, display, classes)
        shown.append(made | {"test": _test_header(evidence, number, classes, own)})
    header = {
        **_common_header(first, number, photo, classes, options),
        "photo": {"image": picture, "height": pixels.shape[0], "width": pixels.shape[1]},
        "second": classes.second,
        "listed": {"count": N_LISTED, "least_share": LEAST_SHARE, "close_share": CLOSE_SHARE},
        "methods": shown,
        "together": together_header(block, interactions, first, number, photo.labels),
    }
    whole = first.attribution(classes.columns[0])
    shown_map = map_over(pixels, (whole[0] if isinstance(whole, tuple) else whole)[number, 0])
    small = Block()
    summary = {
        **_summary(photo.title, first, classes, number, shown[0]),
        "thumbnail": small.add_bytes(thumbnail(shown_map, THUMBNAIL)),
    }
    return PAGE.render({"summary": small.pack(summary), "values": block.pack(header)})


def _space_page(
    evidence: WindowEvidence,
    photo: ReportedPhoto,
    options: ReportOptions,
    number: int,
    test: SelfTest | bool,
) -> bytes:
    """The page of a signal or a volume."""
    fewer = replace(options, n_classes=min(options.n_classes, MAX_SPACE_CLASSES))
    classes = choose_classes(evidence.scores[number], photo, fewer)
    columns = list(classes.columns)
    block, small = Block(), Block()
    own, lists, pixels = space_header(
        block, evidence, number, columns, photo.mean, photo.std, photo.spacing, N_LISTED
    )
    tested = _test_header(evidence, number, classes, test)
    header = {
        **_common_header(evidence, number, photo, classes, options),
        **own,
        "totals": [_total_words(evidence, number, column) for column in columns],
        "test": tested,
    }
    about = {"listed": lists, "test": tested}
    summary = {
        **_summary(photo.title, evidence, classes, number, about),
        "thumbnail": small.add_bytes(thumbnail(pixels, THUMBNAIL)),
    }
    return SPACE_PAGE.render({"summary": small.pack(summary), "values": block.pack(header)})


def _common_header(
    evidence: WindowEvidence,
    number: int,
    photo: ReportedPhoto,
    classes: Classes,
    options: ReportOptions,
) -> dict[str, Any]:
    """What pages of every kind of input say."""
    predicted = evidence.measure.prediction(evidence.scores[number])
    values = evidence.inputs[0][number].detach().cpu()
    return {
        "title": photo.title,
        "classes": list(classes.columns),
        "labels": list(classes.names),
        "predictions": [_number(predicted[column]) for column in classes.columns],
        "truth": classes.truth,
        "first": classes.first,
        "measure": _measure_header(evidence.measure),
        "words": words.page_words(evidence.measure),
        "colours": {"for": FOR, "against": AGAINST},
        "settings": settings_rows(_settings(evidence, values, options.settings)),
    }


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
        if len(one.inputs) != 1:
            raise ValueError(
                f"a report shows one input tensor; the evidence is of {len(one.inputs)}. Pass the "
                "others as additional_forward_args"
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


def _method_header(
    block: Block,
    name: str,
    evidence: WindowEvidence,
    number: int,
    display: Display,
    classes: Classes,
) -> dict[str, Any]:
    """The evidence of a method: its regions, in groups of one size and depth, and their lists."""
    parts: dict[tuple[str, str], list[EvidencePart]] = {}
    for part in evidence.parts:
        # Equal regions are one group, also where each context has its own object of them.
        key = part.depth, json.dumps(part.regions.settings(), sort_keys=True, default=str)
        parts.setdefault(key, []).append(part)
    columns = list(classes.columns)
    groups = [
        _group_header(block, own, evidence, number, display, columns) for own in parts.values()
    ]
    found = _GroupsInPixels(list(parts.values()), number, tuple(evidence.inputs[0].shape[2:]))
    for place, group in enumerate(groups):
        group["rank"] = found.ranks[place]
    pair = None
    if classes.second is not None:
        pair = found.listed(evidence, columns[classes.first], columns[classes.second])
    return {
        "name": name,
        "groups": groups,
        "questions": {
            f"{part.context} {part.depth}": words.question(part) for part in evidence.parts
        },
        "listed": [found.listed(evidence, column) for column in columns],
        "pair": pair,
        "totals": [_total_words(evidence, number, column) for column in columns],
    }


def _group_header(
    block: Block,
    parts: Sequence[EvidencePart],
    evidence: WindowEvidence,
    number: int,
    display: Display,
    columns: list[int],
) -> dict[str, Any]:
    """Regions of one size at one depth, and what they say in each context."""
    regions, depth = parts[0].regions, parts[0].depth
    boxes = owner = None
    if _has_shapes(parts[0], number):
        owner = block.add(_owners(parts[0], number), "int32")
    else:
        boxes = block.add(_own_boxes(parts[0], number), "uint16")
    return {
        "depth": depth,
        "title": regions.title if depth == "input" else f"features of {depth}",
        "count": len(regions),
        "space": list(regions.space),
        "boxes": boxes,
        "owner": owner,
        "parts": [_part_header(block, part, evidence, number, display, columns) for part in parts],
    }


def _part_header(
    block: Block,
    part: EvidencePart,
    evidence: WindowEvidence,
    number: int,
    display: Display,
    columns: list[int],
) -> dict[str, Any]:
    """What regions say in one context: scores as differences from those before the change."""
    reference = in_double(part.reference[number, columns])
    scores = in_double(part.scores[number][:, columns]).T
    measure = part.outputs.measure
    known: dict[str, Any] = {
        "context": part.context,
        # A region speaks for what is lost without it, and for what it adds by itself.
        "sign": -1 if CONTEXTS[part.context].removes else 1,
        "reference": block.add(_plain(reference), "float64"),
        "changes": _add_values(block, scores - reference.unsqueeze(1)),
        "values": None,
        "errors": None,
        "drawn": int(part.drawn.max()),
    }
    if not isinstance(measure, WeightOfEvidence):
        before = measure.value(reference.unsqueeze(1))
        gained = before - measure.value(scores)
        known["values"] = _add_values(block, gained if CONTEXTS[part.context].removes else -gained)
    if part.errors is not None:
        errors = in_double(part.errors[number][:, columns]).T * measure.slope(scores).abs()
        known["errors"] = _add_values(block, errors)
    if part.depth != "input" or isinstance(evidence.prior, PriorOfFile):
        return known
    example = evidence.inputs[0][number].detach().cpu()
    if CONTEXTS[part.context].starts_from_nothing:
        nothing = EmptyContext(evidence.prior).nothing_seen(example)
        known["nothing"] = block.add_bytes(jpeg(display.bytes(nothing), 85))
    elif part.context == "full" and _has_shapes(part, number):
        filled = filled_photo(part, example, number, evidence.prior)
        known["filled"] = block.add_bytes(jpeg(display.bytes(filled), 85))
    elif part.context == "full":
        sheet, tile, in_row = fills_sprite(part, example, number, evidence.prior)
        image = block.add_bytes(jpeg(display.bytes(sheet), 85))
        known["fills"] = {"image": image, "tile": list(tile), "columns": in_row}
    return known


class _GroupsInPixels:
    """Where the regions of each group lie on the photo, to name those of ``strongest_regions``."""

    def __init__(
        self, groups: Sequence[Sequence[EvidencePart]], number: int, space: tuple[int, ...]
    ) -> None:
        self.groups, self.number, self.space = groups, number, space
        #: The place of each group among those that lists and pointers look at first: groups of the
        #: photo before those of feature maps, as in ``strongest_regions``.
        self.ranks = [0] * len(groups)
        left = list(range(len(groups)))
        for rank in range(len(groups)):
            first = [n for n in left if groups[n][0].depth == "input"] or left
            first = [n for n in first if groups[n][0].regions.space == space] or first
            best = listed_regions([groups[n][0].regions for n in first], number)
            place = next(n for n in first if groups[n][0].regions is best)
            self.ranks[place] = rank
            left.remove(place)

    def listed(
        self, evidence: WindowEvidence, column: int, second: int | None = None
    ) -> dict[str, list[dict[str, Any]]] | None:
        """The strongest regions for an output and against it, with what is said of each; None for
        evidence that is not finished, of which the page makes its own list."""
        if not all(bool(part.scores[self.number].isfinite().all()) for part in evidence.parts):
            return None
        kinds = strongest_regions(evidence, column, N_LISTED, second, self.number)
        return {
            kind: [
                {**self._place(region), "value": region.value, "answers": region.answers()}
                for region in regions
            ]
            for kind, regions in zip(("for", "against"), kinds, strict=True)
        }

    def _place(self, region: StrongRegion) -> dict[str, int]:
        """The group and the number of a listed region."""
        for group in np.argsort(self.ranks):
            part = self.groups[group][0]
            if _has_shapes(part, self.number):
                owners = _on_photo(_owners(part, self.number), self.space)
                found = np.unique(owners[region.pixels])
                if len(found) == 1 and np.array_equal(owners == found[0], region.pixels):
                    return {"group": int(group), "region": int(found[0])}
            else:
                boxes = self._photo_boxes(part)
                same = (boxes == [*region.corner, *region.shape]).all(axis=1)
                if same.any() and region.pixels.sum() == math.prod(region.shape):
                    return {"group": int(group), "region": int(same.argmax())}
        raise RuntimeError("a listed region is not among the regions of the evidence")

    def _photo_boxes(self, part: EvidencePart) -> Any:
        """Boxes in pixels of the photo, where those of a feature map are larger."""
        own = _own_boxes(part, self.number)
        ratio = np.divide(self.space, part.regions.space)
        # Pixel p of the photo lies in place floor(p / ratio) of the feature map.
        low = np.ceil(own[:, :2] * ratio - 1e-9)
        high = np.ceil((own[:, :2] + own[:, 2:]) * ratio - 1e-9)
        return np.hstack([low, high - low]).astype(np.int64)


def _has_shapes(part: EvidencePart, number: int) -> bool:
    """Whether regions have shapes of their own, rather than those of boxes."""
    return any(windows.hidden is not None for windows in part.regions.boxes(number))


def _owners(part: EvidencePart, number: int) -> Any:
    """The region of each pixel, where each has one."""
    numbers = torch.arange(len(part.regions), dtype=torch.float64, device="cpu")
    rows = numbers.expand(len(part.reference), -1)
    return part.regions.average(rows)[number].numpy().astype(np.int32)


def _own_boxes(part: EvidencePart, number: int) -> Any:
    """The corner and shape of each region in its own space, (regions, 4); zeros without pixels."""
    boxes = np.zeros((len(part.regions), 4), dtype=np.int64)
    groups = zip(part.regions.boxes(number), part.regions.members(number), strict=True)
    for windows, members in groups:
        boxes[members, :2] = windows.corner_array
        boxes[members, 2:] = windows.window
    return boxes


def _on_photo(values: Any, space: tuple[int, ...]) -> Any:
    """Values of a feature map's places on the pixels of the photo."""
    nearest = [np.arange(size) * own // size for size, own in zip(space, values.shape, strict=True)]
    return values[np.ix_(*nearest)]


def _total_words(evidence: WindowEvidence, number: int, column: int) -> str | None:
    """All evidence for an output, where the model was asked with nothing seen."""
    empty = [part for part in evidence.parts if CONTEXTS[part.context].starts_from_nothing]
    if not empty:
        return None
    total = float(evidence.total(column)[number])
    if not math.isfinite(total):
        return None
    said = [
        evidence.measure.in_words(float(evidence.measure.prediction(scores[number, column])))
        for scores in (empty[0].reference, evidence.scores)
    ]
    return (
        f"all evidence: {words.with_unit(total, evidence.measure)}, from {said[0]} with nothing "
        f"seen to {said[1]} with everything seen"
    )


def _test_header(
    evidence: WindowEvidence, number: int, classes: Classes, test: SelfTest | bool
) -> dict[str, Any] | None:
    """The test of the map of the class shown at first, or why there is none."""
    if test is True:
        if evidence.ask is None:
            return None
        try:
            test = evidence.self_test(classes.columns[classes.first], number)
        except Exception as error:  # what was computed is shown, and what failed is said
            return {"failure": f"the map was not tested: {error}"}
    if not isinstance(test, SelfTest):
        return None
    said = test.measure.in_words
    curves = [curve.cpu().double().tolist() for curve in (test.hidden, test.shown)]
    if not all(math.isfinite(value) for curve in curves for value in curve):
        return {"failure": "the map was not tested: the model returned NaN or infinity"}
    shares = test.shares.cpu().double().tolist()
    return {
        "failure": None,
        "place": classes.first,
        "sentence": str(test),
        "passed": test.passed,
        "gain": f"{test.gain:.2f}",
        "start": int(np.argmin(np.abs(np.subtract(shares, test.share)))),
        "shares": shares,
        "hidden": curves[0],
        "shown": curves[1],
        "words": {
            "share": [f"{100 * share:.0f}%" for share in shares],
            "hidden": [said(value) for value in curves[0]],
            "shown": [said(value) for value in curves[1]],
        },
    }


def _measure_header(measure: Measure) -> dict[str, Any]:
    """What the page needs to know of a measure."""
    return {
        "name": measure.name,
        "label": measure.label,
        "unit": measure.unit,
        "probabilities": measure.needs_probabilities,
        "contrasts": type(measure).contrast in (Measure.contrast, WeightOfEvidence.contrast),
    }


def _summary(
    name: str,
    evidence: WindowEvidence,
    classes: Classes,
    number: int,
    method: Mapping[str, Any],
) -> dict[str, Any]:
    """What an index tells of a photo: the verdict, its strongest evidence, and the map's test."""
    listed = method["listed"][0] or {"for": [], "against": []}
    strongest = {kind: regions[0] if regions else None for kind, regions in listed.items()}
    test = method["test"]
    tested = None
    if test is not None and test["failure"] is None:
        of_class = "" if test["place"] == 0 else f"{classes.names[test['place']]}: "
        tested = {"sentence": of_class + test["sentence"], "passed": test["passed"]}
    return {
        "title": name,
        "verdict": classes.names[0],
        "truth": None if classes.truth is None else classes.names[classes.truth],
        "right": classes.truth == 0,
        "prediction": _number(
            evidence.measure.prediction(evidence.scores[number, classes.columns[0]])
        ),
        "probabilities": evidence.measure.needs_probabilities,
        "test": tested,
        **{
            kind: None if one is None else {"value": one["value"], "words": one["answers"][0]}
            for kind, one in strongest.items()
        },
    }


def settings_rows(settings: Mapping[str, Any]) -> list[list[str]]:
    """Each setting as a name and a text; tables within tables get joined names."""
    return [[name, text] for name, text in _rows("", settings)]


def _rows(before: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        whole = f"{before} {name}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            yield from _rows(whole, value)
        elif value is not None and value != []:
            yield whole, _setting_text(value)


def _setting_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= MAX_SETTING_LETTERS else f"{text[:MAX_SETTING_LETTERS]}..."


def _add_values(block: Block, values: Tensor) -> int:
    """Values (classes, regions), as exactly as there is room for."""
    kind = "float32" if values.numel() <= MAX_FLOAT32_VALUES else "float16"
    return block.add(_plain(values), kind)


def _plain(values: Tensor) -> Any:
    return values.detach().cpu().numpy()


def _number(value: Tensor) -> float | None:
    """A plain number, or None for one that JSON cannot hold."""
    plain = float(value)
    return plain if math.isfinite(plain) else None
