"""Everything taken from Captum, in one place: the only file that imports its private helpers."""

from typing import Any

from captum._utils.common import (
    _format_additional_forward_args,
    _format_output,
    _format_tensor_into_tuples,
)
from captum._utils.typing import TargetType, TensorOrTupleOfTensorsGeneric
from captum.attr import GradientAttribution, LayerAttribution, PerturbationAttribution
from captum.log import log_usage
from torch import Tensor


def format_additional_forward_args(additional_forward_args: object) -> tuple[Any, ...] | None:
    """The arguments as a tuple, or None."""
    formatted: tuple[Any, ...] | None = _format_additional_forward_args(additional_forward_args)
    return formatted


def format_output(is_tuple: bool, output: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """A tuple where the inputs were one, otherwise its only tensor."""
    formatted: Tensor | tuple[Tensor, ...] = _format_output(is_tuple, output)
    return formatted


def format_tensor_into_tuples(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The inputs as a tuple."""
    formatted: tuple[Tensor, ...] = _format_tensor_into_tuples(inputs)
    return formatted


def readable_name(name: str) -> str:
    """A class name in words, as Captum's ``get_name`` has it, with PDA left whole."""
    return f"{name.removesuffix('PDA')} PDA".strip()


__all__ = [
    "GradientAttribution",
    "LayerAttribution",
    "PerturbationAttribution",
    "TargetType",
    "TensorOrTupleOfTensorsGeneric",
    "format_additional_forward_args",
    "format_output",
    "format_tensor_into_tuples",
    "log_usage",
    "readable_name",
]
