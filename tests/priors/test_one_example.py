"""Priors see one example, and say what they are."""

import json

import pytest
import torch
from conftest import make_classifier, make_images

from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianFieldPrior,
    GaussianPatchPrior,
    MarginalPrior,
    WindowGrid,
)
from captum_pda.priors import prior_settings

GRID = WindowGrid((9, 11), (3, 3), (2, 2))


def fitted_priors(images):
    return (
        GaussianPatchPrior(5).fit(images),
        GaussianPatchPrior(5, covariance="full").fit(images),
        MarginalPrior().fit(images),
        ConstantPrior(0.5),
        EmpiricalMeanPrior(MarginalPrior().fit(images), 3),
    )


def test_every_prior_takes_an_example_without_a_batch(images):
    for prior in fitted_priors(images):
        assert prior.conditional_mean(images[0], GRID).shape == (len(GRID), 3, 3, 3)
        assert prior.sample(images[0], GRID, 2).shape == (2, len(GRID), 3, 3, 3)


def test_the_empirical_mean_without_a_prior_has_the_draws_of_the_default_one(images):
    """Of each example by itself: a batch mate on another scale changes nothing."""
    images[1] = 20 * images[1] - 100
    noisy, own = (
        EmpiricalMeanPrior(prior, 4, torch.Generator().manual_seed(0))
        for prior in (None, GaussianFieldPrior())
    )
    assert torch.equal(
        noisy.conditional_mean(images[0], GRID), own.conditional_mean(images[0], GRID)
    )
    pda = EfficientPDA(make_classifier(), noisy)
    together = pda.attribute(images, target=1, sliding_window_shapes=3)
    for number in range(2):
        alone = pda.attribute(images[number : number + 1], target=1, sliding_window_shapes=3)
        torch.testing.assert_close(together[number : number + 1], alone)


def test_settings_are_plain_values_and_tell_priors_apart(images):
    other = make_images(2, 3, 9, 11, seed=5)
    priors = [
        *fitted_priors(images),
        *fitted_priors(other)[:3],
        GaussianPatchPrior(5, regularization=1e-3).fit(images),
        GaussianPatchPrior(5, channels="independent").fit(images),
        GaussianPatchPrior(5, clip_samples=True).fit(images),
        ConstantPrior(torch.tensor([1.0, 2.0, 3.0])),
        ConstantPrior(images[0]),
        EmpiricalMeanPrior(None, 3),
        GaussianFieldPrior().fit(images),
        None,
    ]
    written = {json.dumps(prior_settings(prior), sort_keys=True) for prior in priors}
    assert len(written) == len(priors)
    assert json.loads(json.dumps(priors[0].settings())) == priors[0].settings()
    assert priors[0].settings()["kind"] == "GaussianPatchPrior"
    assert priors[0].settings()["version"] == GaussianPatchPrior.version


def test_settings_follow_the_fit_and_not_its_caches(images, tmp_path):
    prior = GaussianPatchPrior(5).fit(images)
    before = prior.settings()
    prior.conditional_mean(images[0], GRID)
    assert prior.settings() == before
    prior.save(tmp_path / "prior.safetensors")
    assert GaussianPatchPrior.load(tmp_path / "prior.safetensors").settings() == before
    assert prior.partial_fit(images).settings() != before


def test_a_prior_of_your_own_needs_no_settings(images):
    class Grey:
        def __init__(self, level):
            self.level = level

        def conditional_mean(self, example, regions):
            return example.new_full((len(regions), len(example), *regions.window), self.level)

    first, second = (prior_settings(Grey(level)) for level in (0.5, 0.6))
    assert first != second
    assert first == prior_settings(Grey(0.5))
    assert "Grey" in first["kind"]
    pda = EfficientPDA(make_classifier(), Grey(0.5))
    expected = EfficientPDA(make_classifier(), ConstantPrior(0.5)).attribute(images, target=1)
    torch.testing.assert_close(pda.attribute(images, target=1), expected)


@pytest.mark.parametrize("prior", [GaussianPatchPrior(5), MarginalPrior()])
def test_nothing_is_kept_in_double_precision_where_there_is_none(prior, images, monkeypatch):
    """Apple's graphics cards have no double precision: there the CPU takes its place."""
    monkeypatch.setattr("captum_pda.device_sync.has_double", lambda device: False)
    single = images.float()
    prior.fit(single)
    assert prior.conditional_mean(single[0], GRID).dtype == torch.float32
    assert prior.sample(single[0], GRID, 2).device == single.device
    if isinstance(prior, GaussianPatchPrior):
        assert prior.to("meta").device.type == "cpu"
