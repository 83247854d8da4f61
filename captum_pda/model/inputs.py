"""Checks of the user's inputs and targets before anything is computed."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType, format_tensor_into_tuples


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


def check_inputs(inputs: object) -> tuple[Tensor, ...]:
    """The inputs as a tuple of detached tensors of shape (N, C, *space)."""
    if not isinstance(inputs, tuple | Tensor):
        next_step = ""
        if isinstance(inputs, Mapping):
            names = [str(name) for name, value in inputs.items() if isinstance(value, Tensor)]
            next_step = " without a tensor"
            if names:
                name = max(names, key=lambda name: inputs[name].dim() > 2)
                next_step = f" with {', '.join(names)}. Pass inputs[{name!r}], and a model that "
                next_step += f"takes it by name as a function: lambda x: model({name}=x)"
        elif isinstance(inputs, list):
            next_step = ". For several inputs pass tuple(inputs), for a list of examples "
            next_step += "torch.stack(inputs)"
        elif hasattr(inputs, "__array__"):
            next_step = ". Pass torch.as_tensor(inputs)"
        raise TypeError(
            f"inputs must be a tensor or a tuple of tensors, got {type(inputs).__name__}{next_step}"
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


def target_columns(
    target: TargetType, n_examples: int, output_shape: tuple[int, ...], name: str = "target"
) -> list[int]:
    """The flat output column of each example's target, as in `Captum
    <https://captum.ai/api/base_classes.html>`_: None for a single output, an int, a tuple for
    outputs of more than two dimensions, or a list of those for each example (or a tensor of
    ints)."""
    if target is None:
        if math.prod(output_shape) != 1:
            raise ValueError(
                f"{name} is missing: the model has outputs of shape {tuple(output_shape)} per "
                f"example, so say which one to explain, for example {name}="
                f"{0 if len(output_shape) == 1 else (0,) * len(output_shape)}"
            )
        return [0] * n_examples
    targets: Any = target
    if isinstance(target, Tensor | np.ndarray):
        values = torch.as_tensor(target)
        if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
            raise TypeError(f"{name} has dtype {values.dtype}; class numbers are integers")
        if values.dim() > 1 and values.numel() > 1:
            raise ValueError(
                f"{name} has shape {tuple(values.shape)}; give one integer, a tensor of "
                f"{n_examples}, or a list of tuples"
            )
        targets = values.reshape(-1).tolist()
        targets = targets[0] if len(targets) == 1 else targets
    if not isinstance(targets, list):
        targets = [targets] * n_examples
    if len(targets) != n_examples:
        raise ValueError(
            f"{name} has {len(targets)} entries for {n_examples} examples; give one for all or one "
            "for each"
        )
    return [_column(each, output_shape, name) for each in targets]


def _column(target: Any, output_shape: tuple[int, ...], name: str) -> int:
    try:
        index = [operator.index(n) for n in (target if isinstance(target, tuple) else (target,))]
    except TypeError:
        raise TypeError(f"{name}={target!r} must be an integer or a tuple of integers") from None
    if not output_shape and index == [0]:
        return 0
    shape = tuple(output_shape)
    if len(index) != len(shape):
        raise ValueError(
            f"{name}={target!r} has {len(index)} entries for outputs of shape {shape} per example; "
            f"give a tuple of {len(shape)}"
        )
    for number, size in zip(index, shape, strict=True):
        if not -size <= number < size:
            raise ValueError(
                f"{name}={target!r} is out of range: the model has outputs of shape {shape} per "
                f"example, so the last one is {size - 1} where {number} stands"
            )
    return int(np.ravel_multi_index(np.mod(index, shape).tolist(), shape))


def masked_columns(
    target: object, output_shape: tuple[int, ...], name: str = "target"
) -> list[int] | None:
    """The flat columns of a region of outputs, or None if ``target`` is no mask: a boolean mask of
    the outputs of one example, or (class, mask) with a mask of the places that each class has a
    score for, as in segmentation. For the other arguments see ``target_columns``."""
    of_class = isinstance(target, tuple) and len(target) == 2
    given: Any = target[1] if of_class else target  # type: ignore[index]
    if not isinstance(given, Tensor | np.ndarray) or given.dtype not in (torch.bool, np.bool_):
        return None
    expected = output_shape[1:] if of_class else output_shape
    if tuple(given.shape) != tuple(expected) or not expected:
        raise ValueError(
            f"{name} has a mask of shape {tuple(given.shape)} for outputs of shape "
            f"{tuple(output_shape)} per example; give one of that shape, or (class, mask) with one "
            f"of shape {tuple(output_shape[1:])}"
        )
    if not torch.as_tensor(given).any():
        raise ValueError(f"{name} is a mask without a True; there is nothing to explain")
    columns = np.arange(math.prod(output_shape)).reshape(output_shape)
    if of_class:
        first = _column((target[0], *(0,) * len(expected)), output_shape, name)  # type: ignore[index]
        columns = columns[first // math.prod(expected)]
    kept: list[int] = columns[torch.as_tensor(given).cpu().numpy()].tolist()
    return kept
