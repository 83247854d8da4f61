"""The interface of engines, their reports, and the batches that go through a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from captum_pda.errors import warn_user
from captum_pda.regions.protocol import Windows

#: The input values in a batch: on a CPU 5 photos of 224x224, whose feature maps stay below the size
#: at which the C library allocates memory anew each time (benchmarks/SPEED.md), elsewhere 111.
VALUES_PER_BATCH = {"cpu": 3 * 2**18, "other": 2**24}
LARGEST_BATCH = 1024
#: The layout with the channels last, by the number of dimensions.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

#: From the numbers of some rows to their results, (rows, columns).
RunBatch: TypeAlias = Callable[[range], Tensor]


class BatchSize:
    """The largest batch, by default chosen by the input values of a copy. It is halved when memory
    runs out, once for all examples of a call that share it."""

    def __init__(self, rows: int | None = None, values: int = 1) -> None:
        self._rows = rows
        self._values = values

    def rows_for(self, example: Tensor, times: int = 1) -> int:
        """The number of copies in a batch, times ``times`` if they are not stored in full."""
        if self._rows is not None:
            return self._rows
        in_batch = VALUES_PER_BATCH["cpu" if example.device.type == "cpu" else "other"]
        return max(1, min(LARGEST_BATCH, times * in_batch // max(self._values, example.numel())))

    def halve(self, failed: int) -> None:
        """Halve the batch size."""
        self._rows = failed // 2
        warn_user(
            f"out of memory with {failed} perturbed copies at once; going on with {self._rows}. "
            f"Pass perturbations_per_eval={self._rows} to start there."
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on any device."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text or "alloc_failed" in text
    )


def channels_last(maps: Tensor) -> Tensor:
    """The same maps with the channels last in memory, where PyTorch has such a format."""
    layout = CHANNELS_LAST.get(maps.dim())
    return maps if layout is None else maps.contiguous(memory_format=layout)


class BatchLoop:
    """Runs rows through a model in batches.

    - A batch that does not fit in memory is halved, for all that share the ``batch_size``.
    - A model that fails for images with channels last gets contiguous ones.

    There are no gradients. Inference mode would save no measurable time, and tensors that the model
    caches in it, such as position embeddings, could not be trained later. ``unfinished`` has the
    results so far while it runs. ``run_batch`` reads ``channels_last`` to lay out its rows.
    """

    def __init__(self, batch_size: BatchSize, example: Tensor, times: int = 1) -> None:
        self._batch_size = batch_size
        self._example = example
        self._times = times
        #: Whether the channels are last in memory, for images and volumes only.
        self.channels_last = example.dim() > 3
        #: The results of ``run`` so far, with NaN for the rows still to come.
        self.unfinished: Tensor | None = None

    @property
    def at_once(self) -> int:
        """The number of rows in a batch."""
        return self._batch_size.rows_for(self._example, self._times)

    def run(
        self, n_rows: int, run_batch: RunBatch, advance: Callable[[int], object] = lambda rows: None
    ) -> Tensor:
        """Run all rows; returns the results of ``run_batch``, (rows, columns)."""
        results: Tensor | None = None
        done = 0
        while done < n_rows:
            some = range(done, min(done + self.at_once, n_rows))
            try:
                with torch.no_grad():
                    found = run_batch(some)
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error) and len(some) > 1:
                    self._batch_size.halve(len(some))
                elif self.channels_last and "view size is not compatible" in str(error):
                    self.channels_last = False
                else:
                    raise
                continue
            if results is None:
                results = found.new_full((n_rows, *found.shape[1:]), math.nan)
                self.unfinished = results
            results[done : some.stop] = found
            done = some.stop
            advance(len(some))
        if results is None:
            raise ValueError("there are no rows to run")
        self.unfinished = None
        return results


#: From copies of an example (rows, C, *space) to the model's outputs (rows, ...).
Forward: TypeAlias = Callable[[Tensor], Tensor]
#: From outputs to the numbers that are kept, (rows, columns).
Read: TypeAlias = Callable[[Tensor], Tensor]
#: Called with the number of copies that have just gone through the model.
Advance: TypeAlias = Callable[[int], object]


class PreparedEngine(Protocol):
    """An engine that is prepared for one example.

    An optional attribute ``unfinished`` holds the result of ``scores`` while it runs, with NaN for
    the fills still to come, so that an interruption loses nothing.
    """

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        """Run the model with each window replaced by each of its fills.

        Args:
            grid: W windows.
            fills: their contents, (S, W, C, *window).
            read: applied to the outputs of every batch; only its results are kept.
            advance: called with the number of copies after each batch.

        Returns:
            (S, W, columns): the results for every fill.
        """
        ...


class PreparedBatches:
    """A prepared engine whose rows are the copies, ordered by sample and window."""

    def __init__(self, loop: BatchLoop) -> None:
        self._loop = loop
        self._n_samples = 1

    @property
    def unfinished(self) -> Tensor | None:
        results = self._loop.unfinished
        return None if results is None else self._by_sample(results)

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        self._n_samples = len(fills)
        run_batch = self._batches(grid, fills.flatten(0, 1), read)
        return self._by_sample(self._loop.run(fills.shape[:2].numel(), run_batch, advance))

    def _by_sample(self, results: Tensor) -> Tensor:
        return results.reshape(self._n_samples, len(results) // self._n_samples, -1)

    def _batches(self, grid: Windows, fills: Tensor, read: Read) -> RunBatch:
        """A function that runs some of the copies, with ``fills`` (copies, C, *window)."""
        raise NotImplementedError


@runtime_checkable
class Engine(Protocol):
    """Runs a model on an example with each window replaced.

    An optional method ``settings()`` returns what results depend on, as a table of plain values.
    Without it, stored results identify the engine by a hash of its attributes.

    Example::

        >>> class Counting(DenseEngine):
        ...     examples = 0
        ...     def prepare(self, forward, example, batch_size):
        ...         self.examples += 1
        ...         return super().prepare(forward, example, batch_size)
        >>> EfficientPDA(model, engine=Counting()).attribute(images, target=3)
    """

    def prepare(self, forward: Forward, example: Tensor, batch_size: BatchSize) -> PreparedEngine:
        """Prepare for an unperturbed example, (1, C, *space)."""
        ...


class IncrementalError(RuntimeError):
    """The model can't be run incrementally; ``engine="dense"`` runs any model."""


@dataclass(frozen=True)
class Audit:
    """A comparison of windows that were run incrementally and densely.

    Args:
        n_windows: how many were compared.
        difference: the largest difference of two scores, as a fraction of the spread (the standard
            deviation) of the windows' effects.
        rounding: the difference of two dense runs by rounding, as such a fraction; None if the
            difference is too small to measure it.
        agrees: whether rounding explains the difference.
    """

    n_windows: int = 0
    difference: float = 0.0
    rounding: float | None = None
    agrees: bool = True

    @classmethod
    def of(cls, audits: Iterable[Audit]) -> Audit | None:
        """Several audits as one; None if nothing was compared, here or on another rank."""
        some = [audit for audit in audits if audit.n_windows or not audit.agrees]
        if not some:
            return None
        return cls(
            sum(audit.n_windows for audit in some),
            max(audit.difference for audit in some),
            max((audit.rounding for audit in some if audit.rounding is not None), default=None),
            all(audit.agrees for audit in some),
        )

    def __str__(self) -> str:
        windows = f"{self.n_windows} window{'s' if self.n_windows > 1 else ''}"
        text = (
            f"audit: {windows} run densely too, largest difference {self.difference:.1e} of the "
            "spread of the windows' effects"
        )
        if self.rounding is not None:
            text += f", where rounding alone makes {self.rounding:.1e}"
        return text if self.agrees else text + ": they disagree"


@dataclass(frozen=True)
class EngineReport:
    """Which engine ran, and why.

    Args:
        engine: "dense" or "incremental".
        reason: the reason in a few words.
        speed_up: the measured speed-up of the incremental engine over the dense one; None if it was
            not measured.
        goes_dense: the functions at which the incremental engine computed whole maps, and why.
        audit: the comparison of the last run with the dense engine; None if all windows were dense.

    Example::

        >>> pda = EfficientPDA(model)
        >>> pda.attribute(image, target=3)
        >>> print(pda.engine_report)
    """

    engine: str
    reason: str
    speed_up: float | None = None
    goes_dense: dict[str, str] = field(default_factory=dict)
    audit: Audit | None = None

    def with_audit(self, audit: Audit | None) -> EngineReport:
        """The report with this audit; a run whose audit failed was repeated densely."""
        if audit is None or audit.agrees:
            return replace(self, audit=audit)
        reason = "the incremental engine disagreed, so all windows were run again"
        return replace(self, engine="dense", reason=reason, audit=audit)

    def __str__(self) -> str:
        lines = [f"engine: {self.engine} ({self.reason})"]
        if self.speed_up is not None:
            lines.append(f"predicted speed-up of incremental over dense: {self.speed_up:.1f}x")
        if self.audit is not None:
            lines.append(str(self.audit))
        lines.extend(f"goes dense at {name}: {why}" for name, why in self.goes_dense.items())
        return "\n".join(lines)
