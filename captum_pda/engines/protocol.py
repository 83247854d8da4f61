"""What an engine is, what it reports, and the batches in which copies go through a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from captum_pda.errors import warn_user
from captum_pda.regions.protocol import Windows

#: Input values in a batch: 5 photos of 224x224 on a processor, whose feature maps then stay under
#: what the C library asks the system for anew each time (benchmarks/SPEED.md), or 111 elsewhere.
VALUES_PER_BATCH = {"cpu": 3 * 2**18, "other": 2**24}
LARGEST_BATCH = 1024

#: From the numbers of some rows to what is kept of each, (rows, columns).
RunBatch: TypeAlias = Callable[[range], Tensor]


class BatchSize:
    """The most copies at once, by default chosen by the numbers that go into the model with each.

    It is halved when memory runs out, and shared by all examples of one call: that happens once.
    """

    def __init__(self, rows: int | None = None, values: int = 1) -> None:
        self._rows = rows
        self._values = values

    def rows_for(self, example: Tensor, times: int = 1) -> int:
        """How many copies to run at once; ``times`` as many where they are not held in full."""
        if self._rows is not None:
            return self._rows
        in_batch = VALUES_PER_BATCH["cpu" if example.device.type == "cpu" else "other"]
        return max(1, min(LARGEST_BATCH, times * in_batch // max(self._values, example.numel())))

    def halve(self, failed: int) -> None:
        """Continue with half of a batch that did not fit."""
        self._rows = failed // 2
        warn_user(
            f"out of memory with {failed} perturbed copies at once; going on with {self._rows}. "
            f"Pass perturbations_per_eval={self._rows} to start there."
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on any device."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text or "alloc_failed" in text
    )


class BatchLoop:
    """Takes rows through a model in batches; where a batch fails, runs it in another way.

    - A batch that does not fit in memory is halved, for all that share the ``batch_size``.
    - A model that can't take images with their channels last gets them contiguous.

    There are no gradients. Inference mode would save no time that can be measured, and a tensor
    that the model keeps, such as a positional code, could not be used for training later.

    Nothing that was computed is lost: while it runs, ``unfinished`` holds the results so far. What
    runs a batch reads ``channels_last`` to lay out its rows.
    """

    def __init__(self, batch_size: BatchSize, example: Tensor, times: int = 1) -> None:
        self._batch_size = batch_size
        self._example = example
        self._times = times
        #: Whether images and volumes have their channels last in memory; nothing else can.
        self.channels_last = example.dim() > 3
        #: While ``run`` goes on, what it will return, with NaN for the rows still to come.
        self.unfinished: Tensor | None = None

    @property
    def at_once(self) -> int:
        """How many rows go into a batch."""
        return self._batch_size.rows_for(self._example, self._times)

    def run(
        self, n_rows: int, run_batch: RunBatch, advance: Callable[[int], object] = lambda rows: None
    ) -> Tensor:
        """Run all rows, and return what ``run_batch`` keeps of each, (rows, columns)."""
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


#: From copies of an example, (rows, C, *space), to the model's outputs, (rows, ...).
Forward: TypeAlias = Callable[[Tensor], Tensor]
#: From outputs to the few numbers per row that are kept, (rows, columns).
Read: TypeAlias = Callable[[Tensor], Tensor]
#: Called with the number of copies that have just gone through the model.
Advance: TypeAlias = Callable[[int], object]


class PreparedEngine(Protocol):
    """An engine that has seen the example it will run on.

    It may have an attribute ``unfinished``: while ``scores`` runs, the tensor that it will return,
    with NaN for the fills still to come. Then a run that is stopped loses nothing.
    """

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        """Run the model with each window replaced by each of its fills.

        Args:
            grid: W windows.
            fills: what to put there, (S, W, C, *window).
            read: applied to the outputs of every batch; only what it returns is kept.
            advance: called with the number of copies after each batch.

        Returns:
            (S, W, columns): what was read for every fill.
        """
        ...


class PreparedBatches:
    """A prepared engine whose rows are the copies, sample by sample and window by window."""

    def __init__(self, loop: BatchLoop) -> None:
        self._loop = loop
        self._n_samples = 1

    @property
    def unfinished(self) -> Tensor | None:
        """While ``scores`` runs, what it will return, with NaN for what is still to come."""
        results = self._loop.unfinished
        return None if results is None else self._by_sample(results)

    def scores(self, grid: Windows, fills: Tensor, read: Read, advance: Advance) -> Tensor:
        self._n_samples = len(fills)
        run_batch = self._batches(grid, fills.flatten(0, 1), read)
        return self._by_sample(self._loop.run(fills.shape[:2].numel(), run_batch, advance))

    def _by_sample(self, results: Tensor) -> Tensor:
        return results.reshape(self._n_samples, len(results) // self._n_samples, -1)

    def _batches(self, grid: Windows, fills: Tensor, read: Read) -> RunBatch:
        """What runs some of the copies, with ``fills`` (copies, C, *window)."""
        raise NotImplementedError


@runtime_checkable
class Engine(Protocol):
    """A way to run a model on an example with each window replaced.

    It may have a method ``settings()``: what results depend on, as a table of plain values. Without
    one, stored results identify it by a hash of its attributes.

    Example::

        >>> class Counting(DenseEngine):
        ...     examples = 0
        ...     def prepare(self, forward, example, batch_size):
        ...         self.examples += 1
        ...         return super().prepare(forward, example, batch_size)
        >>> EfficientPDA(model, engine=Counting()).attribute(images, target=3)
    """

    def prepare(self, forward: Forward, example: Tensor, batch_size: BatchSize) -> PreparedEngine:
        """Look at the model and the unperturbed example, (1, C, *space), once."""
        ...


class IncrementalError(RuntimeError):
    """The model can't be run incrementally; ``engine="dense"`` runs any model."""


@dataclass(frozen=True)
class Audit:
    """How windows that were run incrementally compare with the same windows run densely.

    Args:
        n_windows: how many were compared.
        difference: the largest difference of two scores, as a fraction of the spread (the standard
            deviation) of the windows' effects.
        rounding: how much two dense runs differ by rounding alone, as such a fraction; None where
            the difference was too small to measure it.
        agrees: whether rounding explains the difference.
    """

    n_windows: int = 0
    difference: float = 0.0
    rounding: float | None = None
    agrees: bool = True

    @classmethod
    def of(cls, audits: Iterable[Audit]) -> Audit | None:
        """Several audits as one; None where nothing was compared, here or on another rank."""
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
        reason: why this one, in a few words.
        speed_up: how many times faster than dense the incremental engine was on a few windows;
            None if that was not measured.
        goes_dense: the functions at which the incremental engine had to complete its maps, and why.
        audit: how windows of the last run compare with the dense engine's; None if all were dense.

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
        """The report on a run with this audit; a run whose audit failed was repeated densely."""
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
