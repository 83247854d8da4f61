"""Read a model's weights from a file without running any code in it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from captum_pda.cli.usage_errors import CommandError, one_line

#: Where training scripts put the weights in a larger checkpoint.
NESTED = ("state_dict", "model_state_dict", "model_state", "model")
#: What wrappers put before every name.
PREFIXES = ("module.", "_orig_mod.", "model.")


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The weights in a file of ``torch.save(model.state_dict(), path)`` or of safetensors."""
    if not path.is_file():
        raise CommandError(f"there are no weights at {path}; check the name after --weights")
    try:
        if path.suffix == ".safetensors":
            return _plain_names(_state_dict(path, load_file(path)))
        _check_not_packed(path)
        # Refuses anything but tensors and plain containers.
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except CommandError:
        raise
    except Exception as error:  # What a broken or hostile file makes PyTorch raise is up to it.
        raise CommandError(
            f"{path} does not hold plain weights, and code in it is never run; save them with "
            "torch.save(model.state_dict(), FILE) or safetensors, and pass that file"
        ) from error
    return _plain_names(_state_dict(path, loaded))


def number_of_classes(model: nn.Module, state: Mapping[str, Tensor]) -> int:
    """How many classes a checkpoint tells apart: the rows of the model's last layer.

    All tensors of that layer must say the same, or a few bytes could ask for any number.
    """
    own = model.state_dict()
    layer = next(reversed(own)).rpartition(".")[0]
    rows = {
        tuple(state.get(name, tensor).shape[:1])
        for name, tensor in own.items()
        if name.rpartition(".")[0] == layer
    }
    plain = all(state[name].numel() > 0 for name in own if name in state)
    found = rows.pop() if len(rows) == 1 and plain else ()
    return int(found[0]) if found else int(own[next(reversed(own))].shape[0])


def load_into(model: nn.Module, state: Mapping[str, Tensor], path: Path, name: str) -> None:
    """Give a model its weights, all of them."""
    try:
        missing, extra = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise CommandError(
            f"{path} does not fit {name}: {one_line(error)}; name the model it was trained as "
            "with --model"
        ) from error
    if missing or extra:
        parts = [
            f"{what} {len(names)} such as {names[0]}"
            for what, names in (("lacks", missing), ("has unknown", extra))
            if names
        ]
        raise CommandError(
            f"{path} does not fit {name}: of its weights it {' and '.join(parts)}; name the model "
            "it was trained as with --model"
        )


def _check_not_packed(path: Path) -> None:
    """Refuse an archive that unpacks to more than it is: PyTorch packs nothing."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > path.stat().st_size:
        raise CommandError(
            f"{path} would unpack to {unpacked} bytes, as no file of torch.save does; save it anew "
            "with torch.save(model.state_dict(), FILE)"
        )


def _is_plain(value: object) -> bool:
    """Whether a value is a tensor that holds all of its numbers: a repeated one can claim any
    size."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _state_dict(path: Path, loaded: Any) -> dict[str, Tensor]:
    """The table of weights, which may lie within a larger checkpoint."""
    for key in NESTED:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if (
        not isinstance(loaded, Mapping)
        or not loaded
        or not all(isinstance(name, str) and _is_plain(value) for name, value in loaded.items())
    ):
        raise CommandError(
            f"{path} holds no table of weights; save one with torch.save(model.state_dict(), FILE)"
        )
    return dict(loaded)


def _plain_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the model's own names."""
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state
