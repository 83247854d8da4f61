"""Write files whole or not at all, also if the process is killed."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

#: A half-written file that was not written to for so long, in seconds, is abandoned.
ABANDONED_AFTER = 600.0


def write_whole(path: Path, content: bytes, overwrite: bool = True) -> None:
    """Write a file next to its place and move it there in one step.

    Raises:
        FileExistsError: ``overwrite`` is False and something has that name.
    """
    part = path.parent / f".{uuid.uuid4().hex}.part"
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the name without the content
        try:
            if not overwrite:
                os.link(part, path)
                return
        except FileExistsError:
            raise
        except OSError:  # a file system without links, where another one may come first unseen
            if os.path.lexists(path):
                raise FileExistsError(f"{path} exists") from None
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove what processes that were killed have left half-written, not what is being written."""
    for part in folder.rglob(f".{'[0-9a-f]' * 32}.part"):
        try:
            if time.time() - part.stat().st_mtime > ABANDONED_AFTER:
                part.unlink()
        except OSError:  # gone by now, or not ours to touch
            continue


def counted(number: int, one: str, several: str | None = None) -> str:
    """A number with what it counts: "1 photo", "1,200 photos"."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
