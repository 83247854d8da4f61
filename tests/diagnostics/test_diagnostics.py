"""The paper's experiments as functions: against the oracle and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from conftest import make_classifier
from torch import Tensor, nn

from captum_pda import (
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianFieldPrior,
    GaussianPatchPrior,
    GradientPDA,
    SampledPDA,
    WindowGrid,
    diagnostics,
)
from captum_pda.diagnostics import SomeWindows


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


# Some windows only


def test_evidence_of_some_windows_is_that_of_the_whole_grid(classifier, images):
    grid = WindowGrid((9, 11), (4, 4), (1, 1))
    pda = EfficientPDA(classifier, prior=GaussianPatchPrior(8).fit(images))
    whole = pda.evidence(images, sliding_window_shapes=4, strides=1).window_values(1)
    some = pda.evidence(images, regions=grid.pick([40, 3])).window_values(1)
    torch.testing.assert_close(some, whole[:, [40, 3]])


def test_some_windows_must_lie_in_the_inputs(classifier, images):
    pda = EfficientPDA(classifier)
    with pytest.raises(ValueError, match="regions lie in spaces of"):
        pda.evidence(images, regions=WindowGrid((9, 9), (4, 4), (1, 1)))
    with pytest.raises(ValueError, match="holds no region"):
        pda.evidence(images, regions=WindowGrid((9, 11), (4, 4), (1, 1)).pick([]))
    with pytest.raises(ValueError, match="whole grid"):
        pda.evidence(images, regions=WindowGrid((9, 11), (4, 4), (1, 1))[:3]).attribution(1)


# The conditional mean against samples


@pytest.mark.parametrize("measure", ["weight_of_evidence", "probability_difference"])
def test_conditional_mean_error_is_the_oracles(measure, classifier, images):
    corners, target, n_samples = [(0, 0), (2, 5)], 2, 6
    pda = EfficientPDA(classifier, prior=Symmetric(), measure=measure)
    found = diagnostics.conditional_mean_error(
        pda,
        images,
        target,
        windows=SomeWindows(corners=corners, sliding_window_shapes=4),
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


def test_the_conditional_mean_is_exact_for_a_linear_model(images):
    """Pairs of samples around the mean leave nothing but rounding."""
    pda = EfficientPDA(linear_model(), prior=Symmetric(), output="raw")
    found = diagnostics.conditional_mean_error(pda, images, 1, n_samples=10)
    assert found.sampled.abs().min() > 1e-3
    assert found.error.abs().max() < 1e-12
    assert found.prediction_error.abs().max() < 1e-12
    assert found.beyond_sampling == 0
    assert (found.standard_error > 1e-3).all()


def test_beyond_sampling_takes_the_samplings_error_off(images):
    """For a linear model all of the difference is sampling noise; a curved one adds its own."""
    linear = EfficientPDA(linear_model(), prior=Noise(), output="raw")
    found = diagnostics.conditional_mean_error(
        linear, images, 1, windows=SomeWindows(40), n_samples=20
    )
    noise = found.standard_error.square().mean().sqrt()
    assert found.root_mean_square == pytest.approx(float(noise), rel=0.3)
    assert found.beyond_sampling < 0.5 * found.root_mean_square

    # E[x^2] - E[x]^2 of 4 x 4 x 3 pixels is the error, whatever stands elsewhere.
    curved = EfficientPDA(
        lambda x: x.square().flatten(1).sum(1, keepdim=True), prior=Noise(), output="raw"
    )
    found = diagnostics.conditional_mean_error(
        curved, images, windows=SomeWindows(10), n_samples=200
    )
    assert found.beyond_sampling == pytest.approx(48 * Noise.spread**2, rel=0.05)


def test_windows_are_random_and_follow_the_generator(classifier, images):
    def corners(seed):
        found = diagnostics.conditional_mean_error(
            EfficientPDA(classifier),
            images,
            n_samples=2,
            generator=torch.Generator().manual_seed(seed),
        )
        return found.corners.tolist()

    assert len(corners(0)) == 8
    assert corners(0) == corners(0)
    assert corners(0) != corners(1)


def test_the_predicted_class_is_the_default_target(classifier, images):
    predicted = classifier(images).argmax(1)
    pda = EfficientPDA(classifier, prior=Symmetric())
    named = diagnostics.conditional_mean_error(pda, images, predicted, n_samples=4)
    torch.testing.assert_close(
        diagnostics.conditional_mean_error(pda, images, n_samples=4).efficient, named.efficient
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"corners": [(6, 0)]}, r"starts at \(6, 0\)"),
        ({"corners": [(0,)]}, "2 numbers"),
        ({"n": 0}, "n=0 must be"),
    ],
)
def test_wrong_windows_are_named(classifier, images, arguments, message):
    windows = SomeWindows(**arguments, sliding_window_shapes=4)
    with pytest.raises(ValueError, match=message):
        diagnostics.conditional_mean_error(EfficientPDA(classifier), images, 0, windows=windows)


def test_one_sample_has_no_standard_error(classifier, images):
    with pytest.raises(ValueError, match="2 or more"):
        diagnostics.conditional_mean_error(EfficientPDA(classifier), images, 0, n_samples=1)


def test_windows_of_a_grid_are_taken_as_they_are(classifier, images):
    pda, grid = EfficientPDA(classifier), WindowGrid((9, 11), (4, 4), (1, 1)).pick([2 * 8 + 5])
    found = diagnostics.conditional_mean_error(pda, images, 0, windows=grid, n_samples=2)
    some = SomeWindows(corners=[(2, 5)], sliding_window_shapes=4)
    named = diagnostics.conditional_mean_error(pda, images, 0, windows=some, n_samples=2)
    assert found.corners.tolist() == [[2, 5]]
    assert torch.equal(found.efficient, named.efficient)
    with pytest.raises(TypeError, match="windows must be SomeWindows or a WindowGrid, got 8"):
        diagnostics.conditional_mean_error(pda, images, 0, windows=8)


def test_more_windows_than_there_are_are_all_of_them(classifier, images):
    found = diagnostics.conditional_mean_error(
        EfficientPDA(classifier), images, 0, windows=SomeWindows(10_000), n_samples=2
    )
    assert len(found.corners) == 6 * 8


# More and more samples


def test_convergence_of_a_linear_model_is_that_of_a_mean(images):
    model = linear_model()
    found = diagnostics.sampling_convergence(
        EfficientPDA(model, prior=Noise(), output="raw"),
        images[:1],
        target=1,
        windows=SomeWindows(corners=[(1, 2)], sliding_window_shapes=4),
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


def test_convergence_averages_probabilities(classifier, images):
    found = diagnostics.sampling_convergence(
        SampledPDA(classifier, engine="dense"), images[1:], n_samples=12, repeats=2
    )
    first, second = found.sampled[:, 0], 2 * found.sampled[:, 1] - found.sampled[:, 0]
    assert ((first > 0) & (first < 1) & (second > 0) & (second < 1)).all()
    assert 0 < found.efficient < 1
    with pytest.raises(ValueError, match="2 examples"):
        diagnostics.sampling_convergence(SampledPDA(classifier), images)
    with pytest.raises(ValueError, match=r"3 windows.*SomeWindows\(1\)"):
        diagnostics.sampling_convergence(SampledPDA(classifier), images[:1], windows=SomeWindows(3))


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
        windows=SomeWindows(1, sliding_window_shapes=4),
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
    windows = SomeWindows(corners=[(2, 3)], sliding_window_shapes=4)
    settings = {"windows": windows, "n_samples": 3}
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


def test_activations_need_a_layer_of_the_model(classifier, images):
    with pytest.raises(ValueError, match="was not called"):
        diagnostics.activation_statistics(EfficientPDA(classifier), images[:1], nn.Identity())
    with pytest.raises(ValueError, match="2 examples"):
        diagnostics.activation_statistics(EfficientPDA(classifier), images, classifier[4])
    with pytest.raises(ValueError, match="of='both'"):
        diagnostics.activation_statistics(
            EfficientPDA(classifier), images[:1], classifier[4], of="both"
        )


def test_a_model_in_training_mode_is_put_back(images):
    model = make_classifier().train()
    model.insert(1, nn.Dropout(0.5))
    with pytest.warns(UserWarning, match="training mode"):
        found = diagnostics.activation_statistics(
            EfficientPDA(model, prior=Noise()), images[:1], model[0], n_samples=2
        )
    assert all(module.training for module in model.modules())
    torch.testing.assert_close(
        found.unperturbed, model[0](images[:1]).detach().flatten(), rtol=1e-9, atol=1e-9
    )


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


def test_a_constant_map_correlates_with_nothing():
    found = diagnostics.map_agreement(
        {"flat": torch.full((1, 9), 0.1), "x": torch.arange(9.0)[None]}
    )
    assert found.correlation("flat", "x").isnan().all()
    assert found.correlation("x", "x") == pytest.approx(1)


def test_maps_must_be_comparable():
    with pytest.raises(ValueError, match="different shapes"):
        diagnostics.map_agreement({"a": torch.zeros(1, 4), "b": torch.zeros(1, 5)})
    with pytest.raises(ValueError, match="empty"):
        diagnostics.map_agreement({})


def test_algorithms_agree_on_a_linear_model(images):
    found = diagnostics.algorithm_agreement(
        EfficientPDA(linear_model(), output="raw"), images, 1, sliding_window_shapes=4, n_samples=4
    )
    ones = torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(found.correlation("conditional mean", "gradient"), ones)
    # The mean of outputs is the output at the mean, but these are other samples.
    noisy = found.correlation("empirical mean", "sampled")
    assert (noisy < 1 - 1e-6).all()
    again = found.correlation("sampled", "sampled again")
    assert ((again > 0) & (again < 1 - 1e-6)).all()


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


def test_the_empirical_mean_of_the_default_prior(classifier, images):
    image = images[:1]
    own, given = (
        EfficientPDA(classifier, EmpiricalMeanPrior(prior, 5)).attribute(
            image, target=0, sliding_window_shapes=4
        )
        for prior in (None, GaussianFieldPrior())
    )
    torch.testing.assert_close(own, given)


# Deletion and insertion


def test_curves_of_a_linear_model_are_sums(images):
    model = linear_model(1)
    weights = model[1].weight.detach().reshape(1, 3, 9, 11)
    contributions = weights * images
    found = diagnostics.faithfulness_curves(
        model, images, contributions, baselines=0.0, n_steps=9, output="raw"
    )
    bias = model[1].bias.item()
    for number in range(2):
        ordered = np.sort(contributions[number].sum(0).numpy().reshape(-1))[::-1]
        for step in range(10):
            inserted = ordered[: 11 * step].sum()
            assert found.insertion[number, step] == pytest.approx(inserted + bias)
            assert found.deletion[number, step] == pytest.approx(ordered.sum() - inserted + bias)
    torch.testing.assert_close(found.fractions, torch.arange(10).double() / 9)
    shuffled = contributions.flip(3)
    other = diagnostics.faithfulness_curves(model, images, shuffled, n_steps=9, output="raw")
    assert (found.deletion_area < other.deletion_area).all()
    assert (found.insertion_area > other.insertion_area).all()
    assert "2 examples" in str(found)


def test_area_is_that_of_trapezoids():
    curves = diagnostics.FaithfulnessCurves(
        torch.tensor([0.0, 0.5, 1.0]), torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([[0, 1.0, 1]])
    )
    assert curves.deletion_area == 0.5
    assert curves.insertion_area == 0.75


def test_curves_begin_and_end_with_the_inputs_and_the_baselines(classifier, images):
    baselines = images.mean(dim=(2, 3), keepdim=True)
    curves = diagnostics.faithfulness_curves(
        classifier, images, torch.rand(2, 1, 9, 11), [1, 2], baselines=baselines, n_steps=7
    )
    for curve in (curves.deletion, curves.insertion.flip(1)):
        for column, inputs in ((0, images), (-1, baselines.expand_as(images))):
            expected = classifier(inputs).softmax(1).detach()
            torch.testing.assert_close(curve[:, column], expected[[0, 1], [1, 2]])
    batches = diagnostics.faithfulness_curves(
        classifier,
        images,
        torch.ones(2, 1, 9, 11),
        n_steps=7,
        perturbations_per_eval=3,
    )
    whole = diagnostics.faithfulness_curves(classifier, images, torch.ones_like(images), n_steps=7)
    torch.testing.assert_close(batches.deletion, whole.deletion)


def test_curves_need_a_map_of_the_inputs(classifier, images):
    with pytest.raises(ValueError, match="attributions have shape"):
        diagnostics.faithfulness_curves(classifier, images, torch.zeros(2, 3, 9, 9))
    with pytest.raises(ValueError, match="no order"):
        diagnostics.faithfulness_curves(classifier, images, images * torch.nan)
    with pytest.raises(ValueError, match="target is missing"):
        diagnostics.faithfulness_curves(classifier, images, images, output="raw")
