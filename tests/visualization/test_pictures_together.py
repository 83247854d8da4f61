"""Pictures of what regions say together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import make_classifier, make_images

from captum_pda import EfficientPDA
from captum_pda.visualization import visualize_interactions, visualize_parts
from captum_pda.visualization.together import COVER, TOGETHER

TILES = torch.arange(24)[:, None] // 6 * 4 + torch.arange(24) // 6


@pytest.fixture(scope="module")
def evidence():
    model = make_classifier()
    return EfficientPDA(lambda x: 9 * model(x)).evidence(
        make_images(1, 3, 24, 24), feature_mask=TILES, context="both"
    )


def test_lines_join_the_strongest_pairs_in_the_colour_of_their_sign(evidence):
    found = evidence.interactions(1, regions=5)
    _, (photo, matrix) = visualize_interactions(found, n=3, use_pyplot=False)
    lines = [line for line in photo.lines if len(line.get_xdata()) == 2]
    pairs = found.pairs(n=3)
    strong = [pair for pair in pairs if abs(pair.value) >= 0.1 * abs(pairs[0].value)]
    assert len(lines) == len(strong)
    strongest = lines[-1]  # drawn above the others
    assert strongest.get_color() == (COVER if pairs[0].value > 0 else TOGETHER)
    for place, number in zip(
        strongest.get_xydata(), (pairs[0].first, pairs[0].second), strict=True
    ):
        column, row = place.astype(int)
        assert found.pixels[number][row, column]
    assert sorted(text.get_text() for text in photo.texts) == list("01234")
    drawn = np.ma.filled(matrix.images[0].get_array(), 0)
    expected = found.values().numpy().copy()
    np.fill_diagonal(expected, np.nan)
    np.testing.assert_allclose(np.nan_to_num(drawn), np.nan_to_num(expected))


def test_parts_are_drawn_one_beside_the_other(evidence):
    parts = evidence.sufficient(evidence.top(), n=2)
    figure, axes = visualize_parts(parts, evidence.inputs[0][0], use_pyplot=False)
    assert len(axes) == len(figure.axes) == len(parts)
    assert "regions" in axes[0].get_title()
    with pytest.raises(ValueError, match="nothing to draw"):
        visualize_parts([], evidence.inputs[0][0])


def test_signals_have_numbers_and_no_picture():
    signal = EfficientPDA(make_classifier(1)).evidence(make_images(1, 3, 40))
    found = signal.interactions(1, regions=3)
    with pytest.raises(ValueError, match=r"interactions\.values"):
        visualize_interactions(found, use_pyplot=False)
