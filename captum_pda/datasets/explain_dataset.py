"""Explain a whole data set with any Captum attribution, in one process or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from captum_pda.datasets.result_folder import Example, Record, describe, described, record_of
from captum_pda.device_sync import generator_for
from captum_pda.distributed import Ranks, share_work
from captum_pda.errors import warn_user
from captum_pda.fingerprints import fingerprint

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ResultWriter(Protocol):
    """Stores results: a ResultFolder, or anything with these methods."""

    def start(self, settings: dict[str, Any]) -> None:
        """Set the settings of all results; raises an error if there are others."""
        ...

    def stored(self, number: int) -> Record | None:
        """The record of an example's result; None without a result of these settings."""
        ...

    def write(self, number: int, attributions: Any, record: Record) -> None:
        """Store the result of an example, completely or not at all."""
        ...


@dataclass(frozen=True)
class DatasetSummary:
    """The numbers of explained examples of a data set, and those that failed.

    Args:
        explained: how many examples were explained now.
        done_before: how many were already done.
        failed: those that could not be explained, by number, with the reason.
        outdated: those whose stored result was not valid and that were explained again, by number,
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

    A rerun skips what is done. A stored result is valid only for the same input, target and
    settings, and for the same outputs of the model up to rounding, which are compared by one
    forward pass. Other results are computed again, and the summary has the reason. Examples that
    cannot be loaded or explained are listed in the summary and do not stop the others.

    Args:
        attribution: any Captum attribution: ``attribution.attribute(inputs, target=...)``. Its
            settings are those of its method ``settings()`` (plain values on which results depend,
            which user-defined priors and engines may have too), or else its attributes.
        data: a Dataset whose items are an input (C, *space), or a tuple of an input and its target,
            or a DataLoader of such a Dataset (whose batch size is ignored, because the copies of
            one example fill a batch).
        writer: stores the results, such as ``ResultFolder("maps")``.
        process_group: the ranks that share the examples, each taking the next one whenever it is
            free; all call this function. None explains all in this process.
        show_progress: whether to show one progress bar for all ranks, with the estimated time.
        target: the target of all examples, instead of their own.
        arguments: further arguments of ``attribute``, such as ``strides=4``. With a ``generator``,
            samples of an example depend on the generator's state, which does not change, and on the
            example's number.

    Returns:
        The DatasetSummary, which is the same on all ranks.

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
    for name in ("start", "stored", "write"):
        if isinstance(writer, type) or not callable(getattr(writer, name, None)):
            raise TypeError(
                f"writer={writer!r} has no method {name}; pass one, such as ResultFolder('maps')"
            )
    title, ranks = "Explaining" if show_progress else None, Ranks(process_group)
    return explain_examples(
        attribution, examples, writer, ranks, title, target=target, arguments=arguments
    )


def explain_examples(
    attribution: Any,
    examples: Any,
    writer: ResultWriter,
    ranks: Ranks,
    title: str | None,
    unit: str = "example",
    tracebacks: bool = False,
    target: Any = None,
    arguments: Mapping[str, Any] | None = None,
) -> DatasetSummary:
    """As ``explain_dataset``, with the arguments of ``share_work``."""
    arguments = arguments or {}
    model: Any = getattr(attribution, "forward_func", None)
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    settings, unknown = describe(attribution, target, arguments)
    for turn in (True, False):  # the first rank writes the settings, and the others compare theirs
        with ranks.failing_together():
            if (ranks.rank == 0) is turn:
                writer.start(settings)

    def load(number: int) -> tuple[Example, Any, Record]:
        example = as_example(examples[number])
        if weight is not None:
            example = replace(example, inputs=example.inputs.to(weight.device))
        own_target = example.target if target is None else target
        extra = arguments.get("additional_forward_args")
        return (
            example,
            own_target,
            record_of(example, described(own_target, []), model, extra),
        )

    def compare(number: int) -> tuple[str, bool] | None:
        """The reason why a stored result is not valid ("" if it is); None without one."""
        stored = writer.stored(number)
        return None if stored is None else load(number)[2].change(stored, unknown)

    def explain(number: int) -> None:
        example, own_target, record = load(number)
        own_arguments = {**arguments, **_own_generator(arguments.get("generator"), number)}
        batch = example.inputs.unsqueeze(0)
        result = attribution.attribute(batch, target=own_target, **own_arguments)
        writer.write(number, result, record)

    # Stored results are compared first, which is quick, so that the time of the others, which is
    # about equal, can be estimated. A bar is shown if it takes more than a second.
    bar = unit, tracebacks
    found, failed = share_work(
        len(examples), compare, ranks, title and "Comparing", *bar, delay=1.0
    )
    left = [number for number, change in sorted(found.items()) if change is None or change[0]]
    _, not_explained = share_work(len(left), lambda place: explain(left[place]), ranks, title, *bar)
    failed |= {left[place]: why for place, why in not_explained.items()}
    changes = {
        number: change for number in left if number not in failed and (change := found[number])
    }
    surprising = [(number, change) for number, (change, is_odd) in changes.items() if is_odd]
    if surprising and ranks.rank == 0:
        warn_user(
            f"{len(surprising)} of {len(examples) - len(failed)} stored results are not valid "
            f"and were explained anew; example {surprising[0][0]}: {surprising[0][1]}"
        )
    outdated = {number: change for number, (change, _) in changes.items()}
    n_explained, n_done = len(left) - len(not_explained), len(found) - len(left)
    return DatasetSummary(n_explained, n_done, dict(sorted(failed.items())), outdated)


def as_example(item: Any) -> Example:
    """The example of a data set's item: an input, or a pair of an input and its target."""
    if isinstance(item, Example):
        return item
    is_pair = isinstance(item, tuple | list) and len(item) == 2
    inputs, target = item if is_pair else (item, None)
    if not isinstance(inputs, Tensor):
        raise TypeError(
            f"an item starts with {type(inputs).__name__} where a tensor (C, *space) was "
            "expected; add a transform that makes one"
        )
    return Example(inputs, target.tolist() if isinstance(target, Tensor) else target)


def _own_generator(generator: Any, number: int) -> dict[str, torch.Generator]:
    """Random numbers for an example, from a generator whose state does not change."""
    if not isinstance(generator, torch.Generator):
        return {}
    seed = int(fingerprint(generator)[:15], 16)
    return {"generator": generator_for((seed, number), generator.device)}
