"""What an engine says of itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

#: Why a map was run again densely.
DISAGREES = "the incremental engine disagreed, so all windows were run again"


@dataclass(frozen=True)
class Audit:
    """How windows that were run incrementally compare with the same windows run densely.

    Args:
        n_windows: how many were compared.
        difference: the largest between two scores, as a share of the spread (the standard
            deviation) of the windows' effects.
        rounding: how far rounding alone takes the dense engine from itself, as such a share;
            None where the difference was too small to ask.
        agrees: whether rounding explains the difference.
    """

    n_windows: int = 0
    difference: float = 0.0
    rounding: float | None = None
    agrees: bool = True

    @classmethod
    def of(cls, audits: Iterable[Audit]) -> Audit | None:
        """Several audits as one; None where nothing was compared, here or elsewhere."""
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
        """The report on a run with this audit; one that failed was run again densely."""
        if audit is None or audit.agrees:
            return replace(self, audit=audit)
        return replace(self, engine="dense", reason=DISAGREES, audit=audit)

    def __str__(self) -> str:
        lines = [f"engine: {self.engine} ({self.reason})"]
        if self.speed_up is not None:
            lines.append(f"predicted speed-up of incremental over dense: {self.speed_up:.1f}x")
        if self.audit is not None:
            lines.append(str(self.audit))
        lines.extend(f"goes dense at {name}: {why}" for name, why in self.goes_dense.items())
        return "\n".join(lines)
