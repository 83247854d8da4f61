"""What the paper proves, shown to hold for what the library computes."""

import math

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
