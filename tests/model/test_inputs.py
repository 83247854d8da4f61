"""Inputs without a batch dimension or in a dict, and targets as Captum has them."""

import numpy as np
import pytest
import torch
from conftest import make_classifier, make_images
from torch import nn

from captum_pda import (
    PDA,
    BatchDimensionError,
    EfficientPDA,
    GradientPDA,
    LayerPDA,
    SampledPDA,
)
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


class AnyRank(nn.Module):
    """Takes one image with or without a batch dimension."""

    def __init__(self, channels):
        super().__init__()
        self.features = nn.Conv2d(channels, 4, 3)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.features(x).tanh().mean((-1, -2)))


@pytest.mark.parametrize("method", [PDA, EfficientPDA, GradientPDA, LayerPDA, SampledPDA])
@pytest.mark.parametrize("model", [make_classifier, lambda: AnyRank(3).double().eval()])
def test_a_missing_batch_dimension_is_named(method, model):
    image = make_images(1, 3, 12, 12)[0]
    numbers = np.arange(144).reshape(12, 12) // 36
    with pytest.raises(BatchDimensionError, match=r"unsqueeze\(0\)"):
        method(model()).attribute(image, target=1)
    with pytest.raises(BatchDimensionError, match=r"unsqueeze\(0\)"):
        method(model()).attribute(image, target=1, feature_mask=numbers)


def test_one_grey_image_without_a_batch_dimension_is_not_taken_for_a_signal():
    with pytest.raises(BatchDimensionError, match=r"\(1, 1, 12, 12\)"):
        PDA(AnyRank(1).double().eval()).attribute(make_images(1, 1, 12, 12)[0], target=1)


class TakesDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = make_classifier()

    def forward(self, batch, factor=1.0):
        return batch["scale"] * factor * self.model(batch["image"])


class TakesKeywords(TakesDict):
    def forward(self, factor=1.0, image=None, scale=1.0):
        return scale * factor * self.model(image)


@pytest.mark.parametrize("method", [EfficientPDA, GradientPDA, LayerPDA])
@pytest.mark.parametrize("model", [TakesDict(), TakesKeywords()])
def test_a_dict_that_holds_one_tensor_is_taken(method, model):
    image = make_images(2, 3, 9, 11)
    found = method(model).attribute({"image": image, "scale": 2.0}, 1, additional_forward_args=0.5)
    expected = method(model.model).attribute(image, 1)
    torch.testing.assert_close(found, expected)
    # A model of plain tensors gets what a processor has put into a dict.
    found = method(model.model).attribute({"pixel_values": image}, 1)
    torch.testing.assert_close(found, expected)


def test_a_dict_of_several_tensors_is_refused_with_the_next_step():
    inputs = {"ids": torch.zeros(1, 4), "pixels": make_images(1, 3, 9, 11)}
    with pytest.raises(TypeError, match=r"Pass inputs\['pixels'\]"):
        EfficientPDA(TakesDict()).attribute(inputs, 1)
