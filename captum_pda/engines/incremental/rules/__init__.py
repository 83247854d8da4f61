"""Which rule is for which function of PyTorch's. Rules are declared where they are written::

    @rule("flip", aliases=False, saves=False)
    def flip(state: PassState, func: Function, x: Boxed, dims: Any) -> Boxed:
        ...

A rule is called as ``rule(state, func, *args, **kwargs)`` with a ``Boxed`` in the place of every
perturbed tensor and the arguments in the order of the function's own. It returns a ``Boxed``
(or several, or a finished tensor), or raises ``NoRule``. A function without a rule goes dense.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda import _torch
from captum_pda.engines.incremental.cache import Function, parameters_in_python

AnyFunction = TypeVar("AnyFunction", bound=Function)

#: Where PyTorch has a function, under one name.
OWNERS = (torch, F, Tensor, _torch.nn_functions, torch.special)
#: Other names that PyTorch has for arguments of rules.
OTHER_NAMES = {
    **dict.fromkeys(["self", "x", "x1", "a"], "input"),
    **dict.fromkeys(["x2", "exponent"], "other"),
    **dict.fromkeys(["chunks", "sections", "split_size", "split_sizes"], "sizes"),
    **dict.fromkeys(["indices_or_sections", "split_size_or_sections"], "sizes"),
    "axis": "dim",
    "axis0": "dim0",
    "axis1": "dim1",
    "keepdims": "keepdim",
    "tensors": "maps",
    "destination": "target",
}
#: Arguments that a rule takes by position, as one or as several.
POSITIONAL = ("input", "dims", "shape", "size")


class NoRule(Exception):  # noqa: N818 - no error: the maps are completed, and the model goes on
    """A rule does not hold for these arguments; the message completes "because ..."."""


@dataclass(frozen=True)
class Rule:
    """How a function is applied to boxes: see ``rule``."""

    apply: Function
    signature: inspect.Signature
    aliases: bool
    saves: bool


#: The rule of each function.
RULES: dict[Function, Rule] = {}
#: Functions that write into their first argument, and the same functions that do not.
IN_PLACE: dict[Function, Function] = {}


def rule(
    *functions: str | Function, aliases: bool = False, saves: bool = False, in_place: bool = False
) -> Callable[[AnyFunction], AnyFunction]:
    """Declare a rule.

    Args:
        functions: names, several in a string if there are many, for the functions of these names
            wherever PyTorch has them; or a function itself.
        aliases: whether the function's result shares memory with its argument in PyTorch, so that
            writing into one is seen in the other. A rule that returns its argument always does.
        saves: whether the rule saves work; without such a rule boxes are of no use.
        in_place: whether it also holds for the functions that write into their first argument,
            whose names end with an underscore.
    """

    def declare(apply: AnyFunction) -> AnyFunction:
        made = Rule(apply, inspect.signature(apply), aliases, saves)
        for function in functions:
            for func in [function] if callable(function) else named(function):
                RULES[func] = made
            for name in function.split() if in_place and isinstance(function, str) else ():
                writing = f"__i{name.strip('_')}__" if name.startswith("__") else f"{name}_"
                for owner in OWNERS:
                    if hasattr(owner, name) and hasattr(owner, writing):
                        IN_PLACE[getattr(owner, writing)] = getattr(owner, name)
        return apply

    return declare


def named(names: str) -> list[Function]:
    """The functions of these names, wherever PyTorch has them."""
    return [
        getattr(owner, name)
        for name in names.split()
        for owner in OWNERS
        if callable(getattr(owner, name, None))
    ]


def pop_inplace(
    func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """The arguments without ``inplace``, and whether that was true."""
    if "inplace" in kwargs:
        others = {name: value for name, value in kwargs.items() if name != "inplace"}
        return args, others, bool(kwargs["inplace"])
    place = _place_of_inplace(func)
    if place is None or place >= len(args):
        return args, kwargs, False
    return args[:place] + args[place + 1 :], kwargs, bool(args[place])


@lru_cache(maxsize=1024)
def _place_of_inplace(func: Function) -> int | None:
    names = [parameter.name for parameter in parameters_in_python(func)]
    return names.index("inplace") if "inplace" in names else None


def arrange(
    made: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that fit a rule, however they are given."""
    kwargs = {OTHER_NAMES.get(name, name): value for name, value in kwargs.items()}
    args = (*args, *(kwargs.pop(name) for name in POSITIONAL if name in kwargs))
    try:
        made.signature.bind(None, None, *args, **kwargs)  # the state, the function
    except TypeError:
        raise NoRule("its arguments are given in a form that the rule does not know") from None
    return args, kwargs
