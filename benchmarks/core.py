"""What the core costs, as ratios of two things measured alternately in one run.

python benchmarks/core.py overhead     # engine, prior and evidence over the bare model
python benchmarks/core.py sampling     # drawing samples over one conditioning a window
python benchmarks/core.py occlusion    # captum.attr.Occlusion over EfficientPDA
python benchmarks/core.py batch-sizes  # the bare model at several batch sizes
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torchvision
from captum.attr import Occlusion
from timing import best_times

from captum_pda import ConstantPrior, EfficientPDA, GaussianPatchPrior, WindowGrid
from captum_pda.engines import BatchSize, DenseEngine
from captum_pda.execution.loop import scores_without_windows
from captum_pda.prediction.model_call import ModelCall
from captum_pda.prediction.readout import Readout
from captum_pda.priors import prior_for

TARGET = 7


def photo_like(size: int = 224) -> torch.Tensor:
    """Noise with the falling spectrum of a photo."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.fft.rfft2(torch.randn(1, 3, size, size, generator=generator))
    frequency = torch.hypot(torch.fft.fftfreq(size)[:, None], torch.fft.rfftfreq(size)[None])
    image = torch.fft.irfft2(noise / (frequency + 1 / size), s=(size, size))
    return image / image.std()


def overhead(rounds: int, n_windows: int) -> None:
    """Fitting, filling, perturbing and reading against the model alone on ready-made batches."""
    model = torchvision.models.resnet18(weights=None).eval()
    image = photo_like()
    grid = WindowGrid((224, 224), (10, 10), (2, 2))
    middle = (len(grid) - n_windows) // 2
    part = grid[middle : middle + n_windows]
    rows = BatchSize().rows_for(image)

    def fill_for(example: torch.Tensor, windows: WindowGrid):
        prior = prior_for(None, "conditional_mean", example[0], windows)
        return lambda chunk: prior.conditional_mean(example[0], chunk).unsqueeze(0)

    def with_library() -> torch.Tensor:
        call = ModelCall(model, (image,))
        readout = Readout("logits", softmax=True)
        return scores_without_windows(
            call,
            (image,),
            (part,),
            fill_for,
            DenseEngine(),
            readout,
            [TARGET],
            1,
            1,
            None,
            None,
        )[0]

    fills = GaussianPatchPrior(18).fit(image).conditional_mean(image[0], part)
    batches = []
    for start in range(0, n_windows, rows):
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

    best = best_times({"library": with_library, "bare model": bare}, rounds)
    ratio = best["library"] / best["bare model"]
    print(f"ResNet18, 224x224, stride 2, {n_windows} windows in batches of {rows}")
    print(f"library / bare model on the same batches: {ratio:.3f} (wanted: at most 1.05)")


def sampling(rounds: int, n_windows: int) -> None:
    """All samples of a whole image against conditioning and factoring window by window."""
    image = photo_like()
    prior = GaussianPatchPrior(18).fit(image)
    grid = WindowGrid((224, 224), (10, 10), (1, 1))
    few = min(n_windows, 20)

    def with_library() -> None:
        fresh = GaussianPatchPrior(18).fit(image)
        for chunk in grid.chunks(1024):
            fresh.sample(image[0], chunk, 10)

    places = np.indices((18, 18)).reshape(2, -1).T
    inside = ((places >= 4) & (places < 14)).all(axis=1)
    covariance = prior._moments.covariance(places, places)[0].numpy()
    covariance += 1e-5 * covariance.diagonal().mean() * np.eye(len(covariance))
    window = np.repeat(inside, 3)
    random = np.random.default_rng(0)
    patches = image[0].unfold(1, 18, 1).unfold(2, 18, 1).permute(1, 2, 3, 4, 0).flatten(2).numpy()

    def window_by_window() -> None:
        for number in range(few):
            patch = patches[number // 207 + 50, number % 207 + 50].reshape(-1)
            rest = covariance[~window][:, ~window]
            weights = np.linalg.solve(rest, covariance[~window][:, window])
            left = covariance[window][:, window] - covariance[window][:, ~window] @ weights
            factor = np.linalg.cholesky(left + 1e-5 * np.eye(len(left)))
            patch[~window] @ weights + random.standard_normal((10, len(left))) @ factor.T

    best = best_times({"library": with_library, "window by window": window_by_window}, rounds)
    ratio = best["window by window"] / few * len(grid) / best["library"]
    print(f"10 samples for each of {len(grid)} windows of 10x10, three channels jointly")
    print(
        f"NumPy, one conditioning and Cholesky a window (timed on {few}) / library: {ratio:.0f} "
        "(wanted: at least 50)"
    )


def occlusion(rounds: int, n_windows: int) -> None:
    """Captum's Occlusion at its best batch size against ``attribute`` on as many windows."""
    image = photo_like()
    print(
        "window 10, 224x224, stride 10 (529 windows); Occlusion's time / ours, wanted: at least 1"
    )
    for name in ("resnet18", "squeezenet1_1", "mobilenet_v2"):
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
            best = best_times(candidates, rounds)
        fastest = min(time for title, time in best.items() if title.startswith("occlusion"))
        print(
            f"{name:>14}: {fastest / best['own Gaussian']:.2f} with the default prior, "
            f"{fastest / best['constant']:.2f} with ConstantPrior(0)"
        )


def batch_sizes(rounds: int, n_windows: int) -> None:
    """How the time of a forward pass depends on the number of copies in it."""
    model = torchvision.models.resnet18(weights=None).eval()
    candidates = {}
    for rows in (4, 8, 16, 32, 64, 128):
        batch = photo_like().repeat(rows, 1, 1, 1).contiguous(memory_format=torch.channels_last)
        candidates[str(rows)] = lambda batch=batch: model(batch)
    with torch.inference_mode():
        best = best_times(candidates, rounds)
    smallest = min(time / int(rows) for rows, time in best.items())
    print("ResNet18, 224x224: time a copy, relative to the best batch size")
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
    arguments = parser.parse_args()
    TASKS[arguments.task](arguments.rounds, arguments.windows)
