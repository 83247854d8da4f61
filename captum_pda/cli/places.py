"""Where results go: a place for each photo, and nothing there that is not ours to replace."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from captum_pda.cli.marks import PICTURES, is_own
from captum_pda.cli.photos import find_photos
from captum_pda.cli.usage_errors import CommandError, UsageError
from captum_pda.datasets.result_folder import SETTINGS_FILE

RAW_FORMATS = ("npz", "safetensors", "none")
SUMMARY_FILE = "summary.json"
INDEX_FILE = "index.html"
#: Names that end so mean files, not folders.
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
    """Where the results of a photo go.

    Args:
        photo: the photo.
        picture: its picture.
        raw: the ending of the file of numbers next to it, or "none".
        html: whether it has a page as well.
    """

    photo: Path
    picture: Path
    raw: str
    html: bool = False

    @property
    def numbers(self) -> Path | None:
        """The file of numbers."""
        return None if self.raw == "none" else self.picture.with_suffix(f".{self.raw}")

    @property
    def page(self) -> Path | None:
        """The page that answers to pointer and keys."""
        return self.picture.with_suffix(".html") if self.html else None

    @property
    def files(self) -> list[Path]:
        """All files that are written for the photo."""
        return [self.picture, *(file for file in (self.numbers, self.page) if file)]


@dataclass(frozen=True)
class Plan:
    """What is to be explained, and where the results go.

    Args:
        places: one for each photo.
        folder: the folder of a job that can be stopped and goes on; None for single photos.
    """

    places: tuple[Place, ...]
    folder: Path | None = None

    @property
    def files(self) -> Iterator[Path]:
        """All files that may be written."""
        if self.folder is not None:
            yield from (self.folder / SETTINGS_FILE, self.folder / SUMMARY_FILE)
            if any(place.html for place in self.places):
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
            raise UsageError(f"--output {output} is no folder, and pictures end in .png or .jpg")
        return Plan((Place(photos[0], output, raw, html),))
    if output.is_file():
        raise UsageError(f"--output {output} is a file; give a folder, or a name ending in .png")
    # With its ending, as in a folder: a.jpg and a.png are two photos.
    places = [Place(photo, output / f"{photo.name}_evidence.png", raw, html) for photo in photos]
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
    places: dict[tuple[Path, Path], Place] = {}
    for given in images:
        if given.is_dir() and output.resolve() == given.resolve():
            raise UsageError(f"--output {output} must be another folder than that of the photos")
        for photo in find_photos(given) if given.is_dir() else [given]:
            if output.resolve() in photo.resolve().parents:
                continue  # A picture of an earlier run, where results go below the photos.
            below = photo.relative_to(given) if given.is_dir() else Path(photo.name)
            # With its ending: a.jpg and a.png are two photos.
            picture = output / below.with_name(f"{below.name}_evidence.png")
            places[photo, picture] = Place(photo, picture, raw, html)
    if not places:
        raise CommandError(f"there are no photos outside of {output}; choose another --output")
    _check_apart(list(places.values()), output)
    return Plan(tuple(places.values()), output)


def means_file(output: Path) -> bool:
    """Whether a path names a file, by its ending; a folder that is there is a folder."""
    return not output.is_dir() and output.suffix.lower() in FILE_ENDINGS


def check_free(files: Iterable[Path], inputs: Iterable[Path], overwrite: bool) -> None:
    """Refuse to write over what is read, and over what this command did not write.

    Args:
        files: what will be written.
        inputs: what is read: never written over, by whatever name.
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
            raise UsageError(not_ours(file))


def not_ours(file: Path) -> str:
    """Why a file is left as it is, and what to do."""
    return (
        f"{file} is there, and captum-pda did not write it (or not as it is now); choose another "
        "--output, or add --overwrite"
    )


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, without making it."""
    above = folder
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise UsageError(
            f"{folder} cannot be written ({above} is no folder); choose another --output"
        )
    try:
        # What permissions say is not all: a system may be read-only, full or none for files.
        with tempfile.TemporaryFile(dir=above, prefix=".captum_pda_"):
            pass
    except PermissionError:
        why = "no permission"
    except OSError as error:
        why = error.strerror or str(error)
    else:
        return
    raise UsageError(f"{folder} cannot be written ({why}); choose another --output")


def _identity(path: Path) -> tuple[int, int] | None:
    """What a file is, whatever it is called: links and names in other letters are the same."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_apart(places: Sequence[Place], output: Path) -> None:
    """Refuse two photos of one place, also where names that differ by case are the same."""
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
    """Whether a folder, or the nearest one above that is there, takes a.png and A.png for one."""
    while not folder.is_dir():
        folder = folder.parent
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".captum_pda_") as file:
        name = Path(file.name)
        return name.with_name(name.name.upper()).exists()
