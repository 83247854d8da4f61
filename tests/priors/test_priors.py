"""What all priors have in common, and the simple ones."""

import json

import pytest
import torch
from conftest import make_classifier, make_images, means_of, samples_of

from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    EmpiricalMeanPrior,
    GaussianFieldPrior,
    GaussianPatchPrior,
    MarginalPrior,
    NotFittedError,
    PatchPrior,
    WindowGrid,
)
from captum_pda.priors import prior_settings

GRID = WindowGrid((9, 11), (3, 3), (2, 2))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fitted_priors(images):
    return (
        GaussianFieldPrior().fit(images),
        GaussianPatchPrior(5).fit(images),
        GaussianPatchPrior(5, covariance="full").fit(images),
        MarginalPrior().fit(images),
        ConstantPrior(0.5),
        EmpiricalMeanPrior(MarginalPrior().fit(images), 3),
    )


def test_every_prior_follows_the_protocol_and_the_generator(images):
    for prior in fitted_priors(images):
        assert isinstance(prior, PatchPrior)
        assert type(prior).__name__ in repr(prior)
        assert prior.conditional_mean(images[0], GRID).shape == (len(GRID), 3, 3, 3)
        drawn, same, other = (
            samples_of(prior, images, GRID, 4, seeded(seed)) for seed in (0, 0, 1)
        )
        assert drawn.shape == (4, 2, len(GRID), 3, 3, 3)
        assert torch.equal(drawn, same)
        assert torch.equal(drawn, other) == isinstance(prior, ConstantPrior)


def test_settings_are_plain_values_and_tell_priors_apart(images):
    other = make_images(2, 3, 9, 11, seed=5)
    priors = [
        *fitted_priors(images),
        *fitted_priors(other)[:4],
        GaussianPatchPrior(5, regularization=1e-3).fit(images),
        GaussianPatchPrior(5, channels="independent").fit(images),
        GaussianPatchPrior(5, clip_samples=True).fit(images),
        ConstantPrior(torch.tensor([1.0, 2.0, 3.0])),
        ConstantPrior(images[0]),
        EmpiricalMeanPrior(None, 3),
        None,
    ]
    written = {json.dumps(prior_settings(prior), sort_keys=True) for prior in priors}
    assert len(written) == len(priors)
    for prior in priors[:-1]:
        settings = prior.settings()
        assert json.loads(json.dumps(settings)) == settings
        assert (settings["kind"], settings["version"]) == (type(prior).__name__, prior.version)


def test_settings_follow_the_fit_and_not_its_caches(images):
    prior = GaussianPatchPrior(5).fit(images)
    before = prior.settings()
    prior.conditional_mean(images[0], GRID)
    assert prior.settings() == before
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
        assert prior.to("meta") is prior


def test_constants_of_every_shape(images):
    assert (means_of(ConstantPrior(0.5), images, GRID) == 0.5).all()
    each = means_of(ConstantPrior(torch.tensor([1.0, 2.0, 3.0])), images, GRID)
    assert each[1, 4, :, 0, 0].tolist() == [1, 2, 3]
    baseline = make_images(3, 9, 11)
    whole = means_of(ConstantPrior(baseline), images, GRID)
    row, column = GRID.corner_array[7]
    torch.testing.assert_close(whole[1, 7], baseline[:, row : row + 3, column : column + 3])
    torch.testing.assert_close(samples_of(ConstantPrior(baseline), images, GRID, 2)[1], whole)
    with pytest.raises(ValueError, match="3 numbers"):
        means_of(ConstantPrior(torch.zeros(2)), images, GRID)


def test_the_marginal_prior_needs_a_fit_to_images_of_one_shape(images):
    prior = MarginalPrior()
    for ask in (
        lambda: means_of(prior, images, GRID),
        lambda: samples_of(prior, images, GRID, 2),
        lambda: prior.to("cpu"),
    ):
        with pytest.raises(NotFittedError, match="fit"):
            ask()
    with pytest.raises(ValueError, match="one shape"):
        prior.fit([images, images[..., :-1]])
    with pytest.raises(ValueError, match="fitted on images of shape"):
        means_of(prior.fit(images), images[..., :-1], WindowGrid((9, 10), (3, 3), (1, 1)))


def test_the_empirical_mean_is_that_of_its_generators_draws(images):
    prior = GaussianPatchPrior(5).fit(images)
    noisy = [EmpiricalMeanPrior(prior, 7, generator) for generator in (seeded(), seeded(), None)]
    fills = [means_of(each, images, GRID) for each in noisy]
    assert torch.equal(fills[0], fills[1])
    assert torch.equal(means_of(noisy[0], images, GRID), fills[0])
    assert not torch.allclose(fills[0], fills[2])
    many = means_of(EmpiricalMeanPrior(prior, 1000, seeded()), images, GRID)
    torch.testing.assert_close(many, means_of(prior, images, GRID), rtol=0, atol=0.5)
    drawn = [samples_of(each, images, GRID, 2, seeded()) for each in (noisy[0], prior)]
    assert torch.equal(*drawn)
    with pytest.raises(ValueError, match="n_samples"):
        EmpiricalMeanPrior(prior, 0)
    # The sum of these is beyond half precision.
    large = means_of(EmpiricalMeanPrior(ConstantPrior(-1000.0), 500), images.half(), GRID)
    torch.testing.assert_close(large, torch.full_like(large, -1000.0))


def test_the_empirical_mean_without_a_prior_has_the_draws_of_the_default_one(images):
    """Of each example by itself: a batch mate on another scale changes nothing."""
    images[1] = 20 * images[1] - 100
    noisy, own = (EmpiricalMeanPrior(prior, 4, seeded()) for prior in (None, GaussianFieldPrior()))
    assert torch.equal(means_of(noisy, images, GRID), means_of(own, images, GRID))
    pda = EfficientPDA(make_classifier(), noisy)
    together = pda.attribute(images, target=1, sliding_window_shapes=3)
    for number in range(2):
        alone = pda.attribute(images[number : number + 1], target=1, sliding_window_shapes=3)
        torch.testing.assert_close(together[number : number + 1], alone)
