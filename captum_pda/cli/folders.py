"""Where results go: a place for each photo, and no file written over that is not the command's own.

Every file that the command writes holds a mark by which it is recognised.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from captum_pda._version import __version__
from captum_pda.cli.photos import find_photos, is_own_nifti
from captum_pda.cli.usage_errors import CommandError, UsageError
from captum_pda.datasets.explain_dataset import DatasetSummary
from captum_pda.datasets.result_folder import MARK, SETTINGS_FILE, json_text, settings_in
from captum_pda.files import write_whole
from captum_pda.report.index import index_page

RAW_FORMATS = ("npz", "safetensors", "nifti", "none")
NIFTI_ENDING = ".nii.gz"
SUMMARY_FILE = "summary.json"
INDEX_FILE = "index.html"
TABLE_FILE = "results.csv"
#: The first column of a table of ours, by which it is recognised.
TABLE_COLUMNS = (
    "captum_pda_photo",
    "answer",
    "prediction",
    "strongest_for",
    "strongest_against",
    "unit",
    "total",
    "test",
    "picture",
    "error",
)
#: Pictures have the mark in a text chunk (PNG) or a comment (JPEG), pages in their first lines.
PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
PAGES = (".html",)
#: How far into a page its mark is looked for, in bytes.
PAGE_START = 4096
#: The resolution of pictures, in pixels per inch, and the quality of JPEGs.
DPI, QUALITY = 110, 92
#: Names that end in one of these mean files, not folders.
FILE_ENDINGS = frozenset(PICTURES) | frozenset(
    [
        ".bmp",
        ".gif",
        ".html",
        ".json",
        ".npz",
        ".pdf",
        ".safetensors",
        ".svg",
        ".tif",
        ".tiff",
        ".txt",
        ".webp",
    ]
)


@dataclass(frozen=True)
class Place:
    """Where the results of a photo go; None for what is not written.

    Args:
        photo: the photo.
        picture: a picture of its maps.
        numbers: the maps for programs.
        page: a page that answers to pointer and keys.
        volume: the maps as NIfTI.
    """

    photo: Path
    picture: Path | None
    numbers: Path | None
    page: Path | None
    volume: Path | None = None

    @staticmethod
    def beside(photo: Path, picture: Path, raw: str, html: bool) -> Place:
        """Numbers of the format ``raw`` and a page next to a picture, under its name."""
        ending = {"none": None, "nifti": ".npz"}.get(raw, f".{raw}")
        numbers = picture.with_suffix(ending) if ending else None
        volume = picture.with_suffix(NIFTI_ENDING) if raw == "nifti" else None
        page = picture.with_suffix(".html") if html else None
        return Place(photo, picture, numbers, page, volume)

    @property
    def files(self) -> list[Path]:
        """All files that are written for the photo."""
        return [file for file in (self.picture, self.volume, self.numbers, self.page) if file]


@dataclass(frozen=True)
class Plan:
    """What is to be explained, and where the results go.

    Args:
        places: one for each photo.
        folder: the folder of a job that can be stopped and goes on; None for single photos.
        has_index: whether the folder gets an index of its pages.
    """

    places: tuple[Place, ...]
    folder: Path | None = None
    has_index: bool = False

    @property
    def files(self) -> Iterator[Path]:
        """All files that may be written."""
        if self.folder is not None:
            yield from (self.folder / one for one in (SETTINGS_FILE, SUMMARY_FILE, TABLE_FILE))
            if self.has_index:
                yield self.folder / INDEX_FILE
        for place in self.places:
            yield from place.files


def plan_photos(images: Sequence[Path], output: Path, raw: str, html: bool = False) -> Plan:
    """Single photos: pictures next to each other in a folder, or one of a given name."""
    photos = list(dict.fromkeys(images))
    if means_file(output):
        if len(photos) > 1:
            raise UsageError(
                f"--output {output} is one picture for {len(photos)} photos; give a folder"
            )
        if output.suffix.lower() not in PICTURES:
            raise UsageError(f"--output {output} is not a folder, and pictures end in .png or .jpg")
        return Plan((Place.beside(photos[0], output, raw, html),))
    if output.is_file():
        raise UsageError(f"--output {output} is a file; give a folder, or a name ending in .png")
    has_twins = len({photo.name for photo in photos}) < len(photos)
    places = [
        Place.beside(
            photo,
            (output / photo.absolute().parent.name if has_twins else output) / _name(photo),
            raw,
            html,
        )
        for photo in photos
    ]
    _check_apart(places, output)
    return Plan(tuple(places))


def plan_folder(images: Sequence[Path], output: Path, raw: str, html: bool = False) -> Plan:
    """All photos of folders: each picture has its photo's name, in the photo's own subfolder."""
    if output == Path():
        raise UsageError("where should the results go? Add --output and the name of a folder")
    if output.is_file() or means_file(output):
        raise UsageError(f"--output {output} must be a folder")
    if raw == "none":
        raise UsageError(
            "--raw none leaves no place for the settings of a folder's results; use npz or "
            "safetensors"
        )
    found: dict[Path, tuple[Path, Path]] = {}
    for given in images:
        if given.is_dir() and output.resolve() == given.resolve():
            raise UsageError(f"--output {output} must be another folder than that of the photos")
        for photo in find_photos(given) if given.is_dir() else [given]:
            if output.resolve() in photo.resolve().parents:
                continue  # A picture of an earlier run, where results go below the photos.
            below = photo.relative_to(given) if given.is_dir() else Path(photo.name)
            found[photo] = Path(given.absolute().name if given.is_dir() else ""), below
    if not found:
        raise CommandError(f"there are no photos outside of {output}; choose another --output")
    # Photos of one name in several folders are told apart by the names of these.
    has_twins = len({below for _, below in found.values()}) < len(found)
    places = []
    for photo, (folder, below) in found.items():
        whole = folder / below if has_twins else below
        places.append(Place.beside(photo, output / whole.with_name(_name(photo)), raw, html))
    _check_apart(places, output)
    return Plan(tuple(places), output, has_index=html)


def means_file(output: Path) -> bool:
    """Whether a path names a file, by its ending; a folder that exists is a folder."""
    return not output.is_dir() and output.suffix.lower() in FILE_ENDINGS


def _name(photo: Path) -> str:
    """The name of a photo's picture. With the photo's ending: a.jpg and a.png are two photos."""
    return f"{photo.name}_evidence.png"


def _check_apart(places: Sequence[Place], output: Path) -> None:
    """Refuse two photos with one place, also where names that differ by case are the same."""
    taken: dict[str, Place] = {}
    for fold in (str, str.casefold):
        taken.clear()
        for place in places:
            other = taken.setdefault(fold(str(place.picture)), place)
            if other is not place and (fold is str or _ignores_case(output)):
                raise UsageError(
                    f"{other.photo} and {place.photo} would both be written to {place.picture}; "
                    "explain them one by one, each with its own --output"
                )


def _ignores_case(folder: Path) -> bool:
    """Whether a folder, or the nearest one above that exists, takes a.png and A.png for one."""
    while not folder.is_dir():
        folder = folder.parent
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".captum_pda_") as file:
        name = Path(file.name)
        return name.with_name(name.name.upper()).exists()


# Before the work: may these files be written?


def check_free(files: Iterable[Path], inputs: Iterable[Path], overwrite: bool) -> None:
    """Refuse to write over what is read, and over what this command did not write.

    Args:
        files: what will be written.
        inputs: files that are read, which are never written over.
        overwrite: whether other files may be replaced.
    """
    read = {_identity(path) for path in inputs} - {None}
    folders = set()
    for file in files:
        if file.parent not in folders:
            check_folder(file.parent)
            folders.add(file.parent)
        if not os.path.lexists(file):
            continue
        if file.is_dir():
            raise UsageError(f"{file} is a folder; choose another --output")
        if _identity(file) in read:
            raise UsageError(
                f"{file} is read by this command, and would be written over; choose another "
                "--output"
            )
        if not overwrite and not is_own(file):
            raise UsageError(_not_ours(file))


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, without making it."""
    above = folder
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise UsageError(
            f"{folder} cannot be written ({above} is not a folder); choose another --output"
        )
    try:
        # Permissions do not say all: a file system may be read-only or full.
        with tempfile.TemporaryFile(dir=above, prefix=".captum_pda_"):
            pass
    except PermissionError:
        why = "no permission"
    except OSError as error:
        why = error.strerror or str(error)
    else:
        return
    raise UsageError(f"{folder} cannot be written ({why}); choose another --output")


def is_own(path: Path) -> bool:
    """Whether a file was written by this command."""
    if not path.is_file():
        return False
    if path.suffix.lower() in PICTURES:
        return _is_own_picture(path)
    if path.suffix.lower() in PAGES:
        with path.open("rb") as file:
            return f'content="{MARK}'.encode() in file.read(PAGE_START)
    if path.suffix.lower() == ".csv":
        with path.open("rb") as file:
            return file.read(PAGE_START).startswith(TABLE_COLUMNS[0].encode())
    if path.name.lower().endswith(NIFTI_ENDING):
        return is_own_nifti(path)
    return settings_in(path) is not None


def _is_own_picture(path: Path) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Reads what comes before the pixels, and no more.
            with Image.open(path, formats=tuple(set(PICTURES.values()))) as image:
                found = image.info.get(MARK) or image.info.get("comment") or b""
    except Exception:  # damaged, huge, or not a picture: in any case not one of ours
        return False
    text = found if isinstance(found, str) else bytes(found).decode(errors="replace")
    return MARK in image.info or text.startswith(MARK)


def _not_ours(file: Path) -> str:
    return (
        f"{file} exists, and captum-pda did not write it (or not as it is now); choose another "
        "--output, or add --overwrite"
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """Identifies a file under all of its names, such as links or another case."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# Writing


def write_result(path: Path, content: bytes, overwrite: bool = False) -> None:
    """Write a file, with its folder, or say in one line why not.

    A file that this command did not write is left as it is, unless ``overwrite``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        exists = os.path.lexists(path)
        if exists and not overwrite and not is_own(path):
            raise CommandError(_not_ours(path))
        write_whole(path, content, overwrite=exists)
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written ({error.strerror or error}); choose another place with "
            "--output"
        ) from error


def write_figure(path: Path, figure: Figure, overwrite: bool = False) -> None:
    """Write a figure as PNG or JPEG, by its ending, with the mark of this command."""
    options: dict[str, Any] = {"format": "png", "metadata": {MARK: __version__}}
    if PICTURES[path.suffix.lower()] == "JPEG":
        comment = f"{MARK} {__version__}".encode()
        options = {"format": "jpeg", "pil_kwargs": {"comment": comment, "quality": QUALITY}}
    content = io.BytesIO()
    figure.savefig(content, dpi=DPI, **options)
    write_result(path, content.getvalue(), overwrite)


def write_summary(
    folder: Path, summary: DatasetSummary, total: int, failed: dict[str, str], overwrite: bool
) -> Path:
    """Write what became of a folder's photos."""
    content = {
        "captum_pda": __version__,
        "photos": total,
        "explained": summary.explained,
        "done_before": summary.done_before,
        "failed": failed,
    }
    path = folder / SUMMARY_FILE
    write_result(path, json_text(content, indent=2).encode(), overwrite)
    return path


def write_folder_index(plan: Plan, failed: dict[str, str], overwrite: bool) -> None:
    """Write a table of all photos of a folder, and the index of its pages."""
    if plan.folder is None:
        return
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, TABLE_COLUMNS, restval="")
    table.writeheader()
    for place in plan.places:
        photo = str(place.photo)
        settings = settings_in(place.numbers) if place.numbers else None
        row = dict((settings or {}).get("summary") or {})
        row = {name: value for name, value in row.items() if name in TABLE_COLUMNS}
        if place.picture is not None and place.picture.is_file():
            row["picture"] = place.picture.relative_to(plan.folder).as_posix()
        if photo in failed:
            row = {"error": failed[photo]}
        table.writerow({TABLE_COLUMNS[0]: _plain_cell(photo), **row})
    content = text.getvalue().encode("utf-8", "backslashreplace")
    write_result(plan.folder / TABLE_FILE, content, overwrite)
    if plan.has_index:
        pages = [place.page for place in plan.places if place.page and place.page.is_file()]
        index = plan.folder / INDEX_FILE
        write_result(index, index_page(pages, index, plan.folder.name, failed), overwrite)


def _plain_cell(text: str) -> str:
    """A text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text
