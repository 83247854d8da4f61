"""Small models and images that the tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from browser import browser as browser
from photo_folder import photo_folder as photo_folder
from rank_pool import RankPool
from torch import Tensor, nn

from captum_pda import EfficientPDA, GradientPDA, SampledPDA

# Tensors here are small, and tests run side by side: threads would only wait for each other, also
# those of the processes that tests start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

METHODS = (EfficientPDA, SampledPDA, GradientPDA)
PERTURBATION_METHODS = (EfficientPDA, SampledPDA)


def make_classifier(dims: int = 2, channels: int = 3, classes: int = 4, seed: int = 0) -> nn.Module:
    """A small smooth classifier of images with 1 to 3 spatial dimensions, in double precision."""
    torch.manual_seed(seed)
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    pooling = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dims - 1]
    return (
        nn.Sequential(
            convolution(channels, 6, 3, padding=1),
            nn.Tanh(),
            pooling(2),
            nn.Flatten(),
            nn.Linear(6 * 2**dims, classes),
        )
        .double()
        .eval()
    )


def make_convolutional(classes: int = 4, seed: int = 0) -> nn.Module:
    """A small classifier of convolutions only, in single precision."""
    torch.manual_seed(seed)
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, classes, 3), nn.Tanh()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


class Counting(nn.Module):
    """Counts the examples that its model has seen, and may be stopped after some of them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.rows = model, 0
        self.stop_after: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.stop_after is not None and self.rows >= self.stop_after:
            raise KeyboardInterrupt
        self.rows += len(x)
        return self.model(x)


def make_images(*shape: int, seed: int = 1) -> Tensor:
    """Images whose neighbouring pixels resemble each other, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(*shape, generator=generator, dtype=torch.float64)
    for axis in range(2, len(shape)):
        images = images + images.roll(1, axis) + 0.5 * images.roll(2, axis)
    return images


def means_of(prior: Any, images: Tensor, regions: Any) -> Tensor:
    """The conditional means of several examples, (N, W, C, *window)."""
    return torch.stack([prior.conditional_mean(image, regions) for image in images])


def samples_of(
    prior: Any, images: Tensor, regions: Any, n_samples: int, generator: Any = None
) -> Tensor:
    """Samples of several examples, (S, N, W, C, *window)."""
    draws = [prior.sample(image, regions, n_samples, generator) for image in images]
    return torch.stack(draws, dim=1)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Several processes by default, if pytest-xdist is installed; ``-n 0`` runs in one."""
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.pluginmanager.has_plugin("xdist"):
        return
    if config.option.numprocesses is None and not config.option.usepdb:
        config.option.numprocesses = "auto"
        config.option.maxprocesses = config.option.maxprocesses or 4
        if config.option.dist == "no":
            config.option.dist = "worksteal"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start processes or a browser are slow."""
    for item in items:
        if {"pool", "browser"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def classifier() -> nn.Module:
    return make_classifier()


@pytest.fixture
def images() -> Tensor:
    return make_images(2, 3, 9, 11)


@pytest.fixture(params=METHODS, ids=lambda method: method.__name__)
def method(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture(params=PERTURBATION_METHODS, ids=lambda method: method.__name__)
def perturbation_method(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Two processes of one process group."""
    ranks = RankPool(tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()
