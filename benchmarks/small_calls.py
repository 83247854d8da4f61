"""What ``engine="auto"`` costs or gains in small calls, over ``engine="dense"``.

    python benchmarks/small_calls.py                 # the table, one thread
    python benchmarks/small_calls.py --tiny          # that it runs, in seconds

Whole calls of ``attribute`` with a new EfficientPDA each, so that nothing is remembered, taken
alternately in one run on one thread, in seconds of its processor. The median of the ratios of
``--rounds`` counts; above 1 "auto" is faster. "dense / dense" is what the same measurement says of
the same engine twice: where it differs from 1, that is the noise of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from operator import truediv

import torch
from timing import all_times
from torch import nn

from captum_pda import ConstantPrior, EfficientPDA

#: Networks of timm, or torchvision's, with the side of their input.
NETWORKS = {
    "mobilenetv3_small_100": 224,
    "convnext_atto": 224,
    "vit_tiny_patch16_224": 224,
    "resnet18": 112,
}
#: Windows along each axis, side by side.
GRIDS = (7, 10, 12)


def load(name: str) -> nn.Module:
    torch.manual_seed(0)
    import timm

    return timm.create_model(name).eval()


def explain(model: nn.Module, image: torch.Tensor, window: int, engine: str) -> str:
    pda = EfficientPDA(model, ConstantPrior(0.0), engine=engine)
    pda.attribute(image, target=0, sliding_window_shapes=window, strides=window)
    return str(pda.engine_report).splitlines()[0]


def row(
    name: str, model: nn.Module, side: int, grid: int, rounds: int, incremental_too: bool
) -> str:
    image = torch.randn(1, 3, side, side)
    window = -(-side // grid)
    n_windows = len(range(0, side, window)) ** 2
    engines = {"dense": "dense", "auto": "auto", "again": "dense"}
    if incremental_too:
        engines["incremental"] = "incremental"
    runs = {
        name: partial(explain, model, image, window, engine) for name, engine in engines.items()
    }
    taken = all_times(runs, rounds, time.process_time)
    ratios = {
        name: statistics.median(map(truediv, taken["dense"], times))
        for name, times in taken.items()
    }
    report = explain(model, image, window, "auto")
    cells = [name, f"{side}", f"{window}", f"{n_windows}", f"{ratios['auto']:.2f}"]
    cells.append(f"{ratios['again']:.2f}")
    cells.append(f"{ratios['incremental']:.2f}" if incremental_too else "")
    return "| " + " | ".join([*cells, report.removeprefix("engine: ")]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--grids", nargs="+", type=int, default=GRIDS)
    parser.add_argument("--incremental", action="store_true", help="that engine by itself, too")
    parser.add_argument("--tiny", action="store_true", help="a network of two layers, once")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"1 thread, PyTorch {torch.__version__}\n")
    print(
        "| network | side | window | windows | dense / auto | dense / dense | dense / incremental "
        "| auto's choice |"
    )
    print("| --- " * 8 + "|")
    if arguments.tiny:
        layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        print(row("two layers", nn.Sequential(*layers).eval(), 32, 9, 1, True))
        return
    for name in arguments.networks:
        model = load(name)
        for grid in arguments.grids:
            print(
                row(name, model, NETWORKS[name], grid, arguments.rounds, arguments.incremental),
                flush=True,
            )


if __name__ == "__main__":
    main()
