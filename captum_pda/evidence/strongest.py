"""The windows that say most for a class, and most against it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.prediction.inputs import check_count
from captum_pda.regions.window_grid import WindowGrid


@dataclass(frozen=True)
class StrongWindow:
    """A window and what it says: its first pixel, its shape, and its evidence."""

    corner: tuple[int, ...]
    shape: tuple[int, ...]
    value: float


def strongest_windows(
    evidence: WindowEvidence, target: TargetType, n: int = 3
) -> tuple[list[StrongWindow], list[StrongWindow]]:
    """The windows with the strongest evidence for ``target``, and those against it.

    Windows overlap their neighbours, which say nearly the same; so a window is left out where it
    overlaps a stronger one of its kind. There may be fewer than ``n``, as only windows that do
    speak for the class (or against it) are listed.

    Args:
        evidence: the evidence of one example with one input tensor.
        target: the output to ask about.
        n: how many windows of each kind.

    Example::

        >>> speak_for, speak_against = strongest_windows(evidence, target=3)
        >>> speak_for[0].corner, speak_for[0].value
        ((96, 40), 1.73)
    """
    if len(evidence.grids) != 1 or len(evidence.scores) != 1:
        raise ValueError(
            f"evidence holds {len(evidence.scores)} examples with {len(evidence.grids)} input "
            "tensors each; explain a single example with a single input to list its windows"
        )
    values = evidence.window_values(target)
    each = values[0] if isinstance(values, tuple) else values
    return pick_strongest(each[0], evidence.grids[0], n)


def pick_strongest(
    values: Tensor, grid: WindowGrid, n: int
) -> tuple[list[StrongWindow], list[StrongWindow]]:
    """The strongest windows for and against, from one value a window (W,)."""
    n = check_count("n", n)
    bits = torch.nan_to_num(values.detach().double(), posinf=0.0, neginf=0.0).cpu().numpy()
    return _pick(bits, grid, n), _pick(bits, grid, n, sign=-1)


def _pick(
    values: npt.NDArray[np.float64], grid: WindowGrid, n: int, sign: int = 1
) -> list[StrongWindow]:
    """The n highest of ``sign * values`` that are positive and do not overlap."""
    corners, window = grid.corner_array, np.asarray(grid.window)
    candidates = sign * values > 0
    chosen: list[StrongWindow] = []
    while candidates.any() and len(chosen) < n:
        best = int(np.argmax(np.where(candidates, sign * values, -np.inf)))
        corner = tuple(int(start) for start in corners[best])
        chosen.append(StrongWindow(corner, grid.window, float(values[best])))
        candidates &= (np.abs(corners - corners[best]) >= window).any(axis=1)
    return chosen
