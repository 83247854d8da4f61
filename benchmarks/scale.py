"""How cost and memory grow, and what a second process gains.

    python benchmarks/scale.py slopes      # log-log slopes of time and of peak memory
    python benchmarks/scale.py processes   # two processes against one; needs two idle cores

With ``--tiny`` each takes seconds, to see that it runs; its numbers then mean nothing.

A slope of 1 means linear, 0 independent. Each point is a process of its own with one thread, so
that its peak memory is its own; all points of a row are timed alternately, and the best of
``--rounds`` counts. Peak memory is what a run adds to that of importing and building the model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

BASE = {
    "windows": 256,
    "side": 96,
    "classes": 10,
    "images": 1,
    "window": 8,
    "what": "attribute",
}
ROWS = {
    "windows, attribute": ("windows", (256, 1024, 4096), {}),
    "windows, evidence": ("windows", (256, 1024, 4096), {"what": "evidence"}),
    # Sides at which 256 windows of 16x16 are spread evenly.
    "image area, attribute": ("side", (76, 136, 256), {"window": 16}),
    "classes, attribute": ("classes", (10, 100, 1000), {}),
    "classes, evidence": ("classes", (10, 100, 1000), {"what": "evidence"}),
    "images, attribute": ("images", (1, 4, 16), {}),
}
TINY_ROWS = {
    "windows, attribute": ("windows", (144, 256), {}),
    "classes, evidence": ROWS["classes, evidence"],
}


def measure(task: dict) -> dict[str, float]:
    """One run in this process: seconds, and the peak memory that it added, in MiB."""
    import resource

    import torch
    from torch import nn

    from captum_pda import EfficientPDA, WindowGrid

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, task["classes"])),
    ).eval()
    side, per_axis = task["side"], round(task["windows"] ** 0.5)
    window = task["window"]
    images = torch.randn(task["images"], 3, side, side)
    stride = max(1, (side - window) // max(1, per_axis - 1))
    grid = WindowGrid((side, side), (window, window), (stride, stride))
    pda = EfficientPDA(model, engine="dense")

    def run(some: WindowGrid | None) -> None:
        if task["what"] == "attribute" and some is None:
            pda.attribute(images, 0, sliding_window_shapes=window, strides=stride)
        else:
            pda.evidence(images, regions=some or grid)

    run(grid.pick(range(0, len(grid), max(1, len(grid) // 32))))  # buffers, caches, threads
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    run(None)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "mebibytes": (after - before) / 1024, "windows": len(grid)}


def in_own_process(task: dict) -> dict[str, float]:
    command = [sys.executable, __file__, "one", "--task", json.dumps(task)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def slope(sizes: list[float], values: list[float]) -> float:
    """Of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


def slopes(rounds: int, rows: dict[str, tuple]) -> None:
    print("| growing | sizes | slope of time | time, first = 1 | peak memory added, MiB |")
    print("| --- | --- | --- | --- | --- |")
    for name, (what, sizes, settings) in rows.items():
        tasks = [{**BASE, **settings, what: size} for size in sizes]
        found = [[in_own_process(task) for task in tasks] for _ in range(rounds)]
        times = [min(row[n]["seconds"] for row in found) for n in range(len(sizes))]
        memory = [min(row[n]["mebibytes"] for row in found) for n in range(len(sizes))]
        if what == "windows":
            sizes = tuple(int(point["windows"]) for point in found[0])
        grown = [size**2 for size in sizes] if what == "side" else list(sizes)
        ratios = ", ".join(f"{value / times[0]:.2f}" for value in times)
        megabytes = ", ".join(f"{value:.0f}" for value in memory)
        print(
            f"| {name} | {', '.join(map(str, grown))} | {slope(grown, times):.2f} | {ratios} | "
            f"{megabytes} |",
            flush=True,
        )


ONE_INPUT = """
import os, sys, time, torch, torch.distributed as dist, torchvision
from captum_pda import EfficientPDA
torch.set_num_threads(1); torch.manual_seed(0)
dist.init_process_group("gloo")
pda = EfficientPDA(torchvision.models.resnet18(weights=None).eval(), engine="dense",
                   process_group=dist.group.WORLD)
image = torch.randn(1, 3, 224, 224)
pda.attribute(image, 0, sliding_window_shapes=32, strides=32)
dist.barrier(); start = time.perf_counter()
width = int(sys.argv[1])
pda.attribute(image, 0, sliding_window_shapes=width, strides=width)
dist.barrier()
if dist.get_rank() == 0: print("SECONDS", time.perf_counter() - start)
dist.destroy_process_group()
"""


def launch(count: int, program: list[str]) -> str:
    runner = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *runner, *program],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.stdout


def processes(rounds: int, n_photos: int = 24, window: int = 10) -> None:
    """The time of one process over that of two, with one thread each."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        for number in range(n_photos):
            values = np.random.default_rng(number).integers(0, 255, (60, 80, 3), dtype=np.uint8)
            Image.fromarray(values).resize((320, 240)).save(folder / f"photos/{number}.png")
        script = folder / "one_input.py"
        script.write_text(ONE_INPUT)
        best: dict[tuple[str, int], float] = {}
        for turn in range(rounds):
            for count in (1, 2):
                taken = float(
                    launch(count, [str(script), str(window)]).split("SECONDS")[1].split()[0]
                )
                best["one input", count] = min(taken, best.get(("one input", count), np.inf))
                out = str(folder / f"out_{turn}_{count}")
                explain = ["-m", "captum_pda", "explain", str(folder / "photos"), "--output", out]
                start = time.perf_counter()
                launch(
                    count,
                    [
                        *explain,
                        "--window",
                        str(window),
                        "--stride",
                        str(window),
                        "--quiet",
                        "--device",
                        "cpu",
                    ],
                )
                taken = time.perf_counter() - start
                best["folder", count] = min(taken, best.get(("folder", count), np.inf))
    for what, note in (("one input", ""), ("folder", ", with starting the processes")):
        ratio = best[what, 1] / best[what, 2]
        print(f"one process / two processes, {what}{note}: {ratio:.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["slopes", "processes", "one"], nargs="?", default="slopes")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="seconds only, to see that it runs")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part == "one":
        print(json.dumps(measure(json.loads(chosen.task))))
    elif chosen.part == "slopes":
        slopes(*((1, TINY_ROWS) if chosen.tiny else (chosen.rounds, ROWS)))
    elif chosen.tiny:
        processes(rounds=1, n_photos=2, window=56)
    else:
        processes(chosen.rounds)
