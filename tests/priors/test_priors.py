"""Fitting, merging, storing and drawing; what the fills should be is in test_against_reference."""

import pytest
import torch
from conftest import make_images, means_of, samples_of
from torch.utils.data import DataLoader, TensorDataset

from captum_pda import (
    ConstantPrior,
    CovarianceError,
    EmpiricalMeanPrior,
    GaussianPatchPrior,
    MarginalPrior,
    NotFittedError,
    PatchPrior,
    WindowGrid,
)
from captum_pda.priors import patches

GRID = WindowGrid((9, 11), (3, 3), (2, 2))
SETTINGS = [
    (covariance, channels)
    for covariance in ("stationary", "full")
    for channels in ("joint", "independent")
]


@pytest.fixture(params=SETTINGS, ids=lambda setting: "-".join(setting))
def settings(request):
    return dict(zip(("covariance", "channels"), request.param, strict=True))


def fill(prior, images):
    return means_of(prior, images, GRID)


def same(first, second, images, tolerance=1e-9):
    torch.testing.assert_close(
        fill(first, images), fill(second, images), rtol=tolerance, atol=tolerance
    )


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
    merged = GaussianPatchPrior(5, **settings).merge(first).merge(second)
    same(whole, merged, images)
    same(first, GaussianPatchPrior(5, **settings).fit(data), images, 0)  # merging took a copy


def test_fitting_again_forgets_and_a_failed_fit_does_not(images):
    prior = GaussianPatchPrior(5).fit(images + 5)
    means_of(prior, images, GRID)
    same(GaussianPatchPrior(5).fit(images), prior.fit(images), images)
    with pytest.raises(ValueError, match="NaN"):
        prior.fit([images + 5, images * torch.nan])
    same(GaussianPatchPrior(5).fit(images), prior, images)


def test_a_failed_partial_fit_leaves_nothing_behind(images):
    prior = GaussianPatchPrior(10, covariance="full")
    with pytest.raises(ValueError, match="smaller than the patch"):
        prior.partial_fit(images)
    larger = make_images(2, 3, 12, 12)
    prior.partial_fit(larger)
    assert prior.n_channels == 3


def test_only_like_merges_with_like(images):
    prior = GaussianPatchPrior(5).fit(images)
    for other in (
        GaussianPatchPrior(6).fit(images),
        GaussianPatchPrior(5, covariance="full").fit(images),
        GaussianPatchPrior(5, channels="independent").fit(images),
        GaussianPatchPrior(5).fit(images[:, :2]),
    ):
        with pytest.raises(ValueError, match="same settings"):
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


def test_generators_make_samples_reproducible(images):
    prior = GaussianPatchPrior(5).fit(images)
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    draws = [samples_of(prior, images, GRID, 4, generator) for generator in generators]
    assert draws[0].shape == (4, 2, len(GRID), 3, 3, 3)
    torch.testing.assert_close(draws[0], draws[1], rtol=0, atol=0)
    assert not torch.equal(draws[0], draws[2])
    torch.manual_seed(0)
    first = samples_of(prior, images, GRID, 1)
    assert not torch.equal(first, samples_of(prior, images, GRID, 1))


def test_samples_are_clipped_to_the_fitted_range_by_choice(images):
    images = images.clamp(-1, 1)
    plain = samples_of(GaussianPatchPrior(5).fit(images), images, GRID, 20)
    assert plain.abs().max() > 1
    clipping = GaussianPatchPrior(5, clip_samples=True)
    for channel, scale in enumerate((1.0, 2.0, 0.5)):
        images[:, channel] *= scale
    clipped = samples_of(clipping.fit(images[:1]).partial_fit(images[1:]), images, GRID, 20)
    for channel in range(3):
        own = images[:, channel]
        assert clipped[:, :, :, channel].min() >= own.min()
        assert clipped[:, :, :, channel].max() <= own.max()
        torch.testing.assert_close(clipped[:, :, :, channel].max(), own.max())


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


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


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


def test_a_fit_survives_a_file(settings, images, tmp_path):
    path = tmp_path / "prior.safetensors"
    prior = GaussianPatchPrior((5, 6), regularization=1e-3, clip_samples=True, **settings)
    prior.fit(images).save(path)
    loaded = GaussianPatchPrior.load(path)
    same(prior, loaded, images, 0)
    torch.testing.assert_close(
        samples_of(loaded, images, GRID, 3, seeded()),
        samples_of(prior, images, GRID, 3, seeded()),
        rtol=0,
        atol=0,
    )
    assert repr(loaded) == repr(prior)
    same(prior.partial_fit(images + 1), loaded.partial_fit(images + 1), images)
    assert [file.name for file in tmp_path.iterdir()] == ["prior.safetensors"]


def test_saved_files_are_as_readable_as_others(images, tmp_path):
    (tmp_path / "other").touch()
    GaussianPatchPrior(5).fit(images).save(tmp_path / "prior.safetensors")
    modes = {file.stat().st_mode for file in tmp_path.iterdir()}
    assert len(modes) == 1
    with pytest.raises(FileNotFoundError, match="no folder"):
        GaussianPatchPrior(5).fit(images).save(tmp_path / "missing" / "prior.safetensors")


def test_saving_does_not_overwrite_by_surprise(images, tmp_path):
    path = tmp_path / "prior.safetensors"
    prior = GaussianPatchPrior(5).fit(images)
    prior.save(path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        prior.save(path)
    prior.fit(images + 1).save(path, overwrite=True)
    same(prior, GaussianPatchPrior.load(path), images, 0)
    with pytest.raises(FileNotFoundError, match="no prior"):
        GaussianPatchPrior.load(tmp_path / "another.safetensors")


def test_moving_a_fit(images):
    prior = GaussianPatchPrior(5).fit(images)
    assert prior.to("cpu") is prior
    assert prior.device == torch.device("cpu")
    assert means_of(MarginalPrior().fit(images).to("cpu"), images, GRID).isfinite().all()


def test_unfitted_priors_say_what_to_do(images, tmp_path):
    for prior in (GaussianPatchPrior(5), MarginalPrior()):
        with pytest.raises(NotFittedError, match="fit"):
            means_of(prior, images, GRID)
        with pytest.raises(NotFittedError, match="fit"):
            samples_of(prior, images, GRID, 2)
        with pytest.raises(NotFittedError, match="fit"):
            prior.to("cpu")
        assert "not fitted" in repr(prior)
    with pytest.raises(NotFittedError, match="fit"):
        GaussianPatchPrior(5).save(tmp_path / "prior.safetensors")


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


def test_fills_that_cannot_be_had(images):
    prior = GaussianPatchPrior(3).fit(images)
    with pytest.raises(ValueError, match="patch_size beyond 3"):
        means_of(prior, images, GRID)
    for window in ((3, 11), (9, 11)):
        with pytest.raises(ValueError, match="patch_size beyond 11"):
            means_of(GaussianPatchPrior(6).fit(images), images, WindowGrid((9, 11), window, (1, 1)))
    with pytest.raises(ValueError, match="2 spatial dimensions"):
        means_of(
            GaussianPatchPrior(5).fit(images), images.flatten(2), WindowGrid((99,), (3,), (1,))
        )
    with pytest.raises(ValueError, match="fitted on 3 channels"):
        means_of(GaussianPatchPrior(5).fit(images), images[:, :2], GRID)
    with pytest.raises(ValueError, match="smaller than the patch"):
        GaussianPatchPrior(10, covariance="full").fit(images)
    with pytest.raises(ValueError, match="2 entries"):
        GaussianPatchPrior((5, 5)).fit(images.flatten(2))


@pytest.mark.parametrize(
    ("window", "patch", "says"),
    [
        ((3, 3), 40, "27 values, with 4,773 around it"),
        ((38, 38), 40, "4,332 values, with 468 around it"),
    ],
)
def test_regions_that_are_too_large_are_named_with_what_fills_them(window, patch, says):
    image = make_images(1, 3, 40, 40)
    grid = WindowGrid((40, 40), window, (40, 40))
    prior = GaussianPatchPrior(patch).fit(image)
    for ask in (means_of, lambda *given: samples_of(*given, 1)):
        with pytest.raises(ValueError, match=rf"{says}.*GaussianFieldPrior.*any size"):
            ask(prior, image, grid)


def test_with_a_margin_a_large_patch_serves_small_windows():
    image = make_images(1, 3, 40, 40)
    grid = WindowGrid((40, 40), (3, 3), (8, 8))
    small, large = GaussianPatchPrior(7).fit(image), GaussianPatchPrior(40, margin=2).fit(image)
    torch.testing.assert_close(
        means_of(large, image, grid), means_of(small, image, grid), rtol=1e-9, atol=1e-9
    )


def test_constants_of_every_shape(images):
    number = means_of(ConstantPrior(0.5), images, GRID)
    assert number.shape == (2, len(GRID), 3, 3, 3)
    assert (number == 0.5).all()
    each = means_of(ConstantPrior(torch.tensor([1.0, 2.0, 3.0])), images, GRID)
    assert each[1, 4, :, 0, 0].tolist() == [1, 2, 3]
    baseline = make_images(3, 9, 11)
    whole = means_of(ConstantPrior(baseline), images, GRID)
    row, column = GRID.corner_array[7]
    torch.testing.assert_close(whole[1, 7], baseline[:, row : row + 3, column : column + 3])
    torch.testing.assert_close(samples_of(ConstantPrior(baseline), images, GRID, 2)[1], whole)
    with pytest.raises(ValueError, match="3 numbers"):
        means_of(ConstantPrior(torch.zeros(2)), images, GRID)


def test_marginal_needs_one_shape(images):
    with pytest.raises(ValueError, match="one shape"):
        MarginalPrior().fit([images, images[..., :-1]])
    with pytest.raises(ValueError, match="fitted on images of shape"):
        means_of(MarginalPrior().fit(images), images[..., :-1], WindowGrid((9, 10), (3, 3), (1, 1)))


def test_the_empirical_mean_follows_its_generator(images):
    prior = GaussianPatchPrior(5).fit(images)
    noisy = [EmpiricalMeanPrior(prior, 7, generator) for generator in (seeded(), seeded(), None)]
    fills = [fill(prior, images) for prior in noisy]
    torch.testing.assert_close(fills[0], fills[1], rtol=0, atol=0)
    torch.testing.assert_close(fill(noisy[0], images), fills[0], rtol=0, atol=0)
    assert not torch.allclose(fills[0], fills[2])
    generator = torch.Generator().manual_seed(0)
    many = EmpiricalMeanPrior(prior, 1000, generator)
    torch.testing.assert_close(fill(many, images), fill(prior, images), rtol=0, atol=0.5)
    torch.testing.assert_close(
        samples_of(noisy[0], images, GRID, 2, seeded()),
        samples_of(prior, images, GRID, 2, seeded()),
    )
    with pytest.raises(ValueError, match="n_samples"):
        EmpiricalMeanPrior(prior, 0)


def test_the_empirical_mean_of_many_large_values_in_half_precision(images):
    many = EmpiricalMeanPrior(ConstantPrior(-1000.0), 500)
    fills = means_of(many, images.half(), GRID)
    torch.testing.assert_close(fills, torch.full_like(fills, -1000.0))


def test_every_prior_follows_the_protocol(images):
    for prior in (
        GaussianPatchPrior(5).fit(images),
        MarginalPrior().fit(images),
        ConstantPrior(),
        EmpiricalMeanPrior(ConstantPrior()),
    ):
        assert isinstance(prior, PatchPrior)
        assert fill(prior, images).shape == (2, len(GRID), 3, 3, 3)
        assert samples_of(prior, images, GRID, 4, seeded()).shape == (4, 2, len(GRID), 3, 3, 3)
        assert type(prior).__name__ in repr(prior)


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
