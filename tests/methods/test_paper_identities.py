"""What the paper proves, shown to hold for what the library computes."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from captum_pda import EfficientPDA, GaussianPatchPrior, SampledPDA, WindowGrid

SPACE, WINDOW, STRIDES = (6, 7), (3, 3), (2, 2)
WINDOWS = {"sliding_window_shapes": WINDOW, "strides": STRIDES}


def make_image(seed=0):
    noise = torch.randn(1, 2, *SPACE, generator=torch.Generator().manual_seed(seed)).double()
    return noise + 0.7 * noise.roll(1, 2) + 0.7 * noise.roll(1, 3)


def linear_model(outputs=4, gain=1.0, seed=0):
    """Logits that are linear in the image."""
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(2 * math.prod(SPACE), outputs).double().requires_grad_(False)
    linear.weight.copy_(gain * torch.randn(linear.weight.shape, generator=generator) / 5)
    linear.bias.copy_(torch.linspace(-1, 1, outputs))
    return nn.Sequential(nn.Flatten(), linear).eval()


def curved_model(seed=0):
    """Logits that are far from linear in the image."""
    last = nn.Linear(6, 4).double().requires_grad_(False)
    last.weight.copy_(torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)))
    last.bias.zero_()
    return nn.Sequential(linear_model(6, seed=seed), nn.Tanh(), last).eval()


class Mirrored:
    """Draws in pairs at equal distances either side of the conditional mean, so that their mean is
    the conditional mean exactly."""

    def __init__(self, prior):
        self.prior = prior

    def conditional_mean(self, example, regions):
        return self.prior.conditional_mean(example, regions)

    def sample(self, example, regions, n_samples, generator=None):
        mean = self.conditional_mean(example, regions)
        away = self.prior.sample(example, regions, n_samples // 2, generator) - mean
        return torch.cat([mean + away, mean - away])


class Normal:
    """Every value of every window is independent and normal, whatever surrounds it.

    Draws of a value are the quantiles of its distribution, in an order of their own.
    """

    def __init__(self, mean, deviation):
        self.mean = mean
        self.deviation = deviation

    def conditional_mean(self, example, regions):
        shape = (len(regions), len(example), *regions.window)
        return torch.full(shape, self.mean, dtype=example.dtype)

    def sample(self, example, regions, n_samples, generator=None):
        mean = self.conditional_mean(example, regions)
        levels = (torch.arange(n_samples, dtype=example.dtype) + 0.5) / n_samples
        quantiles = math.sqrt(2) * torch.erfinv(2 * levels - 1)
        shuffled = torch.stack(
            [
                quantiles[torch.randperm(n_samples, generator=generator)]
                for _ in range(mean.numel())
            ],
            dim=1,
        )
        return mean + self.deviation * shuffled.reshape(n_samples, *mean.shape)


def bits_of_odds(logits):
    """log2 odds of every class (..., classes)."""
    p = torch.softmax(logits, dim=-1)
    return torch.log2(p / (1 - p))


def geometric_mean_evidence(model, prior, image, n_samples):
    """SampledPDA with the normalised geometric mean in place of the arithmetic one, (W, classes).

    By the first identity it is the softmax of the mean logits, and raw outputs are averaged as
    they are.
    """
    logits = SampledPDA(model, prior, output="raw").evidence(
        image, **WINDOWS, n_samples=n_samples, generator=torch.Generator().manual_seed(1)
    )
    return (bits_of_odds(logits.scores)[:, None] - bits_of_odds(logits.parts[0].scores))[0]


def window_values(evidence, outputs=4):
    """Each window's evidence for every class, (W, classes)."""
    return torch.stack([evidence.window_values(c)[0] for c in range(outputs)], dim=-1)


# The normalised geometric mean


def test_normalised_geometric_mean_of_softmaxes_is_the_softmax_of_mean_logits():
    model, image = curved_model(), make_image()
    prior, grid = GaussianPatchPrior(6).fit(image), WindowGrid(SPACE, WINDOW, STRIDES)

    class Recorded:
        def sample(self, *arguments):
            self.draws = prior.sample(*arguments)
            return self.draws

    recorded = Recorded()
    mean_logits = SampledPDA(model, recorded, output="raw").evidence(image, **WINDOWS, n_samples=5)
    for window, corner in enumerate(grid.corners.tolist()):
        product = torch.ones(4, dtype=torch.float64)
        for draw in recorded.draws[:, window]:
            perturbed = image.clone()
            row, column = corner
            perturbed[0, :, row : row + 3, column : column + 3] = draw
            product *= torch.softmax(model(perturbed)[0], dim=0) ** (1 / 5)
        torch.testing.assert_close(
            torch.softmax(mean_logits.parts[0].scores[0, window], dim=0),
            product / product.sum(),
            rtol=1e-12,
            atol=1e-12,
        )


def test_efficient_pda_is_the_geometric_form_of_sampled_pda_for_linear_logits():
    model, image = linear_model(), make_image()
    prior = Mirrored(GaussianPatchPrior(6).fit(image))
    efficient = window_values(EfficientPDA(model, prior).evidence(image, **WINDOWS))
    geometric = geometric_mean_evidence(model, prior, image, n_samples=6)
    torch.testing.assert_close(efficient, geometric, rtol=1e-10, atol=1e-10)
    # The same draws' arithmetic mean, Algorithm 1 itself, is another number,
    draws = {"n_samples": 6, "generator": torch.Generator().manual_seed(1)}
    arithmetic = window_values(SampledPDA(model, prior).evidence(image, **WINDOWS, **draws))
    assert (arithmetic - geometric).abs().max() > 0.05
    # and for curved logits the two forms differ.
    curved = curved_model()
    efficient = window_values(EfficientPDA(curved, prior).evidence(image, **WINDOWS))
    assert (efficient - geometric_mean_evidence(curved, prior, image, 6)).abs().max() > 0.01


@pytest.mark.parametrize("sign", [-1, 1])
def test_geometric_mean_of_sigmoids_lies_beyond_the_arithmetic_mean(sign):
    """Below it for negative logits, above it for positive ones."""
    linear, image, passes = linear_model(outputs=1, gain=0.3), make_image(), []
    # The image's own logit is 3 or -3, far enough from zero for all draws to share its sign.
    linear[1].bias += sign * 3 - linear(image)[0]

    def model(x):
        passes.append(linear(x))
        return passes[-1]

    prior = Mirrored(GaussianPatchPrior(6).fit(image))
    draws = {"n_samples": 40, "generator": torch.Generator().manual_seed(1)}
    probability = {"measure": "probability_difference"}
    arithmetic = SampledPDA(model, prior, **probability).evidence(image, **WINDOWS, **draws)
    n_sampled = len(passes)
    geometric = EfficientPDA(model, prior, **probability).evidence(image, **WINDOWS)
    for logits in (passes[:n_sampled], passes[n_sampled:]):
        del logits[1:3]  # the passes that check the model
        assert len(logits) > 1
        assert (sign * torch.cat(logits) > 0).all()
    # Both leave the same p(x) behind, so the window's evidence is less where p without it is more.
    difference = arithmetic.window_values(0) - geometric.window_values(0)
    assert (sign * difference > 1e-6).all()


# Piece-wise linear units


def maxout(weights, biases):
    """The maximum of linear functions of all the image's values."""
    return lambda image: (image.flatten(1) @ weights.T + biases).amax(dim=1, keepdim=True)


def expectation_and_value_at_mean(unit, prior, values, n_samples):
    """E[h(x)] by SampledPDA, and h(E[x]) by EfficientPDA, for an image that is one window."""
    image = torch.zeros(1, 1, values, dtype=torch.float64)
    whole = {"sliding_window_shapes": values}
    seen = unit(image).item()
    draws = {"n_samples": n_samples, "generator": torch.Generator().manual_seed(1)}
    sampled = SampledPDA(unit, prior, output="raw").evidence(image, **whole, **draws)
    efficient = EfficientPDA(unit, prior, output="raw").evidence(image, **whole)
    return (seen - sampled.window_values().item(), seen - efficient.window_values().item())


def relu_error(mu, sigma):
    relu = maxout(torch.tensor([[1.0], [0.0]]).double(), torch.zeros(2).double())
    expected, at_mean = expectation_and_value_at_mean(relu, Normal(mu, sigma), 1, 100_000)
    assert at_mean == max(mu, 0)
    return expected - at_mean


@pytest.mark.parametrize("sigma", [0.1, 1.0, 7.0])
def test_relu_error_at_mean_zero(sigma):
    assert relu_error(0.0, sigma) == pytest.approx(sigma / math.sqrt(2 * math.pi), rel=1e-4)


@pytest.mark.parametrize("sign", [-1, 1])
def test_relu_error_vanishes_far_from_zero(sign):
    sigma = 0.5
    errors = [relu_error(sign * ratio * sigma, sigma) / sigma for ratio in (0, 1, 2, 3, 6)]
    assert all(after < before / 2 for before, after in pairwise(errors))
    # sigma phi(mu/sigma) - |mu| Phi(-|mu|/sigma), the integral of ReLU over the normal density
    assert errors[1] == pytest.approx(0.0833155, rel=1e-3)
    assert errors[2] == pytest.approx(0.0084907, rel=1e-3)
    assert abs(errors[4]) < 1e-9


@pytest.mark.parametrize("deviation", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("pieces", [2, 3, 8])
def test_maxout_bounds(pieces, deviation):
    rng = np.random.default_rng(pieces)
    values = 5
    weights = torch.from_numpy(rng.normal(size=(pieces, values)))
    biases = torch.from_numpy(rng.normal(size=pieces))
    unit = maxout(weights, biases)
    expected, at_mean = expectation_and_value_at_mean(unit, Normal(0.3, deviation), values, 20_000)
    mu = (weights.sum(dim=1) * 0.3 + biases).numpy()
    variance = (weights.square().sum(dim=1) * deviation**2).numpy()
    assert at_mean == pytest.approx(mu.max(), rel=1e-12)
    # Jensen's inequality holds for the draws themselves, whose mean is exact up to rounding.
    assert mu.max() - 1e-9 <= expected <= math.log(pieces) + (mu + variance / 2).max()
    assert abs(expected - at_mean) <= math.log(pieces) + variance.max() / 2


def test_maxout_error_against_its_closed_form():
    """E max(x, y) of two independent standard normals is 1 / sqrt(pi)."""
    unit = maxout(torch.eye(2).double(), torch.zeros(2).double())
    expected, at_mean = expectation_and_value_at_mean(unit, Normal(0.0, 1.0), 2, 200_000)
    assert at_mean == 0
    assert expected == pytest.approx(1 / math.sqrt(math.pi), abs=0.01)
