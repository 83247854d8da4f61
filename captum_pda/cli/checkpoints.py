"""Read a model's weights from a file without running any code in it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from captum_pda.cli.errors import CommandError, one_line

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
            return _plain_names(load_file(path))
        # Refuses anything but tensors and plain containers.
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise CommandError(
            f"{path} does not hold plain weights, and code in it is never run; save them with "
            "torch.save(model.state_dict(), FILE) or safetensors, and pass that file"
        ) from error
    return _plain_names(_state_dict(path, loaded))


def number_of_classes(model: nn.Module, state: Mapping[str, Tensor]) -> int:
    """How many classes a checkpoint tells apart: the rows of the model's last layer."""
    last, own = list(model.state_dict().items())[-1]
    return int(state.get(last, own).shape[0])


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


def _state_dict(path: Path, loaded: Any) -> dict[str, Tensor]:
    """The table of weights, which may lie within a larger checkpoint."""
    for key in NESTED:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if (
        not isinstance(loaded, Mapping)
        or not loaded
        or not all(isinstance(value, Tensor) for value in loaded.values())
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
