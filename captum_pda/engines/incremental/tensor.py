"""The tensor that goes through the user's model in the place of perturbed copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from captum_pda._torch import make_wrapper_subclass, without_torch_function
from captum_pda.engines.incremental.boxed import Boxed
from captum_pda.engines.incremental.no_rule import GoDense, IncrementalError
from captum_pda.engines.incremental.pass_state import Run
from captum_pda.engines.incremental.rules.table import (
    ALIASING,
    DESCRIPTIVE,
    IN_PLACE,
    RULES,
    SAVING,
)


class PerturbedTensor(Tensor):
    """Perturbed copies, held as boxes as long as there are rules, then as an ordinary tensor.

    PyTorch hands every function that is called with such a tensor to ``__torch_function__``, so the
    user's own ``forward`` runs, with its hooks and its control flow. All that depends on the
    perturbed input is such a tensor; so an ordinary tensor is the same for every copy.
    """

    held: Boxed | Tensor
    run: Run
    #: Whether another tensor shares the values.
    aliased: bool

    @staticmethod
    def __new__(cls, held: Boxed | Tensor, run: Run) -> PerturbedTensor:
        tensor = make_wrapper_subclass(cls, held.shape, held.dtype, held.device)
        tensor.held, tensor.run, tensor.aliased = held, run, False
        return tensor

    def __init__(self, held: Boxed | Tensor, run: Run) -> None:
        pass

    def dense(self) -> Tensor:
        """All values of all copies."""
        if isinstance(self.held, Boxed):
            maps = self.held.whole()
            return maps if self.run.channels_last else maps.contiguous()
        return self.held

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with without_torch_function():
            if func in DESCRIPTIVE and isinstance(args[0], cls):
                held = args[0].held
                return func(args[0] if isinstance(held, Boxed) else held, *args[1:], **kwargs)
            tensors = list(_perturbed((args, kwargs)))
            run = tensors[0].run
            if any(isinstance(tensor.held, Boxed) for tensor in tensors):
                try:
                    return _incrementally(run, func, args, kwargs, tensors)
                except (GoDense, RuntimeError) as reason:
                    if not _can_go_dense(reason):
                        raise
                    run.went_dense.setdefault(_name(func), str(reason))
            return _densely(run, func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What calls an operation from compiled code gets here, past the rules."""
        run = next(_perturbed((args, kwargs))).run
        run.went_dense.setdefault(_name(func), "it is called from compiled code")
        return _densely(run, func, args, kwargs or {})


def _can_go_dense(reason: GoDense | RuntimeError) -> bool:
    """A rule may call another function than the model, with fewer types on offer."""
    missing = isinstance(reason, NotImplementedError)
    # Older versions of PyTorch have no error of its own for this.
    return isinstance(reason, GoDense) or missing or "not implemented for" in str(reason)


def _incrementally(
    run: Run,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[PerturbedTensor],
) -> Any:
    """Apply the rule of a function to what the perturbed tensors hold."""
    twin = IN_PLACE.get(func, func)
    rule = RULES.get(twin)
    if rule is None:
        raise GoDense("it has no rule")
    kwargs = dict(kwargs)
    in_place = kwargs.pop("inplace", False) or twin is not func
    if "out" in kwargs or (in_place and not isinstance(args[0], PerturbedTensor)):
        raise GoDense("it writes into another tensor")
    held = _replace((args, kwargs), lambda tensor: tensor.held)
    if any(not isinstance(tensor.held, Boxed) for tensor in tensors):
        raise GoDense("another operand is dense")
    result = rule(run, twin, *held[0], **held[1])
    run.saved_work = run.saved_work or rule in SAVING
    if in_place:
        _check_unshared(args[0], func)
        args[0].held = result
        return args[0]
    wrapped = _wrap(run, result)
    if rule in ALIASING:
        for tensor in (*tensors, *_perturbed(wrapped)):
            tensor.aliased = True
    return wrapped


def _densely(
    run: Run, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function with all values of all copies."""
    perturbed = list(_perturbed((args, kwargs)))
    first = args[0] if args else None
    if (
        isinstance(first, PerturbedTensor)
        and isinstance(first.held, Boxed)
        and _writes(func, kwargs)
    ):
        _check_unshared(first, func)
        first.held = first.dense().clone()
    completed = {id(tensor): tensor.dense() for tensor in perturbed}
    dense_args, dense_kwargs = _replace((args, kwargs), lambda tensor: completed[id(tensor)])
    result = func(*dense_args, **dense_kwargs)
    if result is not None and not isinstance(result, Tensor | tuple | list):
        run.leaked = True
    for tensor in perturbed:
        # A view of completed maps: from now on those are the tensor, as writing into one of them
        # must be seen in the other.
        if isinstance(tensor.held, Boxed) and _shares(completed[id(tensor)], result):
            tensor.held = completed[id(tensor)]
    known = {id(tensor.held): tensor for tensor in perturbed}
    return _wrap(run, result, known)


def _writes(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Whether a function writes into its first argument."""
    name = _name(func)
    trailing = name.endswith("_") and not name.endswith("__")
    return trailing or bool(kwargs.get("inplace")) or name.startswith("__i") or "__set" in name


def _shares(tensor: Tensor, result: Any) -> bool:
    """Whether a result is a view of a tensor."""
    if isinstance(result, tuple | list):
        return any(_shares(tensor, part) for part in result)
    if not isinstance(result, Tensor) or result.layout != torch.strided:
        return False
    return result.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def _check_unshared(tensor: PerturbedTensor, func: Callable[..., Any]) -> None:
    if tensor.aliased:
        raise IncrementalError(
            f"the model calls {_name(func)} on a tensor that shares memory with another one, which "
            "boxes can't follow; use engine='dense', or make that call out of place in the model"
        )


def _name(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", None) or str(func)
    if name == "fn":  # F.max_pool2d and the like are made by one function of PyTorch
        return "pooling"
    if name == "__get__":
        return f"Tensor.{getattr(getattr(func, '__self__', None), '__name__', name)}"
    return str(name)


def _perturbed(tree: Any) -> Iterator[PerturbedTensor]:
    """The perturbed tensors among arguments."""
    if isinstance(tree, PerturbedTensor):
        yield tree
    elif isinstance(tree, tuple | list | dict):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            # Most arguments are plain numbers, and every call of the model comes through here.
            if isinstance(branch, PerturbedTensor):
                yield branch
            elif isinstance(branch, tuple | list | dict):
                yield from _perturbed(branch)


def _replace(tree: Any, change: Callable[[PerturbedTensor], Any]) -> Any:
    """The same arguments with every perturbed tensor replaced."""
    if isinstance(tree, PerturbedTensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _replace(branch, change) for key, branch in tree.items()}
    if isinstance(tree, tuple | list):
        return _rebuild(tree, [_replace(branch, change) for branch in tree])
    return tree


def _rebuild(like: Any, parts: list[Any]) -> Any:
    """A list, tuple or named tuple with other parts."""
    kind = type(like)
    return kind(*parts) if hasattr(like, "_fields") else kind(parts)


def _wrap(run: Run, result: Any, known: dict[int, PerturbedTensor] | None = None) -> Any:
    """Results as perturbed tensors; what was written in place is the tensor it was."""
    if isinstance(result, Boxed | Tensor):
        if known and id(result) in known:
            return known[id(result)]
        return PerturbedTensor(result, run)
    if isinstance(result, tuple | list) and not isinstance(result, torch.Size):
        return _rebuild(result, [_wrap(run, part, known) for part in result])
    return result
