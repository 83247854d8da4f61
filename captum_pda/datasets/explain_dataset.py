"""Explain a whole data set with any Captum attribution, in one process or several."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader

from captum_pda.datasets.result_folder import Example, Record, describe, described, record_of
from captum_pda.device_sync import generator_for
from captum_pda.distributed import Ranks, share_work
from captum_pda.errors import warn_user
from captum_pda.fingerprints import fingerprint

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ResultWriter(Protocol):
    """Where results go: a ResultFolder, or anything with these methods."""

    def start(self, settings: dict[str, Any]) -> None:
        """Say what results are made with; raise an error if others are there."""
        ...

    def stored(self, number: int) -> Record | None:
        """What the result of an example was made from; None without a result of these settings."""
        ...

    def write(self, number: int, attributions: Any, record: Record) -> None:
        """Keep the result of an example, whole or not at all."""
        ...


#: Comparing stored results shows no progress bar if it takes less.
SECONDS_UNSEEN = 1.0
#: The methods of a writer, and what they are called with.
WRITER_METHODS = {
    "start": ("settings",),
    "stored": ("number",),
    "write": ("number", "attributions", "record"),
}


@dataclass(frozen=True)
class DatasetSummary:
    """What became of a data set.

    Args:
        explained: how many examples were explained now.
        done_before: how many were done already.
        failed: those that could not be explained, by number, with the reason.
        outdated: those whose stored result did not count and that were explained anew, by number,
            with the reason.

    Example::

        >>> summary = explain_dataset(EfficientPDA(model), validation_set, ResultFolder("maps"))
        >>> summary.explained, summary.done_before, summary.failed
        (998, 0, {17: 'image file is truncated', 312: 'image file is truncated'})
    """

    explained: int
    done_before: int
    failed: dict[int, str]
    outdated: dict[int, str] = field(default_factory=dict)


def explain_dataset(
    attribution: Any,
    data: Any,
    writer: ResultWriter,
    process_group: ProcessGroup | None = None,
    show_progress: bool = False,
    target: Any = None,
    **arguments: Any,
) -> DatasetSummary:
    """Explain every example of a data set, and store each result as soon as it is finished.

    A rerun skips what is done. A stored result counts only if input, target and all settings are
    the same and the model's outputs for that very input are too, up to rounding: they
    are stored with the result, and one forward pass compares them. What does not count is
    explained anew, and the summary says why. An example that cannot be loaded or explained is
    reported in the summary and does not stop the others.

    Args:
        attribution: any Captum attribution: ``attribution.attribute(inputs, target=...)``. What it
            is made of is known by ``settings()`` (priors and engines of your own may have that
            method: plain values on which their results depend), or else by its attributes.
        data: a Dataset whose items are an input (C, *space), or a tuple of an input and its
            target, or a DataLoader of such a Dataset (examples are explained one by one whatever
            its batch size, since the copies of one example fill a batch).
        writer: where results go, such as ``ResultFolder("maps")``.
        process_group: the ranks that share the examples, each taking the next one whenever it is
            free; all call this function. None explains all in this process.
        show_progress: whether to show one progress bar for all ranks, with the time left.
        target: the target of all examples, in place of their own.
        arguments: further arguments of ``attribute``, such as ``strides=4``. From a ``generator``
            each example gets draws of its own, which depend on the generator's state and the
            example's number only; the generator itself is left as it was.

    Returns:
        What was explained, and what failed; the same on all ranks.

    Example::

        >>> torch.distributed.init_process_group()  # under torchrun; leave out in one process
        >>> summary = explain_dataset(
        ...     EfficientPDA(model), validation_set, ResultFolder("maps"),
        ...     process_group=torch.distributed.group.WORLD, show_progress=True, strides=5,
        ... )
        >>> summary.failed
        {17: 'image file is truncated'}
    """
    examples = data.dataset if isinstance(data, DataLoader) else data
    if not hasattr(examples, "__getitem__") or not hasattr(examples, "__len__"):
        raise TypeError(
            f"data={data!r} must have a length and be indexed by number, as a map-style Dataset "
            "is; read an iterable one into a list first"
        )
    check_writer(writer)
    job = Job(attribution, examples, writer, target, arguments)
    return job.run(Ranks(process_group), "Explaining" if show_progress else None)


def check_writer(writer: Any) -> None:
    """Refuse a writer that lacks a method of ``ResultWriter``, or has one of other arguments."""
    if isinstance(writer, type):
        raise TypeError(f"writer={writer.__name__} is a class; pass an object, {writer.__name__}()")
    for name, arguments in WRITER_METHODS.items():
        method = getattr(writer, name, None)
        call = f"{name}({', '.join(arguments)})"
        if not callable(method):
            raise TypeError(
                f"writer={writer!r} has no method {name}; a writer needs {call}, as ResultFolder "
                "has it"
            )
        try:
            inspect.signature(method).bind(*arguments)
        except ValueError:  # a method without a known signature
            continue
        except TypeError as error:
            raise TypeError(f"writer={writer!r} cannot be called as {call}: {error}") from None


@dataclass(frozen=True, eq=False)
class Job:
    """Examples to explain, by what, and where the results go; as for ``explain_dataset``."""

    attribution: Any
    examples: Any
    writer: ResultWriter
    target: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def run(
        self,
        ranks: Ranks,
        title: str | None,
        unit: str = "example",
        tracebacks: bool = False,
    ) -> DatasetSummary:
        """Explain what is not done yet, shared by all ranks, with a bar as in ``share_work``."""
        settings, unknown = describe(self.attribution, self.target, self.arguments)
        with ranks.failing_together():
            # The first rank writes the settings, and the others compare theirs.
            if ranks.rank == 0:
                self.writer.start(settings)
        with ranks.failing_together():
            if ranks.rank > 0:
                self.writer.start(settings)
        # Stored results are compared first, which is quick: then the others take about as long
        # each, and the time left can be estimated.
        compared, failed = share_work(
            len(self.examples),
            lambda number: self._compare(number, unknown),
            ranks,
            title and "Comparing",
            unit,
            tracebacks,
            SECONDS_UNSEEN,
        )
        left = [number for number in range(len(self.examples)) if number not in failed]
        left = [number for number in left if not compared[number].is_skipped]
        explained, not_explained = share_work(
            len(left),
            lambda place: self._explain(left[place], unknown),
            ranks,
            title,
            unit,
            tracebacks,
        )
        outcomes = {**compared, **{left[place]: one for place, one in explained.items()}}
        failed |= {left[place]: why for place, why in not_explained.items()}
        outcomes = {number: outcomes[number] for number in sorted(outcomes.keys() - failed.keys())}
        outdated = {number: one.change for number, one in outcomes.items() if one.change}
        surprising = {number: one.change for number, one in outcomes.items() if one.is_surprising}
        if surprising and ranks.rank == 0:
            first, reason = next(iter(surprising.items()))
            warn_user(
                f"{len(surprising)} of {len(outcomes)} stored results did not count and "
                f"were explained anew; of example {first}, {reason}"
            )
        n_skipped = sum(one.is_skipped for one in outcomes.values())
        return DatasetSummary(
            len(outcomes) - n_skipped, n_skipped, dict(sorted(failed.items())), outdated
        )

    def _compare(self, number: int, unknown: list[str]) -> Outcome:
        """Whether a stored result of an example counts."""
        stored = self.writer.stored(number)
        if stored is None:
            return Outcome()
        return _compare(self._recorded(number)[1], stored, unknown)

    def _explain(self, number: int, unknown: list[str]) -> Outcome:
        """Explain an example, unless a result that counts has come in the meantime."""
        example, record = self._recorded(number)
        outcome = Outcome()
        if (stored := self.writer.stored(number)) is not None:
            outcome = _compare(record, stored, unknown)
        if not outcome.is_skipped:
            batch, target = example.inputs.unsqueeze(0), self._target_of(example)
            result = self.attribution.attribute(batch, target=target, **self._arguments_for(number))
            self.writer.write(number, result, record)
        return outcome

    def _recorded(self, number: int) -> tuple[Example, Record]:
        """An example on the model's device, and what its result is known by."""
        example = Example.of(self.examples[number])
        forward_func = getattr(self.attribution, "forward_func", None)
        device = _device_of(forward_func) or example.inputs.device
        example = replace(example, inputs=example.inputs.to(device))
        extra = self.arguments.get("additional_forward_args")
        target = described(self._target_of(example))[0]
        return example, record_of(example, target, forward_func, extra)

    def _target_of(self, example: Example) -> Any:
        return example.target if self.target is None else self.target

    def _arguments_for(self, number: int) -> dict[str, Any]:
        """The arguments for an example, with draws of its own."""
        generator = self.arguments.get("generator")
        if not isinstance(generator, torch.Generator):
            return dict(self.arguments)
        seed = int(fingerprint(generator)[:15], 16)
        return {**self.arguments, "generator": generator_for((seed, number), generator.device)}


@dataclass(frozen=True)
class Outcome:
    """What became of an example.

    Args:
        is_skipped: whether it was done before.
        change: why a stored result did not count.
        is_surprising: whether that is for another reason than other data.
    """

    is_skipped: bool = False
    change: str | None = None
    is_surprising: bool = False


def _compare(record: Record, stored: Record, unknown: list[str]) -> Outcome:
    """Whether a stored result counts, and if not, why."""
    if change := record.change_of_example(stored):
        return Outcome(change=change)
    change = record.change_of_model(stored)
    if change is None and unknown:
        change = (
            f"it is not known whether {unknown[0]} is the same; give its class a method "
            "settings() that returns what results depend on"
        )
    return Outcome(change is None, change, change is not None)


def _device_of(forward_func: Any) -> torch.device | None:
    """Where the model is, if it can be known."""
    first = next(forward_func.parameters(), None) if isinstance(forward_func, nn.Module) else None
    return None if first is None else first.device
