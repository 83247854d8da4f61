"""Stored results: their settings and records, and the folder and files that contain them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import captum
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from captum_pda._version import __version__
from captum_pda.files import remove_parts, write_whole
from captum_pda.fingerprints import fingerprint, opaque_parts, own_code, weights_fingerprint
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode

#: The tolerated effect of rounding on outputs, in units in the last place of their largest value,
#: and its maximum as a share of it (which matters in half precision).
ROUNDING_UNITS, ROUNDING_SHARE = 100, 0.01
#: Attributes of an attribution that are not settings: the model, and how it is run.
NO_SETTINGS = frozenset({"forward_func", "gradient_func", "process_group"})
#: Longer values are abbreviated in messages about changed settings.
LONGEST_VALUE = 40


@dataclass(frozen=True, eq=False)
class Example:
    """An example, where a plain tensor or pair is not enough.

    Args:
        inputs: (C, *space).
        target: its own target, if any.
        source: its origin, as plain values that are stored with its result.
    """

    inputs: Tensor
    target: Any = None
    source: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Record:
    """What a result was made from, besides the settings of all results.

    Args:
        settings: a hash of the input ("input_sha256"), the explained output ("own_target"), and the
            origin of the input; plain values that are stored with the result.
        outputs: the model's outputs for the whole input; None without a model.
    """

    settings: Mapping[str, Any]
    outputs: Tensor | None

    def tensors(self) -> dict[str, Tensor]:
        """The outputs in a precision that every file format supports."""
        if self.outputs is None:
            return {}
        is_double = self.outputs.dtype == torch.float64
        return {"outputs": (self.outputs if is_double else self.outputs.float()).cpu()}

    def change(self, stored: Record, unknown: Sequence[str] = ()) -> tuple[str, bool]:
        """The reason why a stored result is not valid, or "", and whether that is unexpected
        because the example is the same. ``unknown`` are classes that cannot be compared."""
        was, now = stored.settings, self.settings
        if was.get("input_sha256") != now["input_sha256"]:
            return "the input is another one", False
        if was.get("own_target") != now["own_target"]:
            return f"the target was {was.get('own_target')} and is now {now['own_target']}", False
        if stored.outputs is None or self.outputs is None:
            return "it is not known whether the model is the same", True
        tolerance = min(ROUNDING_UNITS * torch.finfo(self.outputs.dtype).eps, ROUNDING_SHARE)
        before, after = stored.outputs.double(), self.outputs.double()
        if before.shape != after.shape:
            said = f"the model had outputs {tuple(before.shape)} and has {tuple(after.shape)}"
            return said, True
        size = float(after.nan_to_num(0, 0, 0).abs().amax()) if after.numel() else 0.0
        if not torch.allclose(after, before, rtol=0.0, atol=tolerance * size, equal_nan=True):
            share = float((after - before).nan_to_num().abs().max()) / (size or 1.0)
            return (
                f"the model's outputs differ from those stored, by {share:.2g} of their size",
                True,
            )
        if unknown:
            return (
                f"it is not known whether {unknown[0]} is the same; give its class a method "
                "settings() that returns what results depend on"
            ), True
        return "", False


def record_of(
    example: Example, target: Any, forward_func: Callable[..., Any] | None, arguments: Any
) -> Record:
    """The record of an example on the model's device, with one forward pass of the model."""
    outputs = None
    if forward_func is not None:
        batch = example.inputs.unsqueeze(0)
        with torch.no_grad(), evaluation_mode(forward_func):
            outputs = ModelCall(forward_func, (batch,), arguments).as_given()[0].detach().cpu()
    known = {"input_sha256": fingerprint(example.inputs), "own_target": target}
    return Record({**example.source, **known}, outputs)


# The settings


def describe(
    attribution: Any, target: Any, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The settings that an attribution's results depend on, besides the example, as plain values;
    and the classes of objects that cannot be described, so that their results cannot be compared.

    Attributions, priors, engines and measures are described by ``settings()``, or without it by a
    hash of their attributes; user-defined classes also by their code or their ``version``. A model
    is described by its class and weights, a function by its name; its other dependencies are
    noticed by its outputs.
    """
    unknown: list[str] = []
    own = _settings_of(attribution, unknown)
    if "generator" in arguments:
        own.pop("seed", None)
    model = getattr(attribution, "forward_func", None)
    while isinstance(model, partial):
        model = model.func
    model = getattr(model, "__self__", model)
    settings = {
        "method": type(attribution).__name__,
        **own_code(attribution),
        "model": getattr(model, "__qualname__", type(model).__qualname__),
        "weights_sha256": weights_fingerprint(model) if isinstance(model, nn.Module) else None,
        **own,
        "target": described(target, []),
        "arguments": {name: described(value, unknown) for name, value in arguments.items()},
        **versions(),
    }
    # As they are read back from a file.
    return json.loads(json.dumps(settings, default=repr)), unknown


def described(value: Any, unknown: list[str]) -> Any:
    """A value in readable form, or a hash; ``unknown`` gets the classes of what cannot be
    hashed."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [described(part, unknown) for part in value]
    if callable(getattr(value, "settings", None)) and not isinstance(value, type):
        return {**value.settings(), **own_code(value)}
    unknown += opaque_parts(value)
    return {"kind": type(value).__qualname__, "sha256": fingerprint(value)}


def _settings_of(attribution: Any, unknown: list[str]) -> dict[str, Any]:
    if callable(getattr(attribution, "settings", None)):
        described([getattr(attribution, name, None) for name in ("prior", "engine")], unknown)
        return dict(attribution.settings())
    # Whether another library's method uses random numbers is not known.
    found: dict[str, Any] = {"seed": torch.initial_seed()}
    model = getattr(attribution, "forward_func", None)
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    names = {module: name for name, module in modules}
    for name, value in vars(attribution).items():
        if name in NO_SETTINGS or value is model:
            continue
        if isinstance(value, nn.Module) and value in names:
            found[name] = names[value]
        elif hasattr(value, "attribute"):  # a method inside of another, as in a NoiseTunnel
            inner = {"method": type(value).__name__, **own_code(value)}
            found[name] = {**_settings_of(value, unknown), **inner}
        else:
            found[name] = described(value, unknown)
    return found


def versions() -> dict[str, str]:
    """The versions of the libraries that compute a result."""
    return {"captum_pda": __version__, "captum": captum.__version__, "torch": torch.__version__}


def changes(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The differences between settings in words: "engine.kind was ... and is now ..."."""
    found = []
    for name in dict.fromkeys([*now, *before]):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += changes(old, new, f"{prefix}{name}.")
        elif old != new:
            texts = [json.dumps(value) for value in (old, new)]
            short = [one if len(one) <= LONGEST_VALUE else f"{one[:16]}..." for one in texts]
            found.append(f"{prefix}{name} was {short[0]} and is now {short[1]}")
    return found


SETTINGS_FILE = "settings.json"
#: The name of the settings in files, and the key that marks files of this library.
SETTINGS, MARK = "settings", "captum_pda"
#: The name of the checksum of a file's tensors.
CHECKSUM = "sha256"


class SettingsError(ValueError):
    """A folder contains results that were made with other settings."""


class ResultFolder:
    """Stores the attributions of each example in a file, with the settings.

    ``000012.safetensors`` has those of example 12 as "attributions" (or "attributions_0", ... for a
    tuple of inputs), the model's outputs for that example as "outputs", and JSON in its header with
    the settings ("settings") and the explained target ("own_target"). ``settings.json`` has the
    settings of the whole folder. Results are written atomically, so an interrupted run can be
    continued; damaged files are detected by their checksum, and computed again.

    Args:
        path: the folder, which is created if necessary.

    Example::

        >>> folder = ResultFolder("maps")
        >>> explain_dataset(EfficientPDA(model), validation_set, folder)
        >>> folder.read(12)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._settings: dict[str, Any] = {}

    def start(self, settings: Mapping[str, Any]) -> None:
        """Set the settings of all results; refuses a folder with others."""
        self._settings = dict(settings)
        keep_settings(self.path, self._settings)
        remove_parts(self.path)

    def stored(self, number: int) -> Record | None:
        """The record of an example's result; None without one of these settings."""
        return stored_record(self.place(number), self._settings)

    def write(self, number: int, attributions: Tensor | tuple[Tensor, ...], record: Record) -> None:
        """Store the attributions of an example."""
        place = self.place(number)
        if os.path.lexists(place) and settings_in(place) is None:
            raise FileExistsError(
                f"{place} is not a whole result of this library, and is left alone; remove it, or "
                "choose another folder"
            )
        tensors = record.tensors()
        if isinstance(attributions, tuple):
            tensors |= {f"attributions_{n}": tensor for n, tensor in enumerate(attributions)}
        else:
            tensors["attributions"] = attributions
        header = json_text({**self._settings, "number": number, **record.settings})
        write_whole(place, safetensors_file(tensors, {SETTINGS: header}))

    def read(self, number: int) -> Tensor | tuple[Tensor, ...]:
        """The attributions of an example. Raises a ValueError if the file is damaged."""
        place = self.place(number)
        if place.is_file() and not is_whole(place):
            raise ValueError(
                f"{place} is damaged: it does not have the checksum that was stored with it; "
                "delete it, and explain the example again"
            )
        tensors = load_file(place)
        if "attributions" in tensors:
            return tensors["attributions"]
        count = len(tensors.keys() - {"outputs"})
        return tuple(tensors[f"attributions_{n}"] for n in range(count))

    def place(self, number: int) -> Path:
        """The file of an example."""
        return self.path / f"{number:06d}.safetensors"


def stored_record(place: Path, settings: Mapping[str, Any]) -> Record | None:
    """The record in a file, if the file has these settings and is not damaged."""
    found = settings_in(place)
    if found is None or any(found.get(name) != value for name, value in settings.items()):
        return None
    if not is_whole(place):
        return None
    try:
        if place.suffix == ".npz":
            with place.open("rb") as file, np.load(file) as arrays:
                return Record(found, torch.from_numpy(arrays["outputs"]))
        # PyTorch's own reader refuses names that are not UTF-8.
        with safe_open(place, framework="np") as tensors:
            return Record(found, torch.from_numpy(tensors.get_tensor("outputs")))
    except (KeyError, SafetensorError):  # no outputs were stored
        return Record(found, None)


def keep_settings(folder: Path, settings: dict[str, Any], overwrite: bool = False) -> None:
    """Write the settings of a folder, or compare them with those that are there; ``overwrite``
    replaces a file of that name that holds no settings."""
    path = folder / SETTINGS_FILE
    found = settings_in(path)
    if found is None:
        if os.path.lexists(path) and not overwrite:
            raise SettingsError(f"{path} holds no settings; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json_text(settings, indent=2).encode())
    elif changed := changes(found, settings):
        raise SettingsError(
            f"{folder} holds results of other settings: {'; '.join(changed)}. Choose another "
            "folder, or delete this one"
        )


# The files


def json_text(value: Any, **options: Any) -> str:
    """Readable JSON that supports all file names: invalid Unicode is escaped."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def safetensors_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The content of a safetensors file with a checksum of its tensors."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    checksum = _checksum(memoryview(save(plain)))
    content: bytes = save(plain, metadata={**metadata, CHECKSUM: checksum})
    return content


def _checksum(content: memoryview) -> str:
    """The checksum of a safetensors file without its header, which starts with its own length."""
    return hashlib.sha256(content[8 + int.from_bytes(content[:8], "little") :]).hexdigest()


def is_whole(path: Path) -> bool:
    """Whether the tensors in a file of results (npz or safetensors) are undamaged."""
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is None
        with safe_open(path, framework="np") as file:
            expected = str(file.metadata()[CHECKSUM])
        return _checksum(np.memmap(path, mode="r").data) == expected
    except Exception:  # whatever a damaged or hostile file makes its reader raise
        return False


def settings_in(path: Path) -> dict[str, Any] | None:
    """The settings of a file of results (npz, safetensors or json); None if it does not exist,
    cannot be read, or is not of this library."""
    try:
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file) as arrays:
                text = str(arrays[SETTINGS])
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="np") as tensors:
                text = tensors.metadata()[SETTINGS]
        else:
            text = path.read_text(encoding="utf-8")
        found = json.loads(text)
    except Exception:
        return None
    return found if isinstance(found, dict) and MARK in found else None
