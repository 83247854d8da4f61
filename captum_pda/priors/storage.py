"""Files of tensors and plain settings, written whole or not at all, and read with suspicion."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from captum_pda.files import write_whole

FORMAT = "captum_pda prior"
VERSION = 1
#: A larger file is not read: factoring its covariance would be out of reach.
MOST_BYTES = 2**32
#: Nor one with a longer header: the names of many thousand tensors may take minutes to read.
MOST_HEADER_BYTES = 2**16
FLOATS = ("F64", "F32", "F16", "BF16")
#: Characters of an error message; a hostile file may have much to say.
LONGEST_MESSAGE = 300


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    overwrite: bool,
    file_format: str = FORMAT,
) -> None:
    """Write a file of tensors and settings, whole or not at all."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to save {target.name} in")
    if os.path.lexists(target) and not overwrite:
        raise _already_there(target)
    header = {
        "format": file_format,
        "version": str(VERSION),
        "settings": json.dumps(dict(settings)),
    }
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        write_whole(target, to_bytes(contiguous, metadata=header), overwrite)
    except FileExistsError:  # it came there in the meantime
        raise _already_there(target) from None


def _already_there(target: Path) -> FileExistsError:
    return FileExistsError(f"{target} exists; choose another name, or pass overwrite=True")


class StoredTensors:
    """An opened file that ``save`` wrote: its settings, and what it says of its tensors.

    Nothing of the tensors is read before their shapes were compared with what belongs there.
    """

    def __init__(self, file: Any, file_format: str = FORMAT) -> None:
        self._file = file
        header = file.metadata() or {}
        if header.get("format") != file_format:
            raise ValueError(f"its header does not say {file_format!r}")
        if header.get("version") != str(VERSION):
            raise ValueError(
                f"it has version {header.get('version')!r}, and this library reads {VERSION}; "
                "a newer captum_pda may read it"
            )
        settings = json.loads(header.get("settings", ""))
        if not isinstance(settings, dict):
            raise ValueError("its settings are not a table")
        self.settings: dict[str, Any] = settings
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        self.shapes: dict[str, list[int]] = {name: s.get_shape() for name, s in slices.items()}
        self.dtypes: dict[str, str] = {name: s.get_dtype() for name, s in slices.items()}

    def read(self, shapes: Mapping[str, list[int]]) -> dict[str, Tensor]:
        """The tensors of doubles, which must have these shapes; refuses what is missing, extra,
        misshapen or not finite."""
        tensors = self.read_any(shapes, dict.fromkeys(shapes, ("F64",)))
        for name, tensor in tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"{name} holds NaN or infinite values")
        return tensors

    def read_any(
        self, shapes: Mapping[str, list[int]], dtypes: Mapping[str, Sequence[str]]
    ) -> dict[str, Tensor]:
        """The tensors, which must have these shapes, each in one of its dtypes."""
        if missing := sorted(set(shapes) - set(self.shapes)):
            raise ValueError(f"it lacks the tensors {missing}, which belong to it")
        if extra := sorted(set(self.shapes) - set(shapes)):
            raise ValueError(f"it holds the tensors {extra}, which do not belong to it")
        for name, shape in shapes.items():
            if self.shapes[name] != list(shape):
                raise ValueError(f"{name} has shape {self.shapes[name]} where {shape} belongs")
            if self.dtypes[name] not in dtypes[name]:
                wanted = " or ".join(dtypes[name])
                raise ValueError(f"{name} has dtype {self.dtypes[name]} where {wanted} belongs")
        return {name: self._file.get_tensor(name) for name in shapes}


@contextmanager
def opened(
    path: str | os.PathLike[str],
    device: torch.device | str,
    file_format: str = FORMAT,
    most_bytes: int = MOST_BYTES,
    most_header_bytes: int = MOST_HEADER_BYTES,
) -> Iterator[StoredTensors]:
    """Open a file that ``save`` wrote; whatever is wrong with it becomes one line that names it."""
    noun = file_format.removeprefix("captum_pda ")
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {noun} at {path}")
    try:
        # A file system keeps holes for nothing: a few bytes on a disk can be any number of bytes.
        if Path(path).stat().st_size > most_bytes:
            raise ValueError(f"it has more than {most_bytes} bytes, the most that is read")
        with open(path, "rb") as start:
            header_bytes = int.from_bytes(start.read(8), "little")
        if header_bytes > most_header_bytes:
            raise ValueError(
                f"its header has {header_bytes} bytes, and that of a file of this library has at "
                f"most {most_header_bytes}"
            )
        with safe_open(path, framework="pt", device=str(device)) as file:
            yield StoredTensors(file, file_format)
    except (
        SafetensorError,
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        RecursionError,
    ) as e:
        message = " ".join(str(e).split())
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[:LONGEST_MESSAGE]} ..."
        article = "" if noun == "evidence" else "a "
        raise ValueError(f"{path} is not {article}{noun} that can be used: {message}") from e
