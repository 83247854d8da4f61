"""The layer that is taken where none is named."""

from functools import partial

import pytest
import torch
from conftest import make_classifier, make_images
from torch import Tensor, nn

from captum_pda.model.call import ModelCall
from captum_pda.model.layers import NoFeatureMapError, last_feature_map, named_layer

IMAGE = make_images(1, 3, 16, 16)


def found_in(model, image=IMAGE):
    return last_feature_map(model, ModelCall(model, (image,))).layer.name


class Named(nn.Module):
    """Modules by name, run one after the other."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, module in modules.items():
            self.add_module(name, module)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        for module in self.children():
            x = module(x)
        return x


def head(features=4):
    return {"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "last": nn.Linear(features, 3)}


def test_it_is_the_last_module_before_pooling():
    block = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.ReLU(inplace=True))
    assert found_in(Named(first=nn.Conv2d(3, 4, 3), block=block, **head())) == "block"


def test_maps_of_few_places_are_passed_over_where_there_are_finer_ones():
    small = nn.AdaptiveAvgPool2d(2)
    assert found_in(Named(first=nn.Conv2d(3, 4, 3), small=small, **head())) == "first"
    assert found_in(Named(small=nn.AdaptiveAvgPool2d(3), **head(3))) == "small"


def test_a_module_that_is_called_twice_is_passed_over():
    class Reused(Named):
        def forward(self, x: Tensor) -> Tensor:
            x = self.relu(self.first(x))
            return self.last(self.flat(self.pool(self.relu(x))))

    assert found_in(Reused(first=nn.Conv2d(3, 4, 3), relu=nn.ReLU(), **head())) == "first"


def test_a_module_that_is_called_once_for_each_row_is_passed_over():
    """As the heads of detectors are, whose images may differ in size."""

    class OneByOne(Named):
        def forward(self, x: Tensor) -> Tensor:
            rows = [self.head(row[None]) for row in self.first(x)]
            return torch.cat(rows)

    per_row = nn.Sequential(nn.Conv2d(4, 4, 3), *head().values())
    model = OneByOne(first=nn.Conv2d(3, 4, 3), head=per_row)
    for images in (IMAGE, IMAGE.repeat(2, 1, 1, 1)):
        assert found_in(model, images) == "first"


def test_a_map_without_a_say_is_passed_over():
    class Unused(Named):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            self.extra(x)
            return self.last(self.flat(self.pool(x)))

    model = Unused(first=nn.Conv2d(3, 4, 3), extra=nn.Conv2d(4, 4, 1), **head())
    assert found_in(model) == "first"


def test_the_outputs_themselves_are_no_feature_map():
    assert found_in(Named(first=nn.Conv2d(3, 4, 3), last=nn.Conv2d(4, 2, 1))) == "first"


def test_a_blank_image_has_the_same_last_feature_map():
    model = make_classifier()
    assert found_in(model, torch.zeros_like(IMAGE)) == found_in(model) == "1"


def test_models_of_half_precision_have_feature_maps():
    model = Named(first=nn.Conv2d(3, 4, 3), **head()).bfloat16()
    assert found_in(model, IMAGE.bfloat16()) == "first"


def test_methods_and_partial_calls_of_a_model_are_seen_through():
    model = make_classifier()
    assert found_in(partial(model.forward)) == "1"


def test_a_function_has_no_layers_to_list():
    with pytest.raises(NoFeatureMapError, match="the model is a function"):
        found_in(lambda x: x.mean(dim=(2, 3)))


def test_layers_are_named_as_in_the_model():
    model = make_classifier()
    assert named_layer(model, model[1]).name == named_layer(model, "1").name == "1"
    assert named_layer(lambda x: model(x), model[1]).name == "Tanh"
    with pytest.raises(TypeError, match="pass the module itself"):
        named_layer(lambda x: model(x), "1")
