"""Superpixels: regions that follow each example, and when they are the default."""

import numpy as np
import pytest
import torch
from conftest import make_classifier, make_images
from scipy.ndimage import label
from torch import nn

from captum_pda import PDA, EfficientPDA, GradientPDA, LayerPDA, MapMeanPrior, Superpixels
from captum_pda.regions.choice import choose_regions

METHODS = (EfficientPDA, GradientPDA, PDA)


def parts_of(*spatial, context="both"):
    """What the default regions of an input are, in each context."""
    found = choose_regions((torch.zeros(1, 2, *spatial),), context)
    return {context: [regions.title for regions in sets[0]] for context, sets in found.items()}


@pytest.mark.parametrize("shape", [(3, 40, 50), (1, 33, 20), (7, 24, 24), (2, 14, 16, 18)])
def test_labels_are_the_same_every_time_and_whatever_the_normalisation(shape):
    images = make_images(2, *shape)
    regions = Superpixels(images, 12)
    channels = (1, shape[0], *(1 for _ in shape[1:]))
    scale, shift = torch.linspace(0.2, 9, shape[0]).reshape(channels), torch.rand(channels) * 40
    for other in (images, scale.double() * images - shift, images.clone().requires_grad_()):
        assert torch.equal(Superpixels(other, 12).numbers, regions.numbers)
    assert regions.numbers.shape == (2, *shape[1:])
    assert 4 <= len(regions) <= 24
    assert (regions.size, regions.title) == ((12,), "12 superpixels")


def test_an_example_alone_has_the_regions_that_it_has_in_a_batch():
    images = make_images(3, 3, 30, 36)
    together = Superpixels(images, 10)
    for n in range(3):
        alone = Superpixels(images[n : n + 1], 10)
        present = ~together.absent(3)[n]
        assert int(present.sum()) == len(alone)
        for number in alone.labels:
            assert torch.equal(
                alone.numbers[0] == alone.labels.index(number),
                together.numbers[n] == together.labels.index(number),
            )


def test_regions_of_large_volumes_are_connected_and_follow_its_edges():
    """Volumes of this size are divided at half of their size."""
    space = (41, 40, 36)
    places = np.indices(space)
    ball = (((places - np.array([[[[20]]], [[[21]]], [[[15]]]])) ** 2).sum(axis=0) < 12**2) * 1.0
    noise = 0.05 * np.random.default_rng(0).normal(size=space)
    volume = torch.from_numpy(ball + noise).float()[None, None]
    regions = Superpixels(volume, 30)
    numbers = regions.numbers[0].numpy()
    assert numbers.shape == space
    assert 15 <= len(regions) <= 60
    wrong = 0
    for number in range(len(regions)):
        region = numbers == number
        assert label(region)[1] == 1
        share = ball[region].mean()
        wrong += min(share, 1 - share) * region.sum()
    assert wrong < 0.04 * numbers.size


@pytest.mark.parametrize("roi", [torch.ones(5, 5), torch.zeros(30, 36)])
def test_a_region_of_interest_marks_pixels_of_the_images(roi):
    with pytest.raises(ValueError, match="roi has shape"):
        Superpixels(make_images(1, 3, 30, 36), 10, roi)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("space", [(1, 1), (1, 7), (2, 2), (3, 5), (8, 9), (2, 3, 2)])
@pytest.mark.parametrize("granularity", [1, 60])
def test_constant_and_tiny_images_are_divided_too(space, granularity, dtype):
    for images in (torch.full((1, 3, *space), 0.3), make_images(1, 3, *space)):
        regions = Superpixels(images.to(dtype), granularity)
        assert regions.numbers.shape == (1, *space)
        assert 1 <= len(regions) <= regions.numbers.numel()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            "60",
            TypeError,
            "superpixels='60' must be about how many regions there are, such as",
        ),
        ((), TypeError, "must be about how many"),
        (0, TypeError, "must be about how many"),
        ((12, -3), TypeError, "must be about how many"),
        (12.5, TypeError, "must be about how many"),
        (True, TypeError, "must be about how many"),
        ((12, 12), ValueError, "holds a number twice"),
    ],
)
def test_granularities_that_cannot_be_meant_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        EfficientPDA(make_classifier()).attribute(make_images(1, 3, 9, 9), 1, superpixels=given)


def test_time_series_have_no_superpixels():
    with pytest.raises(ValueError, match=r"shape \(1, 2, 20\); use sliding_window_shapes or"):
        EfficientPDA(make_classifier(1, 2)).attribute(make_images(1, 2, 20), 1, superpixels=5)


def test_images_have_superpixels_by_default_and_small_ones_windows():
    granularities = {"full": (12, 25, 60, 120, 250), "empty": (12, 25, 60)}
    expected = {c: [f"{n} superpixels" for n in each] for c, each in granularities.items()}
    for space in ((64, 70), (40, 1000), (26, 26, 26)):
        assert parts_of(*space) == expected
    for space in ((63, 63), (1000,), (24, 25, 26)):
        assert all("windows" in title for titles in parts_of(*space).values() for title in titles)
    strides = choose_regions((torch.zeros(1, 2, 64, 64),), strides=16)
    assert "windows" in strides["full"][0][0].title


@pytest.mark.parametrize("space", [(16, 112, 112), (24, 192, 192), (28, 28, 28), (40, 1000)])
def test_scans_and_clips_of_unequal_sides_take_as_few_passes_as_photos(space):
    """A grid of small windows would take thousands."""
    found = choose_regions((torch.rand(1, 1, *space),), "all")
    assert sum(len(one) for sets in found.values() for own in sets for one in own) < 350


def test_default_regions_of_both_contexts_are_the_same_objects():
    """So that both questions are answered about one region."""
    found = choose_regions((make_images(1, 2, 64, 64),), "both")
    (full,), (empty,) = found["full"], found["empty"]
    assert full[:3] == empty


def test_a_feature_map_has_its_places_by_default_however_large():
    model = nn.Sequential(nn.Conv2d(2, 2, 1), *make_classifier(channels=2).float()).eval()
    evidence = LayerPDA(model, "0").evidence(make_images(1, 2, 64, 64).float())
    assert len(evidence.parts[0].regions) == 64 * 64


CHOICES = {
    "feature_mask": torch.zeros(1, 1, 9, 9).long(),
    "superpixels": 4,
    "scales": (2, 4),
    "sliding_window_shapes": 3,
    "strides": 2,
}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("feature_mask", "superpixels"),
        ("feature_mask", "scales"),
        ("feature_mask", "sliding_window_shapes"),
        ("feature_mask", "strides"),
        ("superpixels", "scales"),
        ("superpixels", "sliding_window_shapes"),
        ("superpixels", "strides"),
        ("scales", "sliding_window_shapes"),
    ],
)
def test_one_argument_says_what_is_hidden(one, other):
    given = {name: CHOICES[name] for name in (one, other)}
    # PDA has no windows of one size.
    for method in METHODS[: 2 if other == "sliding_window_shapes" else 3]:
        with pytest.raises(ValueError, match=f"{one} and {other} both say what to hide; give one"):
            method(make_classifier()).attribute(make_images(1, 3, 9, 9), 1, **given)


@pytest.mark.parametrize("given", ["superpixels", "feature_mask"])
def test_both_contexts_ask_about_the_same_regions(given):
    images = make_images(2, 3, 20, 24)
    choice = {"superpixels": (5, 9)}
    if given == "feature_mask":
        choice = {"feature_mask": Superpixels(images, 7).numbers.unsqueeze(1)}
    evidence = EfficientPDA(make_classifier(), MapMeanPrior()).evidence(
        images, context="both", **choice
    )
    half = len(evidence.parts) // 2
    assert half == (2 if given == "superpixels" else 1)
    for full, empty in zip(evidence.parts[:half], evidence.parts[half:], strict=True):
        assert (full.context, empty.context) == ("full", "empty")
        assert full.regions is empty.regions


def test_settings_name_the_granularity_and_the_labels():
    images = make_images(1, 3, 20, 24)
    settings = Superpixels(images, 5).settings()
    assert (settings["kind"], settings["granularity"]) == ("Superpixels", 5)
    assert settings == Superpixels(2 * images + 1, 5).settings()
    for other in (Superpixels(images, 9), Superpixels(images.flip(3), 5)):
        assert other.settings()["mask_sha256"] != settings["mask_sha256"]
