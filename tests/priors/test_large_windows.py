"""Large windows are given some of the pixels around them: how that is defined, and how good."""

import numpy as np
import pytest
import reference
import torch
from conftest import make_images

from captum_pda import GaussianPatchPrior, WindowGrid
from captum_pda.priors.gaussian import factoring_cost
from captum_pda.priors.gaussian import fills as gaussian_fills
from captum_pda.priors.gaussian.region_shapes import RegionShape
from captum_pda.priors.gaussian.stationary_draws import StationaryDraws
from captum_pda.priors.gaussian.thinned import ThinnedRegion
from captum_pda.regions.protocol import PlacedWindows


@pytest.fixture
def thinned(monkeypatch):
    """Small windows are filled as large ones are."""
    monkeypatch.setattr(gaussian_fills, "MOST_RING_VALUES", 1)


def smooth_images(*shape, seed=0):
    """Photo-like images: their power falls with the square of the frequency."""
    generator = torch.Generator().manual_seed(seed)
    axes = tuple(range(2, len(shape)))
    noise = torch.randn(*shape, generator=generator, dtype=torch.float64)
    squares = sum(
        (torch.fft.fftfreq(side) * side).reshape([-1 if a == axis else 1 for a in axes]) ** 2
        for axis, side in zip(axes, shape[2:], strict=True)
    )
    coloured = torch.fft.ifftn(torch.fft.fftn(noise, dim=axes) / (1 + squares), dim=axes).real
    return coloured / coloured.std()


def test_the_rim_is_given_the_nodes_and_the_inside_interpolated(thinned):
    """Against the definition, for a window in the middle and windows at the border."""
    image = make_images(1, 2, 22, 20)[0]
    window, patch = (11, 10), (19, 18)
    prior = GaussianPatchPrior(patch).fit(image[None])
    gaussian = reference.fit_gaussian([image.numpy()], patch, "stationary", "joint", 1e-5)
    region = ThinnedRegion(RegionShape.of_window(window), patch, 2)
    corners = np.array([[5, 5], [0, 3], [11, 10], [0, 0]])
    means = prior.conditional_mean(image, PlacedWindows((22, 20), window, corners))
    for mean, corner in zip(means, corners, strict=True):
        # The image around the window as a patch; beyond the image nothing is given.
        x_patch = np.zeros((2, *patch))
        given, wanted = np.zeros(patch, dtype=bool), np.zeros(patch, dtype=bool)
        for node in region.nodes:
            place = corner + node
            if (place >= 0).all() and (place < (22, 20)).all():
                given[tuple(node + region.before)] = True
                x_patch[(slice(None), *(node + region.before))] = image[
                    (slice(None), *place.tolist())
                ]
        wanted[4:15, 4:14] = True
        exact, _ = reference.condition_on(gaussian, x_patch, wanted, given)
        exact = exact.reshape(2, *window)
        rim = region.direct
        assert 0 < (~rim).sum() < rim.sum()
        np.testing.assert_allclose(mean.numpy()[:, rim], exact[:, rim], rtol=1e-6, atol=1e-8)
        for row, column in np.argwhere(~rim):
            # Linear between the four nearest stops 0, 4, 8 (and the last pixel).
            low_r, low_c = row // 4 * 4, column // 4 * 4
            high_r, high_c = min(low_r + 4, 10), min(low_c + 4, 9)
            part_r = (row - low_r) / max(high_r - low_r, 1)
            part_c = (column - low_c) / max(high_c - low_c, 1)
            expected = (1 - part_r) * (
                (1 - part_c) * exact[:, low_r, low_c] + part_c * exact[:, low_r, high_c]
            ) + part_r * (
                (1 - part_c) * exact[:, high_r, low_c] + part_c * exact[:, high_r, high_c]
            )
            np.testing.assert_allclose(mean[:, row, column], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("channels", [1, 3, 100])
def test_nodes_next_to_the_region_are_kept_and_there_are_not_too_many(channels):
    shape = RegionShape.of_window((30, 20))
    region = ThinnedRegion(shape, (62, 52), channels)
    nodes = {tuple(node) for node in region.nodes.tolist()}
    assert len(nodes) * channels <= 1400
    assert not any(0 <= row < 30 and 0 <= column < 20 for row, column in nodes)
    if channels < 100:
        assert all((-1, column) in nodes and (30, column) in nodes for column in range(20))
        assert all((row, -1) in nodes and (row, 20) in nodes for row in range(30))
    assert min(row for row, _ in nodes) == -16


def test_a_region_with_a_hole_is_given_what_is_in_the_hole():
    mask = np.ones((12, 12), dtype=bool)
    mask[5:8, 5:8] = False
    nodes = ThinnedRegion(RegionShape(mask), (20, 20), 1).nodes.tolist()
    assert [5, 5] in nodes
    assert [7, 6] in nodes
    assert [3, 3] not in nodes


@pytest.mark.parametrize(
    ("space", "channels", "window", "patch"),
    [((48, 48), 3, 20, 28), ((14, 14, 14), 1, 5, 9), ((80,), 3, 30, 38)],
)
def test_the_error_is_near_that_of_the_exact_mean(monkeypatch, space, channels, window, patch):
    """Root mean square against the true pixels within 3%, and continuous at the rim."""
    monkeypatch.setattr(gaussian_fills, "MOST_RING_VALUES", 20)
    dims = len(space)
    image, *others = smooth_images(9, channels, *space)
    grid = WindowGrid(space, (window,) * dims, ((space[0] - window) // 2,) * dims)
    fills = {
        exact: GaussianPatchPrior(patch, exact=exact)
        .fit(torch.stack(others))
        .conditional_mean(image, grid)
        for exact in (True, False)
    }
    true = torch.stack([image[reference.block(c, grid.window)] for c in grid.corner_array])
    errors = {exact: float((fill - true).square().mean().sqrt()) for exact, fill in fills.items()}
    assert not torch.equal(fills[True], fills[False])
    assert errors[False] < 1.03 * errors[True]
    inner = [n for n, corner in enumerate(grid.corner_array) if corner[0] > 0]
    before = torch.stack(
        [
            image[reference.block(corner - np.eye(dims, dtype=int)[0], (1, *grid.window[1:]))]
            for corner in grid.corner_array[inner]
        ]
    )
    steps = {
        exact: float((fill[inner][:, :, :1] - before).square().mean().sqrt())
        for exact, fill in fills.items()
    }
    assert steps[False] < 1.1 * steps[True]


@pytest.mark.parametrize("channels", ["joint", "independent"])
def test_draws_on_a_torus_have_the_fitted_covariance(channels):
    """Exactly, where all lags are known."""
    image = make_images(1, 2, 6, 5)[0]
    prior = GaussianPatchPrior((6, 5), channels=channels).fit(image[None])
    draws = StationaryDraws(prior._moments, image)
    blocks = draws.blocks(6000, 4, (3, 4), torch.Generator().manual_seed(0))
    assert blocks.shape == (6000, 4, 3, 4, 2)
    gaussian = reference.fit_gaussian([image.numpy()], (3, 4), "stationary", channels, 1e-12)
    expected = gaussian.covariance.reshape(24, 24)
    values = blocks.flatten(0, 1).movedim(-1, 1).flatten(1)
    largest = np.diag(expected).max()
    np.testing.assert_allclose(values.T.cov() / largest, expected / largest, atol=0.06)
    # Those of different samples know nothing of each other.
    across = (values.reshape(6000, 4, -1)[:-1, 0] * values.reshape(6000, 4, -1)[1:, 0]).mean(0)
    np.testing.assert_allclose(across / largest, 0, atol=0.06)


@pytest.mark.parametrize("channels", ["joint", "independent"])
def test_samples_of_large_windows_have_the_conditional_distribution(thinned, channels):
    """Given the nodes, which here are the whole ring."""
    image = make_images(1, 2, 7, 8)[0]
    prior = GaussianPatchPrior((7, 8), channels=channels, margin=1).fit(image[None])
    placed = PlacedWindows((7, 8), (3, 2), np.array([[2, 3], [0, 0]]))
    drawn = prior.sample(image, placed, 6000, torch.Generator().manual_seed(0))
    gaussian = reference.fit_gaussian([image.numpy()], (7, 8), "stationary", channels, 1e-5)
    means = prior.conditional_mean(image, placed)
    for number, corner in enumerate(placed.corner_array):
        region = np.zeros((7, 8), dtype=bool)
        region[reference.block(corner, (3, 2))[1:]] = True
        given = np.zeros((7, 8), dtype=bool)
        around = tuple(slice(max(c - 1, 0), c + w + 1) for c, w in zip(corner, (3, 2), strict=True))
        given[around] = True
        mean, covariance = reference.condition_on(gaussian, image.numpy(), region, given & ~region)
        np.testing.assert_allclose(means[number].flatten(1).numpy(), mean, rtol=1e-6, atol=1e-8)
        values = drawn[:, number].flatten(1).numpy()
        spread = np.sqrt(np.diag(covariance))
        assert np.abs((values.mean(axis=0) - mean.ravel()) / spread).max() < 0.07
        outer = np.outer(spread, spread)
        np.testing.assert_allclose(np.cov(values.T) / outer, covariance / outer, atol=0.08)


@pytest.mark.parametrize("n_channels", [1, 2])
def test_samples_from_a_truncated_autocovariance_vary_as_they_should(thinned, n_channels):
    """Its spectrum has negative parts; what is left of them moves no variance by more than 15%."""
    image, *others = smooth_images(4, n_channels, 30, 30)
    prior = GaussianPatchPrior(12).fit(torch.stack(others))
    corner = np.array([[10, 9]])
    drawn = prior.sample(
        image, PlacedWindows((30, 30), (6, 6), corner), 3000, torch.Generator().manual_seed(0)
    )
    places = np.indices((12, 12)).reshape(2, -1).T
    covariance = prior._moments.covariance(places, places)[0].reshape(144, n_channels, 144, -1)
    gaussian = reference.PatchGaussian(
        np.zeros((n_channels, 12, 12)),
        covariance.permute(1, 0, 3, 2).reshape(n_channels, 12, 12, n_channels, 12, 12).numpy(),
    )
    region = ThinnedRegion(RegionShape.of_window((6, 6)), (12, 12), n_channels)
    wanted, given = np.zeros((12, 12), dtype=bool), np.zeros((12, 12), dtype=bool)
    wanted[3:9, 3:9] = True
    given[tuple((region.nodes + region.before).T)] = True
    gaussian.covariance.reshape(144 * n_channels, -1)[np.diag_indices(144 * n_channels)] += 1e-5
    _, expected = reference.condition_on(gaussian, gaussian.mean, wanted, given)
    variances = drawn[:, 0].flatten(1).var(dim=0).numpy()
    assert np.abs(variances / np.diag(expected) - 1).max() < 0.3
    assert abs(variances.mean() / np.diag(expected).mean() - 1) < 0.15


def test_means_do_not_depend_on_how_windows_are_asked_for(thinned):
    image = make_images(1, 3, 20, 21)[0]
    grid = WindowGrid((20, 21), (6, 7), (3, 3))
    prior = GaussianPatchPrior(14).fit(image[None])
    together = prior.conditional_mean(image, grid)
    apart = torch.cat([prior.conditional_mean(image, grid[n : n + 1]) for n in range(len(grid))])
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)
    alone = [
        prior.conditional_mean(image, PlacedWindows((20, 21), (6, 7), corner[None]))[0]
        for corner in grid.corner_array
    ]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-7, atol=1e-7)


def test_single_and_half_precision(thinned):
    image = make_images(1, 3, 20, 21)[0]
    grid = WindowGrid((20, 21), (6, 7), (5, 5))
    prior = GaussianPatchPrior(14).fit(image[None])
    exact = prior.conditional_mean(image, grid)
    for dtype in (torch.float32, torch.bfloat16):
        fills = prior.conditional_mean(image.to(dtype), grid)
        assert fills.dtype == dtype
        assert prior.sample(image.to(dtype), grid, 2).dtype == dtype
        tolerance = 30 * torch.finfo(dtype).eps
        torch.testing.assert_close(fills.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("options", "cheaper"), [({"exact": True}, "exact"), ({"covariance": "full"}, "covariance=")]
)
def test_a_prior_that_takes_minutes_says_so_before_it_begins(monkeypatch, options, cheaper):
    image, grid = make_images(1, 1, 24, 24), WindowGrid((24, 24), (3, 3), (3, 3))
    prior = GaussianPatchPrior(9, **options).fit(image)
    prior.conditional_mean(image[0], grid)  # takes no time, and warns of nothing
    monkeypatch.setattr(factoring_cost, "MULTIPLICATIONS_PER_SECOND", 100.0)
    monkeypatch.setattr(gaussian_fills, "inverse_pays", lambda *_: False)
    monkeypatch.setattr(gaussian_fills, "Conditional", lambda *_: pytest.fail("has begun"))
    prior = GaussianPatchPrior(9, **options).fit(image)
    with pytest.raises(UserWarning, match=f"9 covariances of 72 values.*{cheaper}"):
        prior.conditional_mean(image[0], grid)


def test_a_long_prior_warns_once(monkeypatch):
    image, grid = make_images(1, 1, 24, 24), WindowGrid((24, 24), (3, 3), (3, 3))
    monkeypatch.setattr(factoring_cost, "MULTIPLICATIONS_PER_SECOND", 100.0)
    monkeypatch.setattr(gaussian_fills, "inverse_pays", lambda *_: False)
    prior = GaussianPatchPrior(9, exact=True).fit(image)
    with pytest.warns(UserWarning, match="will take a while"):
        prior.conditional_mean(image[0], grid)
    prior.conditional_mean(image[0], grid)  # a warning would be an error here


def test_what_takes_no_time_does_not_use_up_the_warning(monkeypatch):
    image, grid = make_images(1, 1, 24, 24), WindowGrid((24, 24), (3, 3), (3, 3))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(factoring_cost, "MULTIPLICATIONS_PER_SECOND", 1e4)
    monkeypatch.setattr(gaussian_fills, "inverse_pays", lambda *_: False)
    prior = GaussianPatchPrior(9, exact=True).fit(image)
    # Four places in the corners take 50 s by this clock, and nine take 112 s.
    prior.conditional_mean(image[0], WindowGrid((24, 24), (3, 3), (24, 24)))
    with pytest.warns(UserWarning, match="9 covariances"):
        prior.conditional_mean(image[0], grid)
