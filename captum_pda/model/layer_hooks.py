"""Look into a layer while a model runs, or put something else in the place of what it returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import nn

#: From what a layer returns to what the rest of the model gets; None leaves it as it is.
Exchange: TypeAlias = Callable[[Any], Any]


@dataclass
class Visits:
    """How often a layer was called."""

    count: int = 0
    thread: int = field(default_factory=threading.get_ident)


@contextmanager
def exchanged(layer: nn.Module, at_input: bool, exchange: Exchange) -> Iterator[Visits]:
    """Let ``exchange`` see what a layer returns, or (``at_input``) what it is called with.

    Only calls from this thread count: others may run the same model meanwhile.
    """
    visits = Visits()

    def visited() -> bool:
        own = threading.get_ident() == visits.thread
        visits.count += own
        return own

    def after(module: nn.Module, arguments: Any, output: Any) -> Any:
        return exchange(output) if visited() else None

    def before(module: nn.Module, arguments: Any) -> Any:
        return exchange(arguments) if visited() else None

    handle = (
        layer.register_forward_pre_hook(before) if at_input else layer.register_forward_hook(after)
    )
    try:
        yield visits
    finally:
        handle.remove()
