"""Hashes that say whether two results were made with the same model, prior and settings."""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
import zlib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

#: Values that are described completely by their text.
PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    enum.Enum,
    PurePath,
    torch.dtype,
    torch.device,
)
#: Values that are compared by what they hold.
VALUES = (tuple, list, dict, set, frozenset, Tensor, np.ndarray)
#: Packages whose classes are known by the versions that are stored with every result.
LIBRARIES = {
    "captum_pda",
    "captum",
    "torch",
    "numpy",
    "typing_extensions",
    *sys.stdlib_module_names,
}
LIBRARIES -= {"__main__"}


def fingerprint(value: Any) -> str:
    """A hash of a tensor, a fitted prior, or anything else that settings are made of.

    An object is known by its class and its ``settings()``, or without that method by its
    attributes; a function by its code, its defaults and what it uses; a class that is not of an
    installed library by its code too; a random generator by its state. ``opaque_parts`` lists what
    cannot be known so.
    """
    return _Walk(value).digest.hexdigest()


def own_code(value: Any) -> dict[str, object]:
    """What identifies the present state of a user's own class, to be added to settings.

    The ``version`` that the class states, or else a hash of its methods, class attributes and of
    what they use of the same package. Empty for classes of this library and of those below it,
    whose versions are settings by themselves.
    """
    own = _own_classes(type(value))
    stated = [vars(kind)["version"] for kind in own if "version" in vars(kind)]
    if stated:
        return {"version": stated[0]}
    return {"code_sha256": _Walk(own).digest.hexdigest()} if own else {}


def weights_fingerprint(model: nn.Module) -> str:
    """A hash of a model's class and its weights, without what it keeps of its last pass."""
    return fingerprint((_name(type(model)), dict(model.state_dict())))


def weights_checksum(model: Any) -> int:
    """A number that differs where the weights of the modules in ``model`` differ.

    It is the sum of their bits, which costs one pass over them on their own device, and is the same
    on every kind of device. Sparse and quantised tensors are not read.
    """
    sums: list[object] = []
    for module in modules_in(model):
        for values in module.state_dict().values():
            if not isinstance(values, Tensor) or values.layout is not torch.strided:
                continue
            if values.is_quantized or values.is_meta:
                continue
            plain = values.detach().clone(memory_format=torch.contiguous_format)
            bits = plain.reshape(-1).view(torch.uint8)
            rest = len(bits) % 8
            total = (
                bits[: len(bits) - rest].view(torch.int64).sum() + bits[len(bits) - rest :].sum()
            )
            sums.append((tuple(values.shape), str(values.dtype), int(total)))
    return zlib.crc32(repr(sums).encode())


def modules_in(model: Any, steps: int = 4) -> list[nn.Module]:
    """The modules that a model is made of, as far as one can see: itself; the owner of a method;
    what a function encloses, has for defaults or names globally; the arguments of a ``partial``;
    the attributes of another callable. Each of these is a step."""
    if isinstance(model, nn.Module):
        return [model]
    if steps == 0 or isinstance(model, type | types.ModuleType):
        return []
    parts: list[Any] = []
    if isinstance(model, functools.partial):
        parts = [model.func, *model.args, *model.keywords.values()]
    elif isinstance(model, types.MethodType):
        parts = [model.__self__, model.__func__]
    elif isinstance(model, types.FunctionType):
        known = [name for name in model.__code__.co_names if name in model.__globals__]
        parts = [model.__globals__[name] for name in known] + list(model.__defaults__ or ())
        parts += (model.__kwdefaults__ or {}).values()
        parts += [_content(cell) for cell in model.__closure__ or ()]
    elif isinstance(model, tuple | list):
        parts = list(model)
    elif isinstance(model, Mapping):
        parts = list(model.values())
    elif callable(model):
        parts = list(getattr(model, "__dict__", {}).values())
    found = [module for part in parts for module in modules_in(part, steps - 1)]
    return list(dict.fromkeys(found))


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing in it yet
        return None


def opaque_parts(value: Any) -> list[str]:
    """The classes of those parts of a value that cannot be hashed."""
    return _Walk(value).opaque


class _Walk:
    """Goes through a value once, and adds what it finds to a hash."""

    def __init__(self, value: Any) -> None:
        self.digest = hashlib.sha256()
        self.opaque: list[str] = []
        self._open: set[int] = set()
        #: Functions and classes that were met before, of which the name is enough.
        self._known: set[int] = set()
        self._add(value)

    def _add(self, value: Any) -> None:
        if isinstance(value, PLAIN):
            self._say(repr(value))
        elif isinstance(value, type):
            self._say(_name(value))
            for kind in _own_classes(value):
                self._add_class(kind)
        elif isinstance(value, types.BuiltinFunctionType | types.ModuleType):
            self._say(_name(value))
        elif id(value) in self._open:  # a part that holds the whole
            self._say("...")
        else:
            self._open.add(id(value))
            self._add_parts(value)
            self._open.discard(id(value))

    def _add_parts(self, value: Any) -> None:
        if isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous()
            self._say(repr((plain.dtype, tuple(plain.shape))))
            self.digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._say(repr((value.dtype, value.shape)))
            self.digest.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, torch.Generator):
            self._add((str(value.device), value.get_state()))
        elif isinstance(value, Mapping):
            self._say(repr(len(value)))
            for name in sorted(value, key=repr):
                self._say(repr(name))
                self._add(value[name])
        elif isinstance(value, tuple | list):
            self._say(repr(len(value)))
            for part in value:
                self._add(part)
        elif isinstance(value, set | frozenset):
            self._add(sorted(fingerprint(part) for part in value))
        elif isinstance(value, functools.partial):
            self._add((value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            self._add((value.__name__, value.__self__))
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif callable(getattr(value, "settings", None)):
            self._add((_name(type(value)), value.settings(), own_code(value)))
        else:
            self._add_object(value)

    def _add_function(self, function: types.FunctionType) -> None:
        self._say(_name(function))
        if id(function) in self._known:
            return
        self._known.add(id(function))
        self._add((function.__defaults__, function.__kwdefaults__))
        self._add_code(function.__code__, function.__doc__)
        self._add_globals(function)
        for cell in function.__closure__ or ():
            self._add(_content(cell))

    def _add_code(self, code: types.CodeType, documentation: str | None = None) -> None:
        """The code that runs. Its source would not do: a file may have been edited since it was
        loaded, and what is typed into an interpreter has none."""
        self._add((code.co_code, code.co_names))
        constants = code.co_consts
        if documentation is not None and constants[:1] == (documentation,):
            constants = constants[1:]
        for constant in constants:
            if isinstance(constant, types.CodeType):
                self._add_code(constant)
            else:
                self._add(constant)

    def _add_globals(self, function: types.FunctionType) -> None:
        """What a function uses of its module: constants, and functions and classes of its package.

        A private table or list may be a memory that fills while the function is used.
        """
        package = _package(function.__globals__.get("__name__"))
        for name in _names(function.__code__):
            if name not in function.__globals__:
                continue
            used = function.__globals__[name]
            if isinstance(used, types.FunctionType | type):
                if _package(used.__module__) == package:
                    self._add((name, used))
            elif isinstance(used, PLAIN) or (
                isinstance(used, VALUES) and not _is_memory(name, used)
            ):
                self._add((name, used))

    def _add_class(self, kind: type) -> None:
        """The methods and attributes of a class, without those of the classes it derives from."""
        if id(kind) in self._known:
            return
        self._known.add(id(kind))
        for name, value in sorted(vars(kind).items()):
            is_special = name.startswith("__") and name.endswith("__") and not callable(value)
            if is_special or name.startswith("_abc_") or _is_memory(name, value):
                continue
            self._say(name)
            self._add_attribute(value)

    def _add_attribute(self, value: Any) -> None:
        """An attribute of a class: a method in any wrapper, a constant, or an own object."""
        if isinstance(value, property):
            value = value.fget, value.fset
        elif isinstance(value, functools.partialmethod):
            value = value.func, value.args, value.keywords
        elif isinstance(value, functools.cached_property):
            value = value.func
        elif not isinstance(value, types.FunctionType):
            value = getattr(value, "__wrapped__", value)  # static and class methods, lru_cache
        known = (*PLAIN, *VALUES, types.FunctionType, type, functools.partial, nn.Module)
        if isinstance(value, known) or _own_classes(type(value)):
            self._add(value)
        else:
            self._say(_name(type(value)))

    def _add_object(self, value: Any) -> None:
        slots = [
            name
            for kind in type(value).__mro__
            for name in _slots(kind)
            if name not in ("__dict__", "__weakref__") and hasattr(value, name)
        ]
        self._add(type(value))
        if not slots and not hasattr(value, "__dict__"):
            self.opaque.append(_name(type(value)))
            return
        self._add({name: getattr(value, name) for name in slots})
        self._add(getattr(value, "__dict__", {}))

    def _say(self, text: str) -> None:
        self.digest.update(f"{len(text)}:{text}".encode())


def _own_classes(kind: type) -> list[type]:
    """Those classes among a class and its bases that no installed library accounts for."""
    return [one for one in kind.__mro__ if _package(one.__module__) not in LIBRARIES]


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _names(code: types.CodeType) -> list[str]:
    """The names that code uses, and functions within it."""
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return sorted({*code.co_names, *(name for one in inner for name in _names(one))})


def _is_memory(name: str, value: Any) -> bool:
    return name.startswith("_") and isinstance(value, dict | list | set)


def _slots(kind: type) -> list[str]:
    """The attributes that a class keeps in slots, by the names that Python knows them by."""
    named = kind.__dict__.get("__slots__", ())
    own = f"_{kind.__name__.lstrip('_')}"
    return [
        f"{own}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in ((named,) if isinstance(named, str) else named)
    ]


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", getattr(value, "__name__", type(value).__qualname__)))
