"""``captum-pda explain``: why does a model say what it says of these photos?

A folder, or a job of several processes, is explained by cli/folder.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from captum_pda.basics.version import __version__
from captum_pda.cli import folder
from captum_pda.cli.arguments import add_model_options, device_for, positive
from captum_pda.cli.explanation import METHODS, Explanation, Question, explain_image
from captum_pda.cli.models import Classifier, load_classifier
from captum_pda.cli.photos import load_photo
from captum_pda.cli.results import RAW_FORMATS, make_folder, write_numbers, write_picture
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line
from captum_pda.cli.words import answer_lines, top_classes
from captum_pda.engines.select import ENGINES
from captum_pda.priors import GaussianPatchPrior

DEFAULT_WINDOW = 10


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The options of this command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help="which parts of your photos speak for a class, and which against it",
        description="Which parts of a photo speak for a class, and which against it? Writes a "
        "picture (PNG) and the map in bits (npz or safetensors) of each photo, and tells "
        "the strongest evidence in words.",
    )
    parser.add_argument(
        "images",
        nargs="+",
        type=Path,
        metavar="IMAGE",
        help="photos of any kind; or a folder, of which all photos are explained that are not done "
        "yet, also by several processes under torchrun",
    )
    which = parser.add_argument_group("what to explain")
    which.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="CLASS",
        help="a class by number or name, or part of a name; may be given several times. Default: "
        "the top class",
    )
    which.add_argument(
        "--classes",
        type=positive,
        metavar="N",
        help="the N classes with the highest probability, from one set of forward passes",
    )
    which.add_argument(
        "--contrast",
        nargs=2,
        metavar=("A", "B"),
        help="what speaks for class A rather than class B?",
    )
    how = parser.add_argument_group("how to explain it")
    how.add_argument(
        "--method",
        choices=METHODS,
        default="efficient",
        help="efficient: one forward pass a window (default). sampled: several, the definition "
        "itself. gradient: one backward pass, quick and noisy",
    )
    how.add_argument(
        "--window",
        type=positive,
        default=DEFAULT_WINDOW,
        metavar="PIXELS",
        help="the window's side, in pixels of the model's input (default: %(default)s)",
    )
    how.add_argument(
        "--stride",
        type=positive,
        metavar="PIXELS",
        help="the step between windows; half of it takes four times as long (default: half the "
        "window)",
    )
    how.add_argument(
        "--samples",
        type=positive,
        default=10,
        metavar="S",
        help="how many samples a window gets with --method sampled (default: %(default)s)",
    )
    how.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="NUMBER",
        help="the same number draws the same samples (default: %(default)s)",
    )
    how.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="dense: the whole model for every window. incremental: only what a window changes. "
        "auto: the faster one (default)",
    )
    how.add_argument(
        "--prior",
        type=Path,
        metavar="FILE",
        help="what to expect in a window, from `captum-pda fit-prior` with the same --model "
        "(default: each photo's own texture)",
    )
    add_model_options(parser)
    output = parser.add_argument_group("what to write")
    output.add_argument(
        "--output",
        type=Path,
        default=Path(),
        metavar="PATH",
        help="a folder, or for a single photo the name of the picture (.png). Default: here, as "
        "NAME_evidence.png",
    )
    output.add_argument(
        "--raw",
        choices=RAW_FORMATS,
        default="npz",
        help="the format of the maps for programs, next to the picture (default: %(default)s)",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Explain each photo; one that fails is told, and the others go on."""
    question = make_question(options)
    if folder.is_job(options.images):
        return folder.run(options, question)
    places = places_for(options.images, options.output)
    for place in places.values():
        make_folder(place.parent)
    classifier = load_classifier(
        options.model, options.weights, options.labels, device_for(options.device)
    )
    prior = GaussianPatchPrior.load(options.prior) if options.prior else None
    failed = 0
    for path, place in places.items():
        try:
            image = classifier.preprocessing(load_photo(path)).to(device_for(options.device))
            explanation = explain_image(classifier, image, question, prior, not options.quiet)
            written = write_result(place, explanation, classifier, path, question, options)
        except UsageError:
            raise
        except (CommandError, ValueError, RuntimeError, MemoryError) as error:
            if options.debug or len(places) == 1:
                raise
            failed += 1
            print(f"captum-pda: error: {path}: {one_line(error)}", file=sys.stderr)
            continue
        if not options.quiet:
            tell(path, explanation, classifier, written)
    if failed:
        print(
            f"captum-pda: error: {failed} of {len(places)} photos could not be explained; the "
            "others are written",
            file=sys.stderr,
        )
    return 1 if failed else 0


def make_question(options: argparse.Namespace) -> Question:
    """What the options ask."""
    if options.target and options.classes:
        raise UsageError("--target names the classes and --classes counts them; give one of them")
    only_contrast = options.contrast and not options.target and not options.classes
    return Question(
        method=options.method,
        window=options.window,
        stride=options.stride or max(1, options.window // 2),
        n_samples=options.samples,
        seed=options.seed,
        targets=tuple(options.target),
        n_top=0 if only_contrast else options.classes or 1,
        contrast=tuple(options.contrast) if options.contrast else None,
        engine=options.engine,
    )


def places_for(images: Sequence[Path], output: Path) -> dict[Path, Path]:
    """Where the picture of each photo goes."""
    if output.suffix.lower() == ".png":
        if len(images) > 1:
            raise UsageError(
                f"--output {output} is one picture for {len(images)} photos; give a folder"
            )
        return {images[0]: output}
    if output.is_file():
        raise UsageError(f"--output {output} is a file; give a folder, or a name ending in .png")
    places: dict[Path, Path] = {}
    for image in dict.fromkeys(images):
        place = output / f"{image.stem}_evidence.png"
        for other, taken in places.items():
            if taken == place:
                raise UsageError(
                    f"{other} and {image} would both be written to {place}; explain them one by "
                    "one, each with its own --output"
                )
        places[image] = place
    return places


def write_result(
    place: Path,
    explanation: Explanation,
    classifier: Classifier,
    path: Path,
    question: Question,
    options: argparse.Namespace,
) -> list[Path]:
    """Write the numbers, then the picture; the files written."""
    written = []
    if options.raw != "none":
        settings = {
            "photo": str(path),
            "model": classifier.name,
            "weights": classifier.weights,
            "prior": str(options.prior) if options.prior else None,
            "method": question.method,
            "window": question.window,
            "stride": question.stride,
            "samples": question.n_samples if question.method == "sampled" else None,
            "seed": question.seed if question.method == "sampled" else None,
            "measure": "weight_of_evidence",
            "captum_pda": __version__,
        }
        written.append(place.with_suffix(f".{options.raw}"))
        write_numbers(written[-1], explanation, settings)
    write_picture(place, explanation, classifier)
    return [place, *written]


def tell(
    path: Path, explanation: Explanation, classifier: Classifier, written: Sequence[Path]
) -> None:
    """Say what was found, and where it is."""
    print(f"{path}: {top_classes(explanation.probabilities, classifier.labels)}")
    space = tuple(explanation.image.shape[2:])
    for answer in explanation.answers:
        for line in answer_lines(answer, space):
            print(line)
    print(f"Written: {', '.join(str(file) for file in written)}")
