"""In which order the windows are run, so that those of a batch have boxes of about one size."""

from __future__ import annotations

import numpy as np

from captum_pda.engines.incremental.spans import Integers
from captum_pda.regions.protocol import Windows


def order_of_windows(grid: Windows, n_samples: int, rows: int) -> Integers:
    """The numbers of all rows, sample by sample and window by window, in the order to run them.

    A box near the border is cut by it, and all boxes of a batch are as large as its largest. So
    windows that are about as far from the border go together: sorted into as many parts by their
    distance along the first axis as there are to be along each axis, then in each part by the next.
    """
    corners = np.tile(grid.corner_array, (n_samples, 1))
    slack = np.subtract(grid.space, grid.window)
    distance = np.minimum(corners, slack - corners)
    n_batches = -(-len(corners) // rows)
    order: Integers = np.arange(len(corners), dtype=np.int64)
    return _sorted(order, distance, n_batches)


def _sorted(numbers: Integers, distance: Integers, n_batches: int) -> Integers:
    """Sort by the first column into parts, and each part by the columns that follow."""
    ordered = numbers[np.argsort(distance[numbers, 0], kind="stable")]
    n_axes = distance.shape[1]
    if n_axes == 1:
        return ordered
    n_parts = max(1, round(n_batches ** (1 / n_axes)))
    parts = np.array_split(ordered, n_parts)
    return np.concatenate(
        [_sorted(part, distance[:, 1:], -(-n_batches // n_parts)) for part in parts]
    )
