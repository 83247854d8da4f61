"""Samples vary as much as what surrounds them, if so asked."""

import numpy as np
import pytest
import reference
import torch
from conftest import make_images

from captum_pda import GaussianPatchPrior, WindowGrid
from captum_pda.priors.gaussian import fills as gaussian_fills
from captum_pda.regions.protocol import PlacedWindows

WAYS = ["many", "few", "at many places", "thinned"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """How windows are filled: with an operator, one by one, from one inverse for all places, or
    given some of the ring."""
    monkeypatch.setattr(
        gaussian_fills, "are_few", lambda *_: request.param in ("few", "at many places")
    )
    inverse = request.param == "at many places"
    monkeypatch.setattr(gaussian_fills, "inverse_pays", lambda *_: inverse)
    if request.param == "thinned":
        monkeypatch.setattr(gaussian_fills, "MOST_RING_VALUES", 1)
    return request.param


def ring_energy(gaussian, image, corner, window):
    """d^T S_rr^-1 d / n_r of a window's ring, which is one pixel wide."""
    patch = gaussian.mean.shape[1:]
    at = tuple(c - 1 for c in corner)
    given = np.ones(patch, dtype=bool)
    given[tuple(slice(1, 1 + w) for w in window)] = False
    r = np.flatnonzero(np.broadcast_to(given, gaussian.mean.shape))
    deviation = (image[reference.block(at, patch)] - gaussian.mean).ravel()[r]
    covariance = gaussian.covariance.reshape(gaussian.mean.size, -1)[np.ix_(r, r)]
    return deviation @ np.linalg.solve(covariance, deviation) / len(r)


def test_samples_are_scaled_by_the_energy_of_their_ring(way):
    """The same draws about the same mean, as many times larger as the definition says."""
    image = make_images(1, 2, 12, 12)[0]
    image[:, :, 7:] *= 0.1
    corners = np.array([[4, 2], [4, 8]])
    placed = PlacedWindows((12, 12), (3, 2), corners)
    priors = [
        GaussianPatchPrior((5, 4), local_scale=local).fit(image[None]) for local in (False, True)
    ]
    plain, scaled = (
        prior.sample(image, placed, 3, torch.Generator().manual_seed(0)) for prior in priors
    )
    mean = priors[0].conditional_mean(image, placed)
    torch.testing.assert_close(mean, priors[1].conditional_mean(image, placed))
    gaussian = reference.fit_gaussian([image.numpy()], (5, 4), "stationary", "joint", 1e-5)
    for number, corner in enumerate(corners):
        scale = np.sqrt(ring_energy(gaussian, image.numpy(), corner, (3, 2)))
        torch.testing.assert_close(
            scaled[:, number] - mean[number],
            scale * (plain[:, number] - mean[number]),
            rtol=1e-6,
            atol=1e-7,
        )
    # The second window lies where the image is smooth.
    assert scaled[:, 1].std() < 0.5 * plain[:, 1].std()


@pytest.mark.parametrize("channels", ["joint", "independent"])
def test_the_scale_is_about_one_for_gaussian_data(way, channels):
    """So the conditional covariance stays right, as the mean over places shows; the fit itself is a
    little too small, since pixels outside an image count as nothing."""
    images = make_images(6, 2, 40, 40)
    grid = WindowGrid((40, 40), (3, 3), (4, 4))
    spreads = []
    for local in (False, True):
        prior = GaussianPatchPrior(7, channels=channels, local_scale=local).fit(images)
        mean = prior.conditional_mean(images[0], grid)
        drawn = prior.sample(images[0], grid, 20, torch.Generator().manual_seed(0))
        spreads.append(float((drawn - mean).square().mean()))
    assert 0.85 < spreads[1] / spreads[0] < 1.05


def test_a_window_with_nothing_around_it_is_not_scaled_away():
    image = make_images(1, 2, 5, 5)[0]
    prior = GaussianPatchPrior(9, local_scale=True).fit(image[None])
    whole = WindowGrid((5, 5), (5, 5), (1, 1))
    assert prior.sample(image, whole, 20).std() > 0.5 * image.std()
