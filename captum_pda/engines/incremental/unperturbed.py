"""Remembers what was computed for the unperturbed example, from one batch to the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Batches after which something that was not asked for is forgotten. Batches differ in where their
#: boxes come to cover the map; but weights that a model computes anew come up only once.
FORGOTTEN_AFTER = 4


@dataclass
class Remembered:
    """A result, with what it was made of, since the numbers of lost tensors are used again."""

    result: Any
    made_of: Any
    batch: int


class Memory:
    """Results of calls, known by the function and its arguments: tensors by identity."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, Remembered] = {}
        self._constants: list[Tensor] = []
        self._batch = 0

    def next_batch(self) -> None:
        """Forget what was not asked for in the last batches."""
        self._batch += 1
        oldest = self._batch - FORGOTTEN_AFTER
        self._calls = {key: call for key, call in self._calls.items() if call.batch >= oldest}

    def __call__(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """``func(*args, **kwargs)``, remembered."""
        key = (func, _key(args), _key(kwargs))
        call = self._calls.get(key)
        if call is None:
            call = Remembered(func(*args, **kwargs), (args, kwargs), self._batch)
            self._calls[key] = call
        call.batch = self._batch
        return call.result

    def constant(self, tensor: Tensor) -> Tensor:
        """A tensor that the model makes anew for every batch, as the same object if it is equal."""
        for known in self._constants:
            same_kind = known.dtype == tensor.dtype and known.device == tensor.device
            if same_kind and torch.equal(known, tensor):
                return known
        self._constants = [*self._constants[-7:], tensor.clone()]
        return self._constants[-1]


def _key(value: Any) -> Hashable:
    """Arguments as something that can be looked up."""
    if isinstance(value, Tensor):
        return Tensor, id(value)
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(part)) for name, part in value.items())
    # 1, 1.0 and True are equal, and not the same argument; slices have no hash of their own.
    return type(value), repr(value)
