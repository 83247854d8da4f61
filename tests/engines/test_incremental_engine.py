"""The incremental engine behind the attributions: choice, report, errors, and odd models."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from incremental_checks import assert_same, both_engines, outputs_of
from torch import Tensor, nn

from captum_pda import (
    DenseEngine,
    EfficientPDA,
    IncrementalEngine,
    IncrementalError,
    WindowGrid,
)
from captum_pda.engines import BatchSize

GRID = WindowGrid((20, 24), (5, 4), (6, 7))


class Block(nn.Module):
    """A residual block whose activations and sum are in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)), inplace=True)
        y = self.second(y)
        y += x
        return y.relu_()


def small_network(n_classes: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        Block(8),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Dropout(),
        Block(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, n_classes),
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model.double().eval()


def images(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=dtype)


EXAMPLE = images(1, 3, 20, 24)


class TestAttributions:
    def test_tuple_inputs_and_additional_arguments(self) -> None:
        model = small_network()
        weight = images(8, 2, 3, 3)

        def forward(x: Tensor, other: Tensor, scale: Tensor, power: float) -> Tensor:
            joined = model[0](x) * F.conv2d(other, weight, stride=2, padding=1)
            return model[1:](joined) * scale**power

        inputs = (images(2, 3, 20, 24), images(2, 2, 20, 24))
        scale = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        found, expected = (
            EfficientPDA(forward, engine=engine).attribute(
                inputs,
                target=1,
                additional_forward_args=(scale, 2.0),
                sliding_window_shapes=4,
                strides=4,
            )
            for engine in ("incremental", "dense")
        )
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)

    @pytest.mark.parametrize("n_axes", [1, 3])
    def test_other_dimensions(self, n_axes: int) -> None:
        torch.manual_seed(0)
        convolution = {1: nn.Conv1d, 3: nn.Conv3d}[n_axes]
        pool = {1: nn.AvgPool1d, 3: nn.MaxPool3d}[n_axes]
        norm = {1: nn.BatchNorm1d, 3: nn.BatchNorm3d}[n_axes]
        model = nn.Sequential(
            convolution(2, 4, 3, padding=1),
            norm(4),
            nn.ReLU(),
            pool(2),
            nn.Flatten(),
            nn.LazyLinear(3),
        )
        size = {1: 40, 3: 10}[n_axes]
        example = images(1, 2, *(size,) * n_axes)
        model = model.double().eval()
        model(example)
        grid = WindowGrid((size,) * n_axes, (3,) * n_axes, (4,) * n_axes)
        assert_same(model, example, grid, stays=False)


class TestTheModel:
    def test_runs_its_hooks(self) -> None:
        model = small_network()
        shapes: list[tuple[int, ...]] = []
        model[1].register_forward_hook(lambda module, args, output: shapes.append(output.shape))
        model[0].register_forward_hook(lambda module, args, output: output * 2)
        assert_same(model, EXAMPLE, GRID)
        assert (7, 8, 10, 12) in shapes

    def test_control_flow_that_depends_on_the_values(self) -> None:
        model = small_network()

        def forward(x: Tensor) -> Tensor:
            features = model[0](x)
            if features.abs().max() > 1e9:
                return features.flatten(1)
            return model[1:](features)

        assert_same(forward, EXAMPLE, GRID, stays=False)

    def test_gates_that_differ_from_copy_to_copy(self) -> None:
        """Squeeze and excitation: the whole map changes, also for a single copy."""
        model = small_network()

        def forward(x: Tensor) -> Tensor:
            features = model[0](x)
            return model[1:](features * features.mean((2, 3), keepdim=True).sigmoid())

        for rows in (1, 2, 9):
            found, expected, prepared = both_engines(forward, EXAMPLE, GRID, rows)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
            assert prepared.went_dense == {"mul": "another operand is dense"}

    def test_values_that_leave_the_tensors(self) -> None:
        def forward(x: Tensor) -> Tensor:
            features = F.conv2d(x, weight)
            gate = torch.from_numpy(features.mean((2, 3), keepdim=True).numpy())
            return (features * gate).mean((2, 3))

        weight = images(4, 3, 3, 3)
        for rows in (1, 9):
            found, expected, _ = both_engines(forward, EXAMPLE, GRID, rows)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


class TestErrors:
    def test_torchscript(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scripted = torch.jit.trace(small_network(), EXAMPLE)
        with pytest.raises(IncrementalError, match=r"dense at its input.*engine='auto'"):
            EfficientPDA(scripted, engine="incremental").attribute(EXAMPLE, target=0)

    def test_callable_that_hides_the_tensor(self) -> None:
        model = small_network()
        with pytest.raises(IncrementalError, match=r"can't follow.*numpy"):
            EfficientPDA(
                lambda x: model(torch.from_numpy((x * 2).numpy())), engine="incremental"
            ).attribute(EXAMPLE, target=0)


def test_a_type_that_a_rule_cannot_do_goes_dense() -> None:
    # PyTorch averages volumes of half precision adaptively, and not with a sliding kernel.
    model = nn.Sequential(nn.Conv3d(1, 2, 1), nn.AdaptiveAvgPool3d(2), nn.Flatten()).half()
    example = torch.randn(1, 1, 4, 4, 4).half()
    grid = WindowGrid((4, 4, 4), (2, 2, 2), (1, 1, 1))
    found, expected, incremental = both_engines(model, example, grid)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
    assert "adaptive_avg_pool3d" in incremental.went_dense


def test_memory_that_runs_out_halves_the_batch() -> None:
    model = small_network()

    def forward(x: Tensor) -> Tensor:
        if len(x) > 4:
            raise MemoryError("out of memory")
        return model(x)

    prepared = IncrementalEngine().prepare(forward, EXAMPLE, BatchSize(9))
    with pytest.warns(UserWarning, match="out of memory with 9"):
        found = outputs_of(prepared, GRID, EXAMPLE)
    expected = outputs_of(DenseEngine().prepare(model, EXAMPLE, BatchSize(4)), GRID, EXAMPLE)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def test_unperturbed_activations_are_computed_once() -> None:
    counts = {"single": 0}
    weight = images(8, 3, 3, 3)

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.convolution.default:
                counts["single"] += len(args[0]) == 1
            return func(*args, **(kwargs or {}))

    prepared = IncrementalEngine().prepare(
        lambda x: F.conv2d(x, weight).relu(), EXAMPLE, BatchSize(5)
    )
    with Counting():
        outputs_of(prepared, GRID[:15], EXAMPLE)
    assert counts["single"] == 1
