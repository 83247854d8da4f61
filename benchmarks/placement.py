"""Where to put windows when there are few: on a regular grid, jittered, or evenly scattered.

    python benchmarks/placement.py           # EfficientNet-lite0, window 10, three photos

All windows at stride 1 are run once, and every placement is some of them. A map is the mean of the
windows over each pixel; a pixel that no window covers gets the value of the nearest one that has.
What is printed is the correlation with the map of all windows, the mean over the photos. Scattered
placements are drawn ``DRAWS`` times. With ``--tiny`` it takes seconds; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import speed
import torch
from scipy.ndimage import distance_transform_edt
from scipy.stats import qmc

from captum_pda import EfficientPDA, WindowGrid

Corners = npt.NDArray[np.int64]
#: From the number of corners along an axis, the stride and a seed to corners (n, 2).
Place = Callable[[int, int, int], Corners]
STRIDES = (2, 3, 4, 5, 8, 10)
DRAWS = 5


def along(n_corners: int, stride: int) -> Corners:
    """The corners of a regular grid, the last one at the border."""
    return np.unique(np.append(np.arange(0, n_corners, stride), n_corners - 1))


def regular(n_corners: int, stride: int, seed: int) -> Corners:
    corners = along(n_corners, stride)
    return np.stack(np.meshgrid(corners, corners, indexing="ij"), axis=-1).reshape(-1, 2)


def jittered(n_corners: int, stride: int, seed: int) -> Corners:
    """A regular grid with each window moved within its cell."""
    grid = regular(n_corners, stride, seed)
    moves = np.random.default_rng(seed).integers(-(stride // 2), stride - stride // 2, grid.shape)
    return np.clip(grid + moves, 0, n_corners - 1)


def shifted(n_corners: int, stride: int, seed: int) -> Corners:
    """A regular grid with each row moved along itself, so that columns are at all phases."""
    grid = regular(n_corners, stride, seed)
    rows = grid[:, 0] // stride
    moves = np.round((rows * 0.618) % 1 * stride - stride / 2).astype(np.int64)
    return np.clip(grid + np.stack([0 * moves, moves], axis=-1), 0, n_corners - 1)


def scattered(n_corners: int, stride: int, seed: int) -> Corners:
    """As many windows at points of a Halton sequence, which leaves neither clumps nor holes."""
    n_windows = len(along(n_corners, stride)) ** 2
    points = qmc.Halton(2, seed=seed).random(n_windows)
    return np.round(points * (n_corners - 1)).astype(np.int64)


PLACES: dict[str, Place] = {
    "regular": regular,
    "jittered": jittered,
    "shifted rows": shifted,
    "Halton": scattered,
}


def map_of(corners: Corners, values: npt.NDArray[np.float64], side: int) -> npt.NDArray[np.float64]:
    """The mean of the windows over each pixel."""
    total, count = np.zeros((side, side)), np.zeros((side, side))
    for row, column in corners:
        window = slice(row, row + speed.WINDOW), slice(column, column + speed.WINDOW)
        total[window] += values[row, column]
        count[window] += 1
    nearest = distance_transform_edt(count == 0, return_distances=False, return_indices=True)
    return np.asarray((total / np.maximum(count, 1))[tuple(nearest)])


def all_windows(side: int) -> list[npt.NDArray[np.float64]]:
    """For each photo the evidence of every window at stride 1 for the predicted class."""
    model = speed.load("efficientnet_lite0", trained=True)
    found = []
    for photo in speed.photos().values():
        image = torch.nn.functional.interpolate(photo, (side, side), mode="area")
        with torch.no_grad():
            target = int(model(image).argmax())
        grid = WindowGrid((side, side), (speed.WINDOW,) * 2, (1, 1))
        evidence = EfficientPDA(model).evidence(image, regions=grid)
        bits = evidence.window_values(target)[0].double().numpy()
        found.append(bits.reshape((side - speed.WINDOW + 1,) * 2))
    return found


def main(tiny: bool) -> None:
    side = 40 if tiny else 128
    photos = all_windows(side)
    n_corners = side - speed.WINDOW + 1
    everywhere = regular(n_corners, 1, 0)
    whole = [map_of(everywhere, values, side) for values in photos]
    print(f"window {speed.WINDOW}, {side}x{side}; correlation with all {len(everywhere)} windows\n")
    print("| stride | windows | " + " | ".join(PLACES) + " |")
    print("| --- " * (2 + len(PLACES)) + "|")
    for stride in STRIDES:
        cells = [f"{stride}", f"{len(regular(n_corners, stride, 0))}"]
        for place in PLACES.values():
            seeds = range(1 if place in (regular, shifted) else DRAWS)
            fits = [
                np.corrcoef(
                    map_of(place(n_corners, stride, seed), values, side).ravel(), full.ravel()
                )[0, 1]
                for seed in seeds
                for values, full in zip(photos, whole, strict=True)
            ]
            cells.append(f"{np.mean(fits):.3f}")
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="seconds only, to see that it runs")
    torch.set_num_threads(1)
    main(parser.parse_args().tiny)
