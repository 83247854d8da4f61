"""Regions of any shape under the Gaussian prior: given every pixel of the patch not in them."""

import numpy as np
import pytest
import reference
import torch
from conftest import make_classifier, make_images

from captum_pda import EfficientPDA, GaussianPatchPrior, WindowGrid
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.protocol import PlacedWindows

SPACE = (10, 11)


def odd_regions():
    """At the border, in two pieces, one inside another, a line, a single pixel, and an L."""
    mask = torch.zeros(SPACE, dtype=torch.int64)
    mask[0:3, 0:2], mask[4, 4] = 1, 1
    mask[3:8, 6:10] = 2
    mask[4:6, 7:9] = 3
    mask[9, 2:9] = 4
    mask[9, 10] = 5
    mask[5:8, 1], mask[7, 1:4] = 6, 6
    return mask


def windows_without_background(mask):
    """The boxes of all regions but number 0."""
    for placed in FeatureMaskRegions(mask[None]).boxes(0):
        pieces = [
            number
            for number in range(len(placed))
            if int(mask[tuple(placed_pixels(placed, number)[0])]) != 0
        ]
        if pieces:
            yield placed.pick(pieces)


def placed_pixels(placed, number):
    """The pixels of one region in the image, (pixels, dims)."""
    return np.argwhere(placed.hidden[number].numpy()) + placed.corner_array[number]


def as_image(placed, number):
    region = np.zeros(placed.space, dtype=bool)
    region[tuple(placed_pixels(placed, number).T)] = True
    return region


@pytest.mark.parametrize("margin", [None, 2])
@pytest.mark.parametrize("channels", ["joint", "independent"])
@pytest.mark.parametrize("covariance", ["stationary", "full"])
def test_the_mean_of_any_region_is_as_defined(covariance, channels, margin):
    image = make_images(1, 2, *SPACE)[0]
    options = {"covariance": covariance, "channels": channels}
    prior = GaussianPatchPrior(9, **options, margin=margin).fit(image[None])
    gaussian = reference.fit_gaussian([image.numpy()], (9, 9), **options, regularization=1e-5)
    checked = 0
    for placed in windows_without_background(odd_regions()):
        means = prior.conditional_mean(image, placed)
        for number in range(len(placed)):
            region = as_image(placed, number)
            expected, _ = reference.condition_region(gaussian, image.numpy(), region, margin)
            hidden = placed.hidden[number]
            got = means[number][:, hidden].numpy()
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)
            # What is not hidden is as it is.
            corner = placed.corner_array[number]
            seen = image[reference.block(corner, placed.window)]
            assert torch.equal(means[number][:, ~hidden], seen[:, ~hidden])
            checked += 1
    assert checked == 6


def test_samples_of_any_region_have_the_conditional_mean_and_covariance():
    image = make_images(1, 1, *SPACE)[0]
    prior = GaussianPatchPrior(7).fit(image[None])
    gaussian = reference.fit_gaussian([image.numpy()], (7, 7), "stationary", "joint", 1e-5)
    mask = torch.zeros(SPACE, dtype=torch.int64)
    mask[3:5, 4], mask[4, 5] = 1, 1
    (placed,) = windows_without_background(mask)
    drawn = prior.sample(image, placed, 10000, torch.Generator().manual_seed(0))
    values = drawn[:, 0, 0][:, placed.hidden[0]].numpy()
    mean, covariance = reference.condition_region(gaussian, image.numpy(), as_image(placed, 0))
    spread = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(values.mean(axis=0), mean[0], atol=0.05 * spread.max())
    outer = np.outer(spread, spread)
    np.testing.assert_allclose(np.cov(values.T) / outer, covariance / outer, atol=0.06)


def test_a_mask_of_rectangles_equals_windows():
    image = make_images(1, 3, 12, 16)[0]
    grid = WindowGrid((12, 16), (4, 8), (4, 8))
    mask = torch.arange(12)[:, None] // 4 * 2 + torch.arange(16) // 8
    (placed,) = FeatureMaskRegions(mask[None]).boxes(0)
    assert placed.window != grid.window
    prior = GaussianPatchPrior(16, margin=2).fit(image[None])
    fills = prior.conditional_mean(image, placed)
    windows = prior.conditional_mean(image, grid)
    for number, expected in enumerate(windows):
        hidden = placed.hidden[number]
        torch.testing.assert_close(
            fills[number][:, hidden], expected.flatten(1), rtol=1e-9, atol=1e-9
        )


def test_the_draws_of_a_mask_of_windows_are_those_of_the_windows():
    image = make_images(1, 3, 12, 16)[0]
    grid = WindowGrid((12, 16), (4, 3), (2, 2))
    placed = PlacedWindows(
        grid.space, grid.window, grid.corner_array, torch.ones(len(grid), 4, 3).bool()
    )
    prior = GaussianPatchPrior(8).fit(image[None])
    drawn = [
        prior.sample(image, regions, 3, torch.Generator().manual_seed(0))
        for regions in (grid, placed)
    ]
    torch.testing.assert_close(*drawn)


@pytest.mark.parametrize("context", ["full", "empty", "both"])
@pytest.mark.parametrize("engine", ["dense", "incremental"])
def test_a_map_of_rectangles_equals_that_of_windows(context, engine):
    model, image = make_classifier(), make_images(1, 3, 12, 16)
    mask = torch.arange(12)[:, None] // 4 * 2 + torch.arange(16) // 8
    pda = EfficientPDA(model, engine=engine)
    options = {"target": 1, "context": context}
    masked = pda.attribute(image, feature_mask=mask[None, None], **options)
    windows = pda.attribute(image, sliding_window_shapes=(4, 8), strides=(4, 8), **options)
    torch.testing.assert_close(masked, windows, rtol=1e-8, atol=1e-8)


def test_a_region_without_pixels_is_left_as_it_is():
    image = make_images(1, 3, 9, 11)[0]
    hidden = torch.zeros(2, 3, 3, dtype=torch.bool)
    hidden[1, 0, 0] = True
    placed = PlacedWindows((9, 11), (3, 3), np.array([[2, 3], [6, 8]]), hidden)
    means = GaussianPatchPrior(7).fit(image[None]).conditional_mean(image, placed)
    assert torch.equal(means[0], image[:, 2:5, 3:6])
    assert not torch.equal(means[1], image[:, 6:9, 8:11])


def test_a_region_larger_than_the_patch_is_named():
    image = make_images(1, 3, 9, 11)[0]
    hidden = torch.zeros(1, 8, 8, dtype=torch.bool)
    hidden[0, 0, 0] = hidden[0, 7, 7] = True
    placed = PlacedWindows((9, 11), (8, 8), np.array([[0, 0]]), hidden)
    with pytest.raises(ValueError, match="patch_size beyond 8"):
        GaussianPatchPrior(7).fit(image[None]).conditional_mean(image, placed)
