"""The files of results: one place for each photo, and no overwriting of other files. Every file
that the command writes has a mark by which it is recognised."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from captum_pda._version import __version__
from captum_pda.cli.photos import NIFTI_NOTE, dicom_slices, find_photos
from captum_pda.cli.usage_errors import CommandError, UsageError
from captum_pda.datasets.explain_dataset import DatasetSummary
from captum_pda.datasets.result_folder import MARK, SETTINGS_FILE, json_text, settings_in
from captum_pda.files import write_whole
from captum_pda.report.index import index_page

RAW_FORMATS = ("npz", "safetensors", "nifti", "none")
SUMMARY_FILE, INDEX_FILE, TABLE_FILE = "summary.json", "index.html", "results.csv"
#: The columns of a table: the photo, those of ``summary_row`` in results.py, and others.
TABLE_COLUMNS = ["captum_pda_photo", "answer", "prediction", "strongest_for", "strongest_against"]
TABLE_COLUMNS += ["unit", "total", "test", "picture", "error"]
PICTURES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg"}
#: The endings of names that mean files, not folders.
FILE_ENDINGS = [".bmp", ".gif", ".html", ".json", ".npz", ".pdf", ".safetensors", ".svg", ".tif"]
FILE_ENDINGS += [".tiff", ".txt", ".webp", *PICTURES]
#: The start of files that the command wrote; others have their settings.
MARKS = {
    ".png": b"tEXt" + MARK.encode(),
    ".jpg": f"{MARK} ".encode(),
    ".jpeg": f"{MARK} ".encode(),
    ".html": f'content="{MARK}'.encode(),
    ".csv": TABLE_COLUMNS[0].encode(),
    ".gz": NIFTI_NOTE,
}
MARKED_BYTES = 4096
NOT_OURS = "{} exists, and captum-pda did not write it (or not as it is now); choose another "
NOT_OURS += "--output, or add --overwrite"
#: The resolution of pictures, in pixels per inch, and the quality of JPEGs.
DPI, QUALITY = 110, 92


class Place(NamedTuple):
    """The files of a photo's results."""

    photo: Path
    files: dict[str, Path]  # some of "picture", "volume" (NIfTI), "numbers" (for programs), "page"


class Plan(NamedTuple):
    """The photos to explain, and their places."""

    places: Sequence[Place]
    folder: Path | None  # of a job that can be stopped and goes on; None for single photos

    def files(self) -> list[Path]:
        """All files that may be written."""
        found = [file for place in self.places for file in place.files.values()]
        if self.folder is not None:
            names = (SETTINGS_FILE, SUMMARY_FILE, TABLE_FILE, *[INDEX_FILE] * self.has_pages())
            found += [self.folder / name for name in names]
        return found

    def has_pages(self) -> bool:
        """Whether photos have pages, and a folder an index of them."""
        return any("page" in place.files for place in self.places)


def make_plan(options: argparse.Namespace, output: Path, is_folder: bool) -> Plan:
    """The place of each photo: its picture has its name, in the folder ``output`` or the photo's
    own subfolder of it; the picture of a single photo may have another name."""
    images: list[Path] = options.images
    is_one, kind = len(images) == 1 and not is_folder, output.suffix.lower()
    means_file = not output.is_dir() and kind in FILE_ENDINGS
    refused = {
        "where should the results go? Add --output and the name of a folder": is_folder
        and output == Path(),
        "--raw none leaves no place for the settings of a folder's results; use npz or "
        "safetensors": is_folder and options.raw == "none",
        f"--output {output} must be a folder; give a folder for several photos": not is_one
        and (means_file or output.is_file()),
        f"--output {output} is not a folder, and pictures end in .png or .jpg": kind not in PICTURES
        and (means_file or output.is_file()),
        f"--output {output} must be another folder than that of the photos": is_folder
        and output.resolve() in [one.resolve() for one in images],
    }
    for message, is_wrong in refused.items():
        if is_wrong:
            raise UsageError(message)
    found: dict[Path, tuple[Path, Path]] = {}
    for given in images:
        is_dir = given.is_dir() and not (options.series and dicom_slices(given))
        for photo in find_photos(given, options.series) if is_dir and is_folder else [given]:
            above = given if is_dir else photo.parent
            # A picture of an earlier run is not a photo, and a photo that was named twice is
            # explained once.
            is_result = photo.name.lower().endswith((".png", ".nii.gz")) and is_own(photo)
            if not is_folder or not is_result:
                found.setdefault(photo.parent.resolve() / photo.name, (photo, above))
    if not found:
        raise CommandError(f"there are no photos outside of {output}; choose another --output")
    below = [photo.relative_to(above) for photo, above in found.values()]
    if len(set(below)) < len(below):  # photos of one name are told apart by their folders
        shared = os.path.commonpath([photo.parent for photo in found])
        below = [photo.relative_to(shared) for photo in found]
    ending = {"none": "", "nifti": ".npz"}.get(options.raw, f".{options.raw}")
    volume, page = ".nii.gz" * (options.raw == "nifti"), ".html" * options.html
    places = []
    for (photo, _), name in zip(found.values(), below, strict=True):
        # With the photo's ending, because a.jpg and a.png are two photos.
        own_name = name.name or photo.absolute().name  # "." with the slices of a series
        picture = output if means_file else output / name.parent / f"{own_name}_evidence.png"
        endings = {"picture": picture.suffix, "volume": volume, "numbers": ending, "page": page}
        files = {kind: picture.with_suffix(one) for kind, one in endings.items() if one}
        places.append(Place(photo, files))
    return Plan(places, output if is_folder else None)


# Before the work: may these files be written?


def check_free(files: Iterable[Path], inputs: Iterable[Path], overwrite: bool) -> None:
    """Refuse to write over inputs, and without ``overwrite`` over files of others."""
    # A file has one identity under all of its names, such as links or another case.
    read = {(one.stat().st_dev, one.stat().st_ino) for one in inputs if one.exists()}
    files = list(files)
    for folder in {file.parent for file in files}:
        check_folder(folder)
    for file in files:
        if file.is_dir():
            raise UsageError(f"{file} is a folder; choose another --output")
        if file.exists() and (file.stat().st_dev, file.stat().st_ino) in read:
            raise UsageError(
                f"{file} is read by this command, and would be written over; choose another "
                "--output"
            )
        if os.path.lexists(file) and not overwrite and not is_own(file):
            raise UsageError(NOT_OURS.format(file))


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, without making it."""
    above = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    why = "permission denied, or a read-only file system"
    if not above.is_dir():
        why = f"{above} is not a folder"
    elif os.access(above, os.W_OK):
        return
    raise UsageError(f"{folder} cannot be written ({why}); choose another --output")


def is_own(path: Path) -> bool:
    """Whether a file was written by this command."""
    mark = MARKS.get(path.suffix.lower())
    if mark is None:
        return path.is_file() and settings_in(path) is not None
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return mark in file.read(MARKED_BYTES)
    except (OSError, EOFError, zlib.error):
        return False


# Writing


def write_result(path: Path, content: bytes, overwrite: bool = False) -> None:
    """Write a file, in a folder that is made if needed; errors take one line. Files of others are
    only replaced with ``overwrite``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        exists = os.path.lexists(path)
        if exists and not overwrite and not is_own(path):
            raise CommandError(NOT_OURS.format(path))
        write_whole(path, content, overwrite=exists)
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written ({error.strerror or error}); choose another place with "
            "--output"
        ) from error


def write_figure(path: Path, figure: Figure, overwrite: bool = False) -> None:
    """Write a figure as PNG or JPEG, by its ending, with the mark of this command."""
    mark: dict[str, dict[str, Any]] = {
        "png": {"metadata": {MARK: __version__}},
        "jpeg": {"pil_kwargs": {"comment": f"{MARK} {__version__}".encode(), "quality": QUALITY}},
    }
    kind, content = PICTURES[path.suffix.lower()], io.BytesIO()
    figure.savefig(content, dpi=DPI, format=kind, **mark[kind])
    write_result(path, content.getvalue(), overwrite)


def write_summary(
    plan: Plan, folder: Path, summary: DatasetSummary, failed: dict[str, str], overwrite: bool
) -> None:
    """Write a folder's summary, the table of its photos, and the index of their pages."""
    counts = {"explained": summary.explained, "done_before": summary.done_before}
    content = {"captum_pda": __version__, "photos": len(plan.places), **counts, "failed": failed}
    write_result(folder / SUMMARY_FILE, json_text(content, indent=2).encode(), overwrite)
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, TABLE_COLUMNS, extrasaction="ignore")
    table.writeheader()
    for place in plan.places:
        name = str(place.photo)
        row = {TABLE_COLUMNS[0]: name, "error": failed.get(name, "")}
        if name not in failed:
            row |= (settings_in(place.files["numbers"]) or {}).get("summary") or {}
            picture = place.files.get("picture")
            if picture is not None and picture.is_file():
                row["picture"] = picture.relative_to(folder).as_posix()
        # Spreadsheets take texts with such a start for formulas.
        texts = {column: cell for column, cell in row.items() if isinstance(cell, str)}
        table.writerow(
            row | {column: re.sub(r"^(?=[=+\-@\t\r])", "'", cell) for column, cell in texts.items()}
        )
    encoded = text.getvalue().encode("utf-8", "backslashreplace")
    write_result(folder / TABLE_FILE, encoded, overwrite)
    if plan.has_pages():
        pages = [place.files["page"] for place in plan.places if place.files["page"].is_file()]
        index = folder / INDEX_FILE
        write_result(index, index_page(pages, index, folder.name, failed), overwrite)
