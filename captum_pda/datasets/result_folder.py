"""A folder of results, and its files: tensors, the settings that made them, and a checksum.

Each file is written whole or not at all. Files are read with suspicion: a few bytes may claim to be
many.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
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

from captum_pda.datasets.records import Record, as_json, changes
from captum_pda.files import remove_parts, write_whole

SETTINGS_FILE = "settings.json"
#: The name under which files say with what they were made. Those of this library hold MARK there.
SETTINGS, MARK = "settings", "captum_pda"
#: The name of the checksum of a file's tensors.
CHECKSUM = "sha256"
#: How many bytes are compared with a checksum at a time, and at most.
CHUNK_BYTES, MOST_CHECKED_BYTES = 2**20, 2**36
#: Files with longer settings or lists of contents are not results.
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


class SettingsError(ValueError):
    """A folder holds results that were made with other settings."""


class ResultFolder:
    """Keeps the attributions of each example in a file of its own, with the settings.

    ``000012.safetensors`` holds those of example 12 as "attributions" (or "attributions_0", ... for
    a tuple of inputs), the model's outputs for that example as "outputs", and as JSON in its header
    ("settings") what they were made with and for which target ("own_target"). ``settings.json``
    holds the settings of the whole folder. Results are written whole, so a run that was stopped
    goes on where it was; a damaged one is noticed by its checksum, and explained again.

    Args:
        path: the folder, which may not exist yet.

    Example::

        >>> folder = ResultFolder("maps")
        >>> explain_dataset(EfficientPDA(model), validation_set, folder)
        >>> folder.read(12)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._settings: dict[str, Any] = {}

    def start(self, settings: Mapping[str, Any]) -> None:
        """Say what results are made with from now on; refuses a folder that holds others."""
        self._settings = as_json(settings)
        keep_settings(self.path, self._settings)
        remove_parts(self.path)

    def stored(self, number: int) -> Record | None:
        """What the result of an example was made from; None without a result of these settings."""
        return stored_record(self.place(number), self._settings)

    def write(self, number: int, attributions: Tensor | tuple[Tensor, ...], record: Record) -> None:
        """Keep the attributions of an example."""
        place = self.place(number)
        if os.path.lexists(place) and settings_in(place) is None:
            raise FileExistsError(
                f"{place} is not a whole result of this library, and is left alone; remove it, or "
                "choose another folder"
            )
        tensors = (
            {f"attributions_{n}": tensor for n, tensor in enumerate(attributions)}
            if isinstance(attributions, tuple)
            else {"attributions": attributions}
        )
        if record.outputs is not None:
            tensors["outputs"] = record.outputs
        header = json_text({**self._settings, "number": number, **record.settings})
        write_whole(place, safetensors_file(tensors, {SETTINGS: header}))

    def read(self, number: int) -> Tensor | tuple[Tensor, ...]:
        """The attributions of an example.

        Raises:
            ValueError: the file is damaged.
        """
        place = self.place(number)
        if place.is_file() and not is_whole(place):
            raise ValueError(
                f"{place} is damaged: it does not have the checksum that was stored with it; "
                "delete it, and explain the example again"
            )
        with safe_open(place, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith("attributions")]  # noqa: SIM118
            names.sort(key=lambda name: (len(name), name))
            tensors: list[Tensor] = [file.get_tensor(name) for name in names]
        return tensors[0] if names == ["attributions"] else tuple(tensors)

    def place(self, number: int) -> Path:
        """The file of an example."""
        return self.path / f"{number:06d}.safetensors"


def stored_record(place: Path, settings: Mapping[str, Any]) -> Record | None:
    """The record in a file, if it was made with these settings and is as it was written."""
    found = settings_in(place)
    if found is None or any(found.get(name) != value for name, value in settings.items()):
        return None
    if not is_whole(place):
        return None
    return Record(
        str(found.get("input_sha256")), found.get("own_target"), tensor_in(place, "outputs")
    )


def keep_settings(folder: Path, settings: dict[str, Any], overwrite: bool = False) -> None:
    """Write the settings of a folder, or compare them with those that are there.

    ``overwrite`` replaces a file of that name that holds no settings.
    """
    found = read_settings(folder, overwrite)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / SETTINGS_FILE, json_text(settings, indent=2).encode())
        return
    changed = changes(found, settings)
    if changed:
        raise SettingsError(
            f"{folder} holds results of other settings: {'; '.join(changed)}. Choose another "
            "folder, or delete this one"
        )


def read_settings(folder: Path, overwrite: bool = False) -> dict[str, Any] | None:
    """The settings of a folder; None if there are none yet."""
    path = folder / SETTINGS_FILE
    if not os.path.lexists(path):
        return None
    found = settings_in(path)
    if found is None and not overwrite:
        raise SettingsError(f"{path} holds no settings; choose another folder")
    return found


# The files


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

    None if it does not exist, cannot be read, or is not of this library.
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
