"""A call's arguments in the order in which a rule takes them, however the model gave them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from captum_pda import _torch
from captum_pda.engines.incremental.no_rule import NoRule

#: What else PyTorch lets its arguments be called.
OTHER_NAMES = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x2": "other",
    "self": "input",
    "x": "input",
    "x1": "input",
    "a": "input",
}


@dataclass(frozen=True)
class Parameter:
    """An argument that a function of PyTorch's takes."""

    name: str
    keyword_only: bool
    has_default: bool
    default: Any


@dataclass(frozen=True)
class Parameters:
    """What a rule takes, after the state and the function."""

    names: tuple[str, ...]
    required: int
    more_positions: bool
    more_names: bool

    @classmethod
    def of(cls, function: Callable[..., Any], skip: int) -> Parameters:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        plain = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        return cls(
            names=tuple(p.name for p in plain),
            required=sum(p.default is p.empty for p in plain),
            more_positions=any(p.kind is p.VAR_POSITIONAL for p in parameters),
            more_names=any(p.kind is p.VAR_KEYWORD for p in parameters),
        )

    def fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the rule can be called with these arguments."""
        if len(args) > len(self.names) and not self.more_positions:
            return False
        left = self.names[len(args) :]
        needed = self.names[len(args) : self.required]
        known = self.more_names or all(name in left for name in kwargs)
        return known and all(name in kwargs for name in needed)


def parameters_in_python(func: Callable[..., Any]) -> list[inspect.Parameter]:
    """What a function takes, if it is written in Python; else nothing is known here."""
    if not isinstance(func, FunctionType):
        return []
    try:
        return list(inspect.signature(func).parameters.values())
    except ValueError:  # it wraps a function that is not
        return []


def pop_inplace(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
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
def _place_of_inplace(func: Callable[..., Any]) -> int | None:
    names = [parameter.name for parameter in parameters_in_python(func)]
    return names.index("inplace") if "inplace" in names else None


def arrange(
    parameters: Parameters,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that fit a rule's parameters, out of those of a valid call of ``func``."""
    kwargs = {OTHER_NAMES.get(name, name): value for name, value in kwargs.items()}
    if not args and "input" in kwargs:
        args = (kwargs.pop("input"),)
    if parameters.fit(args, kwargs):
        return args, kwargs
    for form in _forms(func):
        by_position = _in_order(form, args, kwargs)
        if by_position is not None and parameters.fit(*by_position):
            return by_position
    raise NoRule("its arguments are given in a form that the rule does not know")


def _forms(func: Callable[..., Any]) -> Iterator[list[Parameter]]:
    """The ways in which a function of PyTorch's can be called."""
    plain = parameters_in_python(func)
    if plain:
        yield [
            Parameter(p.name, p.kind is p.KEYWORD_ONLY, p.default is not p.empty, p.default)
            for p in plain
        ]
    for schema in _torch.named_schemas(getattr(func, "__name__", "")):
        yield [
            Parameter(a.name, a.kwarg_only, a.has_default_value(), a.default_value)
            for a in schema.arguments
        ]


def _in_order(
    form: list[Parameter], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The same arguments by position, but for those that can't be; None if the form differs."""
    values, left = list(args), dict(kwargs)
    positional = [parameter for parameter in form if not parameter.keyword_only]
    for parameter in positional[len(args) :]:
        if not any(other.name in left for other in positional):
            break
        if parameter.name in left:
            values.append(left.pop(parameter.name))
        elif parameter.has_default:
            values.append(parameter.default)
        else:
            return None
    known = {parameter.name for parameter in form}
    return (tuple(values), left) if known.issuperset(left) else None
