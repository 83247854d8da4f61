"""What an engine says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EngineReport:
    """Which engine ran, and why.

    Args:
        engine: "dense" or "incremental".
        reason: why this one, in a few words.
        speed_up: how many times faster than dense the incremental engine was on a few windows;
            None if that was not measured.
        largest_difference: between the outputs of the two engines there, as a share of the
            outputs' size; None if that was not measured.
        goes_dense: the functions at which the incremental engine had to complete its maps, and why.
    """

    engine: str
    reason: str
    speed_up: float | None = None
    largest_difference: float | None = None
    goes_dense: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"engine: {self.engine} ({self.reason})"]
        if self.speed_up is not None:
            lines.append(f"predicted speed-up of incremental over dense: {self.speed_up:.1f}x")
        if self.largest_difference is not None:
            lines.append(f"largest difference: {self.largest_difference:.1e} of the outputs' size")
        lines.extend(f"goes dense at {name}: {why}" for name, why in self.goes_dense.items())
        return "\n".join(lines)
