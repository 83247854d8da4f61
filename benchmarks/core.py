"""What the core costs, as ratios of two things measured alternately in one run.

python benchmarks/core.py overhead     # engine, prior and evidence over the bare model
python benchmarks/core.py sampling     # drawing samples over one conditioning per window
python benchmarks/core.py occlusion    # captum.attr.Occlusion over EfficientPDA
python benchmarks/core.py batch-sizes  # the bare model at several batch sizes

With ``--tiny`` each runs in seconds, to see that it runs; its numbers then mean nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torchvision
from captum.attr import Occlusion
from timing import best_times

from captum_pda import ConstantPrior, EfficientPDA, GaussianPatchPrior, WindowGrid
from captum_pda.engines import BatchSize

TARGET = 7


@dataclass(frozen=True)
class Scale:
    """How much is timed.

    Args:
        rounds: how often each candidate runs.
        side: of the image.
        windows: how many are timed of many.
        networks: against Occlusion.
        batch_sizes: of the bare model.
    """

    rounds: int
    side: int = 224
    windows: int = 1024
    networks: tuple[str, ...] = ("resnet18", "squeezenet1_1", "mobilenet_v2")
    batch_sizes: tuple[int, ...] = (4, 8, 16, 32, 64, 128)


TINY = Scale(rounds=1, side=64, windows=16, networks=("squeezenet1_1",), batch_sizes=(1, 2))


def photo_like(size: int) -> torch.Tensor:
    """Noise with the falling spectrum of a photo."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.fft.rfft2(torch.randn(1, 3, size, size, generator=generator))
    frequency = torch.hypot(torch.fft.fftfreq(size)[:, None], torch.fft.rfftfreq(size)[None])
    image = torch.fft.irfft2(noise / (frequency + 1 / size), s=(size, size))
    return image / image.std()


def overhead(scale: Scale) -> None:
    """Fitting, filling, perturbing and reading against the model alone on ready-made batches."""
    model = torchvision.models.resnet18(weights=None).eval()
    image = photo_like(scale.side)
    grid = WindowGrid((scale.side, scale.side), (10, 10), (2, 2))
    middle = (len(grid) - scale.windows) // 2
    part = grid[middle : middle + scale.windows]
    rows = BatchSize().rows_for(image)

    def with_library() -> None:
        EfficientPDA(model, engine="dense").evidence(image, regions=part)

    fills = GaussianPatchPrior(18).fit(image).conditional_mean(image[0], part)
    batches = []
    for start in range(0, scale.windows, rows):
        some = fills[start : start + rows]
        batch = image.repeat(len(some), 1, 1, 1).contiguous(memory_format=torch.channels_last)
        corners = part.corner_array[start : start + rows]
        for copy, (top, left), fill in zip(batch, corners, some, strict=True):
            copy[:, top : top + 10, left : left + 10] = fill
        batches.append(batch)

    @torch.inference_mode()
    def bare() -> None:
        for batch in batches:
            model(batch)

    best = best_times({"library": with_library, "bare model": bare}, scale.rounds)
    ratio = best["library"] / best["bare model"]
    side = f"{scale.side}x{scale.side}"
    print(f"ResNet18, {side}, stride 2, {scale.windows} windows in batches of {rows}")
    print(f"library / bare model on the same batches: {ratio:.3f} (wanted: at most 1.05)")


def sampling(scale: Scale) -> None:
    """All samples of a whole image against conditioning and factoring window by window."""
    image = photo_like(scale.side)
    prior = GaussianPatchPrior(18).fit(image)
    grid = WindowGrid((scale.side, scale.side), (10, 10), (1, 1))
    few = min(scale.windows, 20)

    def with_library() -> None:
        fresh = GaussianPatchPrior(18).fit(image)
        for start in range(0, len(grid), 1024):
            fresh.sample(image[0], grid[start : start + 1024], 10)

    places = np.indices((18, 18)).reshape(2, -1).T
    inside = ((places >= 4) & (places < 14)).all(axis=1)
    covariance = prior._moments.covariance(places, places)[0].numpy()
    covariance += 1e-5 * covariance.diagonal().mean() * np.eye(len(covariance))
    window = np.repeat(inside, 3)
    random = np.random.default_rng(0)
    patches = image[0].unfold(1, 18, 1).unfold(2, 18, 1).permute(1, 2, 3, 4, 0).flatten(2).numpy()

    def window_by_window() -> None:
        for number in range(few):
            patch = patches[scale.side // 4, scale.side // 4 + number].reshape(-1)
            rest = covariance[~window][:, ~window]
            weights = np.linalg.solve(rest, covariance[~window][:, window])
            left = covariance[window][:, window] - covariance[window][:, ~window] @ weights
            factor = np.linalg.cholesky(left + 1e-5 * np.eye(len(left)))
            patch[~window] @ weights + random.standard_normal((10, len(left))) @ factor.T

    best = best_times({"library": with_library, "window by window": window_by_window}, scale.rounds)
    ratio = best["window by window"] / few * len(grid) / best["library"]
    print(f"10 samples for each of {len(grid)} windows of 10x10, three channels jointly")
    print(
        f"NumPy, one conditioning and Cholesky per window (timed on {few}) / library: {ratio:.0f} "
        "(wanted: at least 50)"
    )


def occlusion(scale: Scale) -> None:
    """Captum's Occlusion at its best batch size against ``attribute`` on as many windows."""
    image = photo_like(scale.side)
    side = f"{scale.side}x{scale.side}"
    print(f"window 10, {side}, stride 10; Occlusion's time / ours, wanted: at least 1")
    for name in scale.networks:
        model = torchvision.models.get_model(name, weights=None).eval()
        candidates = {
            f"occlusion {rows}": lambda rows=rows, model=model: Occlusion(model).attribute(
                image,
                sliding_window_shapes=(3, 10, 10),
                strides=(3, 10, 10),
                target=TARGET,
                perturbations_per_eval=rows,
            )
            for rows in (4, 16, 64)
        }
        for title, prior in (("own Gaussian", None), ("constant", ConstantPrior(0.0))):
            candidates[title] = lambda prior=prior, model=model: EfficientPDA(
                model, prior, engine="dense"
            ).attribute(image, target=TARGET, sliding_window_shapes=10, strides=10)
        with torch.no_grad():
            best = best_times(candidates, scale.rounds)
        fastest = min(time for title, time in best.items() if title.startswith("occlusion"))
        print(
            f"{name:>14}: {fastest / best['own Gaussian']:.2f} with the default prior, "
            f"{fastest / best['constant']:.2f} with ConstantPrior(0)"
        )


def batch_sizes(scale: Scale) -> None:
    """How the time of a forward pass depends on the number of copies in it."""
    model = torchvision.models.resnet18(weights=None).eval()
    candidates = {}
    image = photo_like(scale.side)
    for rows in scale.batch_sizes:
        batch = image.repeat(rows, 1, 1, 1).contiguous(memory_format=torch.channels_last)
        candidates[str(rows)] = lambda batch=batch: model(batch)
    with torch.inference_mode():
        best = best_times(candidates, scale.rounds)
    smallest = min(time / int(rows) for rows, time in best.items())
    print("ResNet18: time per copy, relative to the best batch size")
    print("  ".join(f"{rows}: {time / int(rows) / smallest:.2f}" for rows, time in best.items()))


TASKS = {
    "overhead": overhead,
    "sampling": sampling,
    "occlusion": occlusion,
    "batch-sizes": batch_sizes,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=1024, help="how many to time, of many")
    parser.add_argument("--tiny", action="store_true", help="seconds only, to see that it runs")
    chosen = parser.parse_args()
    scale = TINY if chosen.tiny else Scale(chosen.rounds, windows=chosen.windows)
    TASKS[chosen.task](scale)
