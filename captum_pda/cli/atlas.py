"""``captum-pda atlas``: the evidence for and against a class in many photos."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from captum_pda.atlas.atlas import cut_regions, make_atlas, read_regions, regions_in_file
from captum_pda.atlas.atlas_page import atlas_page, visualize_atlas
from captum_pda.cli.classifier import true_class
from captum_pda.cli.explain import explain_photos, load_explainer
from captum_pda.cli.explainer import Explanation, check_options, named_classes
from captum_pda.cli.folders import Plan, make_plan, write_figure, write_result
from captum_pda.cli.options import add_explaining_options, positive
from captum_pda.cli.results import PhotoWriter
from captum_pda.cli.usage_errors import UsageError, optional_module
from captum_pda.datasets.result_folder import Record
from captum_pda.distributed import Ranks

HELP = "what speaks for a class, and what against it, over many photos"
DESCRIPTION = """Cuts the strongest regions out of many photos, groups those that look alike to the
model, and writes each class's groups as a picture and as a page, with a page of each photo. Goes on
where it was stopped; several processes share the photos under torchrun."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "images", nargs="+", type=Path, metavar="PHOTOS", help="folders of photos, or photos"
    )
    add = parser.add_argument_group("what to look for").add_argument
    add(
        "--class",
        dest="target",
        action="append",
        default=[],
        metavar="CLASS",
        help="by name or number; may be given several times (default: that of each photo's folder)",
    )
    add(
        "--regions",
        type=positive,
        default=4,
        help="how many of a photo to cut out, for the class and against it (default: 4)",
    )
    add("--groups", type=positive, help="how many groups to make (default: what fits)")
    add(
        "--min-photos",
        type=positive,
        default=2,
        help="how many photos a group must come from (default: 2)",
    )
    add_explaining_options(parser)
    parser.add_argument("--output", type=Path, required=True, help="a folder for the results")
    fixed: dict[str, Any] = {"classes": None, "contrast": None, "expected": None}
    fixed |= {"html": True, "test": False, "raw": "safetensors", "target_option": "--class"}
    parser.set_defaults(**fixed)


def run(options: argparse.Namespace, ranks: Ranks) -> int:
    """Explain all photos, and write the atlas of each class; returns the exit code."""
    with ranks.failing_together():
        optional_module("sklearn.cluster", '"captum_pda[atlas]"')
        check_options(options)
        plan = make_plan(options, options.output / "photos", is_folder=True)
        for place in plan.places:
            del place.files["picture"]
        explainer = load_explainer(options, plan)
        labels = explainer.classifier.labels
        classes = classes_of(options, plan, labels)
    writer = AtlasWriter(plan, explainer.classifier, options)
    writer.classes = classes
    exit_code = explain_photos(options, plan, explainer, writer, ranks)
    files = [place.files["numbers"] for place in plan.places]
    regions = {number: read_regions(file) for number, file in enumerate(files) if file.is_file()}
    for target in sorted({target for number in regions for target in classes[number]}):
        if ranks.rank > 0:
            break
        label = labels[target]
        photos = [number for number in regions if target in classes[number]]
        own = [one for number in photos for one in regions[number] if one.label == label]
        atlas = make_atlas(own, label, len(photos), options.groups, options.min_photos)
        page = options.output / f"{target:04d}_{re.sub(r'[^0-9A-Za-z]+', '_', label)[:60]}.html"
        picture = page.with_suffix(".png")
        write_result(page, atlas_page(atlas), options.overwrite)
        write_figure(picture, visualize_atlas(atlas, use_pyplot=False), options.overwrite)
        if not options.quiet:
            print(f"{atlas}\nWritten: {page}, {picture}")
    return exit_code


def classes_of(
    options: argparse.Namespace, plan: Plan, labels: Sequence[str]
) -> list[tuple[int, ...]]:
    """The classes to explain in each photo: the requested ones, or that of its folder."""
    named, _, _ = named_classes(options, labels)
    if named is not None:
        return [tuple(named)] * len(plan.places)
    found = [true_class(place.photo, labels) for place in plan.places]
    if all(one is None for one in found):
        folder = plan.places[0].photo.absolute().parent.name
        raise UsageError(
            f"which class? Name it with --class; no photo is in a folder of a class's name (the "
            f"first is in {folder!r})"
        )
    return [() if one is None else (one,) for one in found]


class AtlasWriter(PhotoWriter):
    """Writes the page of each photo, and as its numbers the strongest regions of its classes."""

    classes: Sequence[Sequence[int]]  # of each photo

    def numbers(
        self, number: int, explanation: Explanation, record: Record, settings: dict[str, Any]
    ) -> bytes:
        """The regions of a photo, with the model's outputs."""
        photo, files = self.plan.places[number]
        # The address of its page, relative to the folder of the atlas.
        parts = files["page"].relative_to(self.options.output).parts
        link = "./" + "/".join(quote(os.fsencode(part), safe="") for part in parts)
        mean, std = self.classifier.preprocessing.colours(explanation.image)
        regions = [
            replace(region, link=link, label=self.classifier.labels[target])
            for target in self.classes[number]
            for region in cut_regions(
                explanation.evidence,
                target,
                str(photo),
                self.classifier.model,
                mean=mean,
                std=std,
                n=self.options.regions,
            )
        ]
        return regions_in_file(regions, settings, record.tensors())
