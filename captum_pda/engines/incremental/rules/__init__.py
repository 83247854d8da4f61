"""The registry of rules, which are declared where they are written::

    @rule("flip", aliases=False, saves=False)
    def flip(state: PassState, func: Function, x: Boxed, dims: Any) -> Boxed:
        ...

A rule is called as ``rule(state, func, *args, **kwargs)`` with a ``Boxed`` instead of every
perturbed tensor and the arguments in the function's own order. It returns one or several ``Boxed``
or a finished tensor, or raises ``NoRule``. Functions without a rule go dense.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda import _torch
from captum_pda.engines.incremental.boxes import Boxed
from captum_pda.engines.incremental.cache import Function

AnyFunction = TypeVar("AnyFunction", bound=Function)

#: Where PyTorch has functions of one name.
OWNERS = (torch, F, Tensor, _torch.nn_functions, torch.special)
#: Other names that PyTorch has for arguments of rules.
OTHER_NAMES = {"self": "input", "axis": "dim", "keepdims": "keepdim", "exponent": "other"}


class NoRule(Exception):  # noqa: N818 - no error: the maps are completed, and the model goes on
    """A rule does not apply to these arguments; the message completes "because ..."."""


@dataclass(frozen=True)
class Rule:
    """A function of boxes; see ``rule``."""

    apply: Function
    signature: inspect.Signature
    aliases: bool
    saves: bool


#: The rule of each function.
RULES: dict[Function, Rule] = {}
#: Functions that write into their first argument, and their counterparts that do not.
IN_PLACE: dict[Function, Function] = {}


def rule(
    names: str, aliases: bool = False, saves: bool = False, in_place: bool = False
) -> Callable[[AnyFunction], AnyFunction]:
    """Declare a rule.

    Args:
        names: of the functions, wherever PyTorch has functions of these names.
        aliases: whether the function's result shares memory with its argument in PyTorch. A rule
            that returns its argument always does.
        saves: whether the rule saves work; boxes are of no use without such a rule.
        in_place: whether the rule also applies to the functions with a trailing underscore, which
            write into their first argument.
    """

    def declare(apply: AnyFunction) -> AnyFunction:
        made = Rule(apply, inspect.signature(apply), aliases, saves)
        for name in names.split():
            RULES.update(dict.fromkeys(named(name), made))
            writing = f"__i{name.strip('_')}__" if name.startswith("__") else f"{name}_"
            for owner in OWNERS if in_place else ():
                if hasattr(owner, name) and hasattr(owner, writing):
                    IN_PLACE[getattr(owner, writing)] = getattr(owner, name)
        return apply

    return declare


def named(names: str) -> list[Function]:
    """All functions of these names."""
    return [
        getattr(owner, name)
        for name in names.split()
        for owner in OWNERS
        if callable(getattr(owner, name, None))
    ]


def arranged(
    func: Function, made: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """Arguments in the rule's order, and whether ``inplace`` was among them."""
    kwargs = {OTHER_NAMES.get(name, name): value for name, value in kwargs.items()}
    if "input" in kwargs:
        args = (kwargs.pop("input"), *args)
    in_place = bool(kwargs.pop("inplace", False))
    position = _position_of_inplace(func)
    if position is not None and position < len(args):
        in_place = bool(args[position])
        args = args[:position] + args[position + 1 :]
    try:
        made.signature.bind(None, None, *args, **kwargs)  # the state, the function
    except TypeError:
        raise NoRule("the rule does not support this form of its arguments") from None
    return args, kwargs, in_place


@lru_cache(maxsize=1024)
def _position_of_inplace(func: Function) -> int | None:
    if not isinstance(func, FunctionType):
        return None
    try:
        names = list(inspect.signature(func).parameters)
    except ValueError:  # it wraps a function that is not written in Python
        return None
    return names.index("inplace") if "inplace" in names else None


def check_images(x: Any) -> None:
    """Refuse all but (copies, channels, *space), which convolutions need."""
    if not isinstance(x, Boxed) or x.space != tuple(range(2, 2 + len(x.spans))):
        raise NoRule("its input is not a batch of images")
