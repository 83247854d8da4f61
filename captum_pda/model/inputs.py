"""Check what a user hands to ``attribute``, before anything is computed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import format_tensor_into_tuples


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse an unknown option, and list the known ones."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name}={value!r} is not known; choose one of {listed}")


def check_count(name: str, value: object) -> int:
    """Refuse anything but a positive integer."""
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    count = int(value.__index__())
    if count < 1:
        raise ValueError(f"{name}={count} must be at least 1")
    return count


def check_tolerance(value: object) -> float | None:
    """Refuse anything but a positive number, or None."""
    if value is None:
        return None
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise TypeError(f"tolerance must be a number or None, got {value!r}")
    bound = float(value)
    if not bound > 0:
        raise ValueError(
            f"tolerance={bound} must be above 0; leave it out to draw n_samples for every window"
        )
    return bound


def check_inputs(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The inputs as a tuple of detached tensors of shape (N, C, *space)."""
    if not isinstance(inputs, tuple | Tensor):
        raise TypeError(
            f"inputs must be a tensor or a tuple of tensors, got {type(inputs).__name__}"
            f"{_next_step(inputs)}"
        )
    tensors = format_tensor_into_tuples(inputs)
    if not tensors:
        raise ValueError("inputs is an empty tuple; give at least one tensor")
    for number, tensor in enumerate(tensors):
        name = f"inputs[{number}]" if isinstance(inputs, tuple) else "inputs"
        check_images(name, tensor)
        if len(tensor) != len(tensors[0]):
            raise ValueError(
                f"{name} has {len(tensor)} examples where inputs[0] has {len(tensors[0])}; "
                "all tensors need the same batch size"
            )
    return tuple(tensor.detach() for tensor in tensors)


def _next_step(inputs: object) -> str:
    """What to pass in the place of something that holds tensors."""
    if isinstance(inputs, Mapping):
        names = [str(name) for name, value in inputs.items() if isinstance(value, Tensor)]
        if not names:
            return " without a tensor"
        name = next((name for name in names if _is_image(inputs[name])), names[0])
        return (
            f" with {', '.join(names)}. Pass inputs[{name!r}], and a model that takes it by name "
            f"as a function, such as lambda x: model({name}=x)"
        )
    if isinstance(inputs, list):
        return ". For several inputs pass tuple(inputs), for a list of examples torch.stack(inputs)"
    return ". Pass torch.as_tensor(inputs)" if hasattr(inputs, "__array__") else ""


def _is_image(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and 3 <= value.dim() <= 5


def check_images(name: str, images: object) -> Tensor:
    """Refuse anything but a finite, floating-point batch of shape (N, C, *space)."""
    if not isinstance(images, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(images).__name__}")
    if not images.is_floating_point():
        raise TypeError(
            f"{name} has dtype {images.dtype}; windows are filled with real numbers, so convert "
            "it first, for example with .float()"
        )
    if not 3 <= images.dim() <= 5:
        raise ValueError(
            f"{name} has shape {tuple(images.shape)}; expected (N, C, *space) with 1 to 3 spatial "
            "dimensions. Add the missing dimension with unsqueeze, or pass what is not an image "
            "through additional_forward_args"
        )
    if images.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(images.shape)}, so there is nothing to explain")
    if not device_sync.all_finite(images):
        raise ValueError(
            f"{name} holds NaN or infinite values; replace them first, for example with "
            "torch.nan_to_num"
        )
    return images


def attribution_dtype(tensor: Tensor) -> torch.dtype:
    """Attributions have the input's dtype, but at least single precision."""
    return torch.promote_types(tensor.dtype, torch.float32)
