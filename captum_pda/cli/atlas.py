"""``captum-pda atlas``: over many photos, what speaks for a class, and what against it?"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from captum_pda.atlas.atlas_page import atlas_page, visualize_atlas
from captum_pda.atlas.class_regions import read_regions
from captum_pda.atlas.groups import Atlas, make_atlas
from captum_pda.cli.arguments import add_model_options, add_overwrite, bits, positive
from captum_pda.cli.atlas_job import AtlasWriter, Enough, classes_of
from captum_pda.cli.classifier import Classifier
from captum_pda.cli.explain import SHOWN
from captum_pda.cli.explain_options import add_method_options, make_question
from captum_pda.cli.explanation import PhotoExplainer
from captum_pda.cli.photo_job import PhotoSet
from captum_pda.cli.places import Plan, plan_folder
from captum_pda.cli.preparation import make_explainer, run_on_ranks, with_engines
from captum_pda.cli.results import write_figure, write_result
from captum_pda.cli.usage_errors import optional_module
from captum_pda.datasets.explain_dataset import DatasetSummary, Job
from captum_pda.distributed.ranks import Ranks
from captum_pda.distributed.shared_work import Display

PHOTOS = "photos"


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The options of this command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "atlas",
        help="what speaks for a class, and what against it, over many photos",
        description="Cuts the strongest regions out of many photos, groups those that look alike "
        "to the model, and writes each class's groups as a picture and as a page, with a page of "
        "each photo. Goes on where it was stopped; several processes share the photos under "
        "torchrun.",
    )
    parser.add_argument(
        "images", nargs="+", type=Path, metavar="PHOTOS", help="folders of photos, or photos"
    )
    which = parser.add_argument_group("what to look for")
    which.add_argument(
        "--class",
        dest="target",
        action="append",
        default=[],
        metavar="CLASS",
        help="a class by number or name; may be given several times. Default: each photo's folder "
        "names its class",
    )
    which.add_argument(
        "--regions",
        type=positive,
        default=4,
        metavar="N",
        help="how many regions of a photo to cut out, for the class and against it (default: "
        "%(default)s)",
    )
    which.add_argument(
        "--min-bits",
        type=bits,
        default=0.1,
        metavar="BITS",
        help="regions that say less are left out (default: %(default)s)",
    )
    which.add_argument(
        "--groups", type=positive, metavar="N", help="how many groups to make (default: what fits)"
    )
    which.add_argument(
        "--min-photos",
        type=positive,
        default=2,
        metavar="N",
        help="a group needs regions of so many photos (default: %(default)s)",
    )
    add_method_options(parser.add_argument_group("how to explain the photos"))
    add_model_options(parser)
    output = parser.add_argument_group("what to write")
    output.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="a folder for the results"
    )
    add_overwrite(output)
    parser.set_defaults(classes=None, contrast=None, html=True)
    return parser


def run(options: argparse.Namespace) -> int:
    """Explain all photos and group their regions; the exit code says whether any failed."""
    return run_on_ranks(partial(_run, options))


def _run(options: argparse.Namespace, ranks: Ranks) -> int:
    with ranks.failing_together():
        optional_module("sklearn.cluster")
        plan, explainer, classes = prepare(options)
    explainer = with_engines(explainer, plan, ranks, options.overwrite)
    writer = AtlasWriter(
        plan, explainer, classes, Enough(options.regions, options.min_bits), options.overwrite
    )
    title = None if options.quiet else "Explaining"
    job = Job(explainer, PhotoSet(plan.places, explainer.classifier.preprocessing), writer)
    summary = job.run(ranks, Display(title, "photo", options.debug))
    if ranks.rank > 0:
        return 0
    written = write_atlases(plan, explainer.classifier, classes, options)
    return conclude(written, summary, plan, options.quiet)


def prepare(
    options: argparse.Namespace,
) -> tuple[Plan, PhotoExplainer, tuple[tuple[int, ...], ...]]:
    """Load the model, and choose the classes of each photo."""
    question = make_question(options)
    plan = plan_folder(options.images, options.output / PHOTOS, "safetensors", True)
    explainer = make_explainer(options, question, plan)
    return plan, explainer, classes_of(plan, question, explainer.classifier.labels)


def write_atlases(
    plan: Plan,
    classifier: Classifier,
    classes: Sequence[Sequence[int]],
    options: argparse.Namespace,
) -> dict[Path, Atlas]:
    """Write the picture and the page of each class."""
    files = [place.numbers for place in plan.places]
    there = {number: file for number, file in enumerate(files) if file and file.is_file()}
    regions = {number: read_regions(file) for number, file in there.items()}
    written = {}
    for target in dict.fromkeys(target for several in classes for target in several):
        label = classifier.labels[target]
        photos = [number for number in regions if target in classes[number]]
        if not photos:
            continue
        own = [one for number in photos for one in regions[number] if one.label == label]
        atlas = make_atlas(own, label, len(photos), options.groups, options.min_photos)
        place = options.output / f"{target:04d}_{re.sub(r'[^0-9A-Za-z]+', '_', label)[:60]}.html"
        write_result(place, atlas_page(atlas), options.overwrite)
        picture = visualize_atlas(atlas, use_pyplot=False)
        write_figure(place.with_suffix(".png"), picture, options.overwrite)
        if not options.quiet:
            print(atlas)
        written[place] = atlas
    return written


def conclude(written: dict[Path, Atlas], summary: DatasetSummary, plan: Plan, quiet: bool) -> int:
    """Tell where the atlases are, and which photos failed."""
    for place in [] if quiet else written:
        print(f"Written: {place}, {place.with_suffix('.png')}")
    for number, reason in list(summary.failed.items())[:SHOWN]:
        print(f"captum-pda: error: {plan.places[number].photo}: {reason}", file=sys.stderr)
    return 1 if summary.failed else 0
