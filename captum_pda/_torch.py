"""Everything private that is taken from PyTorch, under names of our own.
``tests/house/test_private_names.py`` names what has moved in a new PyTorch."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
    """A tensor of this class with a shape but no memory."""
    made: T = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
    return made


def version(tensor: Tensor) -> int | None:
    """How often a tensor's memory was written; None for inference tensors, which have no count."""
    return None if tensor.is_inference() else tensor._version


def operator_schemas(func: Callable[..., Any]) -> list[Any]:
    """The arguments of an operation of ``torch.ops``, a schema for each overload; [] for others."""
    if isinstance(func, torch._ops.OpOverload):
        return [func._schema]
    if isinstance(func, torch._ops.OpOverloadPacket):
        names: list[str] = func.overloads()  # type: ignore[no-untyped-call]
        return [getattr(func, name)._schema for name in names]
    return []


def default_store() -> Any:
    """The store of the default process group."""
    return dist.distributed_c10d._get_default_store()


#: The stances of ``torch.compile`` that blocks request, the strictest first: the number of blocks
#: in each, and what restores the user's own. All threads share the compiler.
_n_blocks = {"force_eager": 0, "eager_on_recompile": 0}
_stance: str | None = None
_restore = ExitStack()
_lock = threading.Lock()


@contextmanager
def _eager_before_26() -> Iterator[None]:
    """``set_stance("force_eager")`` for PyTorch before 2.6: compiled functions run uncompiled while
    ``torch.fx`` appears to trace, unless that is an error."""
    config: Any = sys.modules["torch._dynamo"].config
    fx: Any = sys.modules["torch.fx._symbolic_trace"]
    before = config.error_on_nested_fx_trace, fx._is_fx_tracing_flag
    config.error_on_nested_fx_trace, fx._is_fx_tracing_flag = False, True
    try:
        yield
    finally:
        config.error_on_nested_fx_trace, fx._is_fx_tracing_flag = before


def without_compiler() -> AbstractContextManager[None]:
    """Run everything uncompiled within the block."""
    return _in_stance("force_eager")


def without_compiling() -> AbstractContextManager[None]:
    """Compile nothing new within the block: batches of other sizes run uncompiled."""
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
    global _stance
    wanted = next((stance for stance, n_blocks in _n_blocks.items() if n_blocks), None)
    if wanted == _stance:
        return
    _stance = wanted
    _restore.close()
    if wanted is not None:
        set_stance = getattr(torch.compiler, "set_stance", None)
        block = _eager_before_26() if set_stance is None else set_stance(wanted)
        _restore.enter_context(block)
        users = getattr(getattr(block, "prev", None), "stance", "default")
        if wanted == "eager_on_recompile" and users != "default":
            _restore.close()  # what the user has set is stricter
