"""Remembers what was computed for the unperturbed example, from one batch to the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from captum_pda.engines.incremental.memory import memory_of
from captum_pda.engines.incremental.no_rule import IncrementalError
from captum_pda.engines.incremental.trees import find
from captum_pda.engines.incremental.write_log import WriteLog

#: Batches after which something that was not asked for is forgotten. Batches differ in where their
#: boxes come to cover the map; but weights that a model computes anew come up only once.
FORGOTTEN_AFTER = 4
#: How many constants that a model makes anew for every batch are compared with.
MOST_CONSTANTS = 8


@dataclass
class Remembered:
    """A result, with what it was made of, since the numbers of lost tensors are used again."""

    result: Any
    made_of: Any
    batch: int


class CallCache:
    """Results of calls, known by the function and its arguments.

    A tensor of the model's is known by its identity and by all that tells of a change of its
    values; one that was computed here, and is never written, by its identity alone.

    Args:
        log: knows what the model has written.
    """

    def __init__(self, log: WriteLog | None = None) -> None:
        self._log = log or WriteLog()
        self._calls: dict[Hashable, Remembered] = {}
        self._constants: list[Tensor] = []
        #: Tensors that nobody writes, by their identity.
        self._unwritten: dict[int, Tensor] = {}
        self._examples: list[Tensor] = []
        self._batch = 0

    def next_batch(self) -> None:
        """Forget what was not asked for in the last batches."""
        self._batch += 1
        oldest = self._batch - FORGOTTEN_AFTER
        self._calls = {key: call for key, call in self._calls.items() if call.batch >= oldest}
        results = find([call.result for call in self._calls.values()], Tensor)
        kept = [*self._examples, *self._constants, *results]
        self._unwritten = {id(tensor): tensor for tensor in kept if id(tensor) in self._unwritten}

    def example(self, tensor: Tensor) -> Tensor:
        """A copy of the unperturbed example that nobody else can write."""
        self._examples.append(tensor.clone())
        self._unwritten[id(self._examples[-1])] = self._examples[-1]
        return self._examples[-1]

    def __call__(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """``func(*args, **kwargs)``, remembered."""
        key = (func, self._key(args), self._key(kwargs))
        call = self._calls.get(key)
        if call is None:
            call = Remembered(func(*args, **kwargs), (args, kwargs), self._batch)
            self._calls[key] = call
            self._keep(call)
        call.batch = self._batch
        return call.result

    def constant(self, tensor: Tensor) -> Tensor:
        """A tensor that the model makes anew for every batch, as the same object if it is equal."""
        for known in self._constants:
            same_kind = known.dtype == tensor.dtype and known.device == tensor.device
            if same_kind and torch.equal(known, tensor):
                return known
        made = tensor.clone()
        self._constants = [*self._constants[1 - MOST_CONSTANTS :], made]
        self._unwritten[id(made)] = made
        return made

    def snapshot(self, *tensors: Tensor | None) -> Snapshot | None:
        """The state of tensors that are to be read later; None if nothing would tell a change."""
        states = tuple(map(self._state, tensors))
        return Snapshot(self, tensors, states) if None not in states else None

    def _state(self, tensor: Tensor | None) -> Hashable | None:
        """What changes whenever a tensor's values do; None if nothing tells."""
        if tensor is None or id(tensor) in self._unwritten:
            return "unwritten"
        return self._log.state(tensor)

    def _keep(self, call: Remembered) -> None:
        """Note which results nobody can write: those that are no views of the model's tensors."""
        others = [t for t in find(call.made_of, Tensor) if id(t) not in self._unwritten]
        writable = {memory_of(tensor) for tensor in others}
        for tensor in find([call.result], Tensor):
            if memory_of(tensor) not in writable:
                self._unwritten[id(tensor)] = tensor

    def _key(self, value: Any) -> Hashable:
        """Arguments as something that can be looked up."""
        if isinstance(value, Tensor):
            state = self._state(value)
            # Without a state, a key that nothing else equals: it is computed anew.
            return (Tensor, id(value), object() if state is None else state)
        if isinstance(value, tuple | list):
            return tuple(map(self._key, value))
        if isinstance(value, dict):
            return tuple((name, self._key(part)) for name, part in value.items())
        # 1, 1.0 and True are equal, and not the same argument; slices have no hash of their own.
        return type(value), repr(value)


@dataclass(frozen=True)
class Snapshot:
    """Tensors of the model's as they were when a call read them."""

    cache: CallCache
    tensors: tuple[Tensor | None, ...]
    states: tuple[Hashable, ...]

    def check(self) -> None:
        """Refuse to compute with weights that were changed since."""
        if tuple(map(self.cache._state, self.tensors)) != self.states:
            raise IncrementalError(
                "the model changes the weights of a convolution between the call and the use of "
                "its result, which engine='incremental' can't follow; use engine='dense'"
            )
