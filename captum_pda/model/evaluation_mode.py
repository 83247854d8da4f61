"""Evaluation mode during an explanation; modes, buffers and random states are restored."""

from __future__ import annotations

import dis
import pickle
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from captum_pda.errors import warn_user

#: The modules that are in evaluation mode for an explanation, and the number of threads that use
#: them; the last one restores them.
_borrowers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_lock = threading.Lock()


@contextmanager
def evaluation_mode(forward_func: object) -> Iterator[Iterable[nn.Module]]:
    """Run a model in evaluation mode, and restore its mode afterwards.

    In training mode a prediction is random (dropout) or depends on the other copies in its batch
    (batch-norm, whose statistics it would change too), so its map would mean nothing. Buffers that
    the model changes in evaluation mode too are given back. Modules that a function calls, but does
    not name, are found when it calls them.

    Yields:
        The modules found so far.
    """
    borrowed = _Borrowed()
    with ExitStack() as stack:
        stack.callback(borrowed.give_back)
        for root in _modules_of(forward_func):
            borrowed.add(root)
        # Compiled modules do not allow hooks of all modules.
        if not any(_is_compiled(module) for module in borrowed.modules):
            stack.callback(register_module_forward_pre_hook(borrowed.on_call).remove)
        yield borrowed.modules


class _Borrowed:
    """The modules in evaluation mode in this thread, with copies of their buffers."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        #: In the order in which they were found.
        self.modules: dict[nn.Module, None] = {}
        self._were_training: list[nn.Module] = []
        #: A module, the name of a buffer, the buffer, and a copy of its values.
        self._buffers: list[tuple[nn.Module, str, Tensor, Tensor]] = []
        self._has_warned = False

    def on_call(self, module: nn.Module, arguments: Any) -> None:
        if module not in self.modules and threading.get_ident() == self._thread:
            self.add(module)

    def add(self, root: nn.Module) -> None:
        # An exported model keeps the mode in which it was exported.
        exported = (part for part in root.modules() if exported_with(part))
        fixed = {part for module in exported for part in module.modules()}
        new = [module for module in root.modules() if module not in self.modules]
        self.modules.update(dict.fromkeys(new))
        with _lock:
            left = {each for each in new if getattr(each, "training", False)} - fixed
            for module in [each for each in new if each in left or each in _borrowers]:
                _borrowers[module] = _borrowers.get(module, 0) + 1
                module.training = False
                self._were_training.append(module)
        with torch.no_grad():
            self._buffers += [
                (module, name, buffer, buffer.clone())
                for module in new
                for name, buffer in module.named_buffers(recurse=False)
                if type(buffer) is Tensor and buffer.layout == torch.strided and not buffer.is_meta
            ]
        # A new wrapper around a model in evaluation mode has no weights and no dropout.
        if not self._has_warned and any(
            "Dropout" in type(each).__name__ or list(each.parameters(recurse=False))
            for each in left
        ):
            self._has_warned = True
            warn_user(
                "the model is in training mode, where its predictions are random or depend on "
                "their batch; it is explained in evaluation mode, and its mode is restored. Call "
                "model.eval() first to silence this."
            )

    def give_back(self) -> None:
        """Restore all modules, unless another thread still needs them in evaluation mode."""
        with _lock:
            for module in self._were_training:
                _borrowers[module] -= 1
                if _borrowers[module] == 0:
                    del _borrowers[module]
                    module.training = True
        changed = []
        for module, name, buffer, values in self._buffers:
            now = getattr(module, name, None)
            if not _are_equal(now, values):
                changed.append(f"{type(module).__name__}.{name}")
            if now is not buffer and not isinstance(module, torch.jit.ScriptModule):
                setattr(module, name, buffer)
            if not _are_equal(buffer, values):
                with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                    buffer.copy_(values)
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            warn_user(
                "the model changes its own buffers when it is called "
                f"({', '.join(changed[:3])}{more}), also in evaluation mode, so its outputs depend "
                "on earlier calls. They were restored, but the map may be wrong: do not change "
                "buffers in evaluation mode, as batch-norm does not"
            )


def _are_equal(now: Any, before: Tensor) -> bool:
    """Whether a buffer has the same dtype, shape and values; NaN equals NaN."""
    if not isinstance(now, Tensor) or now.shape != before.shape or now.dtype != before.dtype:
        return False
    return now.device == before.device and torch.allclose(now, before, 0, 0, equal_nan=True)


def _is_compiled(module: object) -> bool:
    return type(module).__name__ == "OptimizedModule"


def _modules_of(forward_func: object) -> list[nn.Module]:
    """The model, or the modules that a function, a partial call or an object names: it may call
    parts of them only, or in another thread, and ask whether they are in training mode."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [forward_func, model_of(forward_func)]
    for each in waiting:  # which grows by what it names
        if id(each) in found:
            continue
        is_method = isinstance(each, MethodType)
        owner = each.__self__ if is_method else each
        found.update({id(each): each, id(owner): owner})
        waiting.append(_attributes(each).get("__wrapped__"))
        if isinstance(each, partial):
            waiting += [each.func, *each.args, *each.keywords.values()]
        own = each if isinstance(each, FunctionType) else type(each).__call__
        function = each.__func__ if is_method else own
        if isinstance(function, FunctionType) and not isinstance(owner, nn.Module):
            waiting += _named_in(function, _attributes(owner))
    return [each for each in found.values() if isinstance(each, nn.Module)]


def _attributes(owner: object) -> Mapping[str, Any]:
    """What an object holds, without attributes that it computes, such as those of a proxy."""
    try:
        held: Mapping[str, Any] = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return held


def _named_in(function: FunctionType, attributes: Mapping[str, Any]) -> Iterator[Any]:
    """What a function encloses, and the modules that it reads from its globals and attributes."""
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing in it yet
            yield cell.cell_contents
    held = {"LOAD_GLOBAL": function.__globals__, "LOAD_ATTR": attributes, "LOAD_METHOD": attributes}
    for step in dis.get_instructions(function):
        if step.opname in held and isinstance(held[step.opname].get(step.argval), nn.Module):
            yield held[step.opname][step.argval]


def model_of(forward_func: object) -> nn.Module | None:
    """The module of a model, a method of it, or a partial call; None for functions."""
    function: Any = forward_func
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", function)
    return owner if isinstance(owner, nn.Module) else None


def exported_with(forward_func: object) -> list[Tensor]:
    """The examples with which ``torch.export`` exported a model; none for other models."""
    if not isinstance(forward_func, torch.fx.GraphModule):
        return []
    inputs = [node for node in forward_func.graph.nodes if node.op == "placeholder"]
    examples = [node.meta.get("val") for node in inputs]
    return [example for example in examples if isinstance(example, Tensor)]


#: The states of all random numbers that a model may use, as bytes.
RandomState = list[bytes]


def random_state() -> RandomState:
    """The states of the global random numbers."""
    return [pickle.dumps(get()) for get, _ in _generators()]


def set_random_state(state: RandomState) -> None:
    """Restore the states of the global random numbers."""
    for (_, put), values in zip(_generators(), state, strict=False):
        put(pickle.loads(values))


def _generators() -> Iterator[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """Functions that get and set the random states of PyTorch, Python, NumPy and devices."""
    # As an array, which is pickled a hundred times faster.
    yield lambda: torch.get_rng_state().numpy(), lambda s: torch.set_rng_state(torch.from_numpy(s))
    yield random.getstate, random.setstate
    yield np.random.get_state, np.random.set_state
    for kind in (torch.cuda, getattr(torch, "xpu", None)):
        if kind is not None and kind.is_initialized():
            yield kind.get_rng_state_all, kind.set_rng_state_all
    if torch.backends.mps.is_available():
        yield torch.mps.get_rng_state, torch.mps.set_rng_state
