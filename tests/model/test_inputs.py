"""Targets, as Captum has them."""

import numpy as np
import pytest
import torch

from captum_pda.model.inputs import target_columns


@pytest.mark.parametrize(
    ("target", "shape", "expected"),
    [
        (None, (), [0, 0]),
        (None, (1,), [0, 0]),
        (0, (), [0, 0]),
        (2, (5,), [2, 2]),
        (-1, (5,), [4, 4]),
        (np.int64(3), (5,), [3, 3]),
        (torch.tensor(3), (5,), [3, 3]),
        (torch.tensor([3]), (5,), [3, 3]),
        (torch.tensor([3, 1]), (5,), [3, 1]),
        (np.array([3, 1]), (5,), [3, 1]),
        ([3, 1], (5,), [3, 1]),
        ((1, 2), (3, 4), [6, 6]),
        ((-1, -1), (3, 4), [11, 11]),
        ([(0, 1), (2, 3)], (3, 4), [1, 11]),
    ],
)
def test_targets_as_captum_has_them(target, shape, expected):
    assert target_columns(target, 2, shape) == expected


@pytest.mark.parametrize(
    ("target", "shape", "error", "says"),
    [
        (None, (5,), ValueError, "target is missing"),
        (5, (5,), ValueError, "out of range"),
        (-6, (5,), ValueError, "out of range"),
        (1, (), ValueError, "entries"),
        ([1], (5,), ValueError, "1 entries for 2 examples"),
        (torch.tensor([1, 2, 3]), (5,), ValueError, "3 entries for 2 examples"),
        (torch.tensor([[1, 2], [3, 4]]), (5,), ValueError, "shape"),
        (torch.tensor([0.5, 1.0]), (5,), TypeError, "integers"),
        (1.0, (5,), TypeError, "integer"),
        ("cat", (5,), TypeError, "integer"),
        (1, (3, 4), ValueError, "tuple of 2"),
        ((1, 9), (3, 4), ValueError, "out of range"),
    ],
)
def test_targets_that_make_no_sense(target, shape, error, says):
    with pytest.raises(error, match=says):
        target_columns(target, 2, shape)
