"""The windows that say most for a class, and most against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.basics.device_sync import in_double
from captum_pda.evidence.window_evidence import WindowEvidence
from captum_pda.prediction.inputs import check_count
from captum_pda.regions.protocol import Regions, Windows


@dataclass(frozen=True)
class StrongWindow:
    """A window and what it says: its first pixel, its shape, and its evidence.

    Example::

        >>> speak_for, speak_against = strongest_windows(evidence, target=3)
        >>> speak_for[0]
        StrongWindow(corner=(96, 40), shape=(32, 32), value=1.73)
    """

    corner: tuple[int, ...]
    shape: tuple[int, ...]
    value: float


def strongest_windows(
    evidence: WindowEvidence, target: TargetType, n: int = 3, rather_than: TargetType = None
) -> tuple[list[StrongWindow], list[StrongWindow]]:
    """The windows with the strongest evidence for ``target``, and those against it.

    Windows overlap their neighbours, which say nearly the same; so a window is left out where it
    overlaps a stronger one of its kind. There may be fewer than ``n``, as only windows that do
    speak for the class (or against it) are listed. Of several sizes, a window counts by its
    evidence relative to the spread of its size, since larger windows hold more; of both contexts,
    by the mean of what is lost without it and what it says by itself. Regions of feature maps are
    listed only where the evidence holds no others, as the pixels of the input that they cover.

    Args:
        evidence: the evidence of one example with one input tensor.
        target: the output to ask about.
        n: how many windows of each kind.
        rather_than: another output, to list what speaks for ``target`` rather than for that.

    Example::

        >>> speak_for, speak_against = strongest_windows(evidence, target=3)
        >>> speak_for[0].corner, speak_for[0].value
        ((96, 40), 1.73)
    """
    if len(evidence.inputs) != 1 or len(evidence.scores) != 1:
        raise ValueError(
            f"evidence holds {len(evidence.scores)} examples with {len(evidence.inputs)} input "
            "tensors each; explain a single example with a single input to list its windows"
        )
    quantity = evidence.reading.quantity(target)
    if rather_than is not None:
        quantity = evidence.reading.rather(target, rather_than)
    found: dict[Regions, list[Tensor]] = {}
    of_input = [part for part in evidence.parts if part.depth == "input"]
    for part in of_input or evidence.parts:
        found.setdefault(part.regions, []).append(part.differences(quantity)[0])
    strongest = pick_strongest(
        [(regions.boxes(0), torch.stack(each).mean(dim=0)) for regions, each in found.items()], n
    )
    space = tuple(evidence.inputs[0].shape[2:])
    own_space = evidence.parts[0].regions.space
    if of_input or own_space == space:
        return strongest
    speak_for, speak_against = (
        [_enlarged(w, own_space, space) for w in kind] for kind in strongest
    )
    return speak_for, speak_against


def _enlarged(
    window: StrongWindow, space: tuple[int, ...], larger: tuple[int, ...]
) -> StrongWindow:
    """The pixels of an input that a window of its feature map covers."""
    ends = [start + side for start, side in zip(window.corner, window.shape, strict=True)]
    low = [c * new // old for c, old, new in zip(window.corner, space, larger, strict=True)]
    high = [-(-end * new // old) for end, old, new in zip(ends, space, larger, strict=True)]
    shape = tuple(end - start for start, end in zip(low, high, strict=True))
    return StrongWindow(tuple(low), shape, window.value)


def pick_strongest(
    sizes: Sequence[tuple[Sequence[Windows], Tensor]], n: int
) -> tuple[list[StrongWindow], list[StrongWindow]]:
    """The strongest windows for and against, from those of each size and their values (W,)."""
    n = check_count("n", n)
    corners: list[npt.NDArray[np.int64]] = []
    shapes: list[npt.NDArray[np.int64]] = []
    values, strengths = [], []
    for boxes, bits in sizes:
        plain = torch.nan_to_num(in_double(bits.detach()), posinf=0.0, neginf=0.0).cpu().numpy()
        spread = float(plain.std()) if len(sizes) > 1 else 1.0
        corners.extend(windows.corner_array for windows in boxes)
        shapes.extend(np.tile(windows.window, (len(windows), 1)) for windows in boxes)
        values.append(plain)
        strengths.append(plain / (spread or 1.0))
    candidates = _Candidates(
        np.concatenate(corners),
        np.concatenate(shapes),
        np.concatenate(values),
        np.concatenate(strengths),
    )
    return candidates.strongest(n), candidates.strongest(n, sign=-1)


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Windows with their corners and shapes (W, dims), values and strengths (W,)."""

    corners: npt.NDArray[np.int64]
    shapes: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    strengths: npt.NDArray[np.float64]

    def strongest(self, n: int, sign: int = 1) -> list[StrongWindow]:
        """The n highest of ``sign * strengths`` that are positive and do not overlap."""
        left = sign * self.values > 0
        chosen: list[StrongWindow] = []
        while left.any() and len(chosen) < n:
            best = int(np.argmax(np.where(left, sign * self.strengths, -np.inf)))
            low, shape = self.corners[best], self.shapes[best]
            chosen.append(
                StrongWindow(
                    tuple(int(start) for start in low),
                    tuple(int(side) for side in shape),
                    float(self.values[best]),
                )
            )
            apart = (self.corners >= low + shape) | (self.corners + self.shapes <= low)
            left &= apart.any(axis=1)
        return chosen
