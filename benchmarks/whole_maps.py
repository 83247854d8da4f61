"""How much faster our maps are than other methods' maps, whole calls on one thread.

    python benchmarks/whole_maps.py paper    # SampledPDA window by window over EfficientPDA
    python benchmarks/whole_maps.py rise     # RISE with 4,000 masks over our default maps

Times are taken alternately in one run, in seconds of the processor; the best of ``--rounds``
counts. With ``--tiny`` each takes seconds, to see that it runs; its numbers then mean nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import speed
import torch
from league.peers import rise_masks
from timing import best_times
from torch import Tensor

from captum_pda import PDA, EfficientPDA, LayerPDA, SampledPDA, WindowGrid

#: The paper's samples per window, and the masks that RISE takes by itself.
N_SAMPLES, N_MASKS = 10, 4000


def against_paper(rounds: int, tiny: bool) -> None:
    """SampledPDA window by window, the samples of a window at a time, as the original code, over
    EfficientPDA: time per window at stride 1, of windows in the middle of the image."""
    model = speed.load("resnet18")
    image = torch.randn(1, 3, speed.SIZE, speed.SIZE)
    grid = WindowGrid((speed.SIZE, speed.SIZE), (speed.WINDOW, speed.WINDOW), (1, 1))
    blocks = {"sampled": middle_block(grid, 1 if tiny else 4)}
    blocks["efficient"] = middle_block(grid, 4 if tiny else 23)

    def sampled() -> None:
        pda = SampledPDA(model, engine="dense")
        windows = grid.pick(blocks["sampled"])
        pda.evidence(image, regions=windows, n_samples=N_SAMPLES, perturbations_per_eval=N_SAMPLES)

    def efficient() -> None:
        windows = grid.pick(blocks["efficient"])
        EfficientPDA(model, engine="auto").evidence(image, regions=windows)

    best = best_times({"sampled": sampled, "efficient": efficient}, rounds, speed.clock())
    per_window = {name: best[name] / len(blocks[name]) for name in best}
    print(
        f"ResNet18, window {speed.WINDOW}, stride 1, {len(blocks['efficient'])} windows: "
        f"SampledPDA ({N_SAMPLES} samples, window by window) / EfficientPDA auto: "
        f"{per_window['sampled'] / per_window['efficient']:.0f}"
    )


def middle_block(grid: WindowGrid, side: int) -> list[int]:
    """The numbers of side x side neighbouring windows in the middle of a grid."""
    along = speed.SIZE - speed.WINDOW + 1
    start = (along - side) // 2
    middle = range(start, start + side)
    return [row * along + column for row in middle for column in middle]


def against_rise(rounds: int, tiny: bool) -> None:
    """RISE, from some of its masks, over whole calls for our default maps."""
    model = speed.load("efficientnet_lite0", trained=True)
    image = next(iter(speed.photos().values()))
    n_timed = 16 if tiny else 200
    rows = speed.best_batch_size(model)
    generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def rise() -> Tensor:
        total = torch.zeros(speed.SIZE, speed.SIZE)
        for _ in range(0, n_timed, rows):
            masks = rise_masks(rows, speed.SIZE, generator)
            outputs = model(image * masks).softmax(1)[:, 0]
            total += (outputs.view(-1, 1, 1, 1) * masks).sum((0, 1))
        return total

    runs: dict[str, Callable[[], Any]] = {"RISE": rise}
    for method in (PDA, EfficientPDA, LayerPDA):
        runs[method.__name__] = lambda method=method: method(model).attribute(image, target=0)
    best = best_times(runs, rounds, speed.clock())
    whole = best.pop("RISE") * N_MASKS / len(range(0, n_timed, rows)) / rows
    for name, found in best.items():
        seconds = f"{whole:.0f} s / {found:.1f} s"
        print(f"RISE with {N_MASKS} masks / {name}: {seconds} = {whole / found:.1f}", flush=True)


COMMANDS = {"paper": against_paper, "rise": against_rise}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="seconds only, to see that it runs")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.tiny:
        speed.SIZE, speed.BATCH_SIZES, chosen.rounds = 64, (1,), 1
    COMMANDS[chosen.what](chosen.rounds, chosen.tiny)
