"""Results for the unperturbed example, kept until one of their arguments is written.

The model may write into any tensor, also through views. So results are identified by the function
and the versions of its arguments. Writes that PyTorch does not count (by NumPy, or ``.data``) are
left to the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from captum_pda import _torch
from captum_pda.engines.protocol import channels_last

Kind = TypeVar("Kind")
Function = Callable[..., Any]

#: Batches after which a result that was not used is forgotten. Batches differ in where their boxes
#: come to cover the map; but weights that a model computes anew are used only once.
FORGOTTEN_AFTER = 4


def leaves(tree: Any) -> Iterator[Any]:
    """All objects that are not tuples, lists or dictionaries; a size is one object."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple | list) and not isinstance(tree, torch.Size):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def find(tree: Any, kind: type[Kind] | tuple[type[Kind], ...]) -> list[Kind]:
    """All objects of a type among arguments."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, kind)]


def replaced(tree: Any, kind: type[Kind] | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """The same arguments with every object of a type replaced."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {key: replaced(branch, kind, change) for key, branch in tree.items()}
    if not isinstance(tree, tuple | list) or isinstance(tree, torch.Size):
        return tree
    parts = [replaced(branch, kind, change) for branch in tree]
    made: Any = type(tree)
    if hasattr(tree, "_fields"):
        return made(*parts)
    try:
        return made(parts)
    except TypeError:  # a list or tuple whose constructor takes something else
        return parts if isinstance(tree, list) else tuple(parts)


def memory_of(tensor: Tensor) -> int | None:
    """The start of a tensor's memory, the same for all its views; None if it is not known."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # sparse tensors have several
        return None


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether writing into one tensor may change another."""
    memory = memory_of(one)
    return memory is not None and memory == memory_of(other)


class CallCache:
    """Results of calls by function and arguments. The model's tensors are identified by identity
    and version; those that were computed here and are never written by identity."""

    def __init__(self) -> None:
        #: With their arguments, because identities of deleted tensors are used again.
        self._calls: dict[Hashable, tuple[Any, Any]] = {}
        self._last_used: dict[Hashable, int] = {}
        self._n_batches = 0
        #: Tensors that nothing else writes, by their identity.
        self._own: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    def next_batch(self) -> None:
        """Drop results that were not used in the last batches."""
        self._n_batches += 1
        for key, batch in list(self._last_used.items()):
            if batch < self._n_batches - FORGOTTEN_AFTER:
                del self._calls[key], self._last_used[key]

    def own_copy(self, tensor: Tensor) -> Tensor:
        """A copy that nothing else can write."""
        copy = tensor.clone()
        self._own[id(copy)] = copy
        return copy

    def __call__(self, func: Function, *args: Any, **kwargs: Any) -> Any:
        """``func(*args, **kwargs)``, cached."""
        key = (func, self._key(args), self._key(kwargs))
        if key not in self._calls:
            result = func(*args, **kwargs)
            self._calls[key] = result, (args, kwargs)
            # The model can only write results that are views of its tensors.
            arguments = find((args, kwargs), Tensor)
            writable = {memory_of(one) for one in arguments if id(one) not in self._own}
            for tensor in find(result, Tensor):
                if memory_of(tensor) not in writable:
                    self._own[id(tensor)] = tensor
        self._last_used[key] = self._n_batches
        return self._calls[key][0]

    def _key(self, value: Any) -> Hashable:
        if isinstance(value, Tensor):
            return Tensor, id(value), self._state(value)
        if isinstance(value, tuple | list):
            return tuple(map(self._key, value))
        if isinstance(value, dict):
            return tuple((name, self._key(part)) for name, part in value.items())
        # 1, 1.0 and True are equal but different arguments; slices have no hash.
        return type(value), repr(value)

    def _state(self, tensor: Tensor) -> Hashable:
        """What changes whenever a tensor's values do."""
        if id(tensor) in self._own:
            return None
        version, memory = _torch.version(tensor), memory_of(tensor)
        if version is None or memory is None:
            return object()  # equals no other, so that it is computed anew
        return version, tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


class PassState:
    """The state that rules share while batches of one example go through the model."""

    def __init__(self) -> None:
        self.cache = CallCache()
        #: The functions at which the model went dense, and why, in order.
        self.went_dense: dict[str, str] = {}
        #: Whether any rule saved work.
        self.saved_work = False
        #: Whether whole maps have their channels last in memory.
        self.channels_last = True
        #: Whether values left the tensors, so that other tensors may depend on them.
        self.leaked = False

    def start(self) -> None:
        self.cache.next_batch()
        self.leaked = False

    def base(self, func: Function, *args: Any, **kwargs: Any) -> Any:
        """The result of ``func`` for the unperturbed example, computed once."""
        return self.cache(_channels_last_result, func, *args, **kwargs)


def _channels_last_result(func: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function; images are returned with channels last, where pixels are contiguous."""
    result = func(*args, **kwargs)
    return channels_last(result) if isinstance(result, Tensor) else result
