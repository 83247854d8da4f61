"""Hashes that tell whether two results have the same model, prior and settings."""

from __future__ import annotations

import enum
import functools
import hashlib
import re
import sys
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

#: Values that are completely described by their text.
PLAIN: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes, range, slice)
PLAIN += (enum.Enum, PurePath, torch.dtype, torch.device)
#: Values that are compared by their contents.
CONTAINERS: tuple[type, ...] = (tuple, list, dict, set, frozenset, Tensor, np.ndarray)
CONTAINERS += (types.SimpleNamespace, re.Pattern)
#: Wrappers of methods and functions, and the attributes that make them up.
WRAPPERS: tuple[type, ...] = (property, staticmethod, classmethod, functools.partial)
WRAPPERS += (functools.partialmethod, functools.cached_property)
WRAPPED = ("__wrapped__", "fget", "fset", "func", "args", "keywords")
#: Values that are identified by their names.
NAMED: tuple[type, ...] = (types.ModuleType, types.BuiltinFunctionType, np.ufunc)
NAMED += (types.MethodDescriptorType, types.WrapperDescriptorType)
#: Packages whose classes and functions are identified by the versions in every result.
LIBRARIES = {"captum_pda", "captum", "torch", "numpy", "typing_extensions"}
LIBRARIES |= set(sys.stdlib_module_names) - {"__main__"}


def fingerprint(value: Any) -> str:
    """A hash of a tensor, a fitted prior, or anything else in settings.

    An object is identified by its class and its ``settings()``, or else by what pickle would store;
    a function by its code, its defaults and what it uses; a class that is not of an installed
    library also by its code; a random generator by its state. ``opaque_parts`` lists what cannot be
    hashed.
    """
    return _Walk(value).digest.hexdigest()


def opaque_parts(value: Any) -> list[str]:
    """The classes of those parts of a value that cannot be hashed."""
    return _Walk(value).opaque


def own_code(value: Any) -> dict[str, object]:
    """What identifies the present state of a user's class, to be added to settings: its
    ``version``, or else a hash of its methods, class attributes and of what they use of the same
    package. Empty for classes of libraries, whose versions are settings."""
    own = _own_classes(type(value))
    stated = [vars(kind)["version"] for kind in own if "version" in vars(kind)]
    if stated:
        return {"version": stated[0]}
    return {"code_sha256": fingerprint(type(value))} if own else {}


def weights_fingerprint(model: nn.Module) -> str:
    """A hash of a model's class and its weights, without the state of its last pass."""
    return fingerprint((_name(type(model)), dict(model.state_dict())))


def weights_checksum(modules: Iterable[nn.Module]) -> str:
    """A text that differs if the weights or buffers of modules differ."""
    values = (
        each
        for module in modules
        for each in chain(module.parameters(recurse=False), module.buffers(recurse=False))
    )
    plain = (each for each in values if each.layout is torch.strided and not each.is_meta)
    return fingerprint([each for each in plain if not each.is_quantized])


class _Walk:
    """Walks through a value and adds its parts to a hash."""

    def __init__(self, value: Any) -> None:
        self.digest = hashlib.sha256()
        self.opaque: list[str] = []
        #: The objects around the present one, and functions and classes met so far, by their ids.
        self._met: dict[int, Any] = {}
        self._add(value)

    def _add(self, value: Any) -> None:
        text = repr(value) if isinstance(value, PLAIN) else _name(value)
        self.digest.update(f"{len(text)}:{text}".encode())
        if isinstance(value, PLAIN) or id(value) in self._met:
            return
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous()
            self._add((value.dtype, tuple(value.shape)))
            self.digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._add((str(value.dtype), value.shape))
            self.digest.update(np.ascontiguousarray(value).tobytes())
        else:
            self._met[id(value)] = value
            parts = self._parts(value)
            self.digest.update(f"{len(parts)}".encode())
            for part in parts:
                self._add(part)
            if not isinstance(value, types.FunctionType | type):
                del self._met[id(value)]

    def _parts(self, value: Any) -> list[Any]:
        if isinstance(value, Mapping):
            return [(repr(name), value[name]) for name in sorted(value, key=repr)]
        if isinstance(value, tuple | list):
            return list(value)
        if isinstance(value, set | frozenset):
            return sorted(fingerprint(part) for part in value)
        if isinstance(value, torch.Generator):
            return [str(value.device), value.get_state()]
        if isinstance(value, types.MethodType):
            return [value.__name__, value.__self__]
        if isinstance(value, NAMED):
            return []
        if isinstance(value, types.FunctionType):
            return [] if _package(value.__module__) in LIBRARIES else _function_parts(value)
        if isinstance(value, types.CodeType):
            return [value.co_code, value.co_names, *value.co_consts]
        if isinstance(value, type):
            return [part for kind in _own_classes(value) for part in _class_parts(kind)]
        if isinstance(value, WRAPPERS) or "__wrapped__" in getattr(value, "__dict__", ()):
            return [getattr(value, name, None) for name in WRAPPED]
        if callable(getattr(value, "settings", None)):
            return [value.settings(), own_code(value)]
        try:
            return [type(value), *value.__reduce_ex__(4)]
        except Exception:  # such as an open file or a lock
            self.opaque.append(_name(type(value)))
            return []


def _function_parts(function: types.FunctionType) -> list[Any]:
    """The code of a function without its documentation, and what it uses of its package and of
    modules that are not installed. Its source would not do, because a file may have been edited
    after it was loaded."""
    code, package = function.__code__, _package(function.__globals__.get("__name__"))
    used: list[Any] = []
    modules = [function.__globals__]
    for known in modules:  # grows by the modules that are named
        for name in _names(code):
            value = known.get(name)
            if isinstance(value, types.ModuleType):
                is_new = not any(vars(value) is one for one in modules)
                modules += [vars(value)] if is_new and _is_own(value.__name__, package) else []
            elif not _is_cache(name, value) and (
                isinstance(value, PLAIN + CONTAINERS + WRAPPERS)
                or _is_own(getattr(value, "__module__", None), package)
            ):
                used.append((name, value))
    constants = [value for value in code.co_consts if value != function.__doc__]
    enclosed = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing in it yet
            enclosed.append(cell.cell_contents)
    defaults = function.__defaults__, function.__kwdefaults__
    # Such as what a decorator added: the functions that are dispatched by type.
    own = [(name, part) for name, part in vars(function).items() if not _is_cache(name, part)]
    return [code.co_code, code.co_names, constants, defaults, used, enclosed, own]


def _class_parts(kind: type) -> list[Any]:
    """The methods and attributes of a class, without inherited ones."""
    parts: list[Any] = [kind.__qualname__]
    for name, value in sorted(vars(kind).items()):
        is_special = name.startswith("__") and name.endswith("__") and not callable(value)
        if is_special or name.startswith("_abc_") or _is_cache(name, value):
            continue
        is_known = isinstance(value, PLAIN + CONTAINERS + WRAPPERS) or callable(value)
        parts += [name, value if is_known or _own_classes(type(value)) else _name(value)]
    return parts


def _own_classes(kind: type) -> list[type]:
    """The classes among a class and its bases that do not belong to an installed library."""
    return [one for one in kind.__mro__ if _package(one.__module__) not in LIBRARIES]


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _is_own(module: str | None, package: str) -> bool:
    """Whether a module belongs to a package, or to another one that is not installed."""
    top, found = _package(module), sys.modules.get(module or "")
    file = PurePath(getattr(found, "__file__", None) or "site-packages")
    is_installed = top in LIBRARIES or {"site-packages", "dist-packages"} & set(file.parts)
    return top == package or not is_installed


def _names(code: types.CodeType) -> list[str]:
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return sorted({*code.co_names, *(name for one in inner for name in _names(one))})


def _is_cache(name: str, value: Any) -> bool:
    """Whether it may be a private cache that fills while it is used."""
    return name.startswith("_") and isinstance(value, dict | list | set)


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", getattr(value, "__name__", type(value).__qualname__)))
