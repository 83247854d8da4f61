"""Atomic writing of files, also if the process is killed."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows, where a file that a process has open cannot be removed
    fcntl = None  # type: ignore[assignment]


def write_whole(path: Path, content: bytes, overwrite: bool = True) -> None:
    """Write a file under another name and rename it. Raises FileExistsError if the name is taken
    and ``overwrite`` is False."""
    part, file = _new_part(path.parent)
    try:
        with file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the name without the content
            if fcntl is not None:  # while it is locked, so that it is not taken for abandoned
                _move(part, path, overwrite)
        if fcntl is None:
            _move(part, path, overwrite)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove half-written files of killed processes. A process locks the file that it writes, and
    the lock ends with the process."""
    for part in folder.rglob(f".{'[0-9a-f]' * 32}.part"):
        try:
            if fcntl is None:
                part.unlink()
                continue
            with part.open("r+b") as file:
                if _lock(file):
                    part.unlink()
        except OSError:  # gone by now, or not ours to touch
            continue


def _new_part(folder: Path) -> tuple[Path, BinaryIO]:
    while True:
        part = folder / f".{uuid.uuid4().hex}.part"
        file = part.open("xb")
        # Another process may have removed it before it was locked.
        if not _lock(file) or part.exists():
            return part, file
        file.close()


def _lock(file: BinaryIO) -> bool:
    """Lock a file for this process; False if another one has, or if locks are not supported."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _move(part: Path, path: Path, overwrite: bool) -> None:
    if overwrite:
        os.replace(part, path)
        return
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, where another one may come first unseen
        if os.path.lexists(path):
            raise FileExistsError(f"{path} exists") from None
        os.replace(part, path)


def counted(number: int, one: str, several: str | None = None) -> str:
    """A number with what it counts: "1 photo", "1,200 photos"."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
