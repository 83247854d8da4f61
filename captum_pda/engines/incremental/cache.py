"""Results for the unperturbed example, kept until something that they were made of is written.

The model is the user's own code: it may write into any tensor, also by views. So a result is known
by its function and the versions of its arguments. What is written past PyTorch's count of versions
(by NumPy, or ``.data``) is for the audit to notice.
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
    """Everything that is not a tuple, list or dictionary; a size counts as one thing."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple | list) and not isinstance(tree, torch.Size):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def find(tree: Any, kind: type[Kind] | tuple[type[Kind], ...]) -> list[Kind]:
    """The objects of a type among arguments."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, kind)]


def replaced(tree: Any, kind: type[Kind] | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """The same arguments with every object of a type changed."""
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
    """Where a tensor's memory begins, the same for all its views; None where that is not known."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # sparse tensors have several
        return None


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether writing into one tensor may be seen in another."""
    memory = memory_of(one)
    return memory is not None and memory == memory_of(other)


class CallCache:
    """Results of calls, known by the function and its arguments.

    A tensor of the model's is known by its identity and its version; one that was computed here,
    and is never written, by its identity alone.
    """

    def __init__(self) -> None:
        #: With what results were made of, since the identities of deleted tensors are used again.
        self._calls: dict[Hashable, tuple[Any, Any]] = {}
        self._last_used: dict[Hashable, int] = {}
        self._n_batches = 0
        #: Tensors that nothing else writes, by their identity.
        self._own: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    def next_batch(self) -> None:
        """Forget what was not used in the last batches."""
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
        """``func(*args, **kwargs)``, remembered."""
        key = (func, self._key(args), self._key(kwargs))
        if key not in self._calls:
            result = func(*args, **kwargs)
            self._calls[key] = result, (args, kwargs)
            # Results that are not views of the model's tensors can't be written by the model.
            arguments = find((args, kwargs), Tensor)
            writable = {memory_of(one) for one in arguments if id(one) not in self._own}
            for tensor in find(result, Tensor):
                if memory_of(tensor) not in writable:
                    self._own[id(tensor)] = tensor
        self._last_used[key] = self._n_batches
        return self._calls[key][0]

    def _key(self, value: Any) -> Hashable:
        """Arguments as something that can be looked up."""
        if isinstance(value, Tensor):
            return Tensor, id(value), self._state(value)
        if isinstance(value, tuple | list):
            return tuple(map(self._key, value))
        if isinstance(value, dict):
            return tuple((name, self._key(part)) for name, part in value.items())
        # 1, 1.0 and True are equal, and not the same argument; slices have no hash of their own.
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
    """What the rules share while batches of one example go through the model."""

    def __init__(self) -> None:
        self.cache = CallCache()
        #: Where the model went dense, and why, in the order of the first time.
        self.went_dense: dict[str, str] = {}
        #: Whether anything was computed on boxes that costs more than the boxes themselves.
        self.saved_work = False
        #: Whether completed maps have their channels last in memory.
        self.channels_last = True
        #: Whether values left the tensors, so that any other tensor may depend on them.
        self.leaked = False

    def start(self) -> None:
        """Begin a batch."""
        self.cache.next_batch()
        self.leaked = False

    def base(self, func: Function, *args: Any, **kwargs: Any) -> Any:
        """What ``func`` gives for the unperturbed example, computed once."""
        return self.cache(_channels_last_result, func, *args, **kwargs)


def _channels_last_result(func: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function; return images with the channels last, where a pixel is contiguous."""
    result = func(*args, **kwargs)
    return channels_last(result) if isinstance(result, Tensor) else result
