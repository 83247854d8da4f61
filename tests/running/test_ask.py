"""Asking about any set of hidden regions: the definition, on every engine, each set once."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from conftest import Counting, make_classifier, make_convolutional, make_images

from captum_pda import (
    PDA,
    ConstantPrior,
    EfficientPDA,
    GaussianPatchPrior,
    MarginalPrior,
    SampledPDA,
)

TILES = torch.arange(8)[:, None] // 4 * 3 + torch.arange(9) // 3


def region_masks(labels):
    return torch.stack([labels == number for number in labels.unique()])


def unions(regions, coalitions):
    flat = coalitions.float() @ regions.flatten(1).float()
    return (flat > 0).reshape(-1, *regions.shape[1:])


def some_coalitions(n_regions, n=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    some = torch.rand(n, n_regions, generator=generator) < 0.4
    some[0], some[1] = False, True
    return some


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_scores_are_those_of_the_definition(dims):
    space = {1: (12,), 2: (8, 9), 3: (4, 6, 5)}[dims]
    image, model = make_images(1, 2, *space), make_classifier(dims, channels=2)
    labels = (torch.arange(12).reshape(12)[: space[0]] % 4).reshape(-1, *[1] * (dims - 1))
    labels = labels.expand(space)
    regions = region_masks(labels)
    evidence = EfficientPDA(model).evidence(image, feature_mask=labels[None, None].contiguous())
    coalitions = some_coalitions(len(regions))
    plain = image[0].numpy()
    for context, change in (("full", reference.hide_together), ("empty", reference.see_together)):
        scores = evidence.ask.hidden(0, unions(regions, coalitions), context)[0]
        for row, coalition in zip(scores, coalitions.numpy(), strict=True):
            copy = change(plain, regions.numpy(), coalition)
            for target in range(4):
                found = reference.predict(model, copy, target, "logits")
                assert float(row[target]) == pytest.approx(found.log_p - found.log_not_p, abs=1e-5)


def test_one_hidden_region_says_what_the_evidence_says():
    image, model = make_images(1, 3, 8, 9), make_classifier()
    evidence = EfficientPDA(model).evidence(image, feature_mask=TILES)
    single = torch.eye(6, dtype=torch.bool)
    scores = evidence.ask.hidden(0, unions(region_masks(TILES), single))
    torch.testing.assert_close(scores[0], evidence.parts[0].scores[0])


@pytest.mark.parametrize("context", ["full", "empty"])
def test_engines_agree(context):
    image = make_images(1, 3, 24, 24).float()
    labels = torch.arange(24)[:, None] // 6 * 4 + torch.arange(24) // 6
    hidden = unions(region_masks(labels), some_coalitions(16, 40))
    found = [
        EfficientPDA(make_convolutional(), engine=engine)
        .evidence(image, feature_mask=labels)
        .ask.hidden(0, hidden, context)
        for engine in ("dense", "incremental", "auto")
    ]
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_equal_sets_are_asked_once():
    model = Counting(make_classifier())
    evidence = PDA(model).evidence(make_images(1, 3, 8, 9), feature_mask=TILES)
    regions, before = region_masks(TILES), model.rows
    coalitions = torch.eye(6, dtype=torch.bool)[[0, 1, 0, 2, 1]]
    first = evidence.ask.hidden(0, unions(regions, coalitions))
    assert model.rows - before == 3
    assert torch.equal(evidence.ask.hidden(0, unions(regions, coalitions)), first)
    assert model.rows - before == 3
    assert torch.equal(first[:, 0], first[:, 2])
    nothing = torch.zeros(1, 8, 9, dtype=torch.bool)
    assert torch.equal(evidence.ask.hidden(0, nothing)[0, 0], evidence.scores[0])
    assert model.rows - before == 3


def test_everything_hidden_is_nothing_seen():
    evidence = PDA(make_classifier()).evidence(make_images(1, 3, 8, 9), feature_mask=TILES)
    everything = torch.ones(1, 8, 9, dtype=torch.bool)
    nothing = evidence.in_context("empty").parts[0].reference[0]
    for context in ("full", "empty"):
        torch.testing.assert_close(evidence.ask.hidden(0, everything, context)[0, 0], nothing)


def test_each_example_is_asked_by_itself():
    images, model = make_images(2, 3, 8, 9), make_classifier()
    hidden = unions(region_masks(TILES), some_coalitions(6))
    both = EfficientPDA(model).evidence(images, feature_mask=TILES)
    for number in range(2):
        alone = EfficientPDA(model).evidence(images[number : number + 1], feature_mask=TILES)
        torch.testing.assert_close(both.ask.hidden(number, hidden), alone.ask.hidden(0, hidden))


def test_samples_of_sets_share_their_random_numbers():
    image = make_images(1, 3, 12, 12)
    labels = torch.arange(12)[:, None] // 4 * 3 + torch.arange(12) // 4
    regions = region_masks(labels)

    def pixels(x):  # the inputs themselves, so that the fills can be looked at
        return x.flatten(1)

    evidence = SampledPDA(pixels, output="raw").evidence(image, n_samples=3, feature_mask=labels)
    everywhere = torch.ones(12, 12, dtype=torch.bool)
    coalitions = torch.zeros(2, 9, dtype=torch.bool)
    coalitions[0, 0], coalitions[1, [0, 8]] = True, True
    scores = evidence.ask.hidden(0, unions(regions, coalitions), box=everywhere)
    single, joint = scores.reshape(3, 2, 3, 12, 12).unbind(1)
    # Regions that do not touch: the same noise, and colours from nearly the same surroundings.
    a, b = (
        values[:, :, regions[0]] - values[:, :, regions[0]].mean(0) for values in (single, joint)
    )
    assert float((a * b).sum() / (a.norm() * b.norm())) > 0.9
    assert not torch.equal(scores[0], scores[1])


@pytest.mark.parametrize(
    "prior", [ConstantPrior(0.0), MarginalPrior().fit(make_images(5, 3, 8, 9))]
)
@pytest.mark.parametrize("method", [EfficientPDA, SampledPDA])
def test_other_priors(prior, method):
    options = {"n_samples": 2} if method is SampledPDA else {}
    evidence = method(make_classifier(), prior).evidence(
        make_images(1, 3, 8, 9), feature_mask=TILES, **options
    )
    hidden = unions(region_masks(TILES), some_coalitions(6))
    for context in ("full", "empty"):
        assert evidence.ask.hidden(0, hidden, context).isfinite().all()


def test_a_prior_of_small_patches_names_one_that_fills_any_set():
    prior = GaussianPatchPrior(patch_size=7).fit(make_images(5, 3, 30, 30))
    labels = torch.arange(30)[:, None] // 3 * 10 + torch.arange(30) // 3
    evidence = EfficientPDA(make_classifier(), prior).evidence(
        make_images(1, 3, 30, 30), feature_mask=labels
    )
    regions = region_masks(labels)
    near = evidence.ask.hidden(0, (regions[0] | regions[1])[None, :, :])
    assert near.isfinite().all()
    with pytest.raises(ValueError, match=r"hidden together.*GaussianFieldPrior\(\)"):
        evidence.ask.hidden(0, (regions[0] | regions[99])[None])


def test_pixels_are_given_as_booleans_of_the_input_s_shape():
    evidence = EfficientPDA(make_classifier()).evidence(make_images(1, 3, 8, 9), feature_mask=TILES)
    for wrong in (torch.zeros(2, 5, 5) > 0, torch.zeros(8, 9) > 0, torch.zeros(1, 8, 9)):
        with pytest.raises(ValueError, match="as booleans"):
            evidence.ask.hidden(0, wrong)


def test_what_is_known_survives_an_interruption():
    model = Counting(make_classifier())
    evidence = EfficientPDA(model).evidence(
        make_images(1, 3, 8, 9), feature_mask=TILES, perturbations_per_eval=2
    )
    hidden = unions(region_masks(TILES), torch.eye(6, dtype=torch.bool))
    expected = evidence.parts[0].scores[0]
    model.stop_after = model.rows + 4
    with pytest.raises(KeyboardInterrupt) as caught:
        evidence.ask.hidden(0, hidden)
    known = caught.value.result[0].isfinite().all(dim=1)
    assert int(known.sum()) == 4
    torch.testing.assert_close(caught.value.result[0][known], expected[known])
    model.stop_after = None
    before = model.rows
    torch.testing.assert_close(evidence.ask.hidden(0, hidden)[0], expected)
    assert model.rows - before == 2


def test_the_bar_says_how_many_passes(capsys):
    evidence = EfficientPDA(make_classifier()).evidence(make_images(1, 3, 8, 9), feature_mask=TILES)
    hidden = unions(region_masks(TILES), torch.eye(6, dtype=torch.bool))
    evidence.ask.hidden(0, hidden, progress="Interactions")
    assert "Interactions: 6 passes" in capsys.readouterr().err


def test_the_user_s_random_state_is_as_it_was():
    evidence = SampledPDA(make_classifier()).evidence(
        make_images(1, 3, 8, 9), feature_mask=TILES, n_samples=2
    )
    state = torch.get_rng_state()
    hidden = unions(region_masks(TILES), some_coalitions(6))
    one = evidence.ask.hidden(0, hidden)
    assert torch.equal(torch.get_rng_state(), state)
    assert one.shape == (2, 6, 4)
    assert np.isfinite(one.numpy()).all()


def test_an_example_that_was_picked_of_a_batch_is_asked_as_itself():
    images, model = make_images(3, 3, 8, 9), make_classifier()
    evidence = EfficientPDA(model).evidence(images, feature_mask=TILES)
    hidden = unions(region_masks(TILES), some_coalitions(6))
    for context in ("full", "empty"):
        picked = evidence.ask.of_examples(slice(2, 3)).hidden(0, hidden, context, progress="Asked")
        torch.testing.assert_close(picked, evidence.ask.hidden(2, hidden, context))
