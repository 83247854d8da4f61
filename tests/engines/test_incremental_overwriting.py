"""Results that are overwritten by what follows them, however often and in whatever way used."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from incremental_checks import assert_same, outputs_of
from torch import Tensor, nn

from captum_pda import IncrementalEngine, WindowGrid
from captum_pda.engines import BatchSize

GRID = WindowGrid((20, 24), (5, 4), (6, 7))
#: Windows that cover their axes, so that boxes are whole from the start.
COVERING = WindowGrid((9, 10), (9, 10), (1, 1))

torch.manual_seed(0)
NORM = nn.BatchNorm2d(6).double().eval()
TWICE = nn.BatchNorm2d(12).double().eval()
for norm in (NORM, TWICE):
    for values in (norm.running_mean, norm.weight.data, norm.bias.data):
        nn.init.normal_(values)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
WEIGHT = torch.randn(6, 6, 3, 3, dtype=torch.float64)
FIRST = torch.randn(6, 3, 3, 3, dtype=torch.float64)
WIDE = torch.randn(6, 12, 1, 1, dtype=torch.float64)


def first(x: Tensor) -> Tensor:
    return F.conv2d(x, FIRST, padding=1)


def convolved(x: Tensor) -> Tensor:
    return F.conv2d(x, WEIGHT, padding=1)


def sum_used_before_and_after_its_activation(x: Tensor) -> Tensor:
    x = first(x)
    total = convolved(x) + x
    return convolved(NORM(total).relu()) + total


def convolution_used_by_a_sum_and_by_itself(x: Tensor) -> Tensor:
    x = first(x)
    y = convolved(x)
    return (y + x).relu() * y.sigmoid() + y


def sum_of_two_convolutions(x: Tensor) -> Tensor:
    x = first(x)
    return (NORM(convolved(x)) + convolved(x.tanh())).relu_()


def sum_of_different_boxes(x: Tensor) -> Tensor:
    x = first(x)
    return (x + convolved(convolved(x))).relu()


def concatenation_normalised_and_used_again(x: Tensor) -> Tensor:
    x = first(x)
    both = torch.cat([x, convolved(x)], 1)
    return F.conv2d(F.relu(TWICE(both)), WIDE) + F.conv2d(both, WIDE)


def concatenation_with_itself(x: Tensor) -> Tensor:
    x = first(x)
    return F.relu(TWICE(torch.cat((x, x), dim=1)), inplace=True)


def normalised_twice(x: Tensor) -> Tensor:
    return NORM(NORM(convolved(first(x)).relu()))


def batch_norm_of_the_input_of_a_sum(x: Tensor) -> Tensor:
    x = first(x).relu()
    return NORM(x) + x


def padded(x: Tensor) -> Tensor:
    x = first(x)
    return F.conv2d(F.pad(x, (2, 2, 1, 1)), WEIGHT, padding=(0, 1))


def padded_unevenly(x: Tensor) -> Tensor:
    return F.conv2d(F.pad(first(x), (0, 1, 1, 2)), WEIGHT, stride=2)


def padded_and_padded_by_name(x: Tensor) -> Tensor:
    return F.conv2d(F.pad(first(x), (1, 1, 1, 1)), WEIGHT, padding="same")


MODELS = [
    sum_used_before_and_after_its_activation,
    convolution_used_by_a_sum_and_by_itself,
    sum_of_two_convolutions,
    sum_of_different_boxes,
    concatenation_normalised_and_used_again,
    concatenation_with_itself,
    normalised_twice,
    batch_norm_of_the_input_of_a_sum,
    padded,
    padded_unevenly,
    padded_and_padded_by_name,
]


@pytest.mark.parametrize("grid", [GRID, COVERING], ids=["boxes", "whole"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_equals_the_dense_engine(model: Callable[[Tensor], Tensor], grid: WindowGrid) -> None:
    example = torch.randn(1, 3, *grid.space, dtype=torch.float64)
    assert_same(lambda x: model(x).flatten(2).mean(2), example, grid, stays=False)


def test_results_that_only_some_batches_use_twice() -> None:
    """What the batch before has read once is overwritten, so the batch is run again."""
    batches: list[int] = []

    def forward(x: Tensor) -> Tensor:
        batches.append(len(x))
        y = convolved(first(x))
        used = torch.relu(y)
        return (used + y * 0 if len(x) == 2 else used).mean((2, 3))

    example = torch.randn(1, 3, 20, 24, dtype=torch.float64)
    assert_same(forward, example, GRID[:8])
    batches.clear()
    outputs_of(IncrementalEngine().prepare(forward, example, BatchSize(3)), GRID[:8], example)
    assert batches == [3, 3, 2, 2]
