"""Whole networks: the incremental engine gives the dense engine's outputs."""

from __future__ import annotations

import pytest
import torch
from conftest import make_images
from incremental_checks import both_engines
from torch import Tensor, nn
from torchvision import models

from captum_pda import ConstantPrior, EfficientPDA, WindowGrid

#: Networks with the extent of their input.
NETWORKS = {
    "alexnet": 96,
    "vgg16": 64,
    "googlenet": 96,
    "resnet18": 96,
    "resnet50": 96,
    "densenet121": 96,
    "squeezenet1_1": 96,
    "mobilenet_v2": 96,
    "mobilenet_v3_small": 96,
    "efficientnet_b0": 64,
    "inception_v3": 96,
    "convnext_tiny": 64,
    "shufflenet_v2_x0_5": 96,
    "mnasnet0_5": 96,
    "regnet_y_400mf": 64,
}
#: What the quick tests take of them; the others take longer, or have no layer of their own.
QUICK = ("resnet18", "squeezenet1_1", "mobilenet_v3_small", "shufflenet_v2_x0_5")
#: Networks that can't stay incremental, and the function that ends it.
GO_DENSE = {
    "mobilenet_v3_small": "mul",
    "efficientnet_b0": "mul",
    "regnet_y_400mf": "mul",
}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = getattr(models, name)(weights=None, **options).eval()
    return settled(model, NETWORKS[name])


def settled(model: nn.Module, size: int) -> nn.Module:
    """Batch-norm statistics of some inputs: without them nothing of an input reaches the output."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for module in norms:
        module.train()
        module.momentum = 1.0
        nn.init.normal_(module.bias, 0, 0.1)
    with torch.no_grad():
        model(torch.randn(8, 3, size, size))
    return model.eval()


def check(model: nn.Module, size: int) -> dict[str, str]:
    """Compare both engines in single and in double precision."""
    # Windows that no layer's stride divides, at both borders and between.
    grid = WindowGrid((size, size), (9, 7), (size // 2 - 3, size // 2 - 4))[1:6]
    example = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    found, expected, _ = both_engines(model, example, grid, rows=5)
    spread = expected.max() - expected.min()
    assert ((found - expected).abs().max() <= 1e-4 * spread).item()
    model.double()
    found, expected, incremental = both_engines(model, example.double(), grid, rows=3)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * spread.item())
    # Without a change there would be nothing to get wrong.
    with torch.no_grad():
        change = (expected - model(example.double())).abs().max()
    assert (change > 1e-6 * spread).item()
    return incremental.went_dense


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NETWORKS],
)
def test_torchvision_network(name: str) -> None:
    went_dense = check(network(name), NETWORKS[name])
    assert next(iter(went_dense), None) == GO_DENSE.get(name)


def test_vision_transformer() -> None:
    torch.manual_seed(0)
    model = models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=10).eval()
    nn.init.normal_(model.heads.head.weight)
    assert list(check(model, 32)) == ["reshape"]


def test_efficientnet_lite() -> None:
    lite = pytest.importorskip("efficientnet_lite_pytorch")
    torch.manual_seed(0)
    model = lite.EfficientNet.from_name("efficientnet-lite0", image_size=96).eval()
    assert check(settled(model, 96), 96) == {}


def nested(maps: Tensor) -> Tensor:
    """Each copy by itself, as a piece of a nested tensor."""
    pieces = torch.nested.as_nested_tensor(list(maps.flatten(2).unbind()))
    return pieces.to_padded_tensor(0.0).reshape(maps.shape)


def jagged(maps: Tensor) -> Tensor:
    rows = list(maps.flatten(2).transpose(1, 2).unbind())
    pieces = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    return torch.stack(list(pieces.unbind())).transpose(1, 2).reshape(maps.shape)


def written_at_true(maps: Tensor) -> Tensor:
    maps = maps.clone()
    maps[:, True] = maps[:, True] * 2
    return maps


ODD_STEPS = {
    "x[:, True]": lambda maps: maps[:, True][:, 0],
    "x[:, False]": lambda maps: maps + maps[:, False].sum(),
    "x[:, True] = ...": written_at_true,
    "nested": nested,
    "nested beside maps": lambda maps: maps + nested(maps),
    "jagged": jagged,
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("step", ODD_STEPS)
def test_steps_without_a_rule_go_dense(step: str) -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    last = nn.Linear(4, 3)

    def model(x: Tensor) -> Tensor:
        maps = ODD_STEPS[step](torch.relu(second(torch.relu(first(x)))))
        return last(maps.mean(dim=(2, 3)))

    for layer in (first, second, last):
        layer.eval()
    images = make_images(2, 3, 12, 14).float()
    maps = [
        EfficientPDA(model, ConstantPrior(0.0), engine=engine).attribute(
            images, target=1, sliding_window_shapes=4, strides=2
        )
        for engine in ("incremental", "dense")
    ]
    torch.testing.assert_close(*maps)
