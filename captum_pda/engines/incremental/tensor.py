"""The tensor that goes through the user's model: calls are run by rules on boxes, and densely, on
the whole maps of all copies, where there is no rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor

from captum_pda import _torch
from captum_pda.engines.incremental.boxes import Boxed
from captum_pda.engines.incremental.cache import (
    Function,
    PassState,
    find,
    leaves,
    replaced,
    same_memory,
)
from captum_pda.engines.incremental.rules import (
    IN_PLACE,
    RULES,
    NoRule,
    arranged,
    convolution,
    elementwise,
    named,
    pooling,
    shape,
)
from captum_pda.engines.protocol import CHANNELS_LAST, IncrementalError, is_out_of_memory

#: Importing these modules declares their rules.
DECLARED = (convolution, elementwise, pooling, shape)
#: Results that give a model no access to values.
HARMLESS = (str, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format)
#: Functions that give a tensor other memory, or read memory by its layout.
REFUSED = {"set_", "__set__", "as_strided", "as_strided_", "as_strided_scatter"}
#: Functions after which a tensor's memory can be written unnoticed.
EXPOSING = {"numpy", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage"}
EXPOSING |= {"share_memory_"}
SET_REQUIRES_GRAD = Tensor.requires_grad.__set__  # type: ignore[attr-defined]
#: Attributes that do not depend on a tensor's values.
PROPERTIES = (
    "device dtype grad grad_fn is_cpu is_cuda is_leaf is_meta is_mkldnn is_mps is_nested "
    "is_quantized is_sparse itemsize layout names nbytes ndim output_nr requires_grad "
    "retains_grad shape"
)
METHODS = (
    "dim element_size get_device has_names is_complex is_conj is_contiguous is_floating_point "
    "is_inference is_neg is_pinned is_same_size is_shared is_signed ndimension nelement numel "
    "size storage_offset stride __len__"
)
DESCRIPTIVE = {
    *(getattr(Tensor, name).__get__ for name in PROPERTIES.split() if hasattr(Tensor, name)),
    *named(METHODS),
}
#: Functions that make a tensor of the shape and type of their first argument.
FACTORIES = set(
    named(
        "zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros "
        "new_ones new_empty new_empty_strided new_full new_tensor"
    )
)
#: Functions of their first argument that use only the shape and type of the others.
SHAPED_LIKE = set(named("to type_as expand_as view_as reshape_as"))


class PerturbedTensor(Tensor):
    """Perturbed copies, stored as boxes as long as there are rules, then as an ordinary tensor.

    PyTorch passes every function call with such a tensor to ``__torch_function__``, so the user's
    own ``forward`` runs, with its hooks and control flow. Everything that depends on the perturbed
    input is such a tensor; ordinary tensors are the same for every copy. Boxes are never written,
    and the user's code has no access to their memory.
    """

    held: Boxed | Tensor
    follower: PassFollower
    #: The tensors that share memory with this one from the model's view, including itself.
    aliases: list[ref[PerturbedTensor]]

    @staticmethod
    def __new__(cls, held: Boxed | Tensor, follower: PassFollower) -> PerturbedTensor:
        tensor = _torch.make_wrapper_subclass(cls, held.shape, held.dtype, held.device)
        tensor.held, tensor.follower, tensor.aliases = held, follower, []
        return tensor

    def __init__(self, held: Boxed | Tensor, follower: PassFollower) -> None:
        pass

    def share_with(self, other: PerturbedTensor) -> None:
        """Let the two, and whatever shares memory with either, share memory from now on."""
        mine, others = (tensor.aliases or [ref(tensor)] for tensor in (self, other))
        self.aliases = other.aliases = mine
        if mine is not others:
            mine.extend(others)
            for alias in _alive(others):
                alias.aliases = mine

    def shares_elsewhere(self) -> bool:
        """Whether a tensor shares memory with this one from the model's view, but not here."""
        for alias in _alive(self.aliases):
            if alias is self:
                continue
            if isinstance(self.held, Boxed) or isinstance(alias.held, Boxed):
                return True
            if not same_memory(self.held, alias.held):
                return True
        return False

    def own(self) -> Tensor:
        """Store an ordinary tensor from now on, in memory that no box reads."""
        if isinstance(self.held, Boxed):
            maps = self.held.whole()
            if not self.follower.state.channels_last:
                maps = maps.contiguous()
            self.held = maps.clone() if self.held.is_whole else maps
        return self.held

    @classmethod
    def __torch_function__(
        cls, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with _torch.without_torch_function():
            first = find((args, kwargs), cls)[0]
            return first.follower.on_function(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with _torch.without_torch_function_modes():
            first = find((args, kwargs), cls)[0]
            return first.follower.on_operation(func, args, kwargs)


def _alive(references: list[ref[PerturbedTensor]]) -> Iterator[PerturbedTensor]:
    for reference in references:
        tensor = reference()
        if tensor is not None:
            yield tensor


def name_of(func: Function) -> str:
    """The name of a function in a report."""
    name = getattr(func, "__name__", None) or str(func)
    if name == "fn":  # F.max_pool2d and the like are made by one function of PyTorch
        return "pooling"
    if name in ("__get__", "__set__"):
        return f"Tensor.{getattr(getattr(func, '__self__', None), '__name__', name)}"
    return str(name)


class _Call:
    """A function call of the model, and the perturbed tensors among its arguments."""

    def __init__(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.name = name_of(func)
        self.tensors = find((args, kwargs), PerturbedTensor)

    def result(self) -> Any:
        args, kwargs = replaced((self.args, self.kwargs), PerturbedTensor, PerturbedTensor.own)
        return self.func(*args, **kwargs)

    def declared_writes(self) -> list[Any]:
        into: list[Any] = []
        for schema in _torch.operator_schemas(self.func):
            for position, argument in enumerate(schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    given = dict(enumerate(self.args))
                    into.append(given.get(position, self.kwargs.get(argument.name)))
        return find(into, Tensor)


class PassFollower:
    """Handles every call with perturbed tensors in one pass."""

    def __init__(self, state: PassState) -> None:
        self.state = state
        #: All perturbed tensors of this pass that are in use.
        self._alive: WeakValueDictionary[int, PerturbedTensor] = WeakValueDictionary()
        self._finished = False
        #: Why the model was refused, because its own code may turn that into another error.
        self.refusal: IncrementalError | None = None

    def perturbed(self, held: Boxed | Tensor) -> PerturbedTensor:
        tensor = PerturbedTensor(held, self)
        self._alive[id(tensor)] = tensor
        return tensor

    def finish(self, complete: bool = True) -> None:
        """Turn tensors that the model has kept into ordinary ones."""
        kept = list(self._alive.values()) if complete else []
        self._alive.clear()
        self._finished = True
        for tensor in kept:
            tensor.aliases = []
        for tensor in kept:
            try:
                torch.utils.swap_tensors(tensor, tensor.own().detach())  # type: ignore[no-untyped-call]
            except IncrementalError as error:
                self.refusal = error
            except (RuntimeError, MemoryError):
                continue

    def on_function(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle a call of a PyTorch function."""
        first = args[0] if args else None
        if func in DESCRIPTIVE and isinstance(first, PerturbedTensor):
            rest = replaced(args[1:], PerturbedTensor, self._empty_like)
            # A tensor in boxes has the shape of its maps; an ordinary one may have changed it.
            return func(first if isinstance(first.held, Boxed) else first.held, *rest, **kwargs)
        if _needs_no_values(func, args, kwargs):
            args, kwargs = replaced((args, kwargs), PerturbedTensor, self._empty_like)
            return func(*args, **kwargs)
        return self._follow(_Call(func, args, kwargs))

    def on_operation(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle an operation that compiled code calls."""
        return self._follow(_Call(func, args, kwargs), "it is called from compiled code")

    def _follow(self, call: _Call, why_dense: str = "") -> Any:
        if self._finished:
            # A tensor that is kept after its pass acts as the ordinary tensor that it represents.
            return call.result()
        try:
            if any(tensor.follower is not self for tensor in call.tensors):
                raise _refusal("the model keeps tensors from one pass to the next")
            if not why_dense and any(isinstance(one.held, Boxed) for one in call.tensors):
                try:
                    return self._incrementally(call)
                except IncrementalError:
                    raise
                except Exception as reason:  # the function itself may do what its rule can't
                    if is_out_of_memory(reason):
                        raise
                    text = str(reason).strip().partition("\n")[0]
                    known = isinstance(reason, NoRule)
                    why_dense = text if known else f"its rule can't do this ({text})"
            if why_dense:
                self.state.went_dense.setdefault(call.name, why_dense)
            return self._densely(call)
        except IncrementalError as error:
            self.refusal = error
            raise

    def _empty_like(self, tensor: PerturbedTensor) -> Tensor:
        """An ordinary tensor of the same shape and type, for functions that read no values."""
        held = tensor.held
        if not isinstance(held, Boxed):
            return held
        layout = CHANNELS_LAST.get(len(held.shape)) if self.state.channels_last else None
        return torch.empty(
            held.shape,
            dtype=held.dtype,
            device=held.device,
            memory_format=layout or torch.contiguous_format,
        )

    def _incrementally(self, call: _Call) -> Any:
        out_of_place = IN_PLACE.get(call.func, call.func)
        rule = RULES.get(out_of_place)
        if rule is None:
            raise NoRule("it has no rule")
        args, kwargs, in_place = arranged(call.func, rule, call.args, call.kwargs)
        in_place = in_place or out_of_place is not call.func
        if kwargs.get("out") is not None or (in_place and not isinstance(args[0], PerturbedTensor)):
            raise NoRule("it writes into another tensor")
        if any(not isinstance(tensor.held, Boxed) for tensor in call.tensors):
            raise NoRule("another operand is dense")
        boxes, options = replaced((args, kwargs), PerturbedTensor, lambda tensor: tensor.held)
        result = rule.apply(self.state, out_of_place, *boxes, **options)
        self.state.saved_work = self.state.saved_work or rule.saves
        if in_place:
            return self._overwrite(args[0], result, call)
        wrapped = replaced(result, (Boxed, Tensor), self.perturbed)
        for made in find(wrapped, PerturbedTensor):
            if rule.aliases or any(made.held is tensor.held for tensor in call.tensors):
                call.tensors[0].share_with(made)
        return wrapped

    def _overwrite(self, tensor: PerturbedTensor, result: Any, call: _Call) -> PerturbedTensor:
        """Store what a function would have written into a tensor."""
        if result is tensor.held:
            return tensor
        if result.dtype != tensor.held.dtype or tuple(result.shape) != tuple(tensor.held.shape):
            raise NoRule("its result has another type or shape than what it is written into")
        _check_unshared(tensor, call)
        tensor.held = result
        return tensor

    def _densely(self, call: _Call) -> Any:
        """Call a function with all values of all copies, which are ordinary tensors from now on."""
        name = getattr(call.func, "__name__", "").partition(".")[0]
        if name in REFUSED and call.func != SET_REQUIRES_GRAD:
            raise _refusal(f"the model replaces or reinterprets a tensor's memory by {call.name}")
        given = find((call.args, call.kwargs), Tensor)
        ordinary = [one.own() if isinstance(one, PerturbedTensor) else one for one in given]
        versions = list(map(_torch.version, ordinary))
        result = call.result()
        declared = call.declared_writes()
        for tensor, values, version in zip(given, ordinary, versions, strict=True):
            is_written = version is None or version != _torch.version(values)
            if not is_written and not any(tensor is other for other in declared):
                continue
            if isinstance(tensor, PerturbedTensor):
                _check_unshared(tensor, call)
            else:
                # The written values may come from a perturbed tensor.
                self.state.leaked = True
        return self._wrapped(call, result)

    def _wrapped(self, call: _Call, result: Any) -> Any:
        """The tensors of a result as perturbed ones, which may share memory with the arguments."""
        exposes = call.name in EXPOSING
        for leaf in leaves(result):
            # Copies of a nested tensor cannot be followed, because it has no shape.
            is_nested = isinstance(leaf, Tensor) and leaf.is_nested
            if is_nested or not (leaf is None or isinstance(leaf, (Tensor, *HARMLESS))):
                self.state.leaked = True
                exposes = exposes or not isinstance(leaf, bool | int | float | complex)
        for tensor in call.tensors if exposes else ():
            _check_unshared(tensor, call)
        known = {id(tensor.held): tensor for tensor in call.tensors}

        def follow(made: Tensor) -> Tensor:
            if made.is_nested or id(made) in known:
                return known.get(id(made), made)
            return self.perturbed(made)

        wrapped = replaced(result, Tensor, follow)
        for made in find(wrapped, PerturbedTensor):
            for tensor in call.tensors:
                if made is not tensor and same_memory(made.own(), tensor.own()):
                    tensor.share_with(made)
        return wrapped


def _needs_no_values(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the result is independent of the values of all perturbed tensors."""
    if func in FACTORIES:
        others = (args[1:], {k: v for k, v in kwargs.items() if k not in ("input", "self")})
        return not find(others, PerturbedTensor)
    return func in SHAPED_LIKE and type(args[0] if args else None) is not PerturbedTensor


def _check_unshared(tensor: PerturbedTensor, call: _Call) -> None:
    if tensor.shares_elsewhere():
        raise _refusal(
            f"the model calls {call.name} on a tensor that shares memory with another one",
            ", or make that call out of place in the model",
        )


def _refusal(what: str, otherwise: str = "") -> IncrementalError:
    return IncrementalError(f"{what}, which boxes can't follow; use engine='dense'{otherwise}")
