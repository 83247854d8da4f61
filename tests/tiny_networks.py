"""Tiny random networks for the fuzzer: built from a short recipe, so that failures can be read."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: What a network may be made of; each takes a number that decides its details.
LAYERS = (
    "convolution",
    "depthwise",
    "batch norm",
    "pointwise",
    "max pool",
    "average pool",
    "residual",
    "concatenation",
    "squeeze and excite",
    "pad",
    "upsample",
    "layer norm",
)
HEADS = ("mean", "adaptive average", "adaptive maximum", "flatten", "places")
POINTWISE = (
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.Tanh(),
    nn.SiLU(),
    nn.GELU(),
    nn.LeakyReLU(0.1),
    nn.Dropout(0.5),
    nn.Softplus(),
)


def of_dims(name: str, dims: int) -> type[nn.Module]:
    return getattr(nn, f"{name}{dims}d")


class Residual(nn.Module):
    def __init__(self, branch: nn.Module, kind: int) -> None:
        super().__init__()
        self.branch = branch
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == 0:
            return x + self.branch(x)
        if self.kind == 1:
            out = self.branch(x)
            out += x
            return torch.relu(out)
        return x * torch.sigmoid(self.branch(x))


class Concatenation(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], dim=1)


class SqueezeAndExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x.flatten(2).mean(2)))
        return x * gate.reshape(*gate.shape, *(1 for _ in x.shape[2:]))


class Pad(nn.Module):
    def __init__(self, widths: tuple[int, ...], value: float) -> None:
        super().__init__()
        self.widths = widths
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.widths, value=self.value)


class ChannelNorm(nn.Module):
    """Layer norm over the channels, with the channels last, as ConvNeXt has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


class Head(nn.Module):
    """From feature maps to outputs: (N, classes), or (N, classes, *space) for "places"."""

    def __init__(self, name: str, channels: int, space: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.name = name
        dims = len(space)
        if name == "places":
            self.last = of_dims("Conv", dims)(channels, classes, 1)
            return
        pooled = {"mean": 1, "flatten": math.prod(space)}.get(name, 2**dims)
        if name.startswith("adaptive"):
            kind = "AdaptiveAvgPool" if name.endswith("average") else "AdaptiveMaxPool"
            self.pool = of_dims(kind, dims)(2)
        self.last = nn.Linear(channels * pooled, classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.name == "places":
            return self.last(x)
        if self.name == "mean":
            return self.last(x.mean(dim=tuple(range(2, x.dim()))))
        if self.name.startswith("adaptive"):
            x = self.pool(x)
        return self.last(x.flatten(1))


def make_layer(name: str, number: int, channels: int, space: tuple[int, ...]) -> nn.Module | None:
    """A layer for maps (channels, *space), or None where it does not fit."""
    dims, smallest = len(space), min(space)
    width, stride, odd = 1 + number % 3, 1 + number // 3 % 2, 1 + 2 * (number % 2)
    padding = number // 6 % 2 * (width // 2)
    convolution = of_dims("Conv", dims)
    if name == "convolution":
        dilation = 1 + number // 12 % 2
        if smallest + 2 * padding <= dilation * (width - 1):
            return None
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        return convolution(channels, 1 + number % 5, width, bias=number % 2 == 0, **options)
    if name == "depthwise":
        return convolution(channels, channels, odd, padding="same", groups=channels, bias=False)
    if name == "batch norm":
        norm = of_dims("BatchNorm", dims)(channels)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        return norm
    if name == "pointwise":
        return POINTWISE[number % len(POINTWISE)]
    if name in ("max pool", "average pool"):
        if smallest < width:
            return None
        options = {"stride": stride, "padding": padding, "ceil_mode": number // 12 % 2 == 1}
        if name == "max pool":
            return of_dims("MaxPool", dims)(width, **options)
        return of_dims("AvgPool", dims)(width, count_include_pad=number // 24 % 2 == 1, **options)
    if name == "residual":
        return Residual(convolution(channels, channels, odd, padding="same"), number % 3)
    if name == "concatenation":
        return Concatenation(convolution(channels, 2, 3, padding=1))
    if name == "squeeze and excite":
        return SqueezeAndExcite(channels)
    if name == "pad":
        return Pad(tuple(number // 2**place % 3 for place in range(2 * dims)), number % 2 / 2)
    if name == "upsample":
        return nn.Upsample(scale_factor=2) if smallest <= 4 else None
    return ChannelNorm(channels)


def make_network(
    recipe: tuple[tuple[str, int], ...],
    head: str,
    channels: int,
    space: tuple[int, ...],
    classes: int,
    seed: int,
) -> tuple[nn.Module, tuple[int, ...]]:
    """A network in double precision, and the shape of one example's outputs."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        maps = torch.zeros(1, channels, *space, dtype=torch.float64)
        for name, number in recipe:
            layer = make_layer(name, number, maps.shape[1], tuple(maps.shape[2:]))
            if layer is not None:
                layers.append(layer.double().eval())
                maps = layers[-1](maps)
        last = Head(head, maps.shape[1], tuple(maps.shape[2:]), classes).double().eval()
        shape = tuple(last(maps).shape[1:])
    return nn.Sequential(*layers, last).eval(), shape
