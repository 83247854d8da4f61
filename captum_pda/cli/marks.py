"""Which files this command has written itself: each says so inside."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from PIL import Image

from captum_pda.basics.version import __version__
from captum_pda.datasets.result_folder import MARK, settings_in

#: Pictures have it in a text chunk (PNG) or a comment (JPEG), pages in their first lines.
PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
PAGES = (".html",)
#: How far into a page its mark is looked for.
FIRST_BYTES = 4096


def mark_options(path: Path) -> dict[str, Any]:
    """What to give ``savefig`` so that a picture says who wrote it."""
    if PICTURES[path.suffix.lower()] == "PNG":
        return {"format": "png", "metadata": {MARK: __version__}}
    comment = f"{MARK} {__version__}".encode()
    return {"format": "jpeg", "pil_kwargs": {"comment": comment, "quality": 92}}


def is_own(path: Path) -> bool:
    """Whether a file was written by this command."""
    if not path.is_file():
        return False
    if path.suffix.lower() in PICTURES:
        return _is_own_picture(path)
    if path.suffix.lower() in PAGES:
        with path.open("rb") as file:
            return f'content="{MARK}'.encode() in file.read(FIRST_BYTES)
    return settings_in(path) is not None


def _is_own_picture(path: Path) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Reads what comes before the pixels, and no more.
            with Image.open(path, formats=tuple(set(PICTURES.values()))) as image:
                found = image.info.get(MARK) or image.info.get("comment") or b""
    except Exception:  # damaged, huge, or no picture: not one of ours in any case
        return False
    text = found if isinstance(found, str) else bytes(found).decode(errors="replace")
    return MARK in image.info or text.startswith(MARK)
