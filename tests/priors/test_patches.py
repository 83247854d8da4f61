"""The Gaussian patch prior: fitted, merged, stored, and given every pixel of a patch that is not in
a region. Its fills of windows are compared with the oracle in test_against_reference."""

import numpy as np
import pytest
import reference
import torch
from conftest import make_images, means_of, samples_of
from torch.utils.data import DataLoader, TensorDataset

from captum_pda import (
    ConstantPrior,
    CovarianceError,
    FeatureMaskRegions,
    GaussianPatchPrior,
    NotFittedError,
    WindowGrid,
)
from captum_pda.priors import patches
from captum_pda.regions.protocol import PlacedWindows

GRID = WindowGrid((9, 11), (3, 3), (2, 2))
SETTINGS = [
    {"covariance": covariance, "channels": channels}
    for covariance in ("stationary", "full")
    for channels in ("joint", "independent")
]


@pytest.fixture(params=SETTINGS, ids=lambda setting: "-".join(setting.values()))
def settings(request):
    return request.param


def fill(prior, images):
    return means_of(prior, images, GRID)


def same(first, second, images, tolerance=1e-9):
    torch.testing.assert_close(
        fill(first, images), fill(second, images), rtol=tolerance, atol=tolerance
    )


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_all_ways_to_hand_over_images_fit_the_same(settings, images):
    data = make_images(6, 3, 9, 11, seed=3)
    labels = torch.arange(6)
    whole = GaussianPatchPrior(5, **settings).fit(data)
    others = [
        iter(data.split(2)),
        [(data[:4], labels[:4]), [data[4:], labels[4:]]],
        DataLoader(TensorDataset(data, labels), batch_size=4),
        DataLoader(TensorDataset(data), batch_size=1),
        TensorDataset(data, labels),
    ]
    for other in others:
        same(whole, GaussianPatchPrior(5, **settings).fit(other), images)


def test_partial_fits_and_merges_equal_one_fit(settings, images):
    data = make_images(6, 3, 9, 11, seed=3) + 50
    small = make_images(3, 3, 7, 8, seed=4) - 20
    whole = GaussianPatchPrior(5, **settings).fit([data, small])
    partial = GaussianPatchPrior(5, **settings)
    for batch in (data[:1], data[1:], small):
        assert partial.partial_fit(batch) is partial
    same(whole, partial, images)
    first = GaussianPatchPrior(5, **settings).fit(data)
    second = GaussianPatchPrior(5, **settings).fit(small)
    same(whole, first.merge(second), images)
    same(second, GaussianPatchPrior(5, **settings).fit(small), images, 0)


def test_fitting_again_forgets_and_a_failed_fit_does_not(images):
    prior = GaussianPatchPrior(5).fit(images + 5)
    means_of(prior, images, GRID)
    same(GaussianPatchPrior(5).fit(images), prior.fit(images), images)
    with pytest.raises(ValueError, match="NaN"):
        prior.fit([images + 5, images * torch.nan])
    same(GaussianPatchPrior(5).fit(images), prior, images)
    large = GaussianPatchPrior(10, covariance="full")
    with pytest.raises(ValueError, match="smaller than the patch"):
        large.partial_fit(images)
    assert large.partial_fit(make_images(2, 2, 12, 12)).n_channels == 2


def test_only_like_merges_with_like(images):
    prior = GaussianPatchPrior(5).fit(images)
    for other, says in (
        (GaussianPatchPrior(6).fit(images), "same settings"),
        (GaussianPatchPrior(5, covariance="full").fit(images), "same settings"),
        (GaussianPatchPrior(5, channels="independent").fit(images), "same settings"),
        (GaussianPatchPrior(5).fit(images[:, :2]), "3 channels; these images have 2"),
    ):
        with pytest.raises(ValueError, match=says):
            prior.merge(other)
    with pytest.raises(TypeError, match="GaussianPatchPrior"):
        prior.merge(ConstantPrior())


def test_fitting_shows_progress(images, capsys):
    GaussianPatchPrior(5).fit(list(images.split(1)), show_progress=True)
    assert "2/2" in capsys.readouterr().err
    GaussianPatchPrior(5).fit(images)
    assert capsys.readouterr().err == ""


def test_the_data_may_be_far_from_zero(images):
    near = GaussianPatchPrior(5).fit(images)
    far = GaussianPatchPrior(5).fit(images + 1e6)
    torch.testing.assert_close(fill(far, images + 1e6) - 1e6, fill(near, images), rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 3.7, -1e5])
def test_a_constant_image_is_filled_with_itself(settings, value):
    image = torch.full((1, 3, 9, 11), value, dtype=torch.float64)
    prior = GaussianPatchPrior(5, **settings).fit(image)
    torch.testing.assert_close(fill(prior, image), torch.full_like(fill(prior, image), value))
    samples = samples_of(prior, image, GRID, 3)
    torch.testing.assert_close(samples, torch.full_like(samples, value), rtol=1e-5, atol=1e-5)


def test_a_window_as_large_as_the_image_gets_the_mean(images):
    prior = GaussianPatchPrior(20).fit(images)
    grid = WindowGrid((9, 11), (9, 11), (1, 1))
    mean = images.mean(dim=(0, 2, 3)).reshape(3, 1, 1).expand(1, 3, 9, 11)
    torch.testing.assert_close(means_of(prior, images[:1], grid)[0], mean)
    assert samples_of(prior, images[:1], grid, 2).isfinite().all()


def test_samples_are_clipped_to_the_fitted_range_by_choice(images):
    images = images.clamp(-1, 1)
    plain = samples_of(GaussianPatchPrior(5).fit(images), images, GRID, 20)
    assert plain.abs().max() > 1
    clipping = GaussianPatchPrior(5, clip_samples=True)
    for channel, scale in enumerate((1.0, 2.0, 0.5)):
        images[:, channel] *= scale
    clipped = samples_of(clipping.fit(images[:1]).partial_fit(images[1:]), images, GRID, 20)
    for channel in range(3):
        own, found = images[:, channel], clipped[:, :, :, channel]
        assert found.min() >= own.min()
        torch.testing.assert_close(found.max(), own.max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_fills_have_the_dtype_of_the_inputs(images, dtype):
    prior = GaussianPatchPrior(5).fit(images)
    filled = fill(prior, images.to(dtype))
    assert filled.dtype == dtype
    expected = fill(prior, images.to(dtype).double())
    tolerance = 30 * torch.finfo(dtype).eps
    torch.testing.assert_close(filled.double(), expected, rtol=tolerance, atol=tolerance)


def test_any_number_of_windows_is_filled_as_if_in_parts():
    """More windows at one place of their patch than are gathered at once."""
    image = make_images(1, 1, 420, 420).float()
    prior = GaussianPatchPrior(5).fit(image)
    grid = WindowGrid((420, 420), (3, 3), (1, 1))
    starts = range(0, len(grid), 60_000)
    parts = [prior.conditional_mean(image[0], grid[start : start + 60_000]) for start in starts]
    torch.testing.assert_close(prior.conditional_mean(image[0], grid), torch.cat(parts))


def test_fills_do_not_depend_on_what_was_filled_before():
    """Whatever matrices are kept by then."""
    large = make_images(1, 3, 40, 40)
    dense, sparse = (WindowGrid((40, 40), (3, 3), (stride, stride)) for stride in (1, 3))
    prior = GaussianPatchPrior(7).fit(large)
    expected = means_of(prior, large, sparse), samples_of(prior, large, sparse, 2, seeded())
    prior = GaussianPatchPrior(7).fit(large)
    means_of(prior, large, dense)
    samples_of(prior, large, dense, 2)
    assert torch.equal(means_of(prior, large, sparse), expected[0])
    assert torch.equal(samples_of(prior, large, sparse, 2, seeded()), expected[1])


def test_a_covariance_that_is_not_positive_gets_more_loading_then_an_error():
    """Variances of 1 and a correlation beyond 1: the lowest eigenvalue is -excess."""

    def correlated(excess):
        return torch.tensor([[[1.0, 1 + excess], [1 + excess, 1.0]]], dtype=torch.float64)

    loading = torch.tensor([1e-3], dtype=torch.float64)
    with pytest.warns(UserWarning, match="loading 10-fold") as caught:
        factor = patches.loaded_factor(correlated(5e-3), loading)
    assert len(caught) == 1
    torch.testing.assert_close(factor @ factor.mT, correlated(5e-3) + 1e-2 * torch.eye(2))
    with (
        pytest.warns(UserWarning, match="fold"),
        pytest.raises(CovarianceError, match="more images"),
    ):
        patches.loaded_factor(correlated(1e3), loading)


def test_fewer_patches_than_values_and_hardly_any_regularization(images):
    prior = GaussianPatchPrior(5, covariance="full", regularization=1e-14).fit(images[:1])
    assert torch.isfinite(fill(prior, images)).all()


def test_a_fit_survives_a_file_and_may_go_on(settings, images, tmp_path):
    path = tmp_path / "prior.safetensors"
    prior = GaussianPatchPrior((5, 6), regularization=1e-3, clip_samples=True, **settings)
    prior.fit(images).save(path)
    loaded = GaussianPatchPrior.load(path)
    same(prior, loaded, images, 0)
    assert torch.equal(*(samples_of(p, images, GRID, 3, seeded()) for p in (prior, loaded)))
    assert repr(loaded) == repr(prior)
    same(prior.partial_fit(images + 1), loaded.partial_fit(images + 1), images)


def test_a_prior_that_is_not_fitted_says_what_to_do(images, tmp_path):
    prior = GaussianPatchPrior(5)
    for ask in (
        lambda: means_of(prior, images, GRID),
        lambda: samples_of(prior, images, GRID, 2),
        lambda: prior.to("cpu"),
        lambda: prior.save(tmp_path / "prior.safetensors"),
    ):
        with pytest.raises(NotFittedError, match="fit"):
            ask()


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"patch_size": 0}, ValueError, "patch_size=0"),
        ({"patch_size": 2.5}, TypeError, "patch_size"),
        ({"patch_size": 5, "covariance": "diagonal"}, ValueError, "'stationary', 'full'"),
        ({"patch_size": 5, "channels": "rgb"}, ValueError, "'joint', 'independent'"),
        ({"patch_size": 5, "regularization": 0.0}, ValueError, "regularization"),
    ],
)
def test_settings_that_make_no_sense(arguments, error, says):
    with pytest.raises(error, match=says):
        GaussianPatchPrior(**arguments)


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (3, TypeError, "DataLoader"),
        ([], ValueError, "no batches"),
        ([["text"]], TypeError, "tensor"),
        ([(torch.zeros(3, 9, 9), 4)], TypeError, "DataLoader"),
        ([{"image": torch.zeros(1, 3, 9, 9)}], TypeError, "image"),
        (torch.zeros(2, 3, 9, 9, dtype=torch.uint8), TypeError, "float"),
        (torch.zeros(3, 9), ValueError, "N, C"),
        (torch.full((1, 3, 9, 9), torch.inf), ValueError, "infinite"),
        ([torch.zeros(1, 3, 9, 9), torch.zeros(1, 2, 9, 9)], ValueError, "3 channels"),
    ],
)
def test_data_that_cannot_be_fitted(data, error, says):
    with pytest.raises(error, match=says):
        GaussianPatchPrior(5).fit(data)


@pytest.mark.parametrize(
    ("space", "window", "patch", "says"),
    [
        ((9, 11), (3, 3), 3, "patch_size beyond 3"),
        ((9, 11), (3, 11), 6, "patch_size beyond 11"),
        ((9, 11), (9, 11), 6, "patch_size beyond 11"),
        ((40, 40), (3, 3), 40, "27 values, with 4,773 around it.*GaussianFieldPrior.*any size"),
        ((40, 40), (38, 38), 40, "4,332 values, with 468 around it"),
    ],
)
def test_regions_that_are_too_large_are_named(space, window, patch, says):
    image = make_images(1, 3, *space)
    prior, grid = GaussianPatchPrior(patch).fit(image), WindowGrid(space, window, space)
    for ask in (means_of, lambda *given: samples_of(*given, 1)):
        with pytest.raises(ValueError, match=says):
            ask(prior, image, grid)


def test_other_channels_and_dimensions_than_those_of_the_fit_are_refused(images):
    prior = GaussianPatchPrior(5).fit(images)
    with pytest.raises(ValueError, match=r"has 3 channels and 1 .* on 3 channels and 2"):
        means_of(prior, images.flatten(2), WindowGrid((99,), (3,), (1,)))
    with pytest.raises(ValueError, match=r"has 2 channels and 2 .* on 3 channels and 2"):
        means_of(prior, images[:, :2], GRID)
    with pytest.raises(ValueError, match="2 entries"):
        GaussianPatchPrior((5, 5)).fit(images.flatten(2))


def test_with_a_margin_a_large_patch_serves_small_windows():
    image = make_images(1, 3, 40, 40)
    grid = WindowGrid((40, 40), (3, 3), (8, 8))
    small, large = GaussianPatchPrior(7).fit(image), GaussianPatchPrior(40, margin=2).fit(image)
    torch.testing.assert_close(
        means_of(large, image, grid), means_of(small, image, grid), rtol=1e-9, atol=1e-9
    )


# Regions of other shapes


SPACE = (10, 11)


def odd_regions():
    """At the border, in two pieces, one inside another, a line, a single pixel, and an L: the
    number, mask and box of each."""
    mask = torch.zeros(SPACE, dtype=torch.int64)
    mask[0:3, 0:2], mask[4, 4] = 1, 1
    mask[3:8, 6:10] = 2
    mask[4:6, 7:9] = 3
    mask[9, 2:9] = 4
    mask[9, 10] = 5
    mask[5:8, 1], mask[7, 1:4] = 6, 6
    regions = FeatureMaskRegions(mask[None])
    for placed, members in zip(regions.boxes(0), regions.members(0), strict=True):
        for place, number in enumerate(members.tolist()):
            if number:
                yield (mask == number).numpy(), placed.pick([place])


@pytest.mark.parametrize("margin", [None, 2])
def test_the_mean_of_any_region_is_as_defined(settings, margin):
    image = make_images(1, 2, *SPACE)[0]
    prior = GaussianPatchPrior(9, **settings, margin=margin).fit(image[None])
    gaussian = reference.fit_gaussian([image.numpy()], (9, 9), **settings, regularization=1e-5)
    for region, placed in odd_regions():
        expected, _ = reference.condition_region(gaussian, image.numpy(), region, margin)
        (hidden,), (found,) = placed.hidden, prior.conditional_mean(image, placed)
        np.testing.assert_allclose(found[:, hidden].numpy(), expected, rtol=1e-6, atol=1e-8)
        # What is not hidden is as it is.
        seen = image[reference.block(placed.corner_array[0], placed.window)]
        assert torch.equal(found[:, ~hidden], seen[:, ~hidden])


def test_samples_of_any_region_have_the_conditional_mean_and_covariance():
    image = make_images(1, 1, *SPACE)[0]
    prior = GaussianPatchPrior(7).fit(image[None])
    gaussian = reference.fit_gaussian([image.numpy()], (7, 7), "stationary", "joint", 1e-5)
    region = np.zeros(SPACE, dtype=bool)
    region[3:5, 4] = region[4, 5] = True
    hidden = torch.from_numpy(region)[None, 3:5, 4:6]
    placed = PlacedWindows(SPACE, (2, 2), np.array([[3, 4]]), hidden)
    drawn = prior.sample(image, placed, 10000, seeded())
    values = drawn[:, 0, 0][:, hidden[0]].numpy()
    mean, covariance = reference.condition_region(gaussian, image.numpy(), region)
    spread = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(values.mean(axis=0), mean[0], atol=0.05 * spread.max())
    outer = np.outer(spread, spread)
    np.testing.assert_allclose(np.cov(values.T) / outer, covariance / outer, atol=0.06)


def test_a_region_without_pixels_is_left_as_it_is():
    image = make_images(1, 3, 9, 11)[0]
    hidden = torch.zeros(2, 3, 3, dtype=torch.bool)
    hidden[1, 0, 0] = True
    placed = PlacedWindows((9, 11), (3, 3), np.array([[2, 3], [6, 8]]), hidden)
    means = GaussianPatchPrior(7).fit(image[None]).conditional_mean(image, placed)
    assert torch.equal(means[0], image[:, 2:5, 3:6])
    assert not torch.equal(means[1], image[:, 6:9, 8:11])
