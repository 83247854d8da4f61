"""Which tensors a call of the model's writes into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from captum_pda import _torch
from captum_pda.engines.incremental.rules.arguments import parameters_in_python
from captum_pda.engines.incremental.tensor import PerturbedTensor
from captum_pda.engines.incremental.trees import find
from captum_pda.engines.incremental.write_log import WriteLog

#: Python's own names for changes of what stands first.
WRITING_OPERATORS = frozenset(
    [
        "__iadd__",
        "__isub__",
        "__imul__",
        "__imatmul__",
        "__itruediv__",
        "__idiv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
        "__iand__",
        "__ior__",
        "__ixor__",
        "__ilshift__",
        "__irshift__",
        "__setitem__",
        "__set__",
        "__delete__",
        "__setstate__",
    ]
)
#: Functions that hand out memory itself, past all that could be watched.
EXPOSING = frozenset(
    ["numpy", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage", "share_memory_"]
)
#: Functions that update statistics which their signature does not declare, if a flag is set.
STATISTICS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
KNOWN_KINDS = (
    BuiltinFunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
    MethodWrapperType,
)


def name_of(func: Callable[..., Any]) -> str:
    """What to call a function in a report."""
    name = getattr(func, "__name__", None) or str(func)
    if name == "fn":  # F.max_pool2d and the like are made by one function of PyTorch
        return "pooling"
    if name in ("__get__", "__set__"):
        return f"Tensor.{getattr(getattr(func, '__self__', None), '__name__', name)}"
    return str(name)


def written(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Tensor]:
    """The tensors among the arguments that a function may write into."""
    schemas = _torch.operator_schemas(func)
    if schemas:
        return [tensor for schema in schemas for tensor in _by_schema(schema, args, kwargs)]
    if not _is_pytorchs(func):
        # A scripted module, or a function of someone else.
        return list(find((args, kwargs), Tensor))
    into: list[Any] = [kwargs.get("out")]
    if _writes_first(func):
        into.append(args[0] if args else kwargs)
    for name, position in _flags(func).items():
        value = args[position] if position < len(args) else kwargs.get(name)
        if name == "out":
            into.append(value)
        elif value:
            into.append((args[0] if args else kwargs) if name == "inplace" else (args[1:], kwargs))
    return list(find(into, Tensor))


def exposes(func: Callable[..., Any]) -> bool:
    """Whether a function hands out memory itself."""
    return getattr(func, "__name__", "") in EXPOSING


def _by_schema(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            by_position = position < len(args) and not argument.kwarg_only
            given = args[position] if by_position else kwargs.get(argument.name)
            yield from find([given], Tensor)


def _is_pytorchs(func: Callable[..., Any]) -> bool:
    """Whether a function is named by PyTorch's rules, by which "relu_" writes and "relu" not."""
    if isinstance(func, FunctionType):
        return func.__module__.partition(".")[0] == "torch"
    return isinstance(func, KNOWN_KINDS)


@lru_cache(maxsize=4096)
def _writes_first(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name in WRITING_OPERATORS or (name.endswith("_") and not name.endswith("__"))


@lru_cache(maxsize=4096)
def _flags(func: Callable[..., Any]) -> dict[str, int]:
    """Arguments that make a function write, with their positions."""
    name = getattr(func, "__name__", "")
    if not isinstance(func, FunctionType):
        # torch.batch_norm and the like, with all flags in one place.
        return {"training": 5} if name in STATISTICS else {}
    names = [parameter.name for parameter in parameters_in_python(func)]
    flags = ("inplace", "out", STATISTICS.get(name))
    return {flag: names.index(flag) for flag in flags if flag in names}


class WriteWatch(TorchFunctionMode):
    """While it is entered, notes what the model writes into ordinary tensors."""

    def __init__(self, log: WriteLog) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in written(func, args, kwargs):
            if not isinstance(tensor, PerturbedTensor):
                self._log.note(tensor)
        if exposes(func):
            for tensor in find((args, kwargs), Tensor):
                if not isinstance(tensor, PerturbedTensor):
                    self._log.expose(tensor)
        return func(*args, **kwargs)
