"""A folder of results: each written whole or not at all, all made with the same settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from captum_pda.basics.files import remove_parts, write_whole
from captum_pda.datasets.records import Record
from captum_pda.datasets.settings import as_json, changes
from captum_pda.datasets.stored_files import (
    SETTINGS,
    is_whole,
    json_text,
    safetensors_file,
    settings_in,
    tensor_in,
)

SETTINGS_FILE = "settings.json"


class SettingsError(ValueError):
    """A folder holds results that were made with other settings."""


class ResultFolder:
    """Keeps the attributions of each example in a file of its own, with the settings.

    ``000012.safetensors`` holds those of example 12 as "attributions" (or "attributions_0", ... for
    a tuple of inputs), the model's outputs for that example as "outputs", and as JSON in its header
    ("settings") what they were made with and for which target ("own_target"). ``settings.json``
    says the former of the whole folder. A result that is there is whole, so a run that was stopped
    goes on where it was; one that is damaged is noticed by its checksum, and explained anew.

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
        """What the result of an example was made from; None where there is none of these
        settings."""
        found = settings_in(self.place(number))
        return stored_record(self.place(number), found, self._settings)

    def write(self, number: int, attributions: Tensor | tuple[Tensor, ...], record: Record) -> None:
        """Keep the attributions of an example."""
        place = self.place(number)
        if os.path.lexists(place) and settings_in(place) is None:
            raise FileExistsError(
                f"{place} is no whole result of this library, and is left as it is; remove it, or "
                "choose another folder"
            )
        tensors = (
            {f"attributions_{n}": tensor for n, tensor in enumerate(attributions)}
            if isinstance(attributions, tuple)
            else {"attributions": attributions}
        )
        if record.outputs is not None:
            tensors["outputs"] = record.outputs
        header = json_text({**self._settings, "number": number, **record_settings(record)})
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


def record_settings(record: Record) -> dict[str, Any]:
    """What a record adds to the settings of a result."""
    return {
        **record.source,
        "input_sha256": record.input_sha256,
        "own_target": record.target,
    }


def stored_record(
    place: Path, found: Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> Record | None:
    """The record in a file, if it was made with these settings and is as it was written."""
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
    """The settings of a folder; None where there are none yet, or none that count."""
    path = folder / SETTINGS_FILE
    if not os.path.lexists(path):
        return None
    found = settings_in(path)
    if found is None and not overwrite:
        raise SettingsError(f"{path} is no table of settings; choose another folder")
    return found
