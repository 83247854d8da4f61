"""The user's model, called with everything but one tensor of one example held fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from captum_pda._captum import format_additional_forward_args
from captum_pda.warn import warn_user

PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


class ModelCall:
    """Calls ``forward_func`` on the inputs as they are, or on perturbed copies of an example.

    Args:
        forward_func: the user's model or function.
        inputs: the tensors to explain, all with the same batch size N.
        additional_forward_args: further arguments; tensors with N rows go with their example,
            anything else is handed on as it is.
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        additional_forward_args: object = None,
    ) -> None:
        self._forward_func = forward_func
        self._inputs = inputs
        self._additional = format_additional_forward_args(additional_forward_args) or ()

    def unperturbed(self) -> Tensor:
        """The model's checked outputs for the inputs as they are, (N, ...)."""
        return check_outputs(self._forward_func(*self._inputs, *self._additional), self._inputs)

    def for_example(self, example: int, position: int) -> Callable[[Tensor], Tensor]:
        """A function from copies of one example's tensor ``position`` to the model's outputs."""
        n_examples = len(self._inputs[0])

        def repeat(argument: object, n_copies: int) -> object:
            per_example = isinstance(argument, Tensor) and argument.dim() > 0
            if not per_example or len(argument) != n_examples:  # type: ignore[arg-type]
                return argument
            row = argument[example : example + 1]  # type: ignore[index]
            # A real copy, since a model may write into its arguments.
            return row.expand(n_copies, *row.shape[1:]).clone(memory_format=torch.contiguous_format)

        def call(copies: Tensor) -> Tensor:
            arguments = [
                copies if number == position else repeat(argument, len(copies))
                for number, argument in enumerate((*self._inputs, *self._additional))
            ]
            return _one_row_each(self._forward_func(*arguments), len(copies))

        return call


def check_outputs(outputs: object, inputs: tuple[Tensor, ...]) -> Tensor:
    """Refuse outputs that are not one floating-point row an example."""
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"the model returned {type(outputs).__name__} where a tensor was expected; wrap it in "
            "a function that returns the tensor, such as lambda x: model(x)[0]"
        )
    if not outputs.is_floating_point():
        raise TypeError(
            f"the model returned dtype {outputs.dtype}; evidence needs its scores, not labels: "
            "return logits or probabilities"
        )
    return _one_row_each(outputs, len(inputs[0]))


def _one_row_each(outputs: Tensor, n_rows: int) -> Tensor:
    if outputs.dim() == 0 and n_rows == 1:
        return outputs.reshape(1)
    if outputs.dim() == 0 or len(outputs) != n_rows:
        raise ValueError(
            f"the model returned shape {tuple(outputs.shape)} for {n_rows} examples; the first "
            "dimension must be the batch"
        )
    return outputs


@contextmanager
def evaluation_mode(forward_func: object) -> Iterator[None]:
    """Run a model that was left in training mode in evaluation mode, and put it back after.

    In training mode a prediction is random (dropout) or depends on the other copies in its batch
    (batch-norm, whose statistics it would change too), so its map would mean nothing.
    """
    owner = getattr(forward_func, "__self__", forward_func)
    training = (
        [module for module in owner.modules() if module.training]
        if isinstance(owner, nn.Module)
        else []
    )
    # A parallel wrapper is always made in training mode, which by itself means nothing.
    if any(not isinstance(module, PARALLEL) for module in training):
        warn_user(
            "the model is in training mode, where its predictions are random or depend on their "
            "batch; it is explained in evaluation mode and put back after. Call model.eval() first "
            "to silence this."
        )
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
