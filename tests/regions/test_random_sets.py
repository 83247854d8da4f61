"""Random sets of regions, and what each region adds to them."""

import numpy as np
import pytest
import reference
import torch
from conftest import make_classifier, make_images
from torch import nn

from captum_pda import PDA, EfficientPDA, SampledPDA, WindowEvidence
from captum_pda.regions.choice import choose_regions
from captum_pda.regions.contexts import contexts_of, planned_passes
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.random_sets import RIDGE, RandomSets

IMAGE = make_images(1, 3, 6, 4)
MASK = torch.arange(6)[:, None] // 2 * 2 + torch.arange(4)[None] // 2  # six regions
TOO_FEW = 149


def sets_of(n_regions: int = 6, count: int = 200) -> np.ndarray:
    mask = torch.arange(n_regions).reshape(1, n_regions, 1)
    return RandomSets(FeatureMaskRegions(mask), count).seen[0]


@pytest.mark.parametrize("target", [0, 2])
def test_what_regions_add_is_that_of_the_oracle(target):
    model = make_classifier()
    found = EfficientPDA(model).evidence(IMAGE, context="random", feature_mask=MASK, effort=150)
    (part,) = found.parts
    regions = [(number == MASK).numpy() for number in range(6)]
    expected = reference.added_to_others(
        model, IMAGE[0].numpy(), regions, sets_of(count=150), target, "logits", RIDGE
    )
    torch.testing.assert_close(part.values(target)[0].numpy(), expected, rtol=1e-6, atol=1e-9)
    map_of_regions = found.attribution(target)[0, 0]
    torch.testing.assert_close(map_of_regions, torch.from_numpy(expected)[MASK])


def test_what_is_linear_in_the_regions_is_found_up_to_the_penalty():
    regions = FeatureMaskRegions(torch.arange(8).reshape(1, 8, 1))
    sets = RandomSets(regions, 1000)
    truth = torch.linspace(-2, 3, 8, dtype=torch.float64)
    scores = 5 + torch.from_numpy(sets.seen[0] - 0.5) @ truth
    known = torch.ones(1, 1000, dtype=torch.bool)
    centre, added, _ = sets.fit(scores.reshape(1, -1, 1), known)
    torch.testing.assert_close(added[0, :, 0], truth, rtol=0, atol=0.2)
    torch.testing.assert_close(centre, centre.new_full((1, 1), 5), rtol=0, atol=0.1)
    torch.testing.assert_close(
        sets.average(scores.unsqueeze(0)), added.reshape(1, 8, 1), rtol=0, atol=1e-12
    )


def test_its_standard_error_is_the_spread_over_noise():
    regions = FeatureMaskRegions(torch.arange(5).reshape(1, 5, 1))
    sets = RandomSets(regions, 200)
    noise = torch.randn(400, 200, 1, generator=torch.Generator().manual_seed(0)).double()
    _, added, errors = sets.fit(noise, torch.ones(400, 200, dtype=torch.bool))
    torch.testing.assert_close(errors.mean(0), added.std(0), rtol=0.15, atol=0)


def test_sets_come_in_opposites_with_few_and_many_regions_seen():
    seen = sets_of(60)
    assert (seen[::2] == ~seen[1::2]).all()
    shares = seen.mean(1)
    assert shares.min() < 0.15
    assert shares.max() > 0.85
    assert (np.abs(seen.mean(0) - 0.5) < 1e-9).all()
    assert (sets_of(7, 31) == sets_of(60, 31)[:, :7]).all()  # whatever other regions there are


def test_an_example_of_a_batch_has_the_map_that_it_has_alone():
    """Examples have different numbers of superpixels."""
    model, images = make_classifier().float(), make_images(2, 3, 64, 64).float()
    arguments = {"superpixels": 12, "context": "random", "effort": 150}
    together = EfficientPDA(model).attribute(images, target=1, **arguments)
    for number in range(2):
        alone = EfficientPDA(model).attribute(images[number : number + 1], target=1, **arguments)
        torch.testing.assert_close(together[number : number + 1], alone)


def test_pda_asks_four_questions_of_images_with_superpixels():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 8, stride=8), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    model, image = nn.Sequential(*layers, nn.Linear(24, 4)).eval(), make_images(1, 3, 64, 64)
    image = image.float()
    pda = PDA(model)
    evidence = pda.evidence(image, effort="quick")
    asked = [(part.context, part.size[0]) for part in evidence.at_depth("input").parts]
    assert asked == [("full", 25), ("full", 60), ("empty", 25), ("random", 250)]
    questions = [
        evidence.at_depth("input").in_context(context) for context in ("full", "empty", "random")
    ]
    questions.append(evidence.at_depth(pda.layer_name))
    maps = [each.attribution(2)[0, 0].double().numpy() for each in questions]
    # The feature map gets the outlines of the finest superpixels.
    (finest,) = questions[2].parts
    maps[3] = reference.mean_in_regions(maps[3], finest.regions.numbers[0].numpy())
    # Random sets count twice.
    expected = torch.from_numpy(reference.weighted_mean(maps, weights=(1, 1, 2, 1)))
    torch.testing.assert_close(evidence.attribution(2)[0, 0].double(), expected)
    torch.testing.assert_close(
        pda.attribute(image, 2, effort="quick"), evidence.attribution(2), rtol=1e-4, atol=1e-6
    )


def test_the_map_of_random_sets_shows_what_regions_add_per_area():
    """So that large regions are not darker than small ones by their size alone."""
    found = EfficientPDA(make_classifier()).evidence(
        IMAGE, context="random", feature_mask=MASK, effort=150
    )
    areas = np.bincount(MASK.flatten())
    expected = found.window_values(1)[0].numpy() * areas.mean() / areas
    torch.testing.assert_close(found.attribution(1)[0, 0], torch.from_numpy(expected)[MASK])


def test_an_interrupted_run_keeps_the_sets_that_were_finished():
    whole, calls = make_classifier(), []

    def model(images):
        calls.append(len(images))
        if len(calls) > 12:
            raise KeyboardInterrupt
        return whole(images)

    with pytest.raises(KeyboardInterrupt) as stopped:
        EfficientPDA(model).evidence(
            IMAGE, context="random", feature_mask=MASK, effort=150, perturbations_per_eval=10
        )
    (part,) = stopped.value.result.parts
    assert part.values(1).isfinite().all()


def test_a_set_without_a_finite_output_is_told():
    def model(images):
        return make_classifier()(images) * torch.where(images.sum() > 1e9, 1.0, torch.nan)

    with pytest.raises(ValueError, match="NaN"):
        EfficientPDA(model).attribute(
            IMAGE, target=1, context="random", feature_mask=MASK, effort=150
        )


def test_samples_of_other_contexts_have_errors_beside_those_of_the_fit():
    found = SampledPDA(make_classifier()).evidence(
        IMAGE, n_samples=2, context="random", feature_mask=MASK, effort=150
    )
    assert (found.standard_error(1) > 0).all()


def test_it_is_saved_and_loaded(tmp_path):
    found = EfficientPDA(make_classifier()).evidence(
        IMAGE, context="random", feature_mask=MASK, effort=150
    )
    found.save(tmp_path / "evidence.pda")
    loaded = WindowEvidence.load(tmp_path / "evidence.pda")
    torch.testing.assert_close(loaded.attribution(1), found.attribution(1))


def test_windows_overlap_and_have_no_sets():
    with pytest.raises(ValueError, match=r"context='random' shows sets .* in place of windows"):
        EfficientPDA(make_classifier()).attribute(IMAGE, target=1, context="random")


def passes(context: str, effort: str | int) -> int:
    contexts = contexts_of(context)
    granularities, n_sets = planned_passes(contexts, effort)
    alone = sum(sum(granularities[each.name]) for each in contexts if not each.in_sets)
    return alone + n_sets


def test_efforts_have_their_documented_numbers_of_passes():
    assert [passes("all", name) for name in ("quick", "standard", "thorough")] == [210, 310, 630]
    for effort in (150, 300, 600, 1200, 5000):
        assert passes("all", effort) == effort
        assert passes("full", effort) <= effort
        assert passes("both", effort) <= effort
    assert passes("full", 5000) > passes("full", 500) > passes("full", 150)


@pytest.mark.parametrize("effort", ["much", TOO_FEW, 300.0, True, None])
def test_an_effort_that_is_not_known_is_refused(effort):
    with pytest.raises(ValueError, match=r"effort=.* is not known; choose 'quick', 'standard' or"):
        PDA(nn.Flatten()).attribute(IMAGE, target=0, effort=effort)


def divided(*cuts: int) -> FeatureMaskRegions:
    """Twelve pixels in a row, divided before some of them."""
    places = torch.arange(12)
    return FeatureMaskRegions(sum((places >= cut).long() for cut in cuts).reshape(1, 12))


def test_sets_of_several_divisions_are_read_as_the_oracle_reads_them():
    asked, divisions = divided(4, 8), (divided(4, 8), divided(2, 6, 10), divided(3))
    sets = RandomSets(asked, 20, divisions)
    scores = torch.randn(1, 20, 2, generator=torch.Generator().manual_seed(0)).double()
    centre, added, _ = sets.fit(scores, torch.ones(1, 20, dtype=torch.bool))
    shown = [~windows.hidden.numpy() for windows in sets.boxes(0)]
    expected = reference.added_by_divisions(
        np.concatenate(shown),
        [division.numbers[0].numpy() for division in divisions],
        asked.numbers[0].numpy(),
        scores[0].numpy(),
        3 * RIDGE,
    )
    np.testing.assert_allclose(centre[0], expected[0], atol=1e-9)
    np.testing.assert_allclose(added[0], expected[1], atol=1e-9)


def test_divisions_find_what_a_part_of_a_region_adds():
    """Only the pixels 2 to 5 say something, which no region of the asked division is made of."""
    divisions = tuple(divided(cut, cut + 4) for cut in (1, 2, 3, 4, 5, 6))
    sets = RandomSets(divided(*range(1, 12)), 600, divisions)
    shown = torch.cat([~windows.hidden for windows in sets.boxes(0)])
    scores = shown[:, 2:6].double().mean(1).reshape(1, -1, 1)
    _, added, _ = sets.fit(scores, torch.ones(1, 600, dtype=torch.bool))
    assert set(added[0, :, 0].topk(4).indices.tolist()) == {2, 3, 4, 5}


def test_the_default_sets_are_drawn_from_several_divisions():
    image, shown = make_images(1, 3, 64, 64).float(), []
    layers = nn.Conv2d(3, 6, 16, stride=16), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(24, 4)).eval()
    evidence = EfficientPDA(model).evidence(image, context="random")
    (part,) = evidence.parts
    assert part.size == (250,)
    (sets,) = choose_regions((image,), context="random")["random"][0]
    assert len({len(division) for division in sets.divisions}) > 3
    assert sum(map(len, sets.boxes(0))) == len(sets) == 200
    for windows, members in zip(sets.boxes(0), sets.members(0), strict=True):
        assert windows.first == members[0]
        assert len(windows) == len(members)
        shown.append(windows.hidden.flatten(1))
    assert len(torch.cat(shown).unique(dim=0)) > 150  # a few hold nothing, or all
