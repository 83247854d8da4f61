"""Options of several commands."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from captum_pda.cli.explainer import METHODS
from captum_pda.cli.models import DEFAULT_MODEL
from captum_pda.engines import ENGINES
from captum_pda.model.outputs import OUTPUT_KINDS
from captum_pda.regions.contexts import CONTEXTS, planned_passes


def positive(given: str, least: int = 1) -> int:
    """A whole number of at least 1."""
    if not given.isdecimal() or int(given) < least:
        raise argparse.ArgumentTypeError(f"{given!r} is not a whole number of at least {least}")
    return int(given)


def effort(given: str) -> str | int:
    """The name of an effort, or a number of passes."""
    found = int(given) if given.isdecimal() else given
    try:
        planned_passes([CONTEXTS["full"]], found)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).split(", or say")[0]) from None
    return found


def add_explaining_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for explaining photos, reading them, and choosing the model."""
    how = parser.add_argument_group("how to explain it")
    add, one_of = how.add_argument, how.add_mutually_exclusive_group().add_argument
    add(
        "--method",
        choices=METHODS,
        default="pda",
        help="pda: several sizes and contexts, and the last feature map (default). efficient: "
        "one forward pass per window. sampled: several, the papers' definition. layer: the last "
        "feature map alone, quick",
    )
    add(
        "--effort",
        type=effort,
        default="standard",
        help="of --method pda: quick (about 240 passes), standard (340, default), thorough (640), "
        "or a number of passes",
    )
    add(
        "--roi",
        nargs="+",
        help="ask about a region of interest only: LEFT TOP WIDTH HEIGHT in pixels of the image, "
        "or a mask of its size in a file, 0 outside. The map is 0 elsewhere",
    )
    one_of(
        "--superpixels",
        type=positive,
        nargs="+",
        help="about how many regions that follow the photo, such as 25 60 120; more find smaller "
        "things, at a pass for each (default: 12 to 250, for photos from 64 x 64 pixels on)",
    )
    one_of(
        "--window",
        "--scales",
        dest="scales",
        type=positive,
        nargs="+",
        default=[],
        help="windows of this side, or of these, such as 16 32 64, in pixels of the model's input",
    )
    add(
        "--stride",
        type=positive,
        help="the step between windows (default: half of a single size, a quarter of several)",
    )
    add(
        "--context",
        choices=(*CONTEXTS, "both", "all"),
        help="full: what is lost when a region goes (default of all methods but pda, which asks "
        "all). empty: what it says by itself, with nothing else seen. random: what it adds to "
        "random sets of other regions. both: the first two. all: all three",
    )
    add("--samples", type=positive, default=10, help="per window, of --method sampled (default 10)")
    add("--seed", type=int, default=0, help="the same number draws the same samples (default: 0)")
    add(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="dense: the whole model for every window. incremental: only what a window changes. "
        "auto: the faster one (default)",
    )
    add(
        "--prior",
        type=Path,
        help="what to expect in a region: a file of `captum-pda fit-prior` with the same --model "
        "(default: a Gaussian field, which needs no fit)",
    )
    add_image_options(parser)
    group = parser.add_argument_group("the model")
    add = group.add_argument
    add_model_name(group)
    add("--weights", type=Path, help="your own weights for it: a state_dict or .safetensors file")
    add("--labels", type=Path, help="a file with the names of its classes, one per line")
    add(
        "--output-kind",
        choices=list(OUTPUT_KINDS),
        help="what its outputs are (default: logits, unless the model says otherwise). "
        + ". ".join(f"{name}: {kind.words}" for name, kind in OUTPUT_KINDS.items()),
    )
    add("--device", default="auto", help="cpu, cuda, cuda:1, mps ... (default: a GPU, if any)")


def add_model_name(group: argparse._ActionsContainer) -> None:
    """Add the option that names a model, and with it the transforms of its photos."""
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help="a classifier or detector of torchvision, such as resnet50, with its own weights and "
        "transforms; timm/NAME; hf/NAME or hf/FOLDER of transformers; package.module:function for "
        "your own; or %(default)s (default), whose weights come by pip",
    )


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for reading images that are not photos of 8 bits."""
    images = parser.add_argument_group(
        "images of more than 8 bits (16-bit PNG and TIFF, DICOM, NIfTI)",
        "Your own transform gets their values unchanged; models of libraries need --intensity.",
    )
    images.add_argument(
        "--intensity",
        nargs="+",
        help="the values of black and white, such as 0 4095 or -1000 400; 'file': the window in a "
        "DICOM file; 'full': all that the file's bits can hold",
    )
    images.add_argument(
        "--frame",
        type=partial(positive, least=0),
        help="which frame of a DICOM file or page of a TIFF file, from 0 (default: all)",
    )
    images.add_argument(
        "--series",
        action="store_true",
        help="read each folder with DICOM files as one volume, its slices in the order of their "
        "places",
    )
