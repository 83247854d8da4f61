"""Files of tensors and plain settings, written whole or not at all, and read with suspicion."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

FORMAT = "captum_pda prior"
VERSION = 1


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    overwrite: bool,
) -> None:
    """Write a file next to its place, then move it there in one step."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to save {target.name} in")
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists; choose another name, or pass overwrite=True")
    header = {"format": FORMAT, "version": str(VERSION), "settings": json.dumps(dict(settings))}
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        part.write_bytes(to_bytes(contiguous, metadata=header))
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load(
    path: str | os.PathLike[str], device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and settings of a file that ``save`` wrote."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no prior at {path}")
    with refusing(path), safe_open(path, framework="pt", device=str(device)) as file:
        header = file.metadata() or {}
        if header.get("format") != FORMAT:
            raise ValueError(f"its header does not say {FORMAT!r}")
        if header.get("version") != str(VERSION):
            raise ValueError(
                f"it has version {header.get('version')!r}, and this library reads {VERSION}"
            )
        settings = json.loads(header.get("settings", ""))
        if not isinstance(settings, dict):
            raise ValueError("its settings are not a table")
        return {name: file.get_tensor(name) for name in file.keys()}, settings  # noqa: SIM118


@contextmanager
def refusing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever is wrong with a file into one line that names it."""
    try:
        yield
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a prior that can be used: {error}") from error


def check_tensors(tensors: Mapping[str, Tensor], shapes: Mapping[str, list[int]]) -> None:
    """Refuse missing, extra, misshapen or non-finite tensors."""
    if set(tensors) != set(shapes):
        raise ValueError(f"it holds {sorted(tensors)} where {sorted(shapes)} belong")
    for name, shape in shapes.items():
        tensor = tensors[name]
        if list(tensor.shape) != list(shape):
            raise ValueError(f"{name} has shape {list(tensor.shape)} where {shape} belongs")
        if tensor.dtype != torch.float64:
            raise ValueError(f"{name} has dtype {tensor.dtype} where torch.float64 belongs")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} holds NaN or infinite values")
