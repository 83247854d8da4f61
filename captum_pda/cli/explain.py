"""``captum-pda explain``: why does a model say what it says of these photos?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from captum_pda.basics.plurals import counted
from captum_pda.basics.version import __version__
from captum_pda.cli.explain_options import add_parser, make_question
from captum_pda.cli.explanation import Explanation, PhotoExplainer
from captum_pda.cli.photo_job import PhotoSet, PhotoWriter
from captum_pda.cli.places import (
    INDEX_FILE,
    SUMMARY_FILE,
    Plan,
    plan_folder,
    plan_photos,
)
from captum_pda.cli.preparation import make_explainer, run_on_ranks, with_engines
from captum_pda.cli.processes import is_launched
from captum_pda.cli.results import write_result
from captum_pda.cli.usage_errors import CommandError, in_command_words
from captum_pda.cli.words import answer_lines, top_classes
from captum_pda.datasets.explain_dataset import DatasetSummary, Job
from captum_pda.datasets.result_folder import json_text
from captum_pda.distributed.ranks import Ranks
from captum_pda.distributed.shared_work import Display
from captum_pda.report.index import index_page

__all__ = ["add_parser", "run"]

#: Failures that are printed; all of them are in a folder's summary.
SHOWN = 20


def run(options: argparse.Namespace) -> int:
    """Explain all photos; the exit code says whether any failed."""
    return run_on_ranks(partial(_run, options))


def _run(options: argparse.Namespace, ranks: Ranks) -> int:
    with ranks.failing_together():
        plan, explainer = prepare(options)
    explainer = with_engines(explainer, plan, ranks, options.overwrite)
    classifier, is_folder = explainer.classifier, plan.folder is not None
    writer = PhotoWriter(
        plan,
        explainer,
        {"weights": classifier.weights, "prior_file": str(options.prior or "") or None},
        options.overwrite,
        None if options.quiet or is_folder else partial(tell, classifier.labels),
    )
    title = "Explaining" if is_folder and not options.quiet else None
    job = Job(explainer, PhotoSet(plan.places, classifier.preprocessing), writer)
    summary = job.run(ranks, Display(title, "photo", options.debug))
    return conclude(plan, summary, options) if ranks.rank == 0 else 0


def prepare(options: argparse.Namespace) -> tuple[Plan, PhotoExplainer]:
    """Check everything that can be checked before a model is loaded; then load it."""
    question = make_question(options)
    is_folder = is_launched() or any(path.is_dir() for path in options.images)
    make_plan = plan_folder if is_folder else plan_photos
    plan = make_plan(options.images, options.output, options.raw, options.html)
    if not any(place.photo.exists() for place in plan.places):
        raise CommandError(f"there is no photo at {plan.places[0].photo}; check the name")
    explainer = make_explainer(options, question, plan, not options.quiet and not is_folder)
    question.named_classes(explainer.classifier.labels)
    return plan, explainer


def tell(
    labels: Sequence[str], path: Path, explanation: Explanation, written: Sequence[Path]
) -> None:
    """Say what was found, and where it is."""
    print(f"{path}: {top_classes(explanation.predictions, labels, explanation.measure)}")
    space = tuple(explanation.image.shape[2:])
    for answer in explanation.answers:
        for line in answer_lines(answer, space, explanation.measure):
            print(line)
    print(f"Written: {', '.join(str(file) for file in written)}")


def conclude(plan: Plan, summary: DatasetSummary, options: argparse.Namespace) -> int:
    """Tell what became of the photos, on the screen and in a folder's summary; the exit code."""
    failed = {str(plan.places[number].photo): why for number, why in summary.failed.items()}
    total, hint = len(plan.places), "the others are written"
    if plan.folder is not None:
        place = plan.folder / SUMMARY_FILE
        write_summary(place, summary, total, failed, options.overwrite)
        if options.html:
            write_folder_index(plan, options.overwrite)
        hint = f"{place} lists them, and the same command tries them again"
        if not options.quiet:
            before = f"{summary.done_before} {'was' if summary.done_before == 1 else 'were'}"
            print(
                f"Explained {summary.explained} of {counted(total, 'photo')}; {before} done "
                f"before, {len(failed)} failed."
            )
            print(f"Written: {plan.folder}")
    for path, reason in list(failed.items())[:SHOWN]:
        # A reason that names the photo does not need to be told which one it is about.
        line = reason if path in reason or total == 1 else f"{path}: {reason}"
        print(f"captum-pda: error: {in_command_words(line)}", file=sys.stderr)
    if failed and total > 1:
        print(
            f"captum-pda: error: {len(failed)} of {total} photos could not be explained; {hint}",
            file=sys.stderr,
        )
    return 1 if failed else 0


def write_folder_index(plan: Plan, overwrite: bool) -> None:
    """Write the index of all pages of a folder that are there."""
    pages = [place.page for place in plan.places if place.page and place.page.is_file()]
    if plan.folder is not None:
        index = plan.folder / INDEX_FILE
        write_result(index, index_page(pages, index, plan.folder.name), overwrite)


def write_summary(
    place: Path, summary: DatasetSummary, total: int, failed: dict[str, str], overwrite: bool
) -> None:
    """Write what became of a folder's photos."""
    content = {
        "captum_pda": __version__,
        "photos": total,
        "explained": summary.explained,
        "done_before": summary.done_before,
        "failed": failed,
    }
    write_result(place, json_text(content, indent=2).encode(), overwrite)
