"""Arguments and results of calls: tensors in tuples, lists and dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

Kind = TypeVar("Kind")


def leaves(tree: Any) -> Iterator[Any]:
    """Everything that is no tuple, list or dictionary; a size counts as one thing."""
    if isinstance(tree, dict):
        for branch in tree.values():
            yield from leaves(branch)
    elif isinstance(tree, tuple | list) and not isinstance(tree, torch.Size):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def find(tree: Any, kind: type[Kind]) -> Iterator[Kind]:
    """The objects of a kind among arguments."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, tuple | list | dict):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            # Most arguments are plain numbers, and every call of the model comes through here.
            if isinstance(branch, kind):
                yield branch
            elif isinstance(branch, tuple | list | dict):
                yield from find(branch, kind)


def replace(tree: Any, kind: type[Kind] | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """The same arguments with every object of a kind changed."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {key: replace(branch, kind, change) for key, branch in tree.items()}
    if isinstance(tree, tuple | list) and not isinstance(tree, torch.Size):
        return _rebuild(tree, [replace(branch, kind, change) for branch in tree])
    return tree


def _rebuild(like: Any, parts: list[Any]) -> Any:
    """A list, tuple or named tuple with other parts."""
    made = type(like)
    if hasattr(like, "_fields"):
        return made(*parts)
    try:
        return made(parts)
    except TypeError:  # a list or tuple whose constructor takes something else
        return parts if isinstance(like, list) else tuple(parts)
