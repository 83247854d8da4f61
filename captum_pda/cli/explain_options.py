"""The options of ``captum-pda explain``, and the question that they ask."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from captum_pda.cli.arguments import add_model_options, add_overwrite, positive
from captum_pda.cli.places import RAW_FORMATS
from captum_pda.cli.question import CONTEXTS, METHODS, Question
from captum_pda.cli.usage_errors import UsageError
from captum_pda.engines import ENGINES


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
    _add_question(parser.add_argument_group("what to explain"))
    add_method_options(parser.add_argument_group("how to explain it"))
    add_model_options(parser)
    _add_output(parser.add_argument_group("what to write"))
    return parser


def make_question(options: argparse.Namespace) -> Question:
    """What the options ask."""
    if options.target and options.classes:
        raise UsageError("--target names the classes and --classes counts them; give one of them")
    if options.window and options.scales:
        raise UsageError("--window is one size and --scales are several; give one of them")
    if options.html and options.method == "gradient":
        raise UsageError(
            "--html shows what each window says, and --method gradient has no forward passes that "
            "tell; choose another method"
        )
    only_contrast = options.contrast and not options.target and not options.classes
    stride = options.stride
    if options.window and not stride:
        stride = max(1, options.window // 2)
    return Question(
        method=options.method,
        sizes=(options.window,) if options.window else tuple(options.scales or ()),
        stride=stride,
        context=options.context,
        n_samples=options.samples,
        seed=options.seed,
        targets=tuple(options.target),
        n_top=0 if only_contrast else options.classes or 1,
        contrast=tuple(options.contrast) if options.contrast else None,
        engine=options.engine,
    )


def _add_question(which: argparse._ActionsContainer) -> None:
    which.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="CLASS",
        help="a class by name, part of a name, or number (index:3 where names are numbers too); "
        "may be given several times. Default: the top class",
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


def add_method_options(how: argparse._ActionsContainer) -> None:
    """How to explain a photo."""
    how.add_argument(
        "--method",
        choices=METHODS,
        default="pda",
        help="pda: several sizes in both contexts, and the last feature map (default). efficient: "
        "one forward pass per window. sampled: several, the papers' definition. gradient: one "
        "backward pass, quick and noisy. layer: the last feature map alone, quick",
    )
    how.add_argument(
        "--scales",
        type=positive,
        nargs="+",
        metavar="PIXELS",
        help="the sides of windows of several sizes, such as 16 32 64, in pixels of the model's "
        "input (default: sizes in proportion to it)",
    )
    how.add_argument(
        "--window", type=positive, metavar="PIXELS", help="the side of windows of one size only"
    )
    how.add_argument(
        "--stride",
        type=positive,
        metavar="PIXELS",
        help="the step between windows; half of it takes four times as long (default: half of "
        "--window, a quarter of each of --scales)",
    )
    how.add_argument(
        "--context",
        choices=CONTEXTS,
        help="full: what is lost when a window goes (default of all methods but pda, which asks "
        "both). empty: what it says by itself, with nothing else seen. both: the two together",
    )
    how.add_argument(
        "--samples",
        type=positive,
        default=10,
        metavar="S",
        help="how many samples per window with --method sampled (default: %(default)s)",
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


def _add_output(output: argparse._ActionsContainer) -> None:
    output.add_argument(
        "--output",
        type=Path,
        default=Path(),
        metavar="PATH",
        help="a folder, or for a single photo the name of the picture (.png or .jpg). Default: "
        "here, as cat.jpg_evidence.png for cat.jpg",
    )
    output.add_argument(
        "--raw",
        choices=RAW_FORMATS,
        default="npz",
        help="the format of the maps for programs, next to the picture (default: %(default)s)",
    )
    output.add_argument(
        "--html",
        action="store_true",
        help="also write a page of each photo that answers to pointer and keys (no server, no "
        "network), and an index.html of a folder",
    )
    add_overwrite(output)
