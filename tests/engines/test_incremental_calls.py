"""Every valid form of a call goes through the incremental engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from incremental_checks import assert_same, both_engines
from torch import Tensor, nn

from captum_pda import WindowGrid

GRID = WindowGrid((8, 9), (3, 2), (2, 3))
EXAMPLE = torch.randn(1, 2, 8, 9, dtype=torch.float64)
WEIGHT = torch.randn(4, 2, 3, 3, dtype=torch.float64)
CHANNELS = torch.rand(4, dtype=torch.float64) + 0.5

#: Calls that stay incremental, of maps (N, 4, 8, 9).
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "permute(dims=)": lambda x: x.permute(dims=(0, 2, 3, 1)),
    "torch.permute(input=, dims=)": lambda x: torch.permute(input=x, dims=(0, 2, 3, 1)),
    "cat(tensors=)": lambda x: torch.cat(tensors=(x, x), dim=1),
    "cat(axis=)": lambda x: torch.cat((x, x), axis=1),
    "chunk(chunks=)": lambda x: x.chunk(chunks=2, dim=1)[1],
    "split(split_size=)": lambda x: x.split(split_size=2, dim=1)[0],
    "tensor_split(sections=)": lambda x: torch.tensor_split(x, sections=2, dim=1)[0],
    "relu(input=)": lambda x: torch.relu(input=x),
    "F.relu(input=)": lambda x: F.relu(input=x),
    "conv2d(input=)": lambda x: F.conv2d(input=x, weight=WEIGHT[:, :1], groups=4),
    "max_pool2d(input=)": lambda x: F.max_pool2d(input=x, kernel_size=2),
    "batch_norm(input=)": lambda x: F.batch_norm(
        input=x, running_mean=CHANNELS, running_var=CHANNELS
    ),
    "mean(dtype=)": lambda x: x.mean((2, 3), dtype=torch.float64),
    "mean(axis=, keepdims=)": lambda x: x.mean(axis=(2, 3), keepdims=True),
    "mean(input=, dim=)": lambda x: torch.mean(input=x, dim=(2, 3)),
    "reshape(shape=)": lambda x: x.reshape(shape=(len(x), 2, 2, 8, 9)),
    "torch.reshape(shape=)": lambda x: torch.reshape(input=x, shape=(len(x), 2, 2, 8, 9)),
    "view(size=)": lambda x: x.sin().view(size=(len(x), 2, 2, 8, 9)),
    "flatten(start_dim=)": lambda x: x.unsqueeze(dim=1).flatten(start_dim=1, end_dim=2),
    "transpose(dim0=)": lambda x: x.transpose(dim0=1, dim1=2),
    "swapaxes(axis0=)": lambda x: x.swapaxes(axis0=1, axis1=2),
    "movedim(source=)": lambda x: x.movedim(source=1, destination=-1),
    "torch.layer_norm by position": lambda x: torch.layer_norm(
        x.movedim(1, -1), [4], CHANNELS, CHANNELS, 1e-5, True
    ),
    "add(other=)": lambda x: torch.add(input=x, other=x, alpha=2),
    "pow(exponent=)": lambda x: torch.pow(x, exponent=2),
    "pow(self=, exponent=)": lambda x: torch.pow(self=2.0, exponent=x),
    "div(rounding_mode=)": lambda x: x.div(other=0.5, rounding_mode="floor"),
    "clamp(min=)": lambda x: torch.clamp(input=x, min=0.0),
    "dropout by position": lambda x: F.dropout(x, 0.5, False, True),
    "relu_(input=)": lambda x: torch.relu_(input=x.sin()),
    "pad(mode=)": lambda x: F.pad(input=x, pad=(1, 1), mode="constant"),
    "to(dtype=)": lambda x: x.to(dtype=torch.float64, non_blocking=True),
}


@pytest.mark.parametrize("form", FORMS)
def test_form_stays_incremental(form: str) -> None:
    assert_same(lambda x: FORMS[form](F.conv2d(x, WEIGHT, padding=1)), EXAMPLE, GRID)


@pytest.mark.parametrize(
    "func",
    [
        lambda x: x.softmax(1, torch.float64),
        lambda x: torch.adaptive_max_pool1d(x.flatten(2), 3)[0],
        lambda x: torch.ops.aten.relu(x),
        lambda x: torch.max_pool2d(x, 2, ceil_mode=True),
        lambda x: x.view(torch.int64).view(torch.float64),
        lambda x: torch.add(x, x, out=torch.empty_like(x)),
        lambda x: F.normalize(x, 2.0, 1, 1e-5, torch.empty_like(x)),
    ],
)
def test_other_forms_are_right(func: Callable[[Tensor], Tensor]) -> None:
    assert_same(lambda x: func(F.conv2d(x, WEIGHT, padding=1)), EXAMPLE, GRID, stays=False)


def test_a_convolution_in_half_precision_before_a_batch_norm_in_single() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3).bfloat16(), nn.BatchNorm2d(4), nn.Flatten()).eval()
    found, expected, _ = both_engines(model, EXAMPLE.bfloat16(), GRID)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
