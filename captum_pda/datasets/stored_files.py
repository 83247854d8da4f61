"""Files of results: tensors with the settings that made them, and a checksum.

They are read with suspicion: a few bytes may claim to be many.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

#: The name under which files say with what they were made. Those of this library hold MARK there.
SETTINGS, MARK = "settings", "captum_pda"
#: The name of the checksum of a file's tensors.
CHECKSUM = "sha256"
#: How many bytes are compared with a checksum at a time, and at most.
CHUNK_BYTES, MOST_CHECKED_BYTES = 2**20, 2**36
#: Longer settings, or lists of contents, are no result's.
MOST_SETTINGS_BYTES, MOST_CONTENTS_BYTES = 2**22, 2**16
#: The model's outputs for one example take less.
MOST_OUTPUT_BYTES = 2**28
#: What reading a damaged or hostile file may raise.
UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    OverflowError,
    RecursionError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    SafetensorError,
)


def json_text(value: Any, **options: Any) -> str:
    """JSON that people can read, with the names of any file: what is not Unicode is escaped."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def safetensors_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The content of a file of safetensors with a checksum of its tensors."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content: bytes = save(plain)
    start = 8 + int.from_bytes(content[:8], "little")
    checksum = hashlib.sha256(content[start:]).hexdigest()
    whole: bytes = save(plain, metadata={**metadata, CHECKSUM: checksum})
    return whole


def is_whole(path: Path) -> bool:
    """Whether the tensors in a file of results (npz or safetensors) are those that were written."""
    try:
        if path.suffix == ".npz":
            return _is_whole_archive(path)
        expected = _safetensors_header(path)["__metadata__"][CHECKSUM]
        digest = hashlib.sha256()
        with path.open("rb") as file:
            file.seek(8 + int.from_bytes(file.read(8), "little"))
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest() == str(expected)
    except UNREADABLE:
        return False


def _is_whole_archive(path: Path) -> bool:
    """Read all that is in an archive, which has a checksum for each part of it."""
    _check_contents(path)
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MOST_CHECKED_BYTES:
            return False
        for entry in archive.infolist():
            with archive.open(entry) as file:
                while file.read(CHUNK_BYTES):
                    pass
    return True


def settings_in(path: Path) -> dict[str, Any] | None:
    """What a file of results (npz, safetensors or json) was made with.

    None where it is no file, cannot be read, or is not this library's.
    """
    try:
        if path.suffix == ".npz":
            text = str(_npz_entry(path, SETTINGS, MOST_SETTINGS_BYTES))
        elif path.suffix == ".safetensors":
            text = _safetensors_header(path)["__metadata__"][SETTINGS]
        else:
            text = _read(path, MOST_SETTINGS_BYTES).decode()
        found = json.loads(text)
    except UNREADABLE:
        return None
    return found if isinstance(found, dict) and MARK in found else None


def tensor_in(path: Path, name: str) -> Tensor | None:
    """A tensor of a file of results, or None where it cannot be read."""
    try:
        if path.suffix == ".npz":
            return torch.from_numpy(np.array(_npz_entry(path, name, MOST_OUTPUT_BYTES)))
        start, end = _safetensors_header(path)[name]["data_offsets"]
        if end - start > MOST_OUTPUT_BYTES:
            return None
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor
    except UNREADABLE:
        return None


def _read(path: Path, most_bytes: int) -> bytes:
    with path.open("rb") as file:
        return _bounded(file, most_bytes)


def _bounded(file: Any, most_bytes: int) -> bytes:
    content: bytes = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"more than {most_bytes} bytes")
    return content


def _safetensors_header(path: Path) -> dict[str, Any]:
    """The table at the start of a file of safetensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MOST_SETTINGS_BYTES:
            raise ValueError(f"its header claims {length} bytes")
        header: dict[str, Any] = json.loads(file.read(length))
    return header


def _npz_entry(path: Path, name: str, most_bytes: int) -> npt.NDArray[Any]:
    """One array of a file of NumPy's, unpacked no further than it should be."""
    _check_contents(path)
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as entry:
        content = _bounded(entry, most_bytes)
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("of another version")
    header: tuple[tuple[int, ...], bool, np.dtype[Any]]
    header = np.lib.format.read_array_header_1_0(file)
    shape, by_columns, dtype = header
    if dtype.hasobject or (by_columns and len(shape) > 1):
        raise ValueError("not an array that this library writes")
    return np.frombuffer(content, dtype, offset=file.tell()).reshape(shape)


def _check_contents(path: Path) -> None:
    """Refuse an archive whose list of contents is long, which would be read as a whole."""
    with path.open("rb") as file:
        file.seek(-42, io.SEEK_END)
        end = file.read(42)
    # The list's length lies 12 bytes into the last 22, in an archive without a comment.
    (length,) = struct.unpack("<I", end[32:36])
    if end[20:24] != b"PK\x05\x06" or end[:4] == b"PK\x06\x07" or length > MOST_CONTENTS_BYTES:
        raise ValueError("not an archive that this library writes")
