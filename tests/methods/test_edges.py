"""Numbers at the edge: almost certain predictions, flat images, tiny images, one class and many."""

import math

import numpy as np
import pytest
import reference
import torch
from conftest import make_classifier, make_convolutional, make_images
from torch import nn

from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    GaussianFieldPrior,
    GaussianPatchPrior,
    GradientPDA,
    MarginalPrior,
    SampledPDA,
)

MEASURES = ("weight_of_evidence", "probability_difference", "information_difference")
WINDOW, STRIDES = (3, 4), (2, 3)
ORACLES = {
    EfficientPDA: reference.efficient_pda,
    SampledPDA: reference.sampled_pda,
    GradientPDA: reference.gradient_pda,
}


class Certain(nn.Module):
    """A linear model of two classes whose log-odds for the image it is made for are ``gap``."""

    def __init__(self, image, gap, probabilities=False):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = torch.randn(image.shape[1:], generator=generator, dtype=torch.float64)
        self.gain = gap / float((self.weight * image).sum())
        self.probabilities = probabilities

    def forward(self, x):
        odds = (x * self.weight.to(x)).flatten(1).sum(1) * self.gain
        logits = torch.stack([odds / 2, -odds / 2], dim=1)
        return logits.softmax(dim=1) if self.probabilities else logits


def occluded_map(method, model, image, target, output, measure):
    """The oracle's map with every window replaced by zeros."""
    corners = reference.window_corners(image.shape[2:], WINDOW, STRIDES)
    fills = np.zeros((len(corners), image.shape[1], *WINDOW))
    expected = ORACLES[method](
        model,
        image[0].double().numpy(),
        fills[None] if method is SampledPDA else fills,
        WINDOW,
        STRIDES,
        target,
        output,
        measure,
    )
    return torch.tensor(np.broadcast_to(expected, image.shape))


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("gap", [math.log(1e12), -math.log(1e12), 1e4, -1e4, 2e4])
def test_logits_of_almost_certain_predictions(method, gap, dtype, measure):
    image = make_images(1, 3, 9, 11)
    model = Certain(image, gap)
    arguments = {"sliding_window_shapes": WINDOW, "strides": STRIDES}
    pda = method(model, ConstantPrior(0.0), measure=measure)
    for target in (0, 1):
        actual = pda.attribute(image.to(dtype), target=target, **arguments)
        expected = occluded_map(method, model, image, target, "logits", measure)
        assert actual.isfinite().all()
        # The oracle rounds p and log p to units of 1.
        allowed = 100 * torch.finfo(dtype).eps * max(1, float(expected.abs().max()))
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("measure", MEASURES)
def test_probabilities_of_almost_certain_predictions(method, measure):
    image = make_images(1, 3, 9, 11)
    gap = math.log(1e12)
    pda = method(
        Certain(image, gap, probabilities=True), ConstantPrior(0.0), "probabilities", measure
    )
    arguments = {"sliding_window_shapes": WINDOW, "strides": STRIDES}
    for target in (0, 1):
        actual = pda.attribute(image, target=target, **arguments)
        # From logits, since in probabilities the oracle itself loses 1 - p.
        expected = occluded_map(method, Certain(image, gap), image, target, "logits", measure)
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [0.0, 3.0, -1e-8, 1e4])
def test_a_flat_image_has_no_evidence(method, dtype, value):
    image = torch.full((1, 3, 9, 11), value, dtype=dtype)
    model = make_convolutional().to(dtype)
    attributions = method(model).attribute(image, target=1)
    torch.testing.assert_close(attributions, torch.zeros_like(attributions), rtol=0, atol=1e-5)


@pytest.mark.parametrize("channels", ["joint", "independent"])
def test_a_single_colour_has_no_evidence(method, channels):
    """Each channel flat at a level of its own: the covariance is zero."""
    image = torch.tensor([0.2, -3.0, 50.0]).double().reshape(1, 3, 1, 1).expand(1, 3, 9, 11)
    prior = GaussianPatchPrior(7, channels=channels).fit(image)
    for chosen in (prior, None):
        attributions = method(make_classifier(), chosen).attribute(image, target=1)
        torch.testing.assert_close(attributions, torch.zeros_like(attributions), rtol=0, atol=1e-9)


@pytest.mark.parametrize("flat", [(), (1,)], ids=["grey", "grey with a flat channel"])
@pytest.mark.parametrize("channels", ["joint", "independent"])
def test_channels_that_say_the_same(channels, flat):
    """The covariance of a grey photo in three channels is singular."""
    image = make_images(1, 1, 9, 11).repeat(1, 3, 1, 1)
    image[:, list(flat)] = 0.5
    prior = GaussianPatchPrior(7, channels=channels).fit(image)
    pda = EfficientPDA(make_classifier(), prior, engine="dense")
    actual = pda.attribute(image, target=1, sliding_window_shapes=WINDOW, strides=STRIDES)
    gaussian = reference.fit_gaussian([image[0].numpy()], (7, 7), "stationary", channels, 1e-5)
    if flat and channels == "independent":  # the oracle has no loading for it: any will do
        matrix = gaussian.covariance.reshape(3, 49, 3, 49)
        matrix[1, range(49), 1, range(49)] = 1.0
    means = reference.conditional_means(gaussian, image[0].numpy(), WINDOW, STRIDES)
    expected = reference.efficient_pda(
        make_classifier(),
        image[0].numpy(),
        means,
        WINDOW,
        STRIDES,
        1,
        "logits",
        "weight_of_evidence",
    )
    torch.testing.assert_close(actual[0, 0].numpy(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("space", [(1,), (1, 1), (1, 7), (1, 1, 1), (2, 1, 3)])
def test_the_smallest_images(method, space):
    image = make_images(1, 2, *space)
    model = make_classifier(dims=len(space), channels=2)
    attributions = method(model).attribute(image, target=1)
    assert attributions.shape == image.shape
    assert attributions.isfinite().all()


@pytest.mark.parametrize(
    ("prior", "level"),
    [
        (None, 0.0),
        (GaussianFieldPrior(), None),
        (GaussianPatchPrior(12), None),
        (GaussianPatchPrior(9), None),
    ],
)
def test_a_window_as_large_as_the_image(perturbation_method, prior, level):
    """Nothing is left to condition on: each channel's fitted mean stands in, or 0."""
    if perturbation_method is SampledPDA and prior is not None:
        pytest.skip("samples of a fitted prior vary even where nothing is seen")
    image, model = make_images(1, 3, 9, 9), make_classifier()
    pda = perturbation_method(model, prior and prior.fit(image))
    attributions = pda.attribute(image, target=1, sliding_window_shapes=9)
    mean = image.mean(dim=(2, 3), keepdim=True) if level is None else image.new_tensor(level)
    with torch.no_grad():
        seen, unseen = (model(x).log_softmax(dim=1)[0] for x in (image, mean.expand_as(image)))
    bits = [(z[1] - torch.log1p(-z[1].exp())) / math.log(2) for z in (seen, unseen)]
    expected = (bits[0] - bits[1]).expand_as(image)
    torch.testing.assert_close(attributions, expected)


def test_one_class_that_is_always_certain(perturbation_method):
    model = nn.Sequential(make_classifier(classes=1), nn.Softmax(dim=1))
    pda = perturbation_method(model.eval(), output="probabilities")
    with pytest.warns(UserWarning, match="only a bound"):
        attributions = pda.attribute(make_images(1, 3, 9, 11))
    assert torch.equal(attributions, torch.zeros_like(attributions))


def test_rounded_probabilities_have_no_slope(images):
    steep = Certain(images[:1], 1e4, probabilities=True)
    with pytest.warns(UserWarning, match="only a bound"):
        GradientPDA(steep, output="probabilities").attribute(images[:1], target=1)


def test_a_prediction_that_is_rounded_only_where_everything_is_seen(perturbation_method):
    """A sigmoid rounded to 1 with everything seen, and not without any window."""
    image = torch.ones(1, 1, 4, 4, dtype=torch.float64)

    def sigmoid(x):
        return torch.sigmoid((x.flatten(1).sum(1, keepdim=True) - 12) * 20)

    pda = perturbation_method(sigmoid, ConstantPrior(0.0), output="probabilities")
    with pytest.warns(UserWarning, match="only a bound"):
        pda.attribute(image, sliding_window_shapes=2, strides=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_are_close_to_exact_ones(method, dtype):
    image = make_images(1, 3, 9, 11).to(dtype)
    model = make_convolutional().to(dtype)
    prior = MarginalPrior().fit(make_images(4, 3, 9, 11, seed=5).to(dtype))
    half = method(model, prior).attribute(image, target=1)
    exact = method(model.double(), prior).attribute(image.double(), target=1)
    assert half.dtype == torch.float32
    allowed = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(half.double(), exact, rtol=allowed, atol=allowed)
