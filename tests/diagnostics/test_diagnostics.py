"""The paper's experiments as functions: against the oracle and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from torch import Tensor, nn

from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianPatchPrior,
    GradientPDA,
    SampledPDA,
    WindowGrid,
    diagnostics,
)


class Symmetric:
    """Draws in pairs around a conditional mean of 0.5, the same whatever the generator."""

    def conditional_mean(self, example: Tensor, regions: WindowGrid) -> Tensor:
        shape = (len(regions), len(example), *regions.window)
        return torch.full(shape, 0.5, dtype=example.dtype)

    def sample(self, example, regions, n_samples, generator=None) -> Tensor:
        mean = self.conditional_mean(example, regions)
        fixed = torch.Generator().manual_seed(9)
        half = torch.randn(n_samples // 2, *mean.shape[1:], generator=fixed, dtype=mean.dtype)
        away = torch.cat([half, -half])[:, None]
        return mean + away.expand(-1, *mean.shape)[..., : mean.shape[-1]]


class Noise:
    """Independent normal pixels around zero."""

    spread = 0.7

    def conditional_mean(self, example: Tensor, regions: WindowGrid) -> Tensor:
        return example.new_zeros(len(regions), len(example), *regions.window)

    def sample(self, example, regions, n_samples, generator=None) -> Tensor:
        shape = (n_samples, len(regions), len(example), *regions.window)
        return self.spread * torch.randn(shape, generator=generator, dtype=example.dtype)


def linear_model(units: int = 3, shape: tuple[int, ...] = (3, 9, 11), seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), units)).double().eval()


def error_of(pda, images, target=None, n_samples=2, **options):
    return diagnostics.conditional_mean_error(pda, images, target, n_samples=n_samples, **options)


WRONG = {
    "a corner outside": (
        lambda pda, x: error_of(pda, x, windows=[(6, 0)]),
        r"starts at \(6, 0\)",
    ),
    "no windows": (lambda pda, x: error_of(pda, x, windows=0), "windows=0 must be"),
    "one sample": (lambda pda, x: error_of(pda, x, n_samples=1), "2 or more"),
    "windows elsewhere": (
        lambda pda, x: pda.evidence(x, regions=WindowGrid((9, 9), (4, 4), (1, 1))),
        "regions lie in spaces of",
    ),
    "no region": (
        lambda pda, x: pda.evidence(x, regions=WindowGrid((9, 11), (4, 4), (1, 1)).pick([])),
        "holds no region",
    ),
    "a map of some windows": (
        lambda pda, x: pda.evidence(x, regions=WindowGrid((9, 11), (4, 4), (1, 1))[:3]).attribution(
            1
        ),
        "whole grid",
    ),
    "another layer": (
        lambda pda, x: diagnostics.activation_statistics(pda, x[:1], nn.Identity()),
        "was not called",
    ),
    "activations of two examples": (
        lambda pda, x: diagnostics.activation_statistics(pda, x, pda.forward_func[4]),
        "2 examples",
    ),
    "both sides of a layer": (
        lambda pda, x: diagnostics.activation_statistics(pda, x[:1], pda.forward_func, of="both"),
        "of='both'",
    ),
    "convergence of three windows": (
        lambda pda, x: diagnostics.sampling_convergence(pda, x[:1], windows=3),
        "3 windows.*windows=1",
    ),
    "maps of other shapes": (
        lambda pda, x: diagnostics.map_agreement({"a": x, "b": x[:1]}),
        "different shapes",
    ),
    "a map of another shape": (
        lambda pda, x: diagnostics.symmetric_relevance_gain(pda.forward_func, x, x[..., 2:]),
        "attributions have shape",
    ),
    "raw outputs without a target": (
        lambda pda, x: diagnostics.symmetric_relevance_gain(pda.forward_func, x, x, output="raw"),
        "target is missing",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_makes_no_sense_is_named(classifier, images, kind):
    ask, message = WRONG[kind]
    with pytest.raises(ValueError, match=message):
        ask(EfficientPDA(classifier), images)
    with pytest.raises(TypeError, match=r"windows must be an int, got 0\.5"):
        error_of(EfficientPDA(classifier), images, windows=0.5)


# How good a prior is


def test_the_quality_of_a_prior_is_its_error_and_what_survives(classifier, images):
    """A prior that knows nothing errs by the image itself, and a perfect one not at all."""
    mask = (torch.arange(9)[:, None] // 3 * 4 + torch.arange(11) // 3)[None, None]
    blank = diagnostics.prior_quality(ConstantPrior(0.0), images, classifier, feature_mask=mask)
    torch.testing.assert_close(blank.error, images.square().mean(dim=(1, 2, 3)).sqrt())
    field = diagnostics.prior_quality(None, images, feature_mask=mask)
    assert (field.error < blank.error).all()
    assert field.surviving is None
    assert blank.surviving.shape == (2, 3)
    assert "of the class's probability survive" in str(blank)
    blind = diagnostics.prior_quality(None, images, lambda x: 0 * x[:, :2].mean(dim=(2, 3)))
    torch.testing.assert_close(blind.surviving, torch.ones(2, 3).double())
    with pytest.raises(ValueError, match="shares"):
        diagnostics.prior_quality(None, images, shares=(0.5, 1.5))


# The conditional mean against samples


@pytest.mark.parametrize("measure", ["weight_of_evidence", "probability_difference"])
def test_conditional_mean_error_is_the_oracles(measure, classifier, images):
    corners, target, n_samples = [(0, 0), (2, 5)], 2, 6
    pda = EfficientPDA(classifier, prior=Symmetric(), measure=measure)
    found = diagnostics.conditional_mean_error(
        pda,
        images,
        target,
        windows=corners,
        sliding_window_shapes=4,
        n_samples=n_samples,
    )
    grid = WindowGrid((9, 11), (4, 4), (1, 1)).pick([0, 2 * 8 + 5])
    for number, image in enumerate(images.numpy()):
        seen = reference.predict(classifier, image, target, "logits")
        draws = Symmetric().sample(images[number], grid, n_samples).numpy()
        for window, corner in enumerate(corners):

            def predicted(fill, corner=corner, image=image):
                changed = image.copy()
                changed[reference.block(corner, (4, 4))] = fill
                return reference.predict(classifier, changed, target, "logits")

            at_mean = predicted(0.5)
            averaged = reference.average_predictions([predicted(d) for d in draws[:, window]])
            for prediction, evidence, without in (
                (at_mean, found.efficient, found.efficient_without),
                (averaged, found.sampled, found.sampled_without),
            ):
                value = reference.measured(seen, measure) - reference.measured(prediction, measure)
                assert evidence[number, window] == pytest.approx(value, abs=1e-9)
                assert without[number, window] == pytest.approx(np.exp(prediction.log_p))
    torch.testing.assert_close(found.error, found.efficient - found.sampled)
    assert found.corners.tolist() == [list(corner) for corner in corners]
    assert "6 samples, 2 examples x 2 windows" in str(found)


def test_beyond_sampling_takes_the_samplings_error_off(images):
    """For a linear model all of the difference is sampling noise; a curved one adds its own."""
    linear = EfficientPDA(linear_model(), prior=Noise(), output="raw")
    found = diagnostics.conditional_mean_error(linear, images, 1, windows=40, n_samples=20)
    noise = found.standard_error.square().mean().sqrt()
    assert found.root_mean_square == pytest.approx(float(noise), rel=0.3)
    assert found.beyond_sampling < 0.5 * found.root_mean_square

    # E[x^2] - E[x]^2 of 4 x 4 x 3 pixels is the error, whatever stands elsewhere.
    curved = EfficientPDA(
        lambda x: x.square().flatten(1).sum(1, keepdim=True), prior=Noise(), output="raw"
    )
    found = diagnostics.conditional_mean_error(curved, images, windows=10, n_samples=200)
    assert found.beyond_sampling == pytest.approx(48 * Noise.spread**2, rel=0.05)


def test_windows_and_targets_that_are_not_given(classifier, images):
    """Random windows follow the generator, and the target is the predicted class."""
    pda = EfficientPDA(classifier, prior=Symmetric())
    first, same, other = (
        error_of(pda, images, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert len(first.corners) == 8
    assert first.corners.tolist() == same.corners.tolist() != other.corners.tolist()
    named = error_of(
        pda, images, classifier(images).argmax(1), generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(first.efficient, named.efficient)
    assert len(error_of(pda, images, 0, windows=10_000).corners) == 6 * 8


# More and more samples


def test_convergence_of_a_linear_model_is_that_of_a_mean(images):
    model = linear_model()
    found = diagnostics.sampling_convergence(
        EfficientPDA(model, prior=Noise(), output="raw"),
        images[:1],
        target=1,
        windows=[(1, 2)],
        sliding_window_shapes=4,
        n_samples=64,
        repeats=150,
    )
    weights = model[1].weight[1].detach().reshape(3, 9, 11)[:, 1:5, 2:6]
    spread = Noise.spread * weights.norm() / found.n_samples.sqrt()
    assert found.sampled.shape == (150, 64)
    torch.testing.assert_close(found.spread, spread.double(), rtol=0.3, atol=0)
    final = found.sampled[:, -1].mean() - found.efficient
    assert final.abs() < 5 * spread[-1] / 150**0.5
    torch.testing.assert_close(found.difference, (found.sampled - found.efficient).abs())
    assert "after 64 samples" in str(found)


# Activations


def test_activations_of_a_linear_layer_have_their_closed_form():
    """With the window's mean at zero, E[ReLU(a)] - ReLU(E[a]) = sigma / sqrt(2 pi)."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(48, 30, bias=False), nn.ReLU(inplace=True), nn.Linear(30, 2)
    ).double()
    model.eval()
    image = torch.zeros(1, 3, 4, 4, dtype=torch.float64)
    found = diagnostics.activation_statistics(
        EfficientPDA(model, prior=Noise()),
        image,
        model[1],
        windows=1,
        sliding_window_shapes=4,
        n_samples=4000,
    )
    sigma = Noise.spread * model[1].weight.detach().norm(dim=1)
    torch.testing.assert_close(found.standard_deviation, sigma, rtol=0.06, atol=0)
    assert (found.mean.abs() < 5 * sigma / 4000**0.5).all()
    assert (found.at_conditional_mean == 0).all()
    expected = sigma / math.sqrt(2 * math.pi)
    torch.testing.assert_close(found.rectifier_error, expected, rtol=0.15, atol=0)
    assert "30 units over 4000 samples" in str(found)


def test_activations_are_those_of_the_layer(classifier, images):
    image, layer = images[:1], classifier[4]
    settings = {"windows": [(2, 3)], "sliding_window_shapes": 4, "n_samples": 3}
    pda = EfficientPDA(classifier, prior=Noise())
    outputs = diagnostics.activation_statistics(pda, image, layer, **settings)
    inputs = diagnostics.activation_statistics(pda, image, layer, of="input", **settings)
    changed = image.clone()
    changed[..., 2:6, 3:7] = 0
    with torch.no_grad():
        torch.testing.assert_close(outputs.at_conditional_mean, classifier(changed)[0])
        torch.testing.assert_close(outputs.unperturbed, classifier(image)[0])
        torch.testing.assert_close(inputs.at_conditional_mean, classifier[:4](changed)[0])
        torch.testing.assert_close(layer(inputs.unperturbed), outputs.unperturbed)
    torch.testing.assert_close(outputs.error, outputs.at_conditional_mean - outputs.mean)


def test_no_hook_stays_behind(classifier, images):
    layer = classifier[0]

    def broken(inputs: Tensor) -> Tensor:
        classifier(inputs)
        raise RuntimeError("broken")

    diagnostics.activation_statistics(EfficientPDA(classifier), images[:1], layer, n_samples=2)
    with pytest.raises(RuntimeError, match="broken"):
        diagnostics.activation_statistics(EfficientPDA(broken), images[:1], layer, n_samples=2)
    for module in classifier.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


# Maps that agree


def test_correlations_are_numpys():
    generator = torch.Generator().manual_seed(0)
    maps = {name: torch.randn(2, 1, 5, 6, generator=generator) for name in ("a", "b", "c")}
    found = diagnostics.map_agreement(maps)
    for number in range(2):
        rows = np.stack([each[number].numpy().reshape(-1) for each in maps.values()])
        np.testing.assert_allclose(found.correlations[number], np.corrcoef(rows), atol=1e-6)
        np.testing.assert_allclose(found.sizes[number], np.sqrt((rows**2).mean(1)), rtol=1e-6)
    assert torch.equal(found.correlation("a", "c"), found.correlations[:, 0, 2])
    assert str(found).count("\n") == 2
    with pytest.raises(ValueError, match="'d'"):
        found.correlation("a", "d")
    flat = diagnostics.map_agreement({"flat": torch.full_like(maps["a"], 0.1), **maps})
    assert flat.correlation("flat", "a").isnan().all()


def test_algorithm_agreement_is_of_the_algorithms_own_maps(classifier, images):
    prior = GaussianPatchPrior(8).fit(images)
    found = diagnostics.algorithm_agreement(
        EfficientPDA(classifier, prior=prior, engine="dense"),
        images,
        [1, 2],
        sliding_window_shapes=4,
        strides=2,
        n_samples=3,
        generator=torch.Generator().manual_seed(3),
    )
    generator = torch.Generator().manual_seed(3)
    averaged = EmpiricalMeanPrior(prior, 3, generator)
    arguments = {"target": [1, 2], "sliding_window_shapes": 4, "strides": 2}
    expected = {
        "conditional mean": EfficientPDA(classifier, prior).attribute(images, **arguments),
        "empirical mean": EfficientPDA(classifier, averaged).attribute(images, **arguments),
        "sampled": SampledPDA(classifier, prior).attribute(
            images, n_samples=3, generator=generator, **arguments
        ),
        "gradient": GradientPDA(classifier, prior).attribute(images, **arguments),
    }
    for name, attribution in expected.items():
        torch.testing.assert_close(found.maps[name], attribution)
    assert not torch.equal(found.maps["sampled"], found.maps["sampled again"])
