"""``captum-pda fit-prior``: fit a prior to a folder of photos."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor
from tqdm.auto import tqdm

from captum_pda.cli.folders import check_free
from captum_pda.cli.models import choose_model
from captum_pda.cli.options import add_image_options, add_model_name, positive
from captum_pda.cli.photos import find_photos, intensity_option, read_photo
from captum_pda.cli.usage_errors import CommandError, UsageError
from captum_pda.distributed import Ranks
from captum_pda.files import counted
from captum_pda.priors import GaussianFieldPrior, GaussianPatchPrior, PatchPrior
from captum_pda.priors.protocol import opened_tensors

HELP = "learn from a folder of photos what to expect in a region"
DESCRIPTION = """Fit a Gaussian field to all photos in a folder and its subfolders, as the model
sees them: how alike neighbouring pixels and colours are. Save it for `captum-pda explain --prior
FILE` and GaussianFieldPrior.load(FILE)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("folder", type=Path, help="where the photos are")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("prior.safetensors"),
        help="where to save the prior (default: %(default)s)",
    )
    parser.add_argument(
        "--patch-size",
        type=positive,
        help="fit the papers' Gaussian patch prior instead, with patches of this side; larger than "
        "any window it is to serve",
    )
    parser.add_argument(
        "--limit", type=positive, help="use the first N photos only (in order of name)"
    )
    add_image_options(parser)
    add_model_name(parser)


def run(options: argparse.Namespace, ranks: Ranks) -> int:
    """Fit photo by photo; unreadable photos are named and left out."""
    output = options.output
    # A place that cannot be written is refused before the work.
    if output.is_dir() or not output.parent.is_dir():
        raise UsageError(f"--output {output} must be a file in a folder that exists")
    if output.exists() and not options.overwrite:
        raise UsageError(f"{output} exists; choose another --output, or add --overwrite")
    paths = find_photos(options.folder, options.series)[: options.limit]
    check_free([output], paths, options.overwrite)
    options.intensity = intensity_option(options.intensity)
    preprocess = choose_model(options.model).preprocessing
    unreadable: list[Path] = []

    def images() -> Iterator[Tensor]:
        for path in tqdm(paths, desc="Fitting", unit="photo", disable=options.quiet):
            try:
                photo = read_photo(path, options.intensity, options.frame)
                yield preprocess(photo.image, photo.affine)
            except CommandError as error:
                unreadable.append(path)
                tqdm.write(f"captum-pda: note: left out: {error}", file=sys.stderr)
        if len(unreadable) == len(paths):
            raise CommandError(
                f"none of the {counted(len(paths), 'photo')} in {options.folder} could be read; "
                "nothing is saved"
            )

    prior: GaussianFieldPrior | GaussianPatchPrior = GaussianFieldPrior()
    if options.patch_size:
        prior = GaussianPatchPrior(options.patch_size)
    prior.fit(images())
    prior.save(output, overwrite=options.overwrite)
    if not options.quiet:
        left_out = f", {len(unreadable)} could not be read" if unreadable else ""
        print(f"Fitted on {counted(len(paths) - len(unreadable), 'photo')}{left_out}.")
        print(f"Written: {output}")
    return 0


def load_prior(path: Path) -> PatchPrior:
    """A prior of any kind that ``fit-prior`` or ``save`` wrote."""
    with opened_tensors(path, "cpu") as file:
        is_field = file.settings.get("kind") == GaussianFieldPrior.__name__
    return (GaussianFieldPrior if is_field else GaussianPatchPrior).load(path)
