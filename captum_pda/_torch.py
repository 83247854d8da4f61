"""Everything private that is taken from PyTorch, in one place, under names of our own.

What moved in a new PyTorch is mended here; ``tests/house/test_torch_names.py`` says what it was.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T", bound=Tensor)

#: Functions of neural networks as PyTorch's own layers call them, such as ``avg_pool2d``.
nn_functions: ModuleType = torch._C._nn

#: A context in which subclasses of tensors are treated as ordinary ones.
without_torch_function: Callable[[], Any] = torch._C.DisableTorchFunctionSubclass

#: The same, in which modes don't see functions either.
without_torch_function_modes: Callable[[], Any] = torch._C.DisableTorchFunction


def make_wrapper_subclass(
    cls: type[T], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> T:
    """A tensor of this class that has a shape but no memory."""
    made: T = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
    return made


def version(tensor: Tensor) -> int | None:
    """How often a tensor's memory was written to; None for inference tensors, without a count."""
    return None if tensor.is_inference() else tensor._version


def operator_schemas(func: Callable[..., Any]) -> list[Any]:
    """What an operation of ``torch.ops`` takes, a schema for each overload; [] for others."""
    if isinstance(func, torch._ops.OpOverload):
        return [func._schema]
    if isinstance(func, torch._ops.OpOverloadPacket):
        names: list[str] = func.overloads()  # type: ignore[no-untyped-call]
        return [getattr(func, name)._schema for name in names]
    return []


def named_schemas(name: str) -> list[Any]:
    """What PyTorch's own operation of this name takes, a schema for each overload."""
    return list(torch._C._jit_get_schemas_for_operator(f"aten::{name}"))


def default_store() -> Any:
    """The store that the default process group was made with."""
    return dist.distributed_c10d._get_default_store()


#: How many blocks are without the compiler now, and what puts it back after the last of them: the
#: compiler is one for all threads.
_n_without_compiler = 0
_eager: Any = None
_lock = threading.Lock()


class _EagerBefore26:
    """What ``set_stance("force_eager")`` is since PyTorch 2.6: compiled functions run as they were
    written where ``torch.fx`` says that it traces, if that is not to be an error."""

    def __init__(self) -> None:
        self._config = sys.modules["torch._dynamo"].config
        self._fx: Any = sys.modules["torch.fx._symbolic_trace"]
        self._before = self._config.error_on_nested_fx_trace, self._fx._is_fx_tracing_flag
        self._set(False, True)

    def __exit__(self, *_: object) -> None:
        self._set(*self._before)

    def _set(self, is_error: bool, traces: bool) -> None:
        self._config.error_on_nested_fx_trace = is_error
        self._fx._is_fx_tracing_flag = traces


@contextmanager
def without_compiler() -> Iterator[None]:
    """Within, whatever ``torch.compile`` made runs as it was written, and nothing is compiled."""
    global _n_without_compiler, _eager
    if "torch._dynamo" not in sys.modules:  # nothing was compiled yet
        yield
        return
    with _lock:
        _n_without_compiler += 1
        if _n_without_compiler == 1:
            set_stance = getattr(torch.compiler, "set_stance", None)
            # Either remembers what the user has set.
            _eager = set_stance("force_eager") if set_stance is not None else _EagerBefore26()
    try:
        yield
    finally:
        with _lock:
            _n_without_compiler -= 1
            if _n_without_compiler == 0:
                _eager.__exit__(None, None, None)


__all__ = [
    "default_store",
    "make_wrapper_subclass",
    "named_schemas",
    "nn_functions",
    "operator_schemas",
    "version",
    "without_compiler",
    "without_torch_function",
    "without_torch_function_modes",
]
