"""The HTML report: one input, its maps and every region's values."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

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
    LEAST_SHARE,
    StrongRegion,
    distance_to_share,
    pixels_of,
    strongest_regions,
)
from captum_pda.evidence.together import Interactions
from captum_pda.files import write_whole
from captum_pda.fingerprints import fingerprint
from captum_pda.model.inputs import check_count
from captum_pda.model.measures import Measure, WeightOfEvidence
from captum_pda.priors import EmptyContext, prior_settings
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.protocol import Regions
from captum_pda.report.page_file import Block, Page
from captum_pda.report.pictures import (
    Numbers,
    display_range,
    filled_photo,
    fills_sprite,
    has_shapes,
    jpeg,
    map_over,
    photo_file,
    rgb_bytes,
    thumbnail,
)
from captum_pda.report.space import PAGE as SPACE_PAGE
from captum_pda.report.space import space_header, told
from captum_pda.report.together import together_header
from captum_pda.visualization.drawing import AGAINST, FOR

PAGE = Page(
    "Evidence",
    "report.html",
    "base report together",
    "block elements numbers colours curves shared evidence words view picture detail test together "
    "tables controls save report",
)
THUMBNAIL = 160
#: The number of regions that are listed for a class, and against it.
N_LISTED = 3
#: The number of classes on the page of a volume, each of which has a map of its own.
MAX_SPACE_CLASSES = 4
#: Longer settings are cut at the foot of the page.
MAX_SETTING_LETTERS = 300


def write_report(
    evidence: WindowEvidence | Mapping[str, WindowEvidence],
    path: str | os.PathLike[str] | None,
    labels: Sequence[str] | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    *,
    title: str | None = None,
    truth: int | None = None,
    targets: Sequence[int] = (),
    contrast: tuple[int, int] | None = None,
    n_classes: int = 8,
    example: int | None = None,
    settings: Mapping[str, Any] | None = None,
    test: SelfTest | bool = True,
    spacing: Numbers | None = None,
    interactions: Interactions | None = None,
    boxes: Mapping[int, Sequence[float]] | None = None,
) -> str | Path:
    """Write an interactive HTML page that shows a photo with its evidence.

    The page is one file that needs no server and no network. It shows for each region what replaced
    it, what is lost without it, and its evidence by itself; readers can choose classes, pairs of
    classes, sizes, questions and methods. The map of the first class is tested on its own photo. A
    volume is shown by three slices with sliders, and a signal by a line for each channel over its
    evidence; their classes can be chosen.

    Args:
        evidence: of an image, a signal or a volume; or a dict of the evidence of one image by
            several methods.
        path: the file to write or replace. None returns the page as a string.
        labels: the names of all outputs. Default: "output" and its number.
        mean, std: the normalisation of the image, to be undone, as for ``visualize_evidence``.
        title: the name of the photo. Default: the file's own name.
        truth: the true output, if known; an index then distinguishes right from wrong.
        targets: outputs to offer besides the most probable ones, starting with the one that is
            shown first.
        contrast: two outputs; the page first shows the evidence for one rather than the other.
        n_classes: the number of the most probable outputs to offer.
        example: the number of an example in a batch.
        settings: more text for the foot, such as the model's name and the hash of its weights.
        test: the test of the first map; True makes it, with about 40 passes for each method, if the
            evidence has a model, and False leaves it out.
        spacing: the extent of a voxel along each axis of a volume, or the time between two samples
            of a signal.
        interactions: the result of ``evidence.interactions(target)``, for a part of the page in
            which one chooses a region and sees its partners.
        boxes: for a detector, the left, top, right and bottom of a box in the image to draw for
            outputs, by their numbers.

    Example::

        >>> evidence = PDA(model).evidence(image)
        >>> write_report(evidence, "cat.html", labels=names, mean=[0.485, 0.456, 0.406],
        ...              std=[0.229, 0.224, 0.225], contrast=(281, 285))
    """
    methods = evidence if isinstance(evidence, Mapping) else {"": evidence}
    if title is None:
        title = "Evidence" if path is None else Path(path).stem
    number, of_first = _check(methods, example)
    values, measure = of_first.inputs[0][number].detach().cpu(), of_first.measure
    is_image = values.dim() == 3
    if not is_image and (len(methods) > 1 or contrast is not None or interactions is not None):
        raise ValueError(
            "a report of a signal or a volume shows one method, and no contrast or "
            "interactions; write a report for each method, and draw a contrast with "
            "visualize_explanation(rather_than=...)"
        )
    colours = display_range(values, mean, std) if is_image else (0.0, 1.0)
    check_count("n_classes", n_classes)
    asked = [*(contrast or ()), *targets]
    columns = _columns(
        of_first.scores[number],
        [*asked, *(() if truth is None else (truth,))],
        n_classes if is_image else min(n_classes, MAX_SPACE_CLASSES),
        labels,
    )
    names = [f"output {one}" if labels is None else str(labels[one]) for one in columns]
    named = list(zip(columns, names, strict=True))
    predicted = measure.prediction(of_first.scores[number])[columns].tolist()
    first = columns.index(asked[0]) if asked else 0
    known = {
        "input_sha256": fingerprint(values),
        "prior": prior_settings(of_first.prior),
        "output": of_first.output,
        "measure": measure.settings(),
        **versions(),
        **(settings or {}),
    }
    header: dict[str, Any] = {
        "title": title,
        "classes": columns,
        "labels": names,
        "predictions": [one if math.isfinite(one) else None for one in predicted],
        "truth": None if truth is None else columns.index(truth),
        "first": first,
        "measure": {
            **{key: getattr(measure, key) for key in ("name", "label", "unit")},
            "probabilities": measure.needs_probabilities,
            "contrasts": type(measure).contrast in (Measure.contrast, WeightOfEvidence.contrast),
        },
        "words": words.page_words(measure),
        "colours": {"for": FOR, "against": AGAINST},
        "settings": [[name, text] for name, text in _rows("", known)],
    }
    block, small = Block(), Block()
    tests: list[dict[str, Any] | None] = []
    for one in methods.values():
        # An existing test is that of the first method.
        own = test if isinstance(test, bool) or not tests else False
        tests.append(_test_header(one, number, columns, first, own))
    if is_image:
        pixels = rgb_bytes(values, *colours)
        second = None if contrast is None else columns.index(contrast[1])
        header |= {
            "photo": {
                "image": block.add_bytes(photo_file(pixels)),
                "height": pixels.shape[0],
                "width": pixels.shape[1],
            },
            "second": second,
            "boxes": [(boxes or {}).get(column) for column in columns],
            "listed": {"count": N_LISTED, "least_share": LEAST_SHARE},
        }
        shown = []
        for (name, one), tested in zip(methods.items(), tests, strict=True):
            own_header = _method_header(block, one, number, named, contrast, colours)
            shown.append({"name": name, **own_header, "test": tested})
        header["methods"] = shown
        header["together"] = together_header(block, interactions, of_first, number, labels)
        own_map = in_double(of_first.map(columns[0], None, number)).detach().cpu().numpy()
        picture = map_over(pixels, own_map)
        lists = shown[0]["listed"][0]
    else:
        own_header, picture = space_header(
            block, of_first, number, columns, mean, std, spacing, N_LISTED
        )
        header |= own_header | {
            "totals": [words.total_words(of_first, number, *one) for one in named],
            "test": tests[0],
        }
        lists = own_header["listed"][0]
    summary = _summary(header, lists, tests[0])
    summary["thumbnail"] = small.add_bytes(thumbnail(picture, THUMBNAIL))
    blocks = {"summary": small.pack(summary), "values": block.pack(header)}
    page = (PAGE if is_image else SPACE_PAGE).render(blocks)
    if path is None:
        return page.decode()
    write_whole(Path(path), page)
    return Path(path)


def _summary(
    header: Mapping[str, Any],
    lists: Mapping[str, list[dict[str, Any]]] | None,
    tested: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The summary for an index: the verdict, the strongest evidence, and the map's test."""
    names, truth, first = header["labels"], header["truth"], header["first"]
    summary = {
        "title": header["title"],
        "verdict": names[0],
        "truth": None if truth is None else names[truth],
        "right": truth == 0,
        "prediction": header["predictions"][0],
        "probabilities": header["measure"]["probabilities"],
        "test": None,
        "for": None,
        "against": None,
    }
    for kind, regions in (lists or {}).items():
        if regions:
            summary[kind] = {"value": regions[0]["value"], "words": regions[0]["main"]}
    if tested is not None and tested["failure"] is None:
        of_class = "" if first == 0 else f"{names[first]}: "
        sentence = of_class + tested["sentence"]
        summary["test"] = {"sentence": sentence, "passed": tested["passed"]}
    return summary


def _columns(
    scores: Tensor, asked: Sequence[int], n_classes: int, labels: Sequence[str] | None
) -> list[int]:
    if labels is not None and len(labels) != len(scores):
        raise ValueError(
            f"labels has {len(labels)} names for {len(scores)} outputs; give one for each"
        )
    for target in asked:
        if not 0 <= target < len(scores):
            raise ValueError(
                f"target {target} is out of range; the model has outputs 0 to {len(scores) - 1}"
            )
    top = scores.nan_to_num().topk(min(n_classes, len(scores))).indices.tolist()
    return sorted({*asked, *top}, key=lambda one: -float(scores[one]))


def _check(
    methods: Mapping[str, WindowEvidence], example: int | None
) -> tuple[int, WindowEvidence]:
    if not methods:
        raise ValueError("evidence is an empty table; give the evidence of at least one method")
    first = next(iter(methods.values()))
    for one in methods.values():
        if not isinstance(one, WindowEvidence):
            raise TypeError(
                f"evidence must be a WindowEvidence, got {type(one).__name__}; use "
                "EfficientPDA(model).evidence(image)"
            )
        same = (
            one.scores.shape == first.scores.shape
            and len(one.inputs) == len(first.inputs)
            and torch.equal(one.inputs[0], first.inputs[0])
        )
        if not same or one.measure != first.measure or one.output != first.output:
            raise ValueError(
                "the methods of one report must explain the same image and outputs in the same "
                "measure; write a report for each"
            )
    return first.checked_example(example), first


def _method_header(
    block: Block,
    evidence: WindowEvidence,
    number: int,
    named: list[tuple[int, str]],
    contrast: tuple[int, int] | None,
    colours: tuple[Numbers, Numbers],
) -> dict[str, Any]:
    """The evidence of a method: its regions, in groups of one size and depth, and their lists."""
    columns = [column for column, _ in named]
    parts: dict[tuple[str, str], list[EvidencePart]] = {}
    for part in evidence.parts:
        # Equal regions are one group, even if each context has its own object of them.
        key = part.depth, json.dumps(part.regions.settings(), sort_keys=True, default=str)
        parts.setdefault(key, []).append(part)
    space = tuple(evidence.inputs[0].shape[2:])

    def looked_at(group: list[EvidencePart]) -> tuple[bool, bool, float]:
        """The order of regions in lists: those of the photo first, as in ``strongest_regions``."""
        depth, regions = group[0].depth, group[0].regions
        return depth != "input", regions.space != space, distance_to_share(regions, number)

    ordered = sorted(parts.values(), key=looked_at)
    # Lists name the first of equal regions.
    places = {part.regions: n for n in reversed(range(len(ordered))) for part in ordered[n]}
    return {
        "groups": [_group(block, group, evidence, number, columns, colours) for group in ordered],
        "questions": {
            f"{part.context} {part.depth}": words.question(part) for part in evidence.parts
        },
        "listed": [_listed(places, evidence, number, column) for column in columns],
        "pair": None if contrast is None else _listed(places, evidence, number, *contrast),
        "totals": [words.total_words(evidence, number, *one) for one in named],
    }


def _group(
    block: Block,
    parts: Sequence[EvidencePart],
    evidence: WindowEvidence,
    number: int,
    columns: list[int],
    colours: tuple[Numbers, Numbers],
) -> dict[str, Any]:
    """Regions of one size and depth, where they lie, and what they say in each context."""
    regions, places = parts[0].regions, dict.fromkeys(("boxes", "owner"))
    if has_shapes(parts[0], number):
        # The region of each pixel, as the map of the regions' numbers.
        each = torch.arange(len(regions), dtype=torch.float64, device="cpu")
        owner = regions.average(each.expand(len(evidence), -1))[number]
        places["owner"] = block.add(owner.numpy(), "int32")
    else:
        corners = np.zeros((len(regions), 4), dtype=np.int64)  # and shapes
        for windows, members in zip(regions.boxes(number), regions.members(number), strict=True):
            corners[members, :2], corners[members, 2:] = windows.corner_array, windows.window
        places["boxes"] = block.add(corners, "uint16")
    return {
        "depth": parts[0].depth,
        "title": parts[0].title,
        "count": len(regions),
        "space": list(regions.space),
        **places,
        "parts": [_part_header(block, part, evidence, number, columns, colours) for part in parts],
    }


def _part_header(
    block: Block,
    part: EvidencePart,
    evidence: WindowEvidence,
    number: int,
    columns: list[int],
    colours: tuple[Numbers, Numbers],
) -> dict[str, Any]:
    """The scores of regions in one context, minus those before the change."""
    context, measure = CONTEXTS[part.context], part.outputs.measure
    reference = in_double(part.reference[number, columns]).detach().cpu()
    scores = in_double(part.scores[number][:, columns]).detach().cpu().T
    # The evidence of a region is what is lost without it, or gained by it.
    sign = -1 if context.removes else 1
    known: dict[str, Any] = {
        "context": part.context,
        "sign": sign,
        "weight": context.weight,
        "reference": block.add(reference.numpy(), "float64"),
        "changes": block.add((scores - reference.unsqueeze(1)).numpy(), "float32"),
        "density": None,
        "values": None,
        "errors": None,
        "drawn": int(part.drawn.max()),
    }
    if isinstance(part.density, Tensor):
        density = part.density.expand(len(part.scores), -1)[number].cpu()
        known["density"] = block.add(density.numpy(), "float32")
    if not isinstance(measure, WeightOfEvidence):
        gained = measure.value(scores) - measure.value(reference.unsqueeze(1))
        known["values"] = block.add((sign * gained).numpy(), "float32")
    if part.errors is not None:
        errors = in_double(part.errors[number][:, columns]).detach().cpu().T
        known["errors"] = block.add((errors * measure.slope(scores).abs()).numpy(), "float32")
    if part.depth != "input" or isinstance(evidence.prior, PriorOfFile):
        return known

    def add_picture(values: Tensor) -> int:
        return block.add_bytes(jpeg(rgb_bytes(values, *colours), 85))

    example = evidence.inputs[0][number].detach().cpu()
    if context.starts_from_nothing:
        known["nothing"] = add_picture(EmptyContext(evidence.prior).nothing_seen(example))
    elif part.context == "full" and has_shapes(part, number):
        known["filled"] = add_picture(filled_photo(part, example, number, evidence.prior))
    elif part.context == "full":
        sheet, tile, in_row = fills_sprite(part, example, number, evidence.prior)
        known["fills"] = {"image": add_picture(sheet), "tile": tile, "columns": in_row}
    return known


def _listed(
    places: Mapping[Regions, int],
    evidence: WindowEvidence,
    number: int,
    column: int,
    second: int | None = None,
) -> dict[str, list[dict[str, Any]]] | None:
    """The strongest regions for an output and against it, with their answers; None for unfinished
    evidence, of which the page makes its own list."""
    if not all(bool(part.scores[number].isfinite().all()) for part in evidence.parts):
        return None

    def place_of(region: StrongRegion) -> dict[str, Any]:
        regions = cast(Regions, region.regions)
        whole = pixels_of(regions, number, region.number, region.pixels.shape)
        # Its pixels that belong to regions listed before, in reading order.
        lost = np.flatnonzero(whole & ~region.pixels).tolist()
        return {"group": places[regions], "region": region.number, "lost": lost}

    return told(strongest_regions(evidence, column, N_LISTED, second, number), place_of)


def _test_header(
    evidence: WindowEvidence, number: int, columns: list[int], first: int, test: SelfTest | bool
) -> dict[str, Any] | None:
    """The test of the map of the first class, or why there is none."""
    if test is True:
        if evidence.ask is None:
            return None
        try:
            test = evidence.self_test(columns[first], number)
        except Exception as error:  # what was computed is shown, and what failed is said
            return {"failure": f"the map was not tested: {error}"}
    if not isinstance(test, SelfTest):
        return None
    curves = test.shares, test.hidden, test.shown
    shares, hidden, shown = (curve.cpu().double().tolist() for curve in curves)
    if not all(map(math.isfinite, [*hidden, *shown])):
        return {"failure": "the map was not tested: the model returned NaN or infinity"}
    return {
        "failure": None,
        "place": first,
        "sentence": str(test),
        "passed": test.passed,
        "gain": f"{test.gain:.2f}",
        "start": int(np.argmin(np.abs(np.subtract(shares, test.share)))),
        "shares": shares,
        "hidden": hidden,
        "shown": shown,
        "words": {
            "share": [f"{100 * share:.0f}%" for share in shares],
            "hidden": [test.measure.in_words(value) for value in hidden],
            "shown": [test.measure.in_words(value) for value in shown],
        },
    }


def _rows(before: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        whole = f"{before} {name}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            yield from _rows(whole, value)
        elif value is not None and value != []:
            is_text = isinstance(value, str)
            text = value if is_text else json.dumps(value, default=str, ensure_ascii=False)
            cut = text[:MAX_SETTING_LETTERS]
            yield whole, text if text == cut else f"{cut}..."
