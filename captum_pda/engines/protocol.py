"""What an engine is: prepared once per example, then asked for the outputs without its windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from captum_pda.engines.batches import BatchSize
from captum_pda.regions.protocol import Windows

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
