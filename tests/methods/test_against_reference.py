"""The library against the slow float64 oracle in reference.py, to 1e-9."""

from functools import lru_cache

import numpy as np
import pytest
import reference
import torch
from conftest import means_of, samples_of
from torch import nn

from captum_pda import (
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianPatchPrior,
    GradientPDA,
    SampledPDA,
    WindowGrid,
)

MEASURES = ("weight_of_evidence", "probability_difference", "information_difference")


def assert_same(actual, expected):
    expected = torch.as_tensor(np.ascontiguousarray(expected))
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads cost more than they bring for thousands of tiny forward passes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Data, priors and models


def make_images(number, channels, space, seed):
    """Images (N, C, *space) whose channels differ in mean and scale, and see each other shifted.

    The shift makes the covariance of two channels depend on the sign of the lag.
    """
    noise = np.random.default_rng(seed).normal(size=(number, channels, *space))
    smooth = noise.copy()
    for axis in range(2, noise.ndim):
        smooth = smooth + 0.7 * np.roll(smooth, 1, axis)
    mixed = smooth + 0.6 * np.roll(np.roll(smooth, 1, axis=1), 2, axis=-1)
    per_channel = (1, channels, *(1 for _ in space))
    scale = np.array([1.0, 0.4, 1.7][:channels]).reshape(per_channel)
    mean = np.array([3.0, -2.0, 0.5][:channels]).reshape(per_channel)
    return np.ascontiguousarray(mean + scale * mixed)


FITTED_SPACES = {1: [(19,), (14,)], 2: [(10, 12), (8, 13)], 3: [(6, 7, 5), (5, 6, 6)]}
CHANNELS = {1: 2, 2: 3, 3: 2}
REGULARIZATION = 1e-4


@lru_cache
def fitted_batches(dims):
    """Batches of images of different sizes."""
    return [
        make_images(2 - n, CHANNELS[dims], space, seed=n)
        for n, space in enumerate(FITTED_SPACES[dims])
    ]


@lru_cache
def reference_gaussian(patch, covariance, channels, regularization=REGULARIZATION):
    images = [image for batch in fitted_batches(len(patch)) for image in batch]
    return reference.fit_gaussian(images, patch, covariance, channels, regularization)


def fitted_prior(patch, covariance="stationary", channels="joint", regularization=REGULARIZATION):
    batches = [torch.from_numpy(batch) for batch in fitted_batches(len(patch))]
    return GaussianPatchPrior(patch, covariance, channels, regularization).fit(batches)


PATCH = (6, 5)
WINDOW = (3, 3)
STRIDES = (2, 3)  # on 9 x 11: the last window of a row is moved back, that of a column is not


def two_images():
    """The batch to explain, as an array (2, C, 9, 11)."""
    return make_images(2, CHANNELS[2], (9, 11), seed=7)


@lru_cache
def reference_means():
    """The conditional means of the batch's windows, (2, W, C, *window)."""
    gaussian = reference_gaussian(PATCH, "stationary", "joint")
    return np.stack(
        [reference.conditional_means(gaussian, x, WINDOW, STRIDES) for x in two_images()]
    )


def make_model(*after, outputs=4, channels=3, space=(9, 11), gain=3.0, seed=0):
    """A small convolutional network in double precision."""
    convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[len(space)]
    inner = int(np.prod([size - 2 for size in space]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            convolution(channels, 4, 3),
            nn.Tanh(),
            convolution(4, 4, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * inner, outputs),
            *after,
        )
    network = network.double().eval().requires_grad_(False)
    network[5].weight *= gain
    return network


#: Name: the model, its ``output`` setting, and one target for each of the two examples.
MODELS = {
    "softmax logits": (make_model(), "logits", [2, 0]),
    "confident logits": (make_model(gain=150.0), "logits", [1, 3]),
    "single logit": (make_model(outputs=1), "logits", [0, 0]),
    "softmax probabilities": (make_model(nn.Softmax(dim=1)), "probabilities", [2, 0]),
    "separate probabilities": (
        make_model(nn.Sigmoid(), outputs=3, gain=1.0),
        "probabilities",
        [2, 1],
    ),
    "single probability": (make_model(nn.Sigmoid(), outputs=1), "probabilities", [0, 0]),
    "raw": (make_model(), "raw", [3, 1]),
}
MODELS_AND_MEASURES = [
    (name, measure)
    for name in MODELS
    for measure in MEASURES
    if name != "raw" or measure == "weight_of_evidence"
]
every_model_and_measure = pytest.mark.parametrize(("name", "measure"), MODELS_AND_MEASURES)


def expected_maps(algorithm, model, images, fills, targets, *settings, **windows):
    """The oracle's maps of a batch, every channel of a pixel alike."""
    window, strides = windows.get("window", WINDOW), windows.get("strides", STRIDES)
    maps = []
    for image, fill, target in zip(images, fills, targets, strict=True):
        found = algorithm(model, image, fill, window, strides, target, *settings)
        maps.append(np.broadcast_to(found, image.shape))
    return np.stack(maps)


class FixedDraws:
    """A user's prior that knows its draws (N, S, W, C, *window) of every window beforehand."""

    def __init__(self, images, draws, window, strides):
        self.images = images
        self.draws = draws
        self.corners = reference.window_corners(images.shape[2:], window, strides)

    def sample(self, example, regions, n_samples, generator=None):
        assert n_samples == self.draws.shape[1]
        windows = [self.corners.index(tuple(corner)) for corner in regions.corners.tolist()]
        image = example.numpy()
        (number,) = (n for n, own in enumerate(self.images) if np.array_equal(own, image))
        return torch.from_numpy(self.draws[number][:, windows])


def make_draws(images, n_samples, window, strides, seed=11):
    n_windows = len(reference.window_corners(images.shape[2:], window, strides))
    shape = (len(images), n_samples, n_windows, images.shape[1], *window)
    return np.random.default_rng(seed).normal(size=shape) * 2


# The oracle itself, by hand


def test_oracle_on_cases_worked_by_hand():
    assert reference.window_starts(11, 3, 3) == [0, 3, 6, 8]
    assert reference.window_starts(9, 3, 2) == [0, 2, 4, 6]
    assert reference.outer_patch((8, 0), (3, 3), (6, 5), (11, 9)) == ((5, 0), (6, 5))
    assert reference.outer_patch((4, 4), (3, 3), (6, 20), (11, 9)) == ((3, 0), (6, 9))
    lags = reference.autocovariance([np.array([[0.0, 1.0, 5.0]])], (2,))
    # Deviations -2, -1, 3: (4 + 1 + 9) / 3 without a lag, (2 - 3) / 3 one pixel on.
    np.testing.assert_allclose(
        [lags[0,], lags[1,], lags[-1,]], [[[14 / 3]], [[-1 / 3]], [[-1 / 3]]]
    )
    four_to_one = reference.read_prediction(np.log([0.2, 0.8]), 1, "logits")
    np.testing.assert_allclose(
        [reference.measured(four_to_one, m) for m in MEASURES], [2, 0.8, np.log2(0.8)]
    )


@every_model_and_measure
def test_oracle_gradient_is_the_slope(name, measure):
    model, output, targets = MODELS[name]
    image, target, step = two_images()[0], targets[0], 1e-5
    direction = np.random.default_rng(3).normal(size=image.shape)
    either_side = [
        reference.measured(reference.predict(model, image + h * direction, target, output), measure)
        for h in (step, -step)
    ]
    slope = (either_side[0] - either_side[1]) / (2 * step)
    gradient = reference.gradient(model, image, target, output, measure)
    np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-5, atol=1e-8)


# The Gaussian patch prior

#: Space, window, strides, patch.
PLACES = {
    "1-D": ((17,), (3,), (1,), (7,)),
    "1-D, odd margin, last window moved": ((17,), (4,), (3,), (7,)),
    "1-D, image smaller than the patch": ((5,), (2,), (1,), (8,)),
    "every window": ((9, 11), (3, 3), (1, 1), (5, 5)),
    "odd margin": ((9, 11), (3, 3), (2, 2), (6, 6)),
    "oblong": ((9, 11), (3, 2), (2, 1), (6, 5)),
    "strides that do not divide": ((9, 11), (4, 3), (3, 3), (5, 6)),
    "image smaller than the patch": ((5, 11), (3, 3), (2, 2), (8, 6)),
    "image smaller than an odd patch": ((4, 5), (2, 3), (1, 1), (7, 8)),
    "single pixels": ((6, 7), (1, 1), (1, 1), (4, 3)),
    "window as tall as the image": ((4, 9), (4, 2), (1, 2), (6, 5)),
    "3-D": ((5, 6, 4), (2, 3, 2), (1, 2, 1), (4, 5, 3)),
    "3-D, smaller than the patch": ((3, 5, 4), (2, 2, 1), (1, 2, 3), (4, 4, 5)),
}
every_place = pytest.mark.parametrize("place", PLACES)
every_covariance = pytest.mark.parametrize("covariance", ["stationary", "full"])
every_channels = pytest.mark.parametrize("channels", ["joint", "independent"])


@every_place
@every_covariance
@every_channels
def test_conditional_mean(place, covariance, channels):
    space, window, strides, patch = PLACES[place]
    images = make_images(2, CHANNELS[len(space)], space, seed=5)
    gaussian = reference_gaussian(patch, covariance, channels)
    expected = np.stack(
        [reference.conditional_means(gaussian, image, window, strides) for image in images]
    )
    prior, inputs = fitted_prior(patch, covariance, channels), torch.from_numpy(images)
    grid = WindowGrid(space, window, strides)
    assert_same(means_of(prior, inputs, grid), expected)
    assert_same(means_of(prior, inputs, grid[1:3]), expected[:, 1:3])


@every_covariance
@every_channels
def test_samples_have_the_conditional_mean_and_covariance(covariance, channels):
    n_samples, window, strides = 4000, (2, 2), (3, 4)
    images = two_images()
    gaussian = reference_gaussian(PATCH, covariance, channels)
    samples = samples_of(
        fitted_prior(PATCH, covariance, channels),
        torch.from_numpy(images),
        WindowGrid((9, 11), window, strides),
        n_samples,
        torch.Generator().manual_seed(1),
    )
    scores = []
    for n, image in enumerate(images):
        for w, corner in enumerate(reference.window_corners((9, 11), window, strides)):
            mean, cov = reference.condition_window(gaussian, image, corner, window)
            drawn = samples[:, n, w].flatten(1).numpy()
            variance = np.diag(cov)
            scores.append((drawn.mean(axis=0) - mean.ravel()) / np.sqrt(variance / n_samples))
            # A sample covariance has the variance (S_ii S_jj + S_ij^2) / n.
            spread = np.sqrt((np.outer(variance, variance) + cov**2) / n_samples)
            deviation = drawn - mean.ravel()
            scores.append(((deviation.T @ deviation / n_samples - cov) / spread).ravel())
    scores = np.concatenate(scores)
    assert np.abs(scores).max() < 5.5
    # Too good would be as wrong as too bad.
    assert 0.9 < np.sqrt(np.mean(scores**2)) < 1.1


def test_examples_and_windows_get_draws_of_their_own():
    inputs = torch.from_numpy(np.repeat(two_images()[:1], 2, axis=0))
    prior, grid = fitted_prior(PATCH), WindowGrid((9, 11), (2, 2), (1, 1))
    samples = samples_of(prior, inputs, grid, 400, torch.Generator().manual_seed(1))
    noise = (samples - means_of(prior, inputs, grid))[..., 0, 0, 0].flatten(1)
    correlation = torch.corrcoef(noise.T).fill_diagonal_(0)
    # Of n draws, uncorrelated ones correlate by about 1 / sqrt(n).
    assert correlation.abs().max() < 6 / 400**0.5


# The three algorithms


@pytest.mark.parametrize("algorithm", ["efficient", "sampled", "gradient", "pixelwise gradient"])
@every_model_and_measure
def test_maps(algorithm, name, measure):
    model, output, targets = MODELS[name]
    images, fills, prior = two_images(), reference_means(), fitted_prior(PATCH)
    given = {"target": targets, "sliding_window_shapes": WINDOW, "strides": STRIDES}
    library, oracle, ways = EfficientPDA, reference.efficient_pda, [{}]
    if algorithm in ("efficient", "sampled"):
        ways = [{}, {"perturbations_per_eval": 7}]
    if algorithm == "sampled":
        library, oracle = SampledPDA, reference.sampled_pda
        fills = make_draws(images, 3, WINDOW, STRIDES)
        prior, given["n_samples"] = FixedDraws(images, fills, WINDOW, STRIDES), 3
    elif "gradient" in algorithm:
        library, oracle = GradientPDA, reference.gradient_pda
        if given.setdefault("pixelwise", algorithm.startswith("pixelwise")):
            oracle = reference.pixelwise_gradient_pda
    expected = expected_maps(oracle, model, images, fills, targets, output, measure)
    pda = library(model, prior, output, measure)
    for way in ways:
        assert_same(pda.attribute(torch.from_numpy(images), **given, **way), expected)


@pytest.mark.parametrize("algorithm", ["efficient", "sampled"])
@every_model_and_measure
def test_evidence_for_every_output_and_contrast(algorithm, name, measure):
    model, output, _ = MODELS[name]
    images = two_images()
    inputs = torch.from_numpy(images)
    windows = {"sliding_window_shapes": WINDOW, "strides": STRIDES}
    if algorithm == "efficient":
        oracle, fills = reference.efficient_pda, reference_means()
        evidence = EfficientPDA(model, fitted_prior(PATCH), output, measure).evidence(
            inputs, **windows
        )
    else:
        oracle, fills = reference.sampled_pda, make_draws(images, 2, WINDOW, STRIDES)
        prior = FixedDraws(images, fills, WINDOW, STRIDES)
        evidence = SampledPDA(model, prior, output, measure).evidence(
            inputs, **windows, n_samples=2
        )
    n_outputs = model(inputs).shape[1]

    def expected(targets, of=measure):
        return expected_maps(oracle, model, images, fills, targets, output, of)

    for target in range(n_outputs):
        assert_same(evidence.attribution(target), expected([target] * 2))
    if n_outputs > 1:
        first, second = [n_outputs - 1, 0], [1, 2]
        # In bits, a contrast is that of log2 p(first)/p(second) with and without the window.
        of = "information_difference" if measure == "weight_of_evidence" else measure
        assert_same(
            evidence.contrast(first, second), expected(first, of=of) - expected(second, of=of)
        )


# Other priors


def test_empirical_mean_prior_replaces_windows_by_the_mean_of_the_draws():
    model, output, targets = MODELS["softmax logits"]
    images = two_images()
    draws = make_draws(images, 5, WINDOW, STRIDES)
    prior = EmpiricalMeanPrior(FixedDraws(images, draws, WINDOW, STRIDES), n_samples=5)
    means = draws.sum(axis=1) / 5
    for library, oracle in (
        (EfficientPDA, reference.efficient_pda),
        (GradientPDA, reference.gradient_pda),
    ):
        found = library(model, prior).attribute(
            torch.from_numpy(images), targets, sliding_window_shapes=WINDOW, strides=STRIDES
        )
        settings = means, targets, output, "weight_of_evidence"
        assert_same(found, expected_maps(oracle, model, images, *settings))
