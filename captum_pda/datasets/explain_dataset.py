"""Explain a whole data set with any Captum attribution, on one process or many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import captum
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from captum_pda.basics.fingerprints import fingerprint
from captum_pda.basics.version import __version__
from captum_pda.datasets.result_folder import as_json
from captum_pda.distributed.ranks import Ranks
from captum_pda.distributed.shared_work import share_work
from captum_pda.prediction.measures import Measure

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ResultWriter(Protocol):
    """Where results go: a ResultFolder, or anything with these methods."""

    def start(self, settings: dict[str, Any]) -> None:
        """Say what results are made with; raise an error if others are there."""
        ...

    def is_done(self, number: int) -> bool:
        """Whether the result of an example is there already."""
        ...

    def write(self, number: int, attributions: Any, target: Any) -> None:
        """Keep the result of an example, whole or not at all."""
        ...


@dataclass(frozen=True)
class DatasetSummary:
    """What became of a data set.

    Args:
        explained: how many examples were explained now.
        done_before: how many were done already.
        failed: those that could not be explained, by number, with the reason.
    """

    explained: int
    done_before: int
    failed: dict[int, str]


def explain_dataset(
    attribution: Any,
    data: Any,
    writer: ResultWriter,
    process_group: ProcessGroup | None = None,
    show_progress: bool = False,
    target: Any = None,
    **arguments: Any,
) -> DatasetSummary:
    """Explain every example of a data set, and keep each result as soon as it is there.

    A rerun skips what is done; an example that cannot be loaded or explained is reported in the
    summary and does not stop the others.

    Args:
        attribution: any Captum attribution: ``attribution.attribute(inputs, target=...)``.
        data: a Dataset whose items are an input (C, *space), or a tuple of an input and its
            target, or a DataLoader of such a Dataset (examples are explained one by one whatever
            its batch size, since the copies of one example fill a batch).
        writer: where results go, such as ``ResultFolder("maps")``.
        process_group: the ranks that share the examples, each taking the next one whenever it is
            free; all call this function. None explains all in this process.
        show_progress: whether to show one progress bar for all ranks, with the time left.
        target: the target of all examples, in place of their own.
        arguments: further arguments of ``attribute``, such as ``strides=4``.

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
    ranks = Ranks(process_group)
    device = _device_of(attribution)
    settings = describe(attribution, target, arguments)
    todo: list[int] = []
    with ranks.failing_together():
        # The first rank writes the settings, and the others compare theirs.
        if ranks.rank == 0:
            writer.start(settings)
            todo = [number for number in range(len(examples)) if not writer.is_done(number)]
    with ranks.failing_together():
        if ranks.rank > 0:
            writer.start(settings)
    todo = ranks.gather_objects(todo)[0]

    def work(task: int) -> None:
        inputs, own_target = _split(examples[todo[task]])
        chosen = own_target if target is None else target
        batch = inputs.unsqueeze(0).to(device or inputs.device)
        result = attribution.attribute(batch, target=chosen, **arguments)
        writer.write(todo[task], result, chosen)

    title = "Explaining" if show_progress else None
    failed = {
        todo[task]: reason for task, reason in share_work(len(todo), work, ranks, title).items()
    }
    return DatasetSummary(len(todo) - len(failed), len(examples) - len(todo), failed)


def describe(attribution: Any, target: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the results of an attribution depend on, as plain values."""
    engine = getattr(attribution, "engine", None)
    prior = getattr(attribution, "prior", None)
    measure = getattr(attribution, "measure", None)
    return as_json(
        {
            "method": type(attribution).__name__,
            "weights_sha256": fingerprint(getattr(attribution, "forward_func", None)),
            "prior_sha256": None if prior is None else fingerprint(prior),
            "engine": None if engine is None else type(engine).__name__,
            "output": getattr(attribution, "output", None),
            "measure": measure.settings() if isinstance(measure, Measure) else measure,
            "target": target,
            "arguments": {name: _plain(value) for name, value in arguments.items()},
            **versions(),
        }
    )


def versions() -> dict[str, str]:
    """The versions of what computes a result."""
    return {"captum_pda": __version__, "captum": captum.__version__, "torch": torch.__version__}


def _plain(value: Any) -> Any:
    """A value that can be read in a file; anything larger by its hash."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return fingerprint(value)


def _split(item: Any) -> tuple[Tensor, Any]:
    """The input and the target of an item."""
    inputs, own_target = item if isinstance(item, tuple | list) and len(item) == 2 else (item, None)
    if not isinstance(inputs, Tensor):
        raise TypeError(
            f"an item starts with {type(inputs).__name__} where a tensor (C, *space) was expected; "
            "add a transform that makes one"
        )
    if isinstance(own_target, Tensor):
        own_target = own_target.tolist()
    return inputs, own_target


def _device_of(attribution: Any) -> torch.device | None:
    """Where the model is, if it can be known."""
    model = getattr(attribution, "forward_func", None)
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return None if first is None else first.device
