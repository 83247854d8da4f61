"""A batch of rows that are alike, computed on one of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from captum_pda.model.repeated_tensor import RepeatedTensor, all_rows

ROW = torch.randn(1, 4, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
OTHER = torch.randn(3, 4, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
CONVOLUTION = nn.Conv2d(4, 3, 3).double()  # as many channels as rows


@pytest.mark.parametrize(
    ("function", "stays"),
    [
        (CONVOLUTION, True),
        (lambda x: F.relu_(x.clone()), True),
        (lambda x: x.chunk(2, dim=1)[1] * 2, True),
        (lambda x: torch.cat([x, x + 1], dim=1), True),
        (lambda x: x.flatten(2).transpose(1, 2).softmax(dim=-1), True),
        (lambda x: x.mean(dim=(2, 3)), True),
        (lambda x: x.view(x.size(0), -1), False),
        (lambda x: x.reshape(len(x) * 4, 5, 5), False),
        (lambda x: x.transpose(0, 1), False),
        (lambda x: x + OTHER, False),
        (lambda x: torch.cat([OTHER, x], dim=1), False),
        (lambda x: torch.stack([x, OTHER]), False),
        (lambda x: x.sum(), False),
        (lambda x: x[2], False),
    ],
)
def test_functions_give_what_they_give_on_all_rows(function, stays):
    with torch.no_grad():
        found = function(RepeatedTensor(ROW.clone(), 3))
        expected = function(ROW.expand(3, 4, 5, 5).contiguous())
    assert isinstance(found, RepeatedTensor) == stays
    assert found.shape == expected.shape
    torch.testing.assert_close(all_rows(found), expected)


def test_it_looks_like_all_its_rows():
    x = RepeatedTensor(ROW, 3)
    assert (len(x), x.shape, x.size(0), x.dim(), x.numel()) == (3, (3, 4, 5, 5), 3, 4, 300)
    assert x.dtype == torch.float64
    assert all_rows({"a": [x, 1]})["a"][0].shape == (3, 4, 5, 5)


def test_what_is_written_in_place_is_written_to_the_row():
    x = RepeatedTensor(ROW.clone(), 3)
    x.mul_(2)
    x[:, 0] = 0
    expected = 2 * ROW.expand(3, -1, -1, -1).clone()
    expected[:, 0] = 0
    torch.testing.assert_close(all_rows(x), expected)
