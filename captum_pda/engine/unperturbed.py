"""Remembers what was computed for the unperturbed example, from one batch to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor


class Memory:
    """Results of calls in the order in which they are made.

    A batch repeats the calls of the batch before it, so the result of the call at the same place is
    the answer if it was made with the same function and the same arguments; otherwise (control
    flow that changed, weights that are computed) it is computed again.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._next = 0

    def rewind(self) -> None:
        """Start again with the first call."""
        self._next = 0

    def __call__(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """``func(*args, **kwargs)``, remembered."""
        place, self._next = self._next, self._next + 1
        if place < len(self._calls):
            known, known_args, known_kwargs, result = self._calls[place]
            if known is func and _same(args, known_args) and _same(kwargs, known_kwargs):
                return result
        result = func(*args, **kwargs)
        # The arguments are kept too: identity means nothing for what no longer exists.
        self._calls[place : place + 1] = [(func, args, kwargs, result)]
        return result

    def constant(self, tensor: Tensor) -> Tensor:
        """A tensor that the model makes anew for every batch, as the same object if it is equal."""
        place, self._next = self._next, self._next + 1
        if place < len(self._calls):
            known, _, _, result = self._calls[place]
            if known is None and _equal(tensor, result):
                return cast(Tensor, result)
        self._calls[place : place + 1] = [(None, (), {}, tensor.clone())]
        return cast(Tensor, self._calls[place][3])


def _equal(one: Tensor, other: Tensor) -> bool:
    same_kind = one.dtype == other.dtype and one.device == other.device
    return same_kind and torch.equal(one, other)


def _same(one: Any, other: Any) -> bool:
    """Whether arguments are the same: tensors by identity, anything else by value."""
    if one is other:
        return True
    if isinstance(one, Tensor) or isinstance(other, Tensor) or type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
