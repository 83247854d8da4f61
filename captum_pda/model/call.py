"""The user's model, called with everything but one tensor of one example held fixed."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import format_additional_forward_args
from captum_pda._torch import without_compiling
from captum_pda.errors import BatchDimensionError, warn_user
from captum_pda.model.evaluation_mode import (
    RandomState,
    exported_with,
    random_state,
    same_random_state,
    set_random_state,
)
from captum_pda.model.inputs import check_inputs
from captum_pda.model.outputs import (
    AT_MOST,
    agree,
    check_outputs,
    differ_by_less,
    one_row_each,
    scores_of,
)

#: Up to this many arguments are tried both divided among the examples and whole.
MAX_ARGUMENTS = 4

IS_RANDOM = (
    "the model answers the same input differently from one pass to the next, so part of the map is "
    "noise: it draws random numbers, or keeps a state. Dropout that stays on is the usual reason "
    "(F.dropout needs training=self.training); for a model that is meant to be random, average "
    "several maps"
)
LOOKS_AT_ITS_BATCH = (
    "the model's answer for an example depends on the other examples in its batch, as with "
    "batch-norm that keeps no running statistics (track_running_stats=False)"
)


class ModelCall:
    """Calls ``forward_func`` on the inputs as they are, or on perturbed copies of an example.

    Args:
        forward_func: the user's model or function.
        inputs: the tensors to explain, all with the same batch size N.
        additional_forward_args: further arguments. Tensors with N rows go with their example, if
            that is how the model takes them; anything else is handed on as it is.
        is_tuple: whether the inputs came as a tuple, and so do attributions.

    Attributes:
        seconds_per_pass: how long an example took in the first passes.
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        additional_forward_args: object = None,
        is_tuple: bool = False,
    ) -> None:
        self.forward_func = forward_func
        self.is_tuple = is_tuple
        self.inputs = self.given = inputs
        additional = format_additional_forward_args(additional_forward_args) or ()
        self._arguments = (*inputs, *additional)
        #: Which of the arguments have a row for each example.
        self._is_row = tuple(_has_rows(each, len(inputs[0])) for each in self._arguments)
        #: How many examples the model takes at once, if it takes no other number.
        self._only = exported_batch_size(forward_func)
        self._outputs: Tensor | None = None
        self.seconds_per_pass = 0.0
        #: The user's random numbers, and those of a model that draws some.
        self._random_before = random_state()
        self._own_random: RandomState | None = None

    @classmethod
    def of(
        cls, forward_func: Callable[..., Any], inputs: object, additional_forward_args: object
    ) -> ModelCall:
        """The call for inputs as a user gives them, checked.

        A dict that holds one tensor goes to the model by keywords if the model has an argument of
        the tensor's name, as those of Hugging Face have, and otherwise as a dict again. A model
        that fails with the dict gets the tensor, if nothing else is in it.
        """
        if isinstance(inputs, Mapping):
            names = [name for name, value in inputs.items() if isinstance(value, Tensor)]
            if len(names) == 1:
                forward_func = partial(_with_mapping, forward_func, dict(inputs), names[0])
                inputs = inputs[names[0]]
        tensors = check_inputs(inputs)
        return cls(forward_func, tensors, additional_forward_args, isinstance(inputs, tuple))

    @property
    def one_at_a_time(self) -> bool:
        """Whether each copy is run by itself."""
        return self._only == 1

    @property
    def values_per_example(self) -> int:
        """How many numbers go into the model with each example."""
        given = zip(self._arguments, self._is_row, strict=True)
        return sum(each.numel() // len(each) for each, is_row in given if is_row)

    def unperturbed(self) -> Tensor:
        """The model's checked outputs for the inputs as they are, (N, ...).

        The first time, a small pass more finds out whether the model can be asked in batches of
        copies: ``check``.
        """
        if self._outputs is None:
            start = time.perf_counter()
            with torch.no_grad():
                outputs = self.as_given()
                self._outputs = self.check(outputs)
                # Comparing outputs has waited for the device.
                n_rows = len(outputs) + self._telling_count(outputs)
                self.seconds_per_pass = (time.perf_counter() - start) / n_rows
        return self._outputs

    def as_given(self, *arguments: Any) -> Tensor:
        """The model's outputs for the inputs as they are, or for arguments of the same kind."""
        return run_as_given(self._run, arguments or self._arguments, len(self.inputs))

    def for_example(self, example: int, position: int) -> Callable[[Tensor], Tensor]:
        """A function from copies of one example's tensor ``position`` to the model's outputs."""
        return lambda copies: self.with_copies(example, {position: copies})

    def with_copies(self, example: int, copies: Mapping[int, Tensor]) -> Tensor:
        """The model's outputs for as many copies of one example's tensors, by their positions."""
        n_copies = len(next(iter(copies.values())))
        return self._one_row_each(self._copies(example, n_copies, copies))

    def repeated(self, example: int, n_copies: int) -> Any:
        """What the model returns for copies of one example as it is."""
        return self._run(*self._copies(example, n_copies))

    def check(self, outputs: Tensor) -> Tensor:
        """Find out whether an example gives the same among copies as in the batch it came in.

        One pass of two rows does where all is well: an example, and a changed copy of it. (With
        arguments of N rows, two passes of some more rows.) Where it gives something else, further
        passes tell why: an argument is not divided among the examples after all; the model is
        random, which is said; it looks at its batch, so copies are run one at a time; or it takes
        no other number of examples. Returns what the outputs of copies are to be compared with.
        """
        self._keep_own_random()
        n_rows = self._telling_count(outputs)
        for example in self._telling_examples():
            expected = outputs[example : example + 1]
            try:
                found = self._among(example, n_rows)
            except Exception as error:
                if "memory" in str(error).lower():
                    return outputs  # who runs copies makes their batches smaller
                self._settle_failure(outputs, n_rows, error)
                return outputs
            if not agree(found[-1:], expected, found):
                return self._settle_difference(outputs, example, found)
        return outputs

    def _keep_own_random(self) -> None:
        """Give the user's random numbers back, if it was the model that has drawn some."""
        now, before = random_state(), self._random_before
        if same_random_state(now, before):
            return
        # Another thread draws as it likes; a model draws as often for the same example.
        ends = []
        for _ in range(2):
            set_random_state(now)
            try:
                self._one_row_each(self._copies(0, 1))
            except Exception:  # what does not take one example is tried with more
                self.as_given()
            ends.append(random_state())
        is_own = same_random_state(*ends) and not same_random_state(now, ends[0])
        if is_own:
            self._own_random = ends[0]
            set_random_state(before)

    def _telling_count(self, outputs: Tensor) -> int:
        """A small number of rows that differs from all other sizes, so that none fits by chance."""
        sizes = {1, len(outputs)}
        if any(self._is_row[len(self.inputs) :]):
            tensors = [each for each in (outputs, *self._arguments) if isinstance(each, Tensor)]
            sizes.update(size for tensor in tensors for size in tensor.shape)
        return next(count for count in range(2, len(sizes) + 3) if count not in sizes)

    def _telling_examples(self) -> list[int]:
        """The first example; where arguments have rows, also one whose rows are others."""
        first = len(self.inputs)
        rows = [
            each
            for each, is_row in zip(self._arguments[first:], self._is_row[first:], strict=True)
            if is_row
        ]
        if not rows or len(self.inputs[0]) == 1:
            return [0]
        differ = [
            device_sync.as_integers((each != each[:1]).reshape(len(each), -1).any(dim=1))
            for each in rows
        ]
        n_others = [sum(counts) for counts in zip(*differ, strict=True)][1:]
        return [0, 1 + n_others.index(max(n_others))]

    def _among(self, example: int, n_rows: int, other: bool = False) -> Tensor:
        """The outputs of changed copies of an example, and of itself as the last."""
        arguments = self._copies(example, n_rows)
        for number, tensor in enumerate(self.inputs):
            arguments[number][:-1] = _changed(tensor[example : example + 1], other)
        return self._one_row_each(arguments)

    def _settle_difference(self, outputs: Tensor, example: int, found: Tensor) -> Tensor:
        """Find out why an example gives something else among copies; what to compare them with."""
        if not agree(self.as_given(), outputs, found):
            warn_user(IS_RANDOM)
            return outputs
        if self._divides_otherwise(outputs, len(found)):
            return outputs
        # Batches of one size are computed in one way: what differs is not rounding.
        other = self._among(example, len(found), other=True)
        if agree(other[-1:], found[-1:], found):
            if differ_by_less(found[-1:], outputs[example : example + 1], AT_MOST, found):
                return outputs
            if not self._gives_each(outputs, len(outputs)):  # as many as were given
                self._check_arguments(None)
        return self._run_alone(outputs)

    def check_batch(self, outputs: Tensor) -> bool:
        """The same for a method that runs no copies, with one pass of the batch: whether an example
        gives the same twice, and beside changed examples. False if it is run by itself now."""
        self._keep_own_random()
        arguments = own_copies(self._arguments)
        for number, tensor in enumerate(self.inputs):
            arguments[number][1:] = _changed(tensor, other=False)[1:]
        found = self.as_given(*arguments)
        if agree(found[:1], outputs[:1], found):
            return True
        if len(outputs) == 1 or not agree(self.as_given(), outputs, found):
            warn_user(IS_RANDOM)
            return True
        return self._run_alone(outputs) is outputs

    def _run_alone(self, outputs: Tensor) -> Tensor:
        """Run each example by itself from now on, if the model takes one; its outputs then."""
        before, self._only = self._only, 1
        try:
            alone = self.as_given()
        except Exception:  # it may need more than one
            self._only = before
            warn_user(f"{LOOKS_AT_ITS_BATCH}; so does the map, on its batches")
            return outputs
        warn_user(f"{LOOKS_AT_ITS_BATCH}. Each is run by itself, which takes longer")
        return alone

    def _settle_failure(self, outputs: Tensor, n_rows: int, error: Exception) -> None:
        """Find a way to call a model that fails with another number of examples."""
        self.as_given()  # if this fails too, it is not for the number
        if self._divides_otherwise(outputs, n_rows):
            return
        for size in (len(outputs), 1):
            self._only = size
            if self._gives_each(outputs, size):
                how = "one example" if size == 1 else f"batches of exactly {size} examples"
                warn_user(
                    f"the model takes {how}, and fails with {n_rows} ({_in_a_line(error)}); so "
                    "that is how copies are run"
                )
                return
        self._only = None
        self._check_arguments(error)
        raise ValueError(
            f"the model takes the {len(outputs)} examples that were given, and fails with "
            f"{n_rows} copies of one of them: {_in_a_line(error)}. It may hold tensors with a row "
            "for each example; pass those as additional_forward_args, or explain one example at a "
            "time"
        ) from error

    def _gives_each(self, outputs: Tensor, n_rows: int, beside_changed: bool = False) -> bool:
        """Whether an example gives among copies, or changed copies, what it gives in the batch."""
        try:
            for n in self._telling_examples():
                found = (
                    self._among(n, n_rows)
                    if beside_changed
                    else self._one_row_each(self._copies(n, n_rows))
                )
                if not agree(found[-1:], outputs[n : n + 1], found):
                    return False
        except Exception:
            return False
        return True

    def _divides_otherwise(self, outputs: Tensor, n_rows: int) -> bool:
        """Find which arguments have rows for the examples, if some have as many by chance."""
        before = self._is_row
        unclear = [n for n in range(len(self.inputs), len(before)) if before[n]][:MAX_ARGUMENTS]
        for count in range(1, len(unclear) + 1):
            for whole in combinations(unclear, count):
                self._is_row = tuple(is_row and n not in whole for n, is_row in enumerate(before))
                if self._gives_each(outputs, n_rows, beside_changed=True):
                    return True
        self._is_row = before
        return False

    def _check_arguments(self, error: Exception | None) -> None:
        """Refuse arguments that belong to examples, unless the examples alone are the reason."""
        additional = self._arguments[len(self.inputs) :]
        suspects = [n for n, each in enumerate(additional) if list(_tensors(each))]
        if not suspects:
            return
        n_examples = len(self.inputs[0])
        named = " and ".join(f"additional_forward_args[{n}]" for n in suspects)
        what = ", ".join(_described(additional[n]) for n in suspects)
        raise ValueError(
            f"an example gives something else by itself than among the {n_examples} examples that "
            f"were given, because of {named} ({what}). A tensor goes with the examples if it is an "
            "argument of its own, not inside another, and its first dimension is the batch; pass "
            "what belongs to each example so, and put the rest into the model with "
            "functools.partial or a lambda. Or explain one example at a time"
        ) from error

    def _copies(
        self, example: int, n_copies: int, given: Mapping[int, Tensor] | None = None
    ) -> list[Any]:
        """The arguments for copies of an example, which the model may write into."""
        copies: list[Any] = []
        for number, argument in enumerate(self._arguments):
            if given and number in given:
                copies.append(given[number])
            elif self._is_row[number]:
                row = argument[example : example + 1]
                rows = row.expand(n_copies, *row.shape[1:])
                copies.append(rows.clone(memory_format=torch.contiguous_format))
            else:
                copies.append(argument.clone() if isinstance(argument, Tensor) else argument)
        return copies

    def _one_row_each(self, arguments: Sequence[Any]) -> Tensor:
        n_rows = len(arguments[0])
        try:
            return one_row_each(self._run(*arguments), n_rows)
        except (RuntimeError, ValueError) as error:
            # A traced model may take one number of examples only, that of the inputs.
            is_traced = isinstance(self.forward_func, torch.jit.ScriptModule)
            if self._only is not None or not is_traced or "memory" in str(error).lower():
                raise
        self._only = len(self.inputs[0])
        return one_row_each(self._run(*arguments), n_rows)

    def _run(self, *arguments: Any) -> Any:
        """What the model returns, called with as many rows at a time as it takes."""
        n_rows, size = len(arguments[0]), self._only
        if size is None or size == n_rows:
            return self._call(*arguments)
        outputs = []
        for start in range(0, n_rows, size):
            # The last batch is filled up with its last row.
            rows = torch.arange(start, start + size).clamp_max(n_rows - 1)
            some = [
                each[rows.to(each.device)] if is_row else each
                for each, is_row in zip(arguments, self._is_row, strict=True)
            ]
            outputs.append(one_row_each(self._call(*some), size)[: n_rows - start].clone())
        return torch.cat(outputs)

    def _call(self, *arguments: Any) -> Any:
        """Call the model; what it draws does not move the user's random numbers.

        Nothing is compiled for an explanation: that takes a minute for each new batch size.
        """
        if self._own_random is None:
            with without_compiling():
                return self.forward_func(*arguments)
        users = random_state()
        set_random_state(self._own_random)
        try:
            with without_compiling():
                return self.forward_func(*arguments)
        finally:
            self._own_random = random_state()
            set_random_state(users)


def _with_mapping(
    forward_func: Callable[..., Any], given: dict[str, Any], name: str, tensor: Tensor, *others: Any
) -> Any:
    """Call a model with a dict in which one tensor is another."""
    values = {**given, name: tensor}
    forward = getattr(forward_func, "forward", forward_func)
    try:
        takes_name = name in inspect.signature(forward).parameters
    except (TypeError, ValueError):  # a function without a known signature
        takes_name = False
    if takes_name:
        return forward_func(*others, **values)
    try:
        return forward_func(values, *others)
    except Exception as error:
        if len(given) == 1:  # a model of plain tensors
            with suppress(Exception):
                return forward_func(tensor, *others)
        raise error


def own_copies(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with every tensor copied, since a model may write into them."""
    return tuple(
        argument.clone() if isinstance(argument, Tensor) else argument for argument in arguments
    )


def _has_rows(argument: Any, n_examples: int) -> bool:
    return isinstance(argument, Tensor) and argument.dim() > 0 and len(argument) == n_examples


def _changed(example: Tensor, other: bool) -> Tensor:
    """An example (1, C, *space) with half of it at the mean, and fainter: it stays within the
    range of its values and zero, and differs in whatever a model may compare examples by."""
    flat = example.flatten(2).clone()
    half = (flat.shape[2] + 1) // 2
    hidden = flat[..., -half:] if other else flat[..., :half]
    hidden.copy_(flat.mean(dim=2, keepdim=True).expand_as(hidden))
    return (0.75 if other else 0.5) * flat.reshape(example.shape)


def _tensors(argument: Any) -> Iterator[Tensor]:
    """The tensors in an argument that have a dimension, also in tuples, lists and dicts."""
    if isinstance(argument, Tensor) and argument.dim() > 0:
        yield argument
    elif isinstance(argument, Mapping | list | tuple):
        for each in argument.values() if isinstance(argument, Mapping) else argument:
            yield from _tensors(each)


def _described(argument: Any) -> str:
    if isinstance(argument, Tensor):
        return f"a tensor of shape {tuple(argument.shape)}"
    shapes = " and ".join(str(tuple(each.shape)) for each in _tensors(argument))
    return f"a {type(argument).__name__} that holds tensors of shape {shapes}"


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]


def run_as_given(
    forward_func: Callable[..., Any], arguments: tuple[Any, ...], n_inputs: int
) -> Tensor:
    """The model's checked outputs for arguments of which the first ``n_inputs`` are explained.

    Raises:
        BatchDimensionError: the model fails, and does not where each of them is one example.
    """
    inputs = arguments[:n_inputs]
    outputs: Any = None
    failure: Exception | None = None
    try:
        outputs = forward_func(*own_copies(arguments))
        scores = check_outputs(outputs, inputs)
    except Exception as error:
        failure = error
    # One image may also pass for a batch of signals, of which the model then drops the dimension.
    if failure is None and (inputs[0].dim() > 3 or _keeps_batch(outputs, len(inputs[0]))):
        return scores
    # A model that takes what was given must tell one example from two to be believed.
    counts = (1,) if outputs is None else (1, 2)
    if all(_takes(forward_func, inputs, arguments[n_inputs:], count) for count in counts):
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in inputs)
        single = " and ".join(str((1, *tensor.shape)) for tensor in inputs)
        raise BatchDimensionError(
            f"inputs of shape {shapes} have no batch dimension: the model takes {single}. Give it "
            "one example as a batch of one, inputs.unsqueeze(0)"
        ) from failure
    if failure is not None:
        raise failure
    return scores


def _keeps_batch(outputs: object, n_examples: int) -> bool:
    scores = scores_of(outputs)
    return scores.dim() > 0 and len(scores) == n_examples


def _takes(
    forward_func: Callable[..., Any], examples: tuple[Tensor, ...], others: tuple[Any, ...], n: int
) -> bool:
    """Whether the model gives n rows of outputs for n copies of inputs that are one example."""
    if any(tensor.dim() > 4 for tensor in examples):
        return False
    batch = tuple(tensor.expand(n, *tensor.shape) for tensor in examples)
    try:
        with torch.no_grad():
            outputs = forward_func(*own_copies((*batch, *others)))
            check_outputs(outputs, batch)
            return _keeps_batch(outputs, n)
    except Exception:
        return False


def exported_batch_size(forward_func: Callable[..., Any]) -> int | None:
    """The number of examples that a model from ``torch.export`` takes, if it takes no other."""
    examples = exported_with(forward_func)
    sizes = [example.shape[0] for example in examples if example.dim() > 0]
    # A size that may vary is a symbol.
    return int(sizes[0]) if sizes and type(sizes[0]) is int else None
