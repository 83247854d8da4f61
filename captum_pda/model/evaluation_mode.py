"""A model is explained in evaluation mode, and is as it was afterwards: modes, buffers, noise."""

from __future__ import annotations

import dis
import inspect
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain, islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from captum_pda import device_sync
from captum_pda.errors import warn_user

#: How many objects behind a function are looked at, and how many of one list or dict.
MAX_OBJECTS, MAX_ITEMS = 5_000, 100
#: Attributes by which an object is called, or a decorator keeps what it wraps.
CALLED = frozenset({"__call__", "__wrapped__"})
#: Where PyTorch keeps what belongs to a module.
REGISTERS = set(vars(nn.Module()))
#: Libraries whose functions hold none of the user's modules.
LIBRARIES = {"builtins", "captum", "captum_pda", "numpy", "torch", "torchvision"}


@contextmanager
def evaluation_mode(forward_func: object) -> Iterator[None]:
    """Run a model that was left in training mode in evaluation mode, and put it back after.

    In training mode a prediction is random (dropout) or depends on the other copies in its batch
    (batch-norm, whose statistics it would change too), so its map would mean nothing. Buffers that
    the model changes in evaluation mode too are given back.
    """
    roots = modules_behind(forward_func)
    # An exported model stays in the mode that it was exported in.
    fixed = {part for root in roots for part in root.modules() if exported_with(part)}
    fixed = {part for module in fixed for part in module.modules()}
    modules = list(dict.fromkeys(part for root in roots for part in root.modules()))
    borrowed = _borrow(module for module in modules if module not in fixed)
    buffers = _kept_buffers(modules)
    try:
        if any(_differs_in_training(module) for module in borrowed):
            warn_user(
                "the model is in training mode, where its predictions are random or depend on "
                "their batch; it is explained in evaluation mode and put back after. Call "
                "model.eval() first to silence this."
            )
        yield
    finally:
        _give_back(borrowed)
        changed = _give_back_buffers(buffers)
        if changed:
            warn_user(
                f"the model changes its own buffers when it is called ({_listed(changed)}), in "
                "evaluation mode too, so its answers depend on what it was asked before. They are "
                "as they were again, but the map may be off: use their values without changing "
                "them, as batch-norm does in evaluation mode"
            )


def exported_with(forward_func: object) -> list[Tensor]:
    """The examples that a model from ``torch.export`` was exported with; none for other models."""
    if not isinstance(forward_func, torch.fx.GraphModule):
        return []
    inputs = [node for node in forward_func.graph.nodes if node.op == "placeholder"]
    examples = [node.meta.get("val") for node in inputs]
    return [example for example in examples if isinstance(example, Tensor)]


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


#: Modules that are in evaluation mode for as long as someone explains their model, and by how many:
#: threads may share a model, and the last one puts it back.
_borrowers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_lock = threading.Lock()


def _borrow(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Put modules into evaluation mode, and return those that were not left so by the user."""
    with _lock:
        borrowed = [m for m in modules if m in _borrowers or getattr(m, "training", False)]
        for module in borrowed:
            _borrowers[module] = _borrowers.get(module, 0) + 1
            module.training = False
    return borrowed


def _give_back(modules: Iterable[nn.Module]) -> None:
    """Put modules back into training mode, unless someone else still needs them as they are."""
    with _lock:
        for module in modules:
            _borrowers[module] -= 1
            if _borrowers[module] == 0:
                del _borrowers[module]
                module.training = True


def _differs_in_training(module: nn.Module) -> bool:
    """Whether a module in training mode was likely left so: it has weights, or it drops values. A
    fresh wrapper around a model in evaluation mode has neither."""
    holds = next(module.parameters(recurse=False), None) is not None
    return holds or "Dropout" in type(module).__name__


#: A module, the name of one of its buffers, the buffer itself, and a copy of its values.
_Kept = tuple[nn.Module, str, Tensor, Tensor]


def _kept_buffers(modules: Iterable[nn.Module]) -> list[_Kept]:
    with torch.no_grad():
        return [
            (module, name, buffer, buffer.clone())
            for module in modules
            for name, buffer in module.named_buffers(recurse=False)
            if type(buffer) is Tensor and buffer.layout == torch.strided and not buffer.is_meta
        ]


def _give_back_buffers(kept: list[_Kept]) -> list[str]:
    """Undo what has changed, and name the buffers whose values have."""
    changed = []
    for module, name, buffer, values in kept:
        now = getattr(module, name, None)
        is_same = now is buffer or isinstance(module, torch.jit.ScriptModule)
        if not (isinstance(now, Tensor) and device_sync.are_equal(now, values)):
            changed.append(f"{type(module).__name__}.{name}")
        if not is_same:
            setattr(module, name, buffer)
        if not device_sync.are_equal(buffer, values):
            with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                buffer.copy_(values)
    return changed


def modules_behind(forward_func: object) -> list[nn.Module]:
    """The modules that a function calls, as far as one can see: its own, and those in closures,
    globals that it names, defaults, partial calls, and attributes of objects that it names."""
    found: dict[int, nn.Module] = {}
    seen: dict[tuple[int, frozenset[str]], object] = {}
    #: What is still to be looked at, with the names that the code around it mentions.
    waiting: list[tuple[object, frozenset[str]]] = [(forward_func, CALLED)]
    while waiting and len(seen) < MAX_OBJECTS:
        thing, names = waiting.pop()
        if isinstance(thing, nn.Module):
            if id(thing) not in found:
                found[id(thing)] = thing
                waiting.extend((module, names) for module in _not_registered(thing))
        elif (id(thing), names) not in seen:
            seen[id(thing), names] = thing
            waiting.extend(_inside(thing, names))
    if not found:
        # No name leads to one: whatever the objects hold, then.
        objects = (each for each in seen.values() if not isinstance(each, ModuleType | type))
        held = (value for each in objects for value in getattr(each, "__dict__", {}).values())
        found = {id(value): value for value in held if isinstance(value, nn.Module)}
    return list(found.values())


def _not_registered(root: nn.Module) -> Iterator[nn.Module]:
    """Modules in plain lists and dicts of a model's own classes, where PyTorch looks for none."""
    for part in root.modules():
        if _package(type(part)) in LIBRARIES:
            continue
        for name, value in vars(part).items():
            if name in REGISTERS or not isinstance(value, list | tuple | dict | nn.Module):
                continue
            items: Any = value.values() if isinstance(value, dict) else value
            held = [value] if isinstance(value, nn.Module) else islice(items, MAX_ITEMS)
            yield from (each for each in held if isinstance(each, nn.Module))


def _inside(thing: Any, names: frozenset[str]) -> Iterator[tuple[object, frozenset[str]]]:
    """What a thing holds, of which code that mentions these names may call something."""
    if isinstance(thing, partial):
        for each in (thing.func, *thing.args, *thing.keywords.values()):
            yield each, names
    elif isinstance(thing, MethodType):
        yield thing.__func__, names
        yield thing.__self__, names | _names_in(thing.__func__)
    elif isinstance(thing, FunctionType):
        if _package(thing) not in LIBRARIES or thing.__closure__ or vars(thing):
            own = CALLED | _names_in(thing)
            yield from ((each, own) for each in _reached(thing))
    elif isinstance(thing, Mapping | list | tuple | set | frozenset):
        items = list(thing.values() if isinstance(thing, Mapping) else thing)[:MAX_ITEMS]
        yield from ((each, names) for each in items)
    elif isinstance(thing, ModuleType):
        if thing.__name__.partition(".")[0] not in LIBRARIES:
            yield from ((vars(thing)[name], names) for name in names if name in vars(thing))
    elif not isinstance(thing, type | Tensor | np.ndarray | str | bytes | int | float | None):
        yield from _attributes(thing, names)


def _attributes(thing: object, names: frozenset[str]) -> Iterator[tuple[object, frozenset[str]]]:
    """The attributes of an object that are mentioned, also by its own methods that are."""
    if _package(type(thing)) in LIBRARIES:
        return
    known, new = set(names), set(names)
    held: list[object] = []
    while new:
        values = [_attribute(thing, name) for name in new]
        code = [_function_of(value) for value in values]
        held += [value for value, own in zip(values, code, strict=True) if own is None]
        held += [each for own in code if own is not None for each in _reached(own)]
        new = {name for own in code if own is not None for name in _names_in(own)} - known
        known |= new
    yield from ((value, frozenset(known)) for value in held if value is not None)


def _attribute(thing: object, name: str) -> object:
    """An attribute without running code to get it."""
    value = inspect.getattr_static(thing, name, None)
    return getattr(thing, name, None) if isinstance(value, MemberDescriptorType) else value


def _function_of(value: object) -> FunctionType | None:
    """The code behind a method or a property, as a class holds them."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    return value if isinstance(value, FunctionType) else None


def _reached(function: FunctionType) -> Iterator[object]:
    """What a function can call: what it encloses, its defaults, and the globals that it names."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()  # what it wraps
    for name in _global_names(function.__code__):
        yield function.__globals__.get(name)


@lru_cache(maxsize=1024)
def _global_names(code: CodeType) -> tuple[str, ...]:
    """The globals that a code names; ``co_names`` has the names of attributes too."""
    loads = (each for part in _codes(code) for each in dis.get_instructions(part))
    names = (str(each.argval) for each in loads if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    return tuple(dict.fromkeys(names))


def _names_in(function: Callable[..., Any]) -> set[str]:
    code = getattr(function, "__code__", None)
    return {name for part in _codes(code) for name in part.co_names} if code else set()


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those that are written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _package(thing: Any) -> str:
    return str(getattr(thing, "__module__", None) or "").partition(".")[0]


#: The states of all random numbers that a model may draw.
RandomState = tuple[Any, ...]


def random_state() -> RandomState:
    """The states of PyTorch's, Python's and NumPy's global random numbers."""
    devices = [kind.get_rng_state_all() for kind in _random_devices()]
    if torch.backends.mps.is_available():
        devices.append([torch.mps.get_rng_state()])
    numbers = np.random.get_state()  # noqa: NPY002 - the state that models draw from
    return (torch.get_rng_state(), random.getstate(), numbers, devices)


def set_random_state(state: RandomState) -> None:
    """Go on from a state that ``random_state`` has told."""
    own, python, numbers, devices = state
    torch.set_rng_state(own)
    random.setstate(python)
    np.random.set_state(numbers)  # noqa: NPY002
    for kind, states in zip(_random_devices(), devices, strict=False):
        kind.set_rng_state_all(states)
    if torch.backends.mps.is_available():
        torch.mps.set_rng_state(devices[-1][0])


def same_random_state(one: RandomState, other: RandomState) -> bool:
    """Whether nothing was drawn between two states."""
    numbers = zip(one[2], other[2], strict=True)
    states = zip(chain([one[0]], *one[3]), chain([other[0]], *other[3]), strict=False)
    return (
        one[1] == other[1]
        and all(np.array_equal(a, b) for a, b in numbers)
        and all(np.array_equal(a.numpy(), b.numpy()) for a, b in states)  # all on the CPU
    )


def _random_devices() -> list[Any]:
    kinds = (torch.cuda, getattr(torch, "xpu", None))
    return [kind for kind in kinds if kind is not None and kind.is_initialized()]
