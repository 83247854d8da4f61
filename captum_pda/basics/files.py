"""Write files whole or not at all, whatever happens in the meantime."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_whole(path: Path, content: bytes, overwrite: bool = True) -> None:
    """Write a file next to its place and move it there in one step.

    Raises:
        FileExistsError: ``overwrite`` is False and something has that name.
    """
    part = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the name without the content
        if overwrite:
            os.replace(part, path)
        else:
            _move_to_free_place(part, path)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove what processes that were killed have left half-written."""
    for part in folder.rglob(f".{'[0-9a-f]' * 32}.part"):
        part.unlink(missing_ok=True)


def _move_to_free_place(part: Path, path: Path) -> None:
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, where another one may come first unseen
        if os.path.lexists(path):
            raise FileExistsError(f"{path} exists") from None
        os.replace(part, path)
