"""``captum-pda explain FOLDER``: all photos of a folder, in one process or under torchrun.

Results keep the photos' names and subfolders. Each is written whole as soon as it is there, the
picture first; the numbers say by what they were made. So a run that was stopped goes on where it
was, and what is done is never done again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from safetensors import SafetensorError, safe_open

from captum_pda.basics.files import remove_parts
from captum_pda.basics.fingerprints import file_fingerprint, fingerprint
from captum_pda.cli.arguments import device_for
from captum_pda.cli.explanation import Question, check_window, choose_classes, explain_image
from captum_pda.cli.models import Classifier, load_classifier
from captum_pda.cli.photos import find_photos, load_photo
from captum_pda.cli.results import make_folder, write_numbers, write_picture, write_result
from captum_pda.cli.usage_errors import CommandError, UsageError
from captum_pda.datasets.explain_dataset import versions
from captum_pda.datasets.result_folder import (
    SettingsError,
    as_json,
    keep_settings,
    read_settings,
)
from captum_pda.distributed.ranks import OtherRankError, Ranks
from captum_pda.distributed.shared_work import share_work
from captum_pda.engines.auto import WORTH_A_PROBE
from captum_pda.methods.efficient import EfficientPDA
from captum_pda.priors import GaussianPatchPrior, PatchPrior
from captum_pda.regions.arguments import make_grids

SUMMARY_FILE = "summary.json"
#: What torchrun tells every process that it starts.
LAUNCHED = frozenset({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
#: A rank may have to wait for another one's largest photo; one that is dead is noticed at once.
PATIENCE = timedelta(days=7)
#: More than a thread of gloo needs to let go of its last message.
SECONDS_TO_SETTLE = 0.2
#: Failures that are printed; all of them are in the summary.
SHOWN = 20


def is_job(images: Sequence[Path]) -> bool:
    """Whether there is a folder among the images, or this process is one of several."""
    return os.environ.keys() >= LAUNCHED or any(path.is_dir() for path in images)


def run(options: argparse.Namespace, question: Question) -> int:
    """Explain all photos that are not done yet; the exit code says whether any failed."""
    with process_group() as group:
        ranks = Ranks(group)
        try:
            return _run(options, question, ranks)
        except (UsageError, OtherRankError):
            if ranks.rank == 0:
                raise
            return 0  # The rank that is at fault tells, and the first one for all.


def _run(options: argparse.Namespace, question: Question, ranks: Ranks) -> int:
    places = places_in(options.images, options.output)
    if options.raw == "none":
        raise UsageError(
            "--raw none leaves no place for the settings of a folder's results; use npz or "
            "safetensors"
        )
    device = own_device(options.device)
    with ranks.failing_together():
        classifier = load_classifier(options.model, options.weights, options.labels, device)
        prior = GaussianPatchPrior.load(options.prior) if options.prior else None
        blank = classifier.preprocessing(Image.new("RGB", (256, 256)))
        check_window(question, blank)
        choose_classes(question, classifier.labels, torch.zeros(len(classifier.labels)))
    settings: dict[str, Any] = {}
    todo: list[Path] = []
    with ranks.failing_together():
        if ranks.rank == 0:
            question = with_engine(question, classifier, prior, options.output)
            settings = as_json(describe(classifier, prior, question, options))
            try:
                keep_settings(options.output, settings)
            except SettingsError as error:
                raise UsageError(f"--output {error}") from error
            except OSError as error:
                raise CommandError(
                    f"--output {options.output} cannot be written ({error.strerror or error}); "
                    "choose another place"
                ) from error
            remove_parts(options.output)
            todo = [path for path in places if not is_done(path, places[path], settings)]
    settings, todo = ranks.gather_objects((settings, todo))[0]
    question = replace(question, engine=settings["engine"] or "auto")

    def explain(task: int) -> None:
        path = todo[task]
        make_folder(places[path].parent)
        image = classifier.preprocessing(load_photo(path)).to(device)
        explanation = explain_image(classifier, image, question, prior)
        write_picture(places[path], explanation, classifier)
        own = {
            "photo": str(path),
            "photo_sha256": file_fingerprint(path),
            "weights": classifier.weights,
            "prior": str(options.prior) if options.prior else None,
        }
        write_numbers(numbers_of(places[path], options.raw), explanation, {**settings, **own})

    title = None if options.quiet else "Explaining"
    failed = {
        str(todo[task]): reason
        for task, reason in share_work(
            len(todo), explain, ranks, title, "photo", options.debug
        ).items()
    }
    if ranks.rank > 0:
        return 0
    return summarise(options, len(places), len(todo), failed)


def summarise(options: argparse.Namespace, total: int, tried: int, failed: dict[str, str]) -> int:
    """Tell what became of the photos, on the screen and in a file; the exit code."""
    summary = {
        "photos": total,
        "explained": tried - len(failed),
        "done_before": total - tried,
        "failed": failed,
    }
    place = options.output / SUMMARY_FILE
    write_result(place, json.dumps(summary, indent=2, ensure_ascii=False).encode())
    if not options.quiet:
        print(
            f"Explained {tried - len(failed)} of {total} photos; {total - tried} were done before, "
            f"{len(failed)} failed."
        )
        print(f"Written: {options.output}")
    for path, reason in list(failed.items())[:SHOWN]:
        print(f"captum-pda: error: {path}: {reason}", file=sys.stderr)
    if failed:
        print(
            f"captum-pda: error: {len(failed)} of {total} photos could not be explained; {place} "
            "lists them, and the same command tries them again",
            file=sys.stderr,
        )
    return 1 if failed else 0


def places_in(images: Sequence[Path], output: Path) -> dict[Path, Path]:
    """All photos, and where the picture of each goes: its own name in its own subfolder."""
    if output == Path():
        raise UsageError("where should the results go? Add --output and the name of a folder")
    if output.is_file() or output.suffix.lower() == ".png":
        raise UsageError(f"--output {output} must be a folder")
    places: dict[Path, Path] = {}
    taken: dict[Path, Path] = {}
    for given in images:
        if given.is_dir() and output.resolve() == given.resolve():
            raise UsageError(f"--output {output} must be another folder than that of the photos")
        for photo in find_photos(given) if given.is_dir() else [given]:
            if output.resolve() in photo.resolve().parents:
                continue  # A picture of an earlier run, where results go below the photos.
            below = photo.relative_to(given) if given.is_dir() else Path(photo.name)
            # With its ending: a.jpg and a.png are two photos.
            place = output / below.with_name(f"{below.name}_evidence.png")
            if taken.setdefault(place, photo) != photo:
                raise UsageError(
                    f"{taken[place]} and {photo} would both be written to {place}; explain them "
                    "one by one, each with its own --output"
                )
            places[photo] = place
    if not places:
        raise CommandError(f"there are no photos outside of {output}; choose another --output")
    return places


def is_done(photo: Path, place: Path, settings: dict[str, Any]) -> bool:
    """Whether the result of a photo, as it is now, is there and whole."""
    raw = settings["raw"]
    numbers = numbers_of(place, raw)
    if not (place.is_file() and numbers.is_file() and photo.is_file()):
        return False
    try:
        if raw == "safetensors":
            with safe_open(numbers, framework="pt") as file:
                header = file.metadata()["settings"]
        else:
            with np.load(numbers) as arrays:
                header = str(arrays["settings"])
        found = json.loads(header)
    except (OSError, ValueError, LookupError, TypeError, EOFError, BadZipFile, SafetensorError):
        return False
    same = all(found.get(name) == value for name, value in settings.items())
    return same and bool(found.get("photo_sha256") == file_fingerprint(photo))


def numbers_of(place: Path, raw: str) -> Path:
    """The file of numbers next to a picture."""
    return place.with_suffix(f".{raw}")


def describe(
    classifier: Classifier, prior: PatchPrior | None, question: Question, options: Any
) -> dict[str, Any]:
    """What the results depend on, besides the photo."""
    sampled, gradient = (question.method == name for name in ("sampled", "gradient"))
    return {
        "model": classifier.name,
        "weights_sha256": fingerprint(classifier.model),
        "labels_sha256": fingerprint(classifier.labels),
        "prior_sha256": fingerprint(prior) if prior else None,
        "method": question.method,
        "window": question.window,
        "stride": question.stride,
        "samples": question.n_samples if sampled else None,
        "seed": question.seed if sampled else None,
        "target": list(question.targets),
        "classes": question.n_top,
        "contrast": question.contrast,
        "measure": "weight_of_evidence",
        "engine": None if gradient else question.engine,
        "raw": options.raw,
        **versions(),
    }


def with_engine(
    question: Question, classifier: Classifier, prior: PatchPrior | None, folder: Path
) -> Question:
    """The question with an engine chosen once for all photos, ranks and reruns.

    Two engines agree up to rounding only. Which one is faster is tried on noise, or known from
    the results that are there.
    """
    if question.engine != "auto" or question.method == "gradient":
        return question
    found = read_settings(folder) if folder.is_dir() else None
    if found and found.get("engine") in ("dense", "incremental"):
        return replace(question, engine=str(found["engine"]))
    values = np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8)
    device = next(classifier.model.parameters()).device
    image = classifier.preprocessing(Image.fromarray(values)).to(device)
    (grid,) = make_grids((image,), question.window, question.stride)
    if len(grid) < WORTH_A_PROBE:
        return replace(question, engine="dense")
    pda = EfficientPDA(classifier.model, prior=prior)
    some = np.linspace(0, len(grid) - 1, WORTH_A_PROBE).astype(int).tolist()
    pda.evidence(image, windows=grid.pick(some))
    report = pda.engine_report
    return replace(question, engine=report.engine if report else "dense")


def own_device(name: str) -> torch.device:
    """The device of a name; of several GPUs, this process's own."""
    device = device_for(name)
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


@contextmanager
def process_group() -> Iterator[Any]:
    """The group of all processes that torchrun started, or None for a process by itself."""
    if not os.environ.keys() >= LAUNCHED:
        yield None
        return
    # Ranks exchange a few words only, for which the GPUs are not needed.
    dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield dist.group.WORLD
    finally:
        # Older versions of PyTorch wait for gloo's thread with the lock that it needs itself.
        time.sleep(SECONDS_TO_SETTLE)
        dist.destroy_process_group()
