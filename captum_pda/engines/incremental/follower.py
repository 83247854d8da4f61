"""Follows the model through one pass: by rules on boxes where there are some, else densely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from captum_pda.engines.batch_size import is_out_of_memory
from captum_pda.engines.incremental import kinds
from captum_pda.engines.incremental.boxed import Boxed
from captum_pda.engines.incremental.memory import HARMLESS, NUMBERS, lets_out, same_memory
from captum_pda.engines.incremental.no_rule import IncrementalError, NoRule
from captum_pda.engines.incremental.pass_state import PassState
from captum_pda.engines.incremental.rules import IN_PLACE, RULES, arrange, pop_inplace
from captum_pda.engines.incremental.tensor import PerturbedTensor
from captum_pda.engines.incremental.trees import find, leaves, replace
from captum_pda.engines.incremental.writes import exposes, name_of, written

#: Functions that give a tensor other memory, or read memory by its layout.
REFUSED = {"set_", "__set__", "as_strided", "as_strided_", "as_strided_scatter"}
SET_REQUIRES_GRAD = Tensor.requires_grad.__set__  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class Call:
    """A function with its arguments, as the model calls it, and the perturbed tensors in them."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[PerturbedTensor]

    @classmethod
    def of(cls, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return cls(func, args, kwargs, list(find((args, kwargs), PerturbedTensor)))

    @property
    def name(self) -> str:
        """What to call the function in a report."""
        return name_of(self.func)

    def written(self) -> list[Tensor]:
        """The tensors among the arguments that the function may write into."""
        return written(self.func, self.args, self.kwargs)

    def result(self, ordinary: Callable[[PerturbedTensor], Tensor]) -> Any:
        """Call the function with ordinary tensors in the place of perturbed ones."""
        args, kwargs = replace((self.args, self.kwargs), PerturbedTensor, ordinary)
        return self.func(*args, **kwargs)


class PassFollower:
    """Decides for every call of one pass what is done with the perturbed tensors."""

    def __init__(self, state: PassState) -> None:
        self._state = state
        #: All perturbed tensors of this pass that are in use.
        self._alive: WeakValueDictionary[int, PerturbedTensor] = WeakValueDictionary()
        self._finished = False
        #: Why the model was refused, if it was: compiled code makes another error of it.
        self.refusal: IncrementalError | None = None

    @property
    def channels_last(self) -> bool:
        """Whether completed maps have their channels last in memory."""
        return self._state.channels_last

    def perturbed(self, held: Boxed | Tensor) -> PerturbedTensor:
        """A perturbed tensor that is followed."""
        tensor = PerturbedTensor(held, self)
        self._alive[id(tensor)] = tensor
        return tensor

    def dense(self, tensor: PerturbedTensor) -> Tensor:
        """All values of all copies, to be read only."""
        if isinstance(tensor.held, Boxed):
            maps = tensor.held.whole()
            return maps if self.channels_last else maps.contiguous()
        return tensor.held

    def own(self, tensor: PerturbedTensor) -> Tensor:
        """From now on the tensor holds an ordinary one, in memory that no box reads."""
        if isinstance(tensor.held, Boxed):
            boxes, maps = tensor.held.values, self.dense(tensor)
            tensor.held = maps.clone() if same_memory(boxes, maps) else maps
        return tensor.held

    def finish(self, complete: bool = True) -> None:
        """Turn what the model has kept into ordinary tensors, as the dense engine leaves them.

        What is not completed acts as an ordinary tensor whenever a function is called with it.
        """
        kept = list(self._alive.values()) if complete else []
        self._alive.clear()
        self._finished = True
        for tensor in kept:
            tensor.aliases = []
        for tensor in kept:
            try:
                ordinary = self.own(tensor).detach()
                torch.utils.swap_tensors(tensor, ordinary)  # type: ignore[no-untyped-call]
            except (RuntimeError, MemoryError):
                continue

    def on_function(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if kinds.describes(func, args):
            return kinds.describe(func, args, kwargs)
        if kinds.needs_only_kinds(func, args, kwargs):
            return kinds.with_kinds(func, args, kwargs)
        call = Call.of(func, args, kwargs)
        if self._finished:
            # What is left of a pass that is over acts as the ordinary tensor that it stands for.
            return call.result(self.own)
        self._check_pass(call)
        if any(isinstance(tensor.held, Boxed) for tensor in call.tensors):
            try:
                return self._incrementally(call)
            except IncrementalError:
                raise
            except Exception as reason:  # what a rule can't do, the function may; else it says why
                if is_out_of_memory(reason):
                    raise
                self._state.went_dense.setdefault(call.name, _in_a_line(reason))
        return self._densely(call)

    def on_operation(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = Call.of(func, args, kwargs)
        if self._finished:
            return call.result(self.own)
        self._state.went_dense.setdefault(call.name, "it is called from compiled code")
        try:
            self._check_pass(call)
            return self._densely(call)
        except IncrementalError as error:
            self.refusal = error
            raise

    def _incrementally(self, call: Call) -> Any:
        """Apply the rule of a function to what the perturbed tensors hold."""
        twin = IN_PLACE.get(call.func, call.func)
        rule = RULES.get(twin)
        if rule is None:
            raise NoRule("it has no rule")
        args, kwargs, in_place = pop_inplace(call.func, call.args, call.kwargs)
        args, kwargs = arrange(rule.parameters, twin, args, kwargs)
        in_place = in_place or twin is not call.func
        if kwargs.get("out") is not None or (in_place and not isinstance(args[0], PerturbedTensor)):
            raise NoRule("it writes into another tensor")
        if any(not isinstance(tensor.held, Boxed) for tensor in call.tensors):
            raise NoRule("another operand is dense")
        boxes, options = replace((args, kwargs), PerturbedTensor, _held)
        result = rule.apply(self._state, twin, *boxes, **options)
        self._state.saved_work = self._state.saved_work or rule.saves
        if in_place:
            return self._overwrite(args[0], result, call)
        wrapped = replace(result, (Boxed, Tensor), lambda made: self._apart(made, call.tensors))
        for made in find([wrapped], PerturbedTensor):
            if rule.aliases or any(made.held is tensor.held for tensor in call.tensors):
                call.tensors[0].share_with(made)
        return wrapped

    def _apart(self, result: Boxed | Tensor, made_of: list[PerturbedTensor]) -> PerturbedTensor:
        """A rule's result; a finished tensor in memory that no box reads."""
        if isinstance(result, Tensor):
            for boxes in (tensor.held for tensor in made_of):
                if not isinstance(boxes, Boxed) or boxes.postponed is not None:
                    continue
                if same_memory(result, boxes.values):
                    return self.perturbed(result.clone())
        return self.perturbed(result)

    def _overwrite(self, tensor: PerturbedTensor, result: Any, call: Call) -> PerturbedTensor:
        """Let a tensor hold what a function would have written into it."""
        if result is tensor.held:
            return tensor
        if result.dtype != tensor.held.dtype or tuple(result.shape) != tuple(tensor.held.shape):
            raise NoRule("its result has another type or shape than what it is written into")
        _check_unshared(tensor, call)
        tensor.held = result
        return tensor

    def _densely(self, call: Call) -> Any:
        """Call a function with all values of all copies."""
        self._before_writing(call)
        if exposes(call.func):
            self._expose(call)
        result = self._call(call)
        for leaf in leaves(result):
            # A nested tensor has no shape that copies could be followed in.
            is_nested = isinstance(leaf, Tensor) and leaf.is_nested
            if is_nested or not (leaf is None or isinstance(leaf, (Tensor, *HARMLESS))):
                self._state.leaked = True
                if not isinstance(leaf, NUMBERS):
                    self._expose(call)
        known = {id(tensor.held): tensor for tensor in call.tensors}

        def follow(made: Tensor) -> Tensor:
            if made.is_nested or id(made) in known:
                return known.get(id(made), made)
            return self.perturbed(made)

        wrapped = replace(result, Tensor, follow)
        for made in find([wrapped], PerturbedTensor):
            for tensor in call.tensors:
                if made is not tensor and _hold_the_same(made, tensor):
                    tensor.share_with(made)
        return wrapped

    def _expose(self, call: Call) -> None:
        """Give tensors memory of their own that can be written at any time, by anyone."""
        for tensor in call.tensors:
            _check_unshared(tensor, call)
            self._state.write_log.expose(self.own(tensor))

    def _before_writing(self, call: Call) -> None:
        """See to it that what is written is written into memory that no box reads."""
        name = getattr(call.func, "__name__", "").partition(".")[0]
        if name in REFUSED and call.func != SET_REQUIRES_GRAD:
            raise _refusal(f"the model goes about a tensor's memory by {call.name}")
        for tensor in call.written():
            if isinstance(tensor, PerturbedTensor):
                _check_unshared(tensor, call)
                self._state.write_log.note(self.own(tensor))
            else:
                # What is written may come from a perturbed tensor.
                self._state.leaked = True
                self._state.write_log.note(tensor)

    def _call(self, call: Call) -> Any:
        """Call a function with ordinary tensors, and let none of the boxes' memory out."""
        dense = {id(tensor): self.dense(tensor) for tensor in call.tensors}
        result = call.result(lambda tensor: dense[id(tensor)])
        again = False
        for tensor in call.tensors:
            if not isinstance(tensor.held, Boxed) or not lets_out(result, dense[id(tensor)]):
                continue
            # A view: from now on the tensor is what is viewed, as writing into one of them must be
            # seen in the other.
            if same_memory(tensor.held.values, dense[id(tensor)]):
                dense[id(tensor)] = dense[id(tensor)].clone()
                again = True
            tensor.held = dense[id(tensor)]
        if not again:
            return result
        if call.written():
            raise _refusal(f"the model calls {call.name}, which writes and gives a view")
        return self._call(call)

    def _check_pass(self, call: Call) -> None:
        if any(tensor.follower is not self for tensor in call.tensors):
            raise _refusal("the model keeps tensors from one pass to the next")


def _in_a_line(reason: Exception) -> str:
    text = str(reason).strip().partition("\n")[0]
    return text if isinstance(reason, NoRule) else f"its rule can't do this ({text})"


def _held(tensor: PerturbedTensor) -> Boxed | Tensor:
    return tensor.held


def _hold_the_same(one: PerturbedTensor, other: PerturbedTensor) -> bool:
    held = one.held, other.held
    return (
        isinstance(held[0], Tensor)
        and isinstance(held[1], Tensor)
        and same_memory(held[0], held[1])
    )


def _check_unshared(tensor: PerturbedTensor, call: Call) -> None:
    if tensor.shares_elsewhere():
        raise _refusal(
            f"the model calls {call.name} on a tensor that shares memory with another one",
            ", or make that call out of place in the model",
        )


def _refusal(what: str, otherwise: str = "") -> IncrementalError:
    return IncrementalError(f"{what}, which boxes can't follow; use engine='dense'{otherwise}")
