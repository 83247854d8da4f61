"""Load a photo of any kind as plain RGB, and find photos in a folder."""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from captum_pda.cli.usage_errors import CommandError, one_line

#: Formats that hold pixels and nothing else. Pillow knows more, some of which are programs: an EPS
#: file is run by Ghostscript.
FORMATS = (
    "AVIF",
    "BMP",
    "GIF",
    "JPEG",
    "JPEG2000",
    "PNG",
    "PPM",
    "TGA",
    "TIFF",
    "WEBP",
)
#: A photo of more pixels is read at a smaller size where its format can, and refused otherwise: a
#: file of a few kilobytes can claim to be larger than the memory.
MAX_PIXELS = 2**27
#: A larger file is not read: MAX_PIXELS take less, even as plain numbers of 16 bits.
MAX_BYTES = 2**30


def read_photo(path: Path) -> tuple[Image.Image, str]:
    """A photo as RGB, the right way up, and a hash of the very bytes that it was read from.

    Grey, palette, CMYK and 16-bit photos are converted, transparent ones laid on white, those
    with an EXIF orientation turned; of an animation, the first frame counts.
    """
    content = _bytes_of(path)
    try:
        with warnings.catch_warnings():
            # The size is checked below; other warnings are about metadata that is not used.
            warnings.simplefilter("ignore")
            with _unlimited_size(), Image.open(io.BytesIO(content), formats=_formats()) as image:
                _check_size(path, image)
                rgb = to_rgb(ImageOps.exif_transpose(image))
        return rgb, hashlib.sha256(content).hexdigest()
    except (CommandError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise CommandError(
            f"{path} is not a photo in a format that Pillow reads; convert it to JPEG or PNG"
        ) from None
    except Exception as error:  # Every decoder fails in its own way.
        raise CommandError(
            f"{path} cannot be read ({one_line(error)}); it may be damaged: open and save it anew"
        ) from error


def _bytes_of(path: Path) -> bytes:
    if not path.is_file():
        raise CommandError(
            f"{path} is a folder; name photos in it"
            if path.is_dir()
            else f"there is no photo at {path}; check the name"
        )
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror or error})") from error
    if len(content) > MAX_BYTES:
        raise CommandError(
            f"{path} has more than {MAX_BYTES // 10**6} million bytes; scale it down first"
        )
    return content


def _formats() -> list[str]:
    """The formats of photos that this Pillow can read."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def find_photos(folder: Path) -> list[Path]:
    """All files in a folder and its subfolders whose name ends as a photo's does, in order."""
    if not folder.is_dir():
        raise CommandError(f"there is no folder {folder}; check the name")
    readable = {
        ending for ending, kind in Image.registered_extensions().items() if kind in _formats()
    }
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in readable and path.is_file() and not path.name.startswith(".")
    )
    if not found:
        raise CommandError(f"there are no photos in {folder}; it needs JPEG, PNG or similar files")
    return found


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode as RGB of 8 bits."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return Image.fromarray(_eight_bits(np.asarray(image), image.mode)).convert("RGB")
    if image.has_transparency_data:
        transparent = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, transparent).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: npt.NDArray[Any], mode: str) -> npt.NDArray[np.uint8]:
    """Grey values of 16 bits or more, from black to white in 0 to 255."""
    values = np.nan_to_num(values.astype(np.float64))
    low, high = values.min(), values.max()
    if mode != "F" and low >= 0 and high <= 65535:
        # Integers say what is white: 255, or 65535.
        low, high = 0, 255 if mode == "I" and high <= 255 else 65535
    elif low >= 0 and high <= 1:
        low, high = 0, 1
    scaled: npt.NDArray[np.float64] = (values - low) / max(high - low, 1e-300)
    return np.round(scaled * 255).astype(np.uint8)


def _check_size(path: Path, image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        # A JPEG can be decoded at an eighth of its size.
        image.draft(None, (width // 8, height // 8))
    if image.width * image.height > MAX_PIXELS:
        raise CommandError(
            f"{path} has {width} x {height} pixels, and more than {MAX_PIXELS // 10**6} million "
            "are not read; scale it down first"
        )


class _unlimited_size:  # noqa: N801 - reads as the with-statement it is made for
    """Pillow's own limit, which is lower than today's largest cameras, put aside for a moment."""

    def __enter__(self) -> None:
        self.limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None

    def __exit__(self, *_: object) -> None:
        Image.MAX_IMAGE_PIXELS = self.limit
