"""``captum-pda explain``: the evidence for a model's answer about photos."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from captum_pda.cli.classifier import BLANK, Preprocessing
from captum_pda.cli.explainer import PhotoExplainer, check_options, named_classes
from captum_pda.cli.fit_prior import load_prior
from captum_pda.cli.folders import (
    RAW_FORMATS,
    SUMMARY_FILE,
    Plan,
    check_free,
    make_plan,
    write_summary,
)
from captum_pda.cli.models import choose_model
from captum_pda.cli.options import add_explaining_options, positive
from captum_pda.cli.photos import Photo, dicom_slices, intensity_option, read_photo, roi_image
from captum_pda.cli.results import PhotoWriter
from captum_pda.cli.usage_errors import CommandError, UsageError, one_line
from captum_pda.datasets.explain_dataset import explain_examples
from captum_pda.datasets.result_folder import Example
from captum_pda.distributed import Ranks
from captum_pda.files import counted

#: The number of failures that are printed; a folder's summary has all of them.
SHOWN_FAILURES = 20

HELP = "which parts of your photos speak for a class, and which against it"
DESCRIPTION = """Which parts of a photo speak for a class, and which against it? Writes a picture
(PNG) and the map in bits (npz or safetensors) of each photo, and prints the strongest
evidence."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "images",
        nargs="+",
        type=Path,
        metavar="IMAGE",
        help="photos; or folders, of which all photos are explained that are not done yet, also by "
        "several processes under torchrun",
    )
    asked = parser.add_argument_group("what to explain")
    which = asked.add_mutually_exclusive_group()
    which.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="CLASS",
        help="a class by name, part of a name, or number; may be given several times (default: the "
        "top class)",
    )
    which.add_argument(
        "--classes",
        type=positive,
        help="explain this many of the most probable classes, from one set of forward passes",
    )
    asked.add_argument(
        "--contrast", nargs=2, metavar="CLASS", help="why the first rather than the second?"
    )
    asked.add_argument(
        "--expected",
        metavar="CLASS",
        help="also find few regions whose removal makes this class the answer, and few that keep "
        "the present answer by themselves (up to 200 more passes)",
    )
    add_explaining_options(parser)
    add = parser.add_argument_group("what to write").add_argument
    add(
        "--output",
        type=Path,
        default=Path(),
        help="a folder, or for a single photo the name of the picture (.png or .jpg). Default: "
        "here, as cat.jpg_evidence.png for cat.jpg",
    )
    add(
        "--raw",
        choices=RAW_FORMATS,
        default="npz",
        help="the format of the maps for programs; nifti: of a scan, beside npz (default: npz)",
    )
    add(
        "--html",
        action="store_true",
        help="also write an interactive page of each photo or volume, and an index of a folder",
    )
    add(
        "--no-test",
        dest="test",
        action="store_false",
        help="leave out the test of each map on its own photo (about 40 passes)",
    )
    parser.set_defaults(target_option="--target")


def run(options: argparse.Namespace, ranks: Ranks) -> int:
    """Explain all photos; the exit code says whether any failed."""
    with ranks.failing_together():
        check_options(options)
        is_folder = dist.is_torchelastic_launched() or any(
            path.is_dir() and not (options.series and dicom_slices(path)) for path in options.images
        )
        if is_folder and options.expected:
            raise UsageError("--expected works for single photos only; name photos, not a folder")
        plan = make_plan(options, options.output, is_folder)
        if not any(place.photo.exists() for place in plan.places):
            raise CommandError(f"there is no photo at {plan.places[0].photo}; check the name")
        explainer = load_explainer(options, plan)
    writer = PhotoWriter(plan, explainer.classifier, options)
    return explain_photos(options, plan, explainer, writer, ranks)


def load_explainer(options: argparse.Namespace, plan: Plan) -> PhotoExplainer:
    """Check all that can be checked without the model, and load it."""
    extra = [path for path in (options.weights, options.labels, options.prior) if path]
    inputs = [*(place.photo for place in plan.places), *extra]
    check_free(plan.files(), inputs, options.overwrite)
    device = device_for(options.device)
    prior = load_prior(options.prior) if options.prior else None
    options.intensity = intensity_option(options.intensity)
    choice = choose_model(options.model, options.weights, options.labels)
    if choice.preprocessing.takes_values:
        image = PhotoSet(plan, choice.preprocessing, options).first_input()
    else:
        image = choice.preprocessing(BLANK)
    largest, smallest = max(options.scales, default=0), min(image.shape[2:])
    if options.method != "layer" and largest > smallest:
        raise UsageError(
            f"a window of {largest} is larger than the model's input of {smallest} pixels; use a "
            "smaller one"
        )
    if choice.labels:
        named_classes(options, choice.labels)  # refuses unknown names
    classifier = choice.loaded(device, options.output_kind, image)
    named_classes(options, classifier.labels)
    return PhotoExplainer(classifier, options, prior, not options.quiet and plan.folder is None)


def device_for(name: str) -> torch.device:
    """The device of a name, if there is one; of several GPUs, this process's own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UsageError(
            f"--device {name} is not on this machine; leave it out, or use cpu"
        ) from None
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def explain_photos(
    options: argparse.Namespace,
    plan: Plan,
    explainer: PhotoExplainer,
    writer: PhotoWriter,
    ranks: Ranks,
) -> int:
    """Explain photos without a result, in all processes, and write a summary; returns the exit
    code."""
    photos = PhotoSet(plan, explainer.classifier.preprocessing, options)
    title = None if options.quiet or plan.folder is None else "Explaining"
    summary = explain_examples(explainer, photos, writer, ranks, title, "photo", options.debug)
    if ranks.rank > 0:
        return 0
    failed = {str(plan.places[number].photo): why for number, why in summary.failed.items()}
    total, hint = len(plan.places), "the others are written"
    if plan.folder is not None:
        write_summary(plan, plan.folder, summary, failed, options.overwrite)
        hint = f"{plan.folder / SUMMARY_FILE} lists them, and the same command tries them again"
        if not options.quiet:
            before = f"{summary.done_before} {'was' if summary.done_before == 1 else 'were'}"
            print(
                f"Explained {summary.explained} of {counted(total, 'photo')}; {before} done "
                f"before, {len(failed)} failed.\nWritten: {plan.folder}"
            )
    for path, reason in [*failed.items()][:SHOWN_FAILURES]:
        # Some reasons already name the photo.
        named = reason if path in reason or total == 1 else f"{path}: {reason}"
        print(f"captum-pda: error: {one_line(named)}", file=sys.stderr)
    if failed and total > 1:
        said = f"{len(failed)} of {total} photos could not be explained; {hint}"
        print(f"captum-pda: error: {said}", file=sys.stderr)
    return 1 if failed else 0


class PhotoSet:
    """Image files as a data set of a model's inputs, read on demand."""

    def __init__(
        self, plan: Plan, preprocessing: Preprocessing, options: argparse.Namespace
    ) -> None:
        self.places, self.preprocessing, self.options = plan.places, preprocessing, options

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Example:
        path, files = self.places[number]
        photo = read_photo(path, self.options.intensity, self.options.frame)
        inputs, affine = self.preprocessing.prepare(photo.image, photo.affine)
        source: dict[str, Any] = {"photo": str(path), "photo_sha256": photo.sha256}
        if affine is not None:
            source["affine"] = affine.tolist()
        elif "volume" in files:
            raise CommandError(
                "the place of the model's input in the scan is not known, so its map cannot be "
                "written as NIfTI: return (tensor, affine) from the transform, or use --raw npz"
            )
        return Example(inputs, self._roi(photo) if self.options.roi else None, source)

    def _roi(self, photo: Photo) -> torch.Tensor:
        image, is_part = roi_image(self.options.roi, photo.image)
        marked = self.preprocessing.prepare(image, photo.affine)[0].mean(dim=0)
        low, high = marked.aminmax()
        if not is_part or not low < high:
            raise CommandError(
                "--roi must mark a part of what the model sees of the image, and not all of it"
            )
        return marked > (low + high) / 2

    def first_input(self) -> torch.Tensor:
        """The first readable input, (1, C, *space)."""
        errors = []
        for number in range(len(self)):
            try:
                return self[number].inputs.unsqueeze(0)
            except Exception as error:  # it is reported when it is its turn
                errors.append(error)
        raise errors[0]
