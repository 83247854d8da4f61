"""Pictures of signals and volumes: what is drawn is the data and the map, in the right place."""

import numpy as np
import pytest
import torch
from conftest import make_classifier, make_images

from captum_pda import PDA, ConstantPrior, EfficientPDA, strongest_regions
from captum_pda.evidence.words import MEAN
from captum_pda.model.measures import signed
from captum_pda.visualization import (
    visualize_evidence,
    visualize_explanation,
    visualize_signal,
    visualize_strongest_regions,
    visualize_volume,
)

SPACE = (5, 14, 9)


@pytest.fixture(scope="module")
def volume():
    pda = EfficientPDA(make_classifier(dims=3, channels=2), ConstantPrior(0.1), engine="dense")
    return pda.evidence(make_images(2, 2, *SPACE), superpixels=(5, 9), context="both")


@pytest.fixture(scope="module")
def signal():
    pda = EfficientPDA(make_classifier(dims=1), ConstantPrior(0.1), engine="dense")
    return pda.evidence(make_images(1, 3, 40), scales=(6, 12), context="both")


def drawn(axes):
    """The values of the last image on some axes."""
    return np.asarray(axes.get_images()[-1].get_array())


def test_a_volume_is_drawn_by_slices_through_its_strongest_region(volume):
    figure, axes = visualize_explanation(volume, 2, example=1, use_pyplot=False)
    assert len(axes) == 7  # three slices, the same with the map, and the test
    kinds = strongest_regions(volume, 2, example=1)
    strongest = max((one for kind in kinds for one in kind), key=lambda one: abs(one.value))
    values = volume.attribution(2)[1, 0].numpy()
    place = [int(line.get_ydata()[0]) for line in (axes[1].lines[0], axes[0].lines[0])]
    place.append(int(axes[0].lines[1].get_xdata()[0]))
    assert strongest.pixels[tuple(place)]
    inside = np.sign(strongest.value) * values[strongest.pixels]
    assert abs(values[tuple(place)]) == pytest.approx(inside.max())
    for axis in range(3):
        expected = values.take(place[axis], axis)
        np.testing.assert_allclose(drawn(axes[3 + axis]), expected)
        assert axes[axis].get_title() == f"{('slice', 'row', 'column')[axis]} {place[axis]}"
        down, across = (one for one in range(3) if one != axis)
        cross = {line.get_ydata()[0] for line in axes[axis].lines if len(set(line.get_ydata())) < 2}
        assert place[down] in cross
        assert axes[axis].get_xlim() == (-0.5, SPACE[across] - 0.5)
        assert axes[axis].collections  # the region's outline
    assert str(volume.self_test(2, 1)) in "".join(text.get_text() for text in figure.texts)


def test_a_picture_of_an_image_says_what_the_words_say():
    image = make_images(1, 3, 20, 24)
    evidence = PDA(make_classifier()).evidence(image)
    figure, axes = visualize_explanation(evidence, 2, use_pyplot=False)
    assert len(axes) == 3
    lines = next(text.get_text() for text in figure.texts).replace("\n  ", " ").splitlines()
    kinds = strongest_regions(evidence, 2)
    total = f"all evidence: {signed(float(evidence.total(2)[0]))} bits, from "
    assert lines[0].startswith(total)
    assert lines[1] == f"the map's test: {evidence.self_test(2)}"
    listed = [one for own in kinds for one in own]
    assert [line.split(") ", 1)[1] for line in lines[2:]] == [str(one) for one in listed]
    bar = axes[1].images[-1].colorbar.ax.get_xlabel()
    assert bar.startswith(f"weight of evidence (bits)\n{MEAN}: without each")
    one_question = EfficientPDA(make_classifier()).evidence(image, sliding_window_shapes=5)
    _, axes = visualize_explanation(one_question, 2, test=False, use_pyplot=False)
    bar = axes[1].images[-1].colorbar.ax.get_xlabel()
    assert bar == "weight of evidence (bits)\nwithout each region"


def test_voxels_have_their_spacing(volume):
    _, axes = volume[0].show(1, spacing=(4.0, 1.0, 0.5), test=False, use_pyplot=False)
    assert [one.get_aspect() for one in axes[:3]] == [2.0, 8.0, 4.0]
    with pytest.raises(ValueError, match="3 positive numbers"):
        volume[0].show(1, spacing=(4.0, 1.0), test=False, use_pyplot=False)


def test_three_channels_of_a_volume_are_colours_and_others_grey():
    clip = torch.rand(1, 3, 4, 6, 5)
    _, axes = visualize_volume(torch.zeros_like(clip), clip, at=(1, 2, 3), use_pyplot=False)
    np.testing.assert_allclose(drawn(axes[0]), clip[0, :, 1].permute(1, 2, 0), rtol=1e-6)
    _, axes = visualize_volume(torch.zeros(2, 4, 6, 5), clip[:, :2], use_pyplot=False)
    assert drawn(axes[0]).shape == (6, 5)
    with pytest.raises(ValueError, match="not a voxel"):
        visualize_volume(clip, clip, at=(9, 0, 0), use_pyplot=False)
    with pytest.raises(ValueError, match="batch of 2"):
        visualize_volume(clip, torch.rand(2, 3, 4, 6, 5), use_pyplot=False)


def test_slices_meet_where_the_map_is_strongest():
    attribution = torch.zeros(1, 1, *SPACE)
    attribution[0, 0, 3, 11, 2] = -2.0
    _, axes = visualize_volume(attribution, torch.rand(1, 1, *SPACE), use_pyplot=False)
    assert [one.get_title() for one in axes[:3]] == ["slice 3", "row 11", "column 2"]


def test_a_signal_has_a_line_for_each_channel_over_its_evidence(signal):
    _, axes = visualize_explanation(signal, 1, use_pyplot=False)
    assert len(axes) == 2
    np.testing.assert_allclose(drawn(axes[0])[0], signal.attribution(1)[0, 0].numpy())
    lines = [line for line in axes[0].lines if len(line.get_xdata()) == 40]
    assert len(lines) == 3
    for line, channel in zip(lines, signal.inputs[0][0].numpy(), strict=True):
        assert np.corrcoef(line.get_ydata(), channel)[0, 1] == pytest.approx(1)
    regions = [one for kind in strongest_regions(signal, 1) for one in kind]
    borders = {
        round(line.get_xdata()[0], 6) for line in axes[0].lines if len(line.get_xdata()) == 2
    }
    assert {one.corner[0] - 0.5 for one in regions} <= borders


def test_a_signal_counts_time_and_tells_of_channels_that_are_left_out():
    attribution, signal = torch.randn(20, 50), torch.randn(20, 50)
    _, axes = visualize_signal(attribution, signal, spacing=0.1, use_pyplot=False)
    assert axes.get_xlim() == pytest.approx((-0.05, 4.95))
    assert axes.get_ylabel() == "channel (and 4 more)"
    with pytest.raises(ValueError, match="image is 50 where its map is 49"):
        visualize_signal(attribution[:, 1:], signal, use_pyplot=False)
    with pytest.raises(ValueError, match="both or neither"):
        visualize_signal(attribution, signal, mean=0.5, use_pyplot=False)


def test_other_pictures_name_the_one_that_draws_volumes(volume):
    with pytest.raises(ValueError, match="visualize_volume"):
        visualize_evidence(volume.attribution(1)[:1], use_pyplot=False)
    with pytest.raises(ValueError, match="visualize_explanation"):
        visualize_strongest_regions(volume, 1, example=0, use_pyplot=False)


@pytest.mark.parametrize("shape", [(1, 30, 30), (30, 2, 2), (2, 2, 40)])
def test_flat_and_long_volumes_are_drawn(shape):
    pda = EfficientPDA(make_classifier(dims=3, channels=1), ConstantPrior(0.0), engine="dense")
    evidence = pda.evidence(make_images(1, 1, *shape), superpixels=4, context="both")
    figure, _ = evidence.show(use_pyplot=False)
    assert "data:image" in evidence._repr_html_()
    assert max(figure.get_size_inches()) < 15
