"""Gradients with respect to the inputs, and plain words where there are none."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors

#: In PyTorch's message, where a layer wrote over what the backward pass needs to know.
OVERWRITTEN = "modified by an inplace operation"
#: In its message, where the output does not depend on an input.
UNUSED = "not have been used in the graph"

#: PyTorch lets only one thread at a time copy what is overwritten.
_copying = threading.Lock()

NO_GRADIENT = (
    "the model's output has no gradient with respect to {which}: it does not depend on it, or "
    "through a step that has no gradient, such as torch.no_grad(), detach(), NumPy, argmax or a "
    "comparison; use EfficientPDA, which needs no gradient{another_way}"
)


def input_gradients(
    gradient_func: Callable[..., tuple[Tensor, ...]],
    measured: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    additional_forward_args: Any,
) -> tuple[Tensor, ...]:
    """The gradient of the measured predictions with respect to each of the inputs.

    Some models write over their own activations, as an in-place ReLU after another ReLU does.
    Where that leaves PyTorch without what it needs, the passes are run again on copies.
    """

    def differentiable(*arguments: Any) -> Tensor:
        predictions = measured(*arguments)
        if not predictions.requires_grad:
            raise ValueError(NO_GRADIENT.format(which="inputs", another_way=""))
        return predictions

    def gradients() -> tuple[Tensor, ...]:
        return gradient_func(differentiable, inputs, None, additional_forward_args)

    try:
        return gradients()
    except RuntimeError as error:
        if UNUSED in str(error):
            raise _unused(str(error)) from error
        if OVERWRITTEN not in str(error):
            raise
    with _copying, allow_mutation_on_saved_tensors():
        return gradients()


def _unused(message: str) -> ValueError:
    """Which input has no gradient, as far as PyTorch says it."""
    index = re.search(r"index (\d+)", message)
    which = f"inputs[{index[1]}]" if index else "one of the inputs"
    another_way = ", or pass what is not to be explained as additional_forward_args"
    return ValueError(NO_GRADIENT.format(which=which, another_way=another_way))
