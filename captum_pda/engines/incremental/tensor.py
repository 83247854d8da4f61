"""The tensor that goes through the user's model in the place of perturbed copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol
from weakref import ref

from torch import Tensor

from captum_pda import _torch
from captum_pda.engines.incremental.boxed import Boxed
from captum_pda.engines.incremental.memory import same_memory
from captum_pda.engines.incremental.trees import find


class Follower(Protocol):
    """Decides what is done when the model calls a function with perturbed tensors."""

    @property
    def channels_last(self) -> bool:
        """Whether completed maps have their channels last in memory."""
        ...

    def on_function(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A function of PyTorch's, as the model calls it."""
        ...

    def on_operation(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operation that compiled code calls."""
        ...


class PerturbedTensor(Tensor):
    """Perturbed copies, held as boxes as long as there are rules, then as an ordinary tensor.

    PyTorch hands every function that is called with such a tensor to ``__torch_function__``, so the
    user's own ``forward`` runs, with its hooks and its control flow. All that depends on the
    perturbed input is such a tensor; so an ordinary tensor is the same for every copy.

    What is in boxes is never written again, and no code of the user's ever gets at that memory: an
    ordinary tensor that is held has memory of its own.
    """

    held: Boxed | Tensor
    follower: Follower
    #: Those that share memory with this one in the model's eyes, itself included.
    aliases: list[ref[PerturbedTensor]]

    @staticmethod
    def __new__(cls, held: Boxed | Tensor, follower: Follower) -> PerturbedTensor:
        tensor = _torch.make_wrapper_subclass(cls, held.shape, held.dtype, held.device)
        tensor.held, tensor.follower, tensor.aliases = held, follower, []
        return tensor

    def __init__(self, held: Boxed | Tensor, follower: Follower) -> None:
        pass

    def share_with(self, other: PerturbedTensor) -> None:
        """From now on these two, and whatever shares memory with one of them, share memory."""
        mine, others = (tensor.aliases or [ref(tensor)] for tensor in (self, other))
        self.aliases = other.aliases = mine
        if mine is not others:
            mine.extend(others)
            for alias in _alive(others):
                alias.aliases = mine

    def shares_elsewhere(self) -> bool:
        """Whether something shares memory with this tensor in the model's eyes, and not here."""
        for alias in _alive(self.aliases):
            if alias is self:
                continue
            if isinstance(self.held, Boxed) or isinstance(alias.held, Boxed):
                return True
            if not same_memory(self.held, alias.held):
                return True
        return False

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with _torch.without_torch_function():
            first = next(find((args, kwargs), cls))
            return first.follower.on_function(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with _torch.without_torch_function_modes():
            first = next(find((args, kwargs), cls))
            return first.follower.on_operation(func, args, kwargs)


def _alive(references: list[ref[PerturbedTensor]]) -> Iterator[PerturbedTensor]:
    for reference in references:
        tensor = reference()
        if tensor is not None:
            yield tensor
