"""The user's model, called with everything but one tensor of one example held fixed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from captum_pda._captum import format_additional_forward_args
from captum_pda.basics.errors import BatchDimensionError, warn_user
from captum_pda.prediction.fixed_batches import (
    exported_batch_size,
    exported_with,
    may_be_fixed,
    run_in_batches,
)
from captum_pda.prediction.outputs import check_outputs, one_row_each
from captum_pda.prediction.repeated_tensor import RepeatedTensor, all_rows


class Call(Protocol):
    """A model as a function of tensors whose regions are hidden."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors whose regions are hidden, each (N, C, *space)."""
        ...

    @property
    def is_tuple(self) -> bool:
        """Whether attributions are a tuple, one for each of the ``inputs``."""
        ...

    @property
    def given(self) -> tuple[Tensor, ...]:
        """The tensors that the user gave."""
        ...

    @property
    def values_per_example(self) -> int:
        """How many numbers go into the model with each example."""
        ...

    def unperturbed(self) -> Tensor:
        """The model's outputs with nothing hidden, (N, ...)."""
        ...

    def for_example(self, example: int, position: int) -> Callable[[Tensor], Tensor]:
        """A function from copies of one example's tensor ``position`` to the model's outputs."""
        ...


class ModelCall:
    """Calls ``forward_func`` on the inputs as they are, or on perturbed copies of an example.

    Args:
        forward_func: the user's model or function.
        inputs: the tensors to explain, all with the same batch size N.
        additional_forward_args: further arguments; tensors with N rows go with their example,
            anything else is handed on as it is.
        is_tuple: whether the inputs came as a tuple, and so do attributions.
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        additional_forward_args: object = None,
        is_tuple: bool = False,
    ) -> None:
        self.forward_func = forward_func
        self.is_tuple = is_tuple
        self.inputs = self.given = inputs
        self._additional = format_additional_forward_args(additional_forward_args) or ()
        #: How many examples the model takes at once, if it takes no other number.
        self._only = exported_batch_size(forward_func)

    def unperturbed(self) -> Tensor:
        """The model's checked outputs for the inputs as they are, (N, ...)."""
        arguments = (*self.inputs, *self._additional)
        return run_as_given(self._run, arguments, len(self.inputs))

    @property
    def values_per_example(self) -> int:
        """How many numbers go into the model with each example."""
        n_examples = len(self.inputs[0])
        return sum(
            argument.numel() // n_examples
            for argument in (*self.inputs, *self._additional)
            if _is_per_example(argument, n_examples)
        )

    def for_example(self, example: int, position: int) -> Callable[[Tensor], Tensor]:
        """A function from copies of one example's tensor ``position`` to the model's outputs."""

        def call(copies: Tensor) -> Tensor:
            arguments = [
                copies if number == position else self._repeat(argument, example, len(copies))
                for number, argument in enumerate((*self.inputs, *self._additional))
            ]
            return self._one_row_each(arguments)

        return call

    def _one_row_each(self, arguments: Sequence[Any]) -> Tensor:
        n_rows = len(arguments[0])
        try:
            return one_row_each(self._run(*arguments), n_rows)
        except (RuntimeError, ValueError) as error:
            if self._only is not None or not may_be_fixed(self.forward_func, error):
                raise
        # The model has taken the inputs as they are: as many at a time, then.
        self._only = len(self.inputs[0])
        return one_row_each(self._run(*arguments), n_rows)

    def _run(self, *arguments: Any) -> Any:
        """What the model returns, called with as many rows at a time as it takes."""
        if self._only is None or self._only == len(arguments[0]):
            return self.forward_func(*arguments)
        is_row = [
            _is_per_example(each, len(self.inputs[0])) for each in (*self.inputs, *self._additional)
        ]
        return run_in_batches(self.forward_func, arguments, is_row, self._only)

    def repeated(self, example: int, n_copies: int, as_one_row: bool = False) -> Any:
        """What the model returns for copies of one example as it is.

        Args:
            example: the number of the example.
            n_copies: how many copies.
            as_one_row: whether to compute one of them in place of all, as RepeatedTensor does.
        """
        arguments = (*self.inputs, *self._additional)
        if not as_one_row:
            return self._run(*(self._repeat(each, example, n_copies) for each in arguments))
        rows = [self._repeat(each, example, 1) for each in arguments]
        repeated = [
            RepeatedTensor(row, n_copies) if _is_per_example(each, len(self.inputs[0])) else row
            for each, row in zip(arguments, rows, strict=True)
        ]
        return all_rows(self._run(*repeated))

    def _repeat(self, argument: Any, example: int, n_copies: int) -> Any:
        if not _is_per_example(argument, len(self.inputs[0])):
            return argument
        row = argument[example : example + 1]
        return row.expand(n_copies, *row.shape[1:]).clone(memory_format=torch.contiguous_format)


def own_copies(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with every tensor copied, since a model may write into them."""
    return tuple(
        argument.clone() if isinstance(argument, Tensor) else argument for argument in arguments
    )


def _is_per_example(argument: Any, n_examples: int) -> bool:
    return isinstance(argument, Tensor) and argument.dim() > 0 and len(argument) == n_examples


def run_as_given(
    forward_func: Callable[..., Any], arguments: tuple[Any, ...], n_inputs: int
) -> Tensor:
    """The model's checked outputs for arguments of which the first ``n_inputs`` are explained.

    Raises:
        BatchDimensionError: the model fails, and does not where each of them is one example.
    """
    inputs = arguments[:n_inputs]
    try:
        outputs = forward_func(*own_copies(arguments))
    except Exception as error:
        single = tuple(tensor.unsqueeze(0) for tensor in inputs)
        if not _succeeds(forward_func, (*single, *arguments[n_inputs:]), single):
            raise
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in inputs)
        raise BatchDimensionError(
            f"inputs of shape {shapes} have no batch dimension: the model takes "
            f"{' and '.join(str(tuple(tensor.shape)) for tensor in single)}. Give it one example "
            "as a batch of one, inputs.unsqueeze(0)"
        ) from error
    return check_outputs(outputs, inputs)


def _succeeds(
    forward_func: Callable[..., Any], arguments: tuple[Any, ...], inputs: tuple[Tensor, ...]
) -> bool:
    """Whether the model gives one row of outputs, after it has failed on something else."""
    if any(tensor.dim() > 5 for tensor in inputs):
        return False
    try:
        with torch.no_grad():
            check_outputs(forward_func(*own_copies(arguments)), inputs)
    except Exception:
        return False
    return True


@contextmanager
def evaluation_mode(forward_func: object) -> Iterator[None]:
    """Run a model that was left in training mode in evaluation mode, and put it back after.

    In training mode a prediction is random (dropout) or depends on the other copies in its batch
    (batch-norm, whose statistics it would change too), so its map would mean nothing.
    """
    while isinstance(forward_func, partial):
        forward_func = forward_func.func
    owner = getattr(forward_func, "__self__", forward_func)
    modules = tuple(owner.modules()) if isinstance(owner, nn.Module) else ()
    if exported_with(owner):
        modules = ()  # an exported model stays in the mode that it was exported in
    borrowed = _borrow(modules)
    try:
        if any(_differs_in_training(module) for module in borrowed):
            warn_user(
                "the model is in training mode, where its predictions are random or depend on "
                "their batch; it is explained in evaluation mode and put back after. Call "
                "model.eval() first to silence this."
            )
        yield
    finally:
        _give_back(borrowed)


#: Modules that are in evaluation mode for as long as someone explains their model, and by how many:
#: threads may share a model, and the last one puts it back.
_borrowers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_lock = threading.Lock()


def _borrow(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Put modules into evaluation mode, and return those that were not left so by the user."""
    with _lock:
        borrowed = [m for m in modules if m in _borrowers or getattr(m, "training", False)]
        for module in borrowed:
            _borrowers[module] = _borrowers.get(module, 0) + 1
            module.training = False
    return borrowed


def _give_back(modules: Iterable[nn.Module]) -> None:
    """Put modules back into training mode, unless someone else still needs them as they are."""
    with _lock:
        for module in modules:
            _borrowers[module] -= 1
            if _borrowers[module] == 0:
                del _borrowers[module]
                module.training = True


def _differs_in_training(module: nn.Module) -> bool:
    """Whether a module in training mode was likely left so: it has weights, or it drops values. A
    fresh wrapper around a model in evaluation mode has neither."""
    holds = next(module.parameters(recurse=False), None) is not None
    return holds or "Dropout" in type(module).__name__
