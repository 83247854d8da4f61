"""Results for the unperturbed example, kept until something that they were made of is written.

The model is the user's own code: it may write into any tensor, by views, in-place functions or
NumPy. So a call's writes are found (``written``) and counted (``WriteLog``), and a result is known
by its function and the state of its arguments (``CallCache``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any, TypeVar

import torch
from torch import Tensor

from captum_pda import _torch
from captum_pda.engines.incremental.boxes import Origin

Kind = TypeVar("Kind")
Function = Callable[..., Any]

#: The layout with the channels last, by the number of dimensions.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
#: Results through which a model can neither read nor write values.
HARMLESS = (str, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format)
NUMBERS = (bool, int, float, complex)
#: Batches after which a result that was not used is forgotten. Batches differ in where their boxes
#: come to cover the map; but weights that a model computes anew are used only once.
FORGOTTEN_AFTER = 4
#: How many constants that a model makes anew for every batch are compared with.
MOST_CONSTANTS = 8

# Arguments and results of calls: tensors in tuples, lists and dictionaries.


def leaves(tree: Any) -> Iterator[Any]:
    """Everything that is not a tuple, list or dictionary; a size counts as one thing."""
    if isinstance(tree, dict):
        for branch in tree.values():
            yield from leaves(branch)
    elif isinstance(tree, tuple | list) and not isinstance(tree, torch.Size):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def find(tree: Any, kind: type[Kind]) -> Iterator[Kind]:
    """The objects of a type among arguments."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, tuple | list | dict):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            # Most arguments are plain numbers, and every call of the model comes through here.
            if isinstance(branch, kind):
                yield branch
            elif isinstance(branch, tuple | list | dict):
                yield from find(branch, kind)


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


# Which tensors share memory, and which results lead to it.


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


def lets_out(result: Any, memory: Tensor) -> bool:
    """Whether a result gives access to some memory: as a view, or as an object of another type."""
    for leaf in leaves(result):
        if isinstance(leaf, Tensor) and not leaf.is_nested:
            if same_memory(leaf, memory):
                return True
        elif not (leaf is None or isinstance(leaf, (*NUMBERS, *HARMLESS))):
            return True
    return False


# Which tensors a call writes into.

#: Python's own names for functions that change their first argument.
OPERATORS = (
    "__iadd__ __isub__ __imul__ __imatmul__ __itruediv__ __idiv__ __ifloordiv__ __imod__ __ipow__ "
    "__iand__ __ior__ __ixor__ __ilshift__ __irshift__ __setitem__ __set__ __delete__ __setstate__"
)
WRITING_OPERATORS = frozenset(OPERATORS.split())
#: Functions that give access to the memory itself, whose use can't be observed.
EXPOSING = frozenset(
    ["numpy", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage", "share_memory_"]
)
#: Functions that update statistics which their signature does not declare, if a flag is set.
STATISTICS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
BUILTIN = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)


def name_of(func: Function) -> str:
    """The name of a function in a report."""
    name = getattr(func, "__name__", None) or str(func)
    if name == "fn":  # F.max_pool2d and the like are made by one function of PyTorch
        return "pooling"
    if name in ("__get__", "__set__"):
        return f"Tensor.{getattr(getattr(func, '__self__', None), '__name__', name)}"
    return str(name)


def exposes(func: Function) -> bool:
    """Whether a function gives access to memory itself."""
    return getattr(func, "__name__", "") in EXPOSING


def parameters_in_python(func: Function) -> list[inspect.Parameter]:
    """The parameters of a function that is written in Python; [] for others."""
    if not isinstance(func, FunctionType):
        return []
    try:
        return list(inspect.signature(func).parameters.values())
    except ValueError:  # it wraps a function that is not
        return []


def written(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors among the arguments that a function may write into."""
    into: list[Any] = []
    schemas = _torch.operator_schemas(func)
    for schema in schemas:
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                by_position = position < len(args) and not argument.kwarg_only
                into.append(args[position] if by_position else kwargs.get(argument.name))
    if schemas:
        return list(find(into, Tensor))
    is_from_torch = isinstance(func, BUILTIN) or (
        isinstance(func, FunctionType) and func.__module__.partition(".")[0] == "torch"
    )
    if not is_from_torch:  # a scripted module, or a function of someone else's
        return list(find((args, kwargs), Tensor))
    into.append(kwargs.get("out"))
    first = args[0] if args else kwargs
    if _writes_first(func):
        into.append(first)
    for name, position in _flags(func).items():
        value = args[position] if position < len(args) else kwargs.get(name)
        if name == "out":
            into.append(value)
        elif value:
            into.append(first if name == "inplace" else (args[1:], kwargs))
    return list(find(into, Tensor))


@lru_cache(maxsize=4096)
def _writes_first(func: Function) -> bool:
    """By PyTorch's naming, "relu_" writes into its first argument and "relu" does not."""
    name = getattr(func, "__name__", "")
    return name in WRITING_OPERATORS or (name.endswith("_") and not name.endswith("__"))


@lru_cache(maxsize=4096)
def _flags(func: Function) -> dict[str, int]:
    """Arguments that make a function write, with their positions."""
    name = getattr(func, "__name__", "")
    if not isinstance(func, FunctionType):
        # torch.batch_norm and the like, with all flags in one place.
        return {"training": 5} if name in STATISTICS else {}
    names = [parameter.name for parameter in parameters_in_python(func)]
    flags = ("inplace", "out", STATISTICS.get(name))
    return {flag: names.index(flag) for flag in flags if flag in names}


class WriteLog:
    """How often each memory was written while the model ran, where PyTorch's own count misses it.

    A tensor's version counter misses what is written through ``tensor.data``. Memory that was
    given away (``tensor.numpy()``) can be written at any time.
    """

    def __init__(self) -> None:
        self._writes: dict[int, int] = {}
        self._exposed: set[int] = set()

    def note(self, tensor: Tensor) -> None:
        """A tensor is about to be written."""
        memory = memory_of(tensor)
        if memory is not None:
            self._writes[memory] = self._writes.get(memory, 0) + 1

    def expose(self, tensor: Tensor) -> None:
        """Access to a tensor's memory is given away."""
        memory = memory_of(tensor)
        if memory is not None:
            self._exposed.add(memory)

    def state(self, tensor: Tensor) -> Hashable | None:
        """What changes whenever the tensor's values do; None if that can't be known."""
        version, memory = _torch.version(tensor), memory_of(tensor)
        if version is None or memory is None or memory in self._exposed:
            return None
        if not tensor.untyped_storage().resizable():
            return None  # the memory belongs to something else, such as a NumPy array
        shape = tuple(tensor.shape), tensor.stride()
        return version, self._writes.get(memory, 0), tensor.data_ptr(), *shape


class CallCache:
    """Results of calls, known by the function and its arguments.

    A tensor of the model's is known by its identity and its state in the log; one that was computed
    here, and is never written, by its identity alone.
    """

    def __init__(self, log: WriteLog | None = None) -> None:
        self._log = log or WriteLog()
        #: With what results were made of, since the identities of deleted tensors are used again.
        self._calls: dict[Hashable, tuple[Any, Any]] = {}
        self._last_used: dict[Hashable, int] = {}
        self._constants: list[Tensor] = []
        #: Tensors that nothing else writes, by their identity.
        self._unwritten: dict[int, Tensor] = {}
        self._examples: list[Tensor] = []
        self._batch = 0

    def next_batch(self) -> None:
        """Forget what was not used in the last batches."""
        self._batch += 1
        for key, batch in list(self._last_used.items()):
            if batch < self._batch - FORGOTTEN_AFTER:
                del self._calls[key], self._last_used[key]
        results = find([result for result, _ in self._calls.values()], Tensor)
        kept = [*self._examples, *self._constants, *results]
        self._unwritten = {id(tensor): tensor for tensor in kept if id(tensor) in self._unwritten}

    def example(self, tensor: Tensor) -> Tensor:
        """A copy of the unperturbed example that nothing else can write."""
        copy = tensor.clone()
        self._examples.append(copy)
        self._unwritten[id(copy)] = copy
        return copy

    def __call__(self, func: Function, *args: Any, **kwargs: Any) -> Any:
        """``func(*args, **kwargs)``, remembered."""
        key = (func, self._key(args), self._key(kwargs))
        if key not in self._calls:
            result = func(*args, **kwargs)
            self._calls[key] = result, (args, kwargs)
            # Results that are not views of the model's tensors can't be written by the model.
            arguments = find((args, kwargs), Tensor)
            writable = {memory_of(one) for one in arguments if id(one) not in self._unwritten}
            for tensor in find([result], Tensor):
                if memory_of(tensor) not in writable:
                    self._unwritten[id(tensor)] = tensor
        self._last_used[key] = self._batch
        return self._calls[key][0]

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

    def states(self, *tensors: Tensor | None) -> tuple[Hashable, ...] | None:
        """What changes whenever one of these tensors does; None if that can't be known."""
        states = tuple(map(self._state, tensors))
        return None if None in states else states

    def _state(self, tensor: Tensor | None) -> Hashable | None:
        if tensor is None or id(tensor) in self._unwritten:
            return "unwritten"
        return self._log.state(tensor)

    def _key(self, value: Any) -> Hashable:
        """Arguments as something that can be looked up."""
        if isinstance(value, Tensor):
            state = self._state(value)
            # Without a state, a key that equals no other: it is computed anew.
            return (Tensor, id(value), object() if state is None else state)
        if isinstance(value, tuple | list):
            return tuple(map(self._key, value))
        if isinstance(value, dict):
            return tuple((name, self._key(part)) for name, part in value.items())
        # 1, 1.0 and True are equal, and not the same argument; slices have no hash of their own.
        return type(value), repr(value)


class PassState:
    """What the rules share while batches of one example go through the model."""

    def __init__(self) -> None:
        #: What the model has written into ordinary tensors.
        self.write_log = WriteLog()
        self.cache = CallCache(self.write_log)
        #: Where the model went dense, and why, in the order of the first time.
        self.went_dense: dict[str, str] = {}
        #: Whether anything was computed on boxes that costs more than the boxes themselves.
        self.saved_work = False
        #: Whether completed maps have their channels last in memory.
        self.channels_last = True
        #: Whether values left the tensors, so that any other tensor may depend on them.
        self.leaked = False
        self._n_calls = 0
        self._needed_twice: set[int] = set()

    def start(self) -> None:
        """Begin a batch."""
        self.cache.next_batch()
        self.leaked = False
        self._n_calls = 0

    def origin(self) -> Origin:
        """A name for the next result that may be postponed."""
        self._n_calls += 1
        return Origin(self._n_calls, self._needed_twice)

    def base(self, func: Function, *args: Any, **kwargs: Any) -> Any:
        """What ``func`` gives for the unperturbed example, computed once."""
        return self.cache(_channels_last_result, func, *args, **kwargs)


def _channels_last_result(func: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function; return images with the channels last, where a pixel is contiguous."""
    result = func(*args, **kwargs)
    return channels_last(result) if isinstance(result, Tensor) else result


def channels_last(maps: Tensor) -> Tensor:
    """The same maps with the channels last in memory, where PyTorch has such a format."""
    layout = CHANNELS_LAST.get(maps.dim())
    return maps if layout is None else maps.contiguous(memory_format=layout)
