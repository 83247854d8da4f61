"""Calls of the user's model in which all but one example is fixed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from captum_pda._captum import format_additional_forward_args
from captum_pda._torch import without_compiling
from captum_pda.errors import BatchDimensionError, warn_user
from captum_pda.model.evaluation_mode import (
    RandomState,
    exported_with,
    random_state,
    set_random_state,
)
from captum_pda.model.inputs import check_inputs
from captum_pda.model.outputs import MAX_ROUNDING, agree, check_outputs, one_row_each, scores_of

#: Up to this many arguments are tried both divided among the examples and whole.
MAX_ARGUMENTS = 6

IS_RANDOM = (
    "the model answers the same input differently from one pass to the next, so part of the map is "
    "noise: it draws random numbers, or keeps a state. Dropout that stays on is the usual reason "
    "(F.dropout needs training=self.training); for a model that is meant to be random, average "
    "several maps"
)
DEPENDS_ON_BATCH = (
    "the model's answer for an example depends on the other examples in its batch, as with dynamic "
    "quantisation or batch-norm without running statistics (track_running_stats=False)"
)
RUN_ALONE = "Each is run by itself, which takes longer"


class ModelCall:
    """Calls ``forward_func`` on the unperturbed inputs, or on perturbed copies of an example.

    Args:
        forward_func: the user's model or function.
        inputs: the tensors to explain, all with the same batch size N.
        additional_forward_args: further arguments. Tensors with N rows are divided among the
            examples if the model takes them that way; anything else is passed on unchanged.
        is_tuple: whether inputs and attributions are tuples.
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
        #: Which arguments have a row for each example.
        self._is_row = [
            isinstance(each, Tensor) and each.dim() > 0 and len(each) == len(inputs[0])
            for each in self._arguments
        ]
        sizes = [example.shape[0] for example in exported_with(forward_func) if example.dim() > 0]
        #: The only batch size that the model takes, if any. (A dynamic size is a symbol.)
        self._batch_size = sizes[0] if sizes and type(sizes[0]) is int else None
        self._outputs: Tensor | None = None
        #: The user's random state, and that of a model which draws random numbers.
        self._random_before = random_state()
        self._own_random: RandomState | None = None
        #: The largest batch in which a copy was compared with itself alone; inf without comparison.
        self._n_compared = math.inf

    @classmethod
    def of(
        cls, forward_func: Callable[..., Any], inputs: object, additional_forward_args: object
    ) -> ModelCall:
        """The call for a user's inputs, which are checked; a dict may hold the tensor."""
        if isinstance(inputs, Mapping):
            names = [name for name, value in inputs.items() if isinstance(value, Tensor)]
            if len(names) == 1:
                forward_func = partial(_with_mapping, forward_func, dict(inputs), names[0])
                inputs = inputs[names[0]]
        tensors = check_inputs(inputs)
        return cls(forward_func, tensors, additional_forward_args, isinstance(inputs, tuple))

    @property
    def one_at_a_time(self) -> bool:
        """Whether each copy is run in a batch of its own."""
        return self._batch_size == 1

    @property
    def values_per_example(self) -> int:
        """The number of input values of each example."""
        given = zip(self._arguments, self._is_row, strict=True)
        return sum(each.numel() // len(each) for each, is_row in given if is_row)

    def unperturbed(self) -> Tensor:
        """The model's outputs for the unperturbed inputs, (N, ...); see ``check``."""
        if self._outputs is None:
            with torch.no_grad():
                self._outputs = self.check(self.as_given())
        return self._outputs

    def as_given(self, *arguments: Any) -> Tensor:
        """The model's outputs for the unperturbed inputs, or for arguments of the same kind.

        Raises:
            BatchDimensionError: the model fails, but would not if each input were one example.
        """
        arguments = arguments or self._arguments
        inputs = arguments[: len(self.inputs)]
        failure: Exception | None = None
        try:
            outputs = self._run(*copied(arguments))
            scores = check_outputs(outputs, inputs)
            # One image may also be taken for a batch of signals, whose number the model then drops.
            is_doubtful = inputs[0].dim() == 3 and not _keeps_batch(outputs, len(inputs[0]))
        except Exception as error:
            failure, is_doubtful = error, True
        # A model that gives different outputs for one and two examples takes examples.
        if is_doubtful and all(self._takes_as_examples(arguments, count) for count in (1, 2)):
            shapes = " and ".join(str(tuple(tensor.shape)) for tensor in inputs)
            single = " and ".join(str((1, *tensor.shape)) for tensor in inputs)
            raise BatchDimensionError(
                f"inputs of shape {shapes} have no batch dimension: the model takes {single}. Give "
                "it one example as a batch of one, inputs.unsqueeze(0)"
            ) from failure
        if failure is not None:
            raise failure
        return scores

    def _takes_as_examples(self, arguments: Sequence[Any], count: int) -> bool:
        n_inputs = len(self.inputs)
        if any(tensor.dim() > 4 for tensor in arguments[:n_inputs]):
            return False
        batch = tuple(tensor.expand(count, *tensor.shape) for tensor in arguments[:n_inputs])
        with suppress(Exception), torch.no_grad():
            outputs = self._call(*copied((*batch, *arguments[n_inputs:])))
            check_outputs(outputs, batch)
            return _keeps_batch(outputs, count)
        return False

    def for_example(self, example: int, position: int) -> Callable[[Tensor], Tensor]:
        """A function from copies of an example's tensor ``position`` to the model's outputs."""
        return lambda copies: self.with_copies(example, {position: copies})

    def with_copies(self, example: int, copies: Mapping[int, Tensor]) -> Tensor:
        """The model's outputs for copies of an example's tensors, by their positions.

        In the first batch of more than twice what was compared, the last copy is also run
        alone: a model may have room for some examples only, or take another way with many.
        """

        def run(copies: Mapping[int, Tensor]) -> Tensor:
            n_rows = len(next(iter(copies.values())))
            return one_row_each(self.repeated(example, n_rows, copies), n_rows)

        n_copies = len(next(iter(copies.values())))
        are_whole = all(type(tensor) is Tensor for tensor in copies.values())
        if not are_whole or n_copies <= 2 * self._n_compared + 1:
            return run(copies)
        # A model may write into its inputs.
        kept = {number: tensor.clone() for number, tensor in copies.items()}
        outputs = run(copies)
        self._n_compared = n_copies  # unless memory ran out
        try:
            alone = run({number: tensor[-1:].clone() for number, tensor in kept.items()})
        except Exception:  # some models take no batch of one
            return outputs
        if not agree(outputs[-1:], alone, outputs, MAX_ROUNDING):
            if agree(
                run({number: tensor.clone() for number, tensor in kept.items()}),
                outputs,
                share=MAX_ROUNDING,
            ):
                warn_user(f"{DEPENDS_ON_BATCH}. {RUN_ALONE}")
                self._batch_size = 1
                return run(kept)
            self._n_compared = math.inf
            warn_user(IS_RANDOM)
        return outputs

    def repeated(
        self, example: int, n_copies: int, changed: Mapping[int, Tensor] | None = None
    ) -> Any:
        arguments: list[Any] = []
        for number, argument in enumerate(self._arguments):
            if changed and number in changed:
                arguments.append(changed[number])
            elif self._is_row[number]:
                row = argument[example : example + 1].expand(n_copies, *argument.shape[1:])
                arguments.append(row.clone(memory_format=torch.contiguous_format))
            else:
                arguments += copied((argument,))
        return self._run(*arguments)

    def check(self, outputs: Tensor) -> Tensor:
        """Check whether an example has the same outputs among copies as in its batch.

        Normally one pass of two rows is enough: an example, and a changed copy of it. (A batch of
        one also needs the changed copy alone, and arguments of N rows need two passes of some more
        rows.) If outputs differ, further passes find the reason: the model is random, which is
        warned of; an argument is not divided among the examples; the model takes one batch size
        only; or outputs depend on the batch, so that copies are run one at a time. Returns what the
        outputs of copies are compared with.
        """
        n_rows, start = self._count_unlike_sizes(outputs), random_state()
        problem = self._mismatch(outputs, n_rows)
        self._keep_own_random(start)
        if problem is None:
            self._n_compared = n_rows if self._batch_size is None else math.inf
            return outputs
        if isinstance(problem, Exception):
            if "memory" in str(problem).lower():
                return outputs  # who runs copies makes their batches smaller
            self.as_given()  # if this fails too, it is not for the number
        elif self._own_random or not agree(self.as_given(), outputs, problem[1]):
            warn_user(IS_RANDOM)
            return outputs
        if self._divides_otherwise(outputs, n_rows):
            return outputs
        if isinstance(problem, Exception):
            self._find_batch_size(outputs, n_rows, problem)
            return outputs
        # Batches of the same size are computed in the same way, so differences are not rounding.
        example, found = problem
        beside_others = self._among(example, n_rows, 0.75)[-1:]
        beside_another = self._among(example, n_rows, changes_last=True)[:1]
        if agree(beside_others, found[-1:], found) and agree(beside_another, found[:1], found):
            if self._agrees(example, outputs, found, MAX_ROUNDING):
                return outputs
            if self._mismatch(outputs, len(outputs)) is not None:  # as many as were given
                self._check_arguments(None)
        return self._run_alone(outputs)

    def _keep_own_random(self, start: RandomState) -> None:
        """Restore the user's random state if the model has changed it in its first pass and again
        since ``start``; otherwise another thread has changed it."""
        now = random_state()
        if self._random_before != start != now:
            self._own_random = now
            set_random_state(self._random_before)

    def _count_unlike_sizes(self, outputs: Tensor) -> int:
        """A small number of rows that differs from all other sizes, to exclude coincidences."""
        sizes = {1, len(outputs)}
        if any(self._is_row[len(self.inputs) :]):
            tensors = [each for each in (outputs, *self._arguments) if isinstance(each, Tensor)]
            sizes.update(size for tensor in tensors for size in tensor.shape)
        return next(count for count in range(2, len(sizes) + 3) if count not in sizes)

    def _examples_to_check(self, n_rows: int) -> set[int]:
        """The example with the smallest values, which changes most if a model divides by the
        largest value of its batch, and one with different rows of arguments, or with the next
        smallest values. The last of ``n_rows`` only if there is no other, because its position is
        special."""
        sizes, n_inputs = _sizes(self.inputs[0]), len(self.inputs)
        sizes[n_rows - 1 : n_rows] = math.inf
        faintest, *others = sizes.argsort(stable=True)[:2].tolist()
        differ = torch.zeros(len(sizes), dtype=torch.int64, device="cpu")
        for each, is_row in zip(self._arguments[n_inputs:], self._is_row[n_inputs:], strict=True):
            if is_row:
                differ += (each != each[faintest]).reshape(len(each), -1).any(dim=1).cpu()
        return {faintest, int(differ.argmax())} if differ.any() else {faintest, *others}

    def _among(
        self, example: int, n_rows: int, strength: float = 0.5, changes_last: bool = False
    ) -> Tensor:
        """The outputs of changed copies of an example, and last of itself or of another changed
        copy."""
        copies = {}
        for number, tensor in enumerate(self.inputs):
            row = tensor[example : example + 1]
            others = _changed(row, strength).expand(n_rows - 1, *row.shape[1:])
            copies[number] = torch.cat([others, _changed(row, strength) if changes_last else row])
        return self.with_copies(example, copies)

    def _mismatch(self, outputs: Tensor, n_rows: int) -> tuple[int, Tensor] | Exception | None:
        """An example with other outputs among changed copies, and these; or an error; or None."""
        try:
            for example in sorted(self._examples_to_check(n_rows)):
                found = self._among(example, n_rows)
                if not self._agrees(example, outputs, found):
                    return example, found
        except Exception as error:
            return error
        return None

    def _agrees(
        self, example: int, outputs: Tensor, found: Tensor, share: float | None = None
    ) -> bool:
        """Whether an example has the same outputs among changed copies (``found``). For a batch of
        one, a changed copy must also have the same outputs alone."""
        if not agree(found[-1:], outputs[example : example + 1], found, share):
            return False
        if len(outputs) > 1 or len(found) == 1:
            return True
        changed = {n: _changed(tensor) for n, tensor in enumerate(self.inputs)}
        return agree(self.with_copies(example, changed), found[:1], found, share)

    def check_batch(self, outputs: Tensor) -> bool:
        """The check for a method without copies: one pass in which all examples but one are
        changed. False if each example must be run by itself."""
        # An example with small values, and if possible neither the first nor the last.
        faint = _sizes(self.inputs[0]).argsort(stable=True)[: max(1, len(outputs) - 1)].tolist()
        kept = next((number for number in faint if 0 < number < len(outputs) - 1), faint[0])
        start = random_state()
        arguments = copied(self._arguments)
        for number, tensor in enumerate(self.inputs):
            arguments[number] = _changed(tensor)
            arguments[number][kept] = tensor[kept]
        found = self.as_given(*arguments)
        self._keep_own_random(start)
        if agree(found[kept], outputs[kept], found):
            return True
        if len(outputs) == 1 or self._own_random or not agree(self.as_given(), outputs, found):
            warn_user(IS_RANDOM)
            return True
        return self._run_alone(outputs) is outputs

    def _run_alone(self, outputs: Tensor) -> Tensor:
        before, self._batch_size = self._batch_size, 1
        try:
            alone = self.as_given()
        except Exception:  # it may need more than one
            self._batch_size = before
            warn_user(f"{DEPENDS_ON_BATCH}; so the map depends on its batches")
            return outputs
        warn_user(f"{DEPENDS_ON_BATCH}. {RUN_ALONE}")
        return alone

    def _find_batch_size(self, outputs: Tensor, n_rows: int, error: Exception) -> None:
        """Find a batch size for a model that fails with another number of examples."""
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        for size in (len(outputs), 1):
            self._batch_size = size
            if self._mismatch(outputs, size) is None:
                how = "one example" if size == 1 else f"batches of exactly {size} examples"
                warn_user(
                    f"the model takes {how}, and fails with {n_rows} ({reason}); copies are run "
                    "in this way"
                )
                return
        self._batch_size = None
        self._check_arguments(error)
        raise ValueError(
            f"the model takes the {len(outputs)} examples that were given, and fails with "
            f"{n_rows} copies of one of them: {reason}. It may hold tensors with a row for each "
            "example; pass those as additional_forward_args, or explain one example at a time"
        ) from error

    def _divides_otherwise(self, outputs: Tensor, n_rows: int) -> bool:
        """Find which arguments are divided among the examples, if some have N rows by chance."""
        before = self._is_row
        unclear = [n for n in range(len(self.inputs), len(before)) if before[n]][:MAX_ARGUMENTS]
        for count in range(1, len(unclear) + 1):
            for whole in combinations(unclear, count):
                self._is_row = [is_row and n not in whole for n, is_row in enumerate(before)]
                if self._mismatch(outputs, n_rows) is None:
                    return True
        self._is_row = before
        return False

    def _check_arguments(self, error: Exception | None) -> None:
        """Refuse arguments that belong to examples, unless the examples alone are the reason."""
        suspects = []
        for number, argument in enumerate(self._arguments[len(self.inputs) :]):
            shapes = " and ".join(str(tuple(each.shape)) for each in _tensors(argument))
            if shapes:
                kind = "tensor" if isinstance(argument, Tensor) else type(argument).__name__
                suspects.append(f"additional_forward_args[{number}] (a {kind} of shape {shapes})")
        if suspects:
            raise ValueError(
                f"the model's outputs for an example alone and among all {len(self.inputs[0])} "
                f"differ because of {' and '.join(suspects)}. Tensors are divided among the "
                "examples if they are arguments of their own with the batch as first dimension; "
                "pass what belongs to single examples in this way, and bind the rest to the model "
                "with functools.partial or a lambda. Or explain one example at a time"
            ) from error

    def _run(self, *arguments: Any) -> Any:
        n_rows, size = len(arguments[0]), self._batch_size
        if size is None or size == n_rows:
            return self._call(*arguments)
        outputs = []
        for start in range(0, n_rows, size):
            # The last batch is padded with its last row.
            rows = torch.arange(start, start + size).clamp_max(n_rows - 1)
            some = [
                each[rows.to(each.device)] if is_row else each
                for each, is_row in zip(arguments, self._is_row, strict=True)
            ]
            outputs.append(one_row_each(self._call(*some), size)[: n_rows - start].clone())
        return torch.cat(outputs)

    def _call(self, *arguments: Any) -> Any:
        """Call the model without changing the user's random state, and without compiling, which
        would take a minute for each new batch size."""
        with without_compiling():
            if self._own_random is None:
                return self.forward_func(*arguments)
            users = random_state()
            set_random_state(self._own_random)
            try:
                return self.forward_func(*arguments)
            finally:
                self._own_random = random_state()
                set_random_state(users)


def _with_mapping(
    forward_func: Callable[..., Any], given: dict[str, Any], name: str, tensor: Tensor, *others: Any
) -> Any:
    """Call a model with one tensor of a dict replaced: by keywords if the model has an argument
    with the tensor's name, as in Hugging Face, and otherwise with a dict. If that fails and the
    dict has no other entry, the model gets the tensor."""
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


def copied(arguments: Sequence[Any]) -> list[Any]:
    """Copies of all tensors, because a model may write into its arguments."""
    return [each.clone() if isinstance(each, Tensor) else each for each in arguments]


def _keeps_batch(outputs: object, n_examples: int) -> bool:
    scores = scores_of(outputs)
    return scores.dim() > 0 and len(scores) == n_examples


def _sizes(examples: Tensor) -> Tensor:
    """The largest absolute value of each example, (N,)."""
    return examples.flatten(1).abs().amax(dim=1)


def _changed(examples: Tensor, strength: float = 0.5) -> Tensor:
    """Examples (N, C, *space) with half of each at its mean, and scaled down: within their range
    and zero, and different in anything that a model may compare examples by."""
    flat = examples.flatten(2).clone()
    half = flat[..., : (flat.shape[2] + 1) // 2]
    half.copy_(flat.mean(dim=2, keepdim=True).expand_as(half))
    return strength * flat.reshape(examples.shape)


def _tensors(argument: Any) -> Iterator[Tensor]:
    """The tensors of an argument, also in tuples, lists and dicts, that have dimensions."""
    if isinstance(argument, Tensor) and argument.dim() > 0:
        yield argument
    elif isinstance(argument, Mapping | list | tuple):
        for each in argument.values() if isinstance(argument, Mapping) else argument:
            yield from _tensors(each)
