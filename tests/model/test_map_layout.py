"""How a layer's output is read as a feature map, and put together again."""

import pytest
import torch

from captum_pda.model.layers import MapLayout, map_layout


@pytest.mark.parametrize(
    ("shape", "space", "expected"),
    [
        ((1, 512, 7, 7), (224, 224), MapLayout((7, 7))),
        ((1, 64, 8, 8), (299, 299), MapLayout((8, 8))),
        ((1, 768, 7, 10), (224, 320), MapLayout((7, 10))),
        ((1, 7, 7, 768), (224, 224), MapLayout((7, 7), kind="channels last")),
        ((1, 197, 768), (224, 224), MapLayout((14, 14), 1, "tokens")),
        ((1, 198, 192), (224, 224), MapLayout((14, 14), 2, "tokens")),
        ((1, 261, 384), (256, 256), MapLayout((16, 16), 5, "tokens")),
        ((1, 49, 96), (224, 224), MapLayout((7, 7), 0, "tokens")),
        ((1, 141, 96), (160, 224), MapLayout((10, 14), 1, "tokens")),
        ((1, 197, 768), (230, 229), MapLayout((14, 14), 1, "tokens")),
        ((1, 16, 40), (160,), MapLayout((40,))),
        ((1, 16, 4, 5, 6), (16, 20, 24), MapLayout((4, 5, 6))),
        ((1, 512), (224, 224), None),
        ((1, 120, 768), (224, 224), None),
        ((1, 16, 40), (8, 16, 16), None),
    ],
)
def test_channels_places_and_extra_tokens_are_told_from_the_shape(shape, space, expected):
    assert map_layout(shape, space) == expected


@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (2, 4, 3, 6), (2, 15, 6)])
def test_a_map_goes_back_to_where_it_came_from(shape):
    values = torch.randn(shape)
    layout = map_layout(shape, (32, 24))
    maps = layout.to_map(values)
    assert maps.shape == (2, 6, 4, 3)
    assert (layout.put(maps, values) == values).all()


def test_extra_tokens_are_kept_and_repeated_for_each_map():
    values = torch.randn(1, 15, 6)
    layout = MapLayout((4, 3), 3, "tokens")
    put = layout.put(torch.zeros(5, 6, 4, 3), values)
    assert put.shape == (5, 15, 6)
    assert (put[:, :3] == values[:, :3]).all()
    assert (put[:, 3:] == 0).all()
