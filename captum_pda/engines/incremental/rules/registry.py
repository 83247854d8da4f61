"""Which rule is for which function of PyTorch's. Rules are declared where they are written::

    @rule("flip", aliases=False, saves=False)
    def flip(state: PassState, func: Callable[..., Tensor], x: Boxed, dims: Any) -> Boxed:
        ...

A rule is called as ``rule(state, func, *args, **kwargs)`` with a ``Boxed`` in the place of every
perturbed tensor and the arguments in the order of the function's own. It answers with a ``Boxed``
(or several, or a finished tensor), or raises ``NoRule``. A function without a rule goes dense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda import _torch
from captum_pda.engines.incremental.rules.arguments import Parameters

Function = Callable[..., Any]
AnyFunction = TypeVar("AnyFunction", bound=Function)

#: Where PyTorch has a function, under one name.
OWNERS = (torch, F, Tensor, _torch.nn_functions, torch.special)


@dataclass(frozen=True)
class Rule:
    """How a function is applied to boxes.

    Args:
        apply: the rule itself.
        parameters: what it takes after the state and the function.
        aliases: whether the function's result shares memory with its argument in PyTorch, so that
            writing into one is seen in the other. A rule that gives back its argument always does.
        saves: whether it saves work; without such a rule boxes are of no use.
    """

    apply: Function
    parameters: Parameters
    aliases: bool
    saves: bool


#: The rule of each function.
RULES: dict[Function, Rule] = {}
#: Functions that write into their first argument, and their twins that do not.
IN_PLACE: dict[Function, Function] = {}


def rule(
    *functions: str | Function, aliases: bool = False, saves: bool = False, in_place: bool = False
) -> Callable[[AnyFunction], AnyFunction]:
    """Declare a rule.

    Args:
        functions: names, several in a string if there are many, for the functions of these names
            wherever PyTorch has them; or a function itself.
        aliases: whether the function's result shares memory with its argument.
        saves: whether the rule saves work.
        in_place: whether it also holds for the functions that write into their first argument,
            whose names end with an underscore.
    """

    def declare(apply: AnyFunction) -> AnyFunction:
        made = Rule(apply, Parameters.of(apply, skip=2), aliases, saves)
        for function in functions:
            for func in [function] if callable(function) else named(function):
                RULES[func] = made
            if in_place and isinstance(function, str):
                IN_PLACE.update(_twins(function))
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


def _twins(names: str) -> Iterator[tuple[Function, Function]]:
    """Functions that write into their first argument, and those of these names that do not."""
    for name in names.split():
        writing = f"__i{name.strip('_')}__" if name.startswith("__") else f"{name}_"
        for owner in OWNERS:
            if hasattr(owner, name) and hasattr(owner, writing):
                yield getattr(owner, writing), getattr(owner, name)
