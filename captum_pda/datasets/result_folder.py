"""A folder of results: each written whole or not at all, all made with the same settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from captum_pda.basics.files import write_whole

SETTINGS_FILE = "settings.json"


class SettingsError(ValueError):
    """A folder holds results that were made with other settings."""


class ResultFolder:
    """Keeps the attributions of each example in a file of its own, with the settings.

    ``000012.safetensors`` holds those of example 12 as "attributions" (or "attributions_0", ... for
    a tuple of inputs), and as JSON in its header ("settings") what they were made with and for
    which target ("own_target"). ``settings.json`` says the former of the whole folder. A result
    that is there is whole, so a run that was stopped goes on where it was.

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

    def is_done(self, number: int) -> bool:
        """Whether the result of an example is there."""
        try:
            with safe_open(self.place(number), framework="pt") as file:
                found = json.loads((file.metadata() or {}).get("settings", "{}"))
        except (OSError, SafetensorError, ValueError):
            return False
        return all(found.get(name) == value for name, value in self._settings.items())

    def write(self, number: int, attributions: Tensor | tuple[Tensor, ...], target: Any) -> None:
        """Keep the attributions of an example."""
        tensors = (
            {f"attributions_{n}": tensor for n, tensor in enumerate(attributions)}
            if isinstance(attributions, tuple)
            else {"attributions": attributions}
        )
        header = json.dumps({**self._settings, "number": number, "own_target": target})
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_whole(self.place(number), to_safetensors(plain, metadata={"settings": header}))

    def read(self, number: int) -> Tensor | tuple[Tensor, ...]:
        """The attributions of an example."""
        with safe_open(self.place(number), framework="pt") as file:
            names = sorted(file.keys(), key=lambda name: (len(name), name))
            tensors: list[Tensor] = [file.get_tensor(name) for name in names]
        return tensors[0] if names == ["attributions"] else tuple(tensors)

    def place(self, number: int) -> Path:
        """The file of an example."""
        return self.path / f"{number:06d}.safetensors"


def keep_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a folder, or compare them with those that are there."""
    found = read_settings(folder)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / SETTINGS_FILE, json.dumps(settings, indent=2).encode())
        return
    changed = [
        f"{name} was {_short(found.get(name))} and is now {_short(settings.get(name))}"
        for name in dict.fromkeys([*settings, *found])
        if found.get(name) != settings.get(name)
    ]
    if changed:
        raise SettingsError(
            f"{folder} holds results of other settings: {'; '.join(changed)}. Choose another "
            "folder, or delete this one"
        )


def read_settings(folder: Path) -> dict[str, Any] | None:
    """The settings of a folder; None where there are none yet."""
    path = folder / SETTINGS_FILE
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read ({error}); choose another folder") from error
    if not isinstance(found, dict):
        raise SettingsError(f"{path} is no table of settings; choose another folder")
    return found


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from a file."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(settings), default=repr))
    return plain


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:16]}..."
