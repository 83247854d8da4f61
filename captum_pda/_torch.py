"""Everything private that is taken from PyTorch, in one place, under names of our own.

What moved in a new PyTorch is mended here; ``tests/house/test_torch_names.py`` says what it was.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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


def default_store() -> Any:
    """The store that the default process group was made with."""
    return dist.distributed_c10d._get_default_store()


#: The stances of ``torch.compile`` that blocks ask for, the strictest first: how many blocks are in
#: each now, and what restores the user's own. The compiler is one for all threads.
_n_blocks = {"force_eager": 0, "eager_on_recompile": 0}
_stance: str | None = None
_restore: Any = None
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


def without_compiler() -> AbstractContextManager[None]:
    """Within, whatever ``torch.compile`` made runs as it was written."""
    return _in_stance("force_eager")


def without_compiling() -> AbstractContextManager[None]:
    """Within, compiled code runs for inputs that it was compiled for, and nothing new is compiled:
    a model runs as it was written on batches of another size."""
    return _in_stance("eager_on_recompile")


@contextmanager
def _in_stance(stance: str) -> Iterator[None]:
    if "torch._dynamo" not in sys.modules:  # nothing was compiled yet
        yield
        return
    with _lock:
        _n_blocks[stance] += 1
        _update_stance()
    try:
        yield
    finally:
        with _lock:
            _n_blocks[stance] -= 1
            _update_stance()


def _update_stance() -> None:
    """Set the strictest stance that a block asks for, or the user's own after the last block."""
    global _stance, _restore
    wanted = next((stance for stance, n_blocks in _n_blocks.items() if n_blocks), None)
    if wanted == _stance:
        return
    if _restore is not None:
        _restore.__exit__(None, None, None)
        _restore = None
    if wanted is not None:
        set_stance = getattr(torch.compiler, "set_stance", None)
        _restore = set_stance(wanted) if set_stance is not None else _EagerBefore26()
        users = getattr(getattr(_restore, "prev", None), "stance", "default")
        if wanted == "eager_on_recompile" and users != "default":
            _restore.__exit__(None, None, None)  # what the user has set is stricter
    _stance = wanted


__all__ = [
    "default_store",
    "make_wrapper_subclass",
    "nn_functions",
    "operator_schemas",
    "version",
    "without_compiler",
    "without_compiling",
    "without_torch_function",
    "without_torch_function_modes",
]
