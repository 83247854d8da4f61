"""What regions say together: interactions, the parts that decide an answer, games."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from conftest import Counting, make_classifier, make_images
from torch import nn

from captum_pda import PDA, ConstantPrior, EfficientPDA, LayerPDA, SampledPDA

TILES = torch.arange(8)[:, None] // 4 * 3 + torch.arange(9) // 3
#: 16 tiles of 4 x 4 pixels.
SQUARES = torch.arange(16)[:, None] // 4 * 4 + torch.arange(16) // 4


class Tiles(nn.Module):
    """A classifier of which tiles of an image are bright, by a rule; it counts its examples."""

    def __init__(self, rule):
        super().__init__()
        self.rule, self.rows = rule, 0

    def forward(self, x):
        self.rows += len(x)
        tiles = nn.functional.avg_pool2d(x[:, :1], 4).flatten(1)
        return self.rule(tiles)


def bright(*numbers):
    image = torch.zeros(1, 1, 16, 16)
    for number in numbers:
        image[0, 0][number == SQUARES] = 1.0
    return image


def tile_evidence(rule, image, **options):
    model = Tiles(rule)
    pda = EfficientPDA(model, ConstantPrior(0.0))
    return model, pda.evidence(image, feature_mask=SQUARES, context="both", **options)


def one_against_zero(score):
    return torch.stack([torch.zeros_like(score), score], dim=1)


@pytest.mark.parametrize("output", ["logits", "raw"])
def test_interactions_are_those_of_the_definition(output):
    image, model = make_images(1, 3, 8, 9), make_classifier()
    evidence = EfficientPDA(model, output=output).evidence(image, feature_mask=TILES)
    found = evidence.interactions(2, regions=range(6))
    masks = np.stack([(number == TILES).numpy() for number in range(6)])
    assert np.array_equal(found.pixels, masks)
    for target in range(4):  # from the same passes
        expected = reference.interactions(model, image[0].numpy(), masks, target, output)
        np.testing.assert_allclose(found.values(target), expected, atol=1e-4)
    torch.testing.assert_close(found.lost(1), evidence.window_values(1)[0])


def test_regions_that_cover_for_each_other_and_ones_that_speak_only_together():
    def either(tiles):
        return one_against_zero(8 * torch.maximum(tiles[:, 0], tiles[:, 5]) - 4)

    def both(tiles):
        return one_against_zero(8 * tiles[:, 0] * tiles[:, 5] - 4)

    image, bits = bright(0, 5), 8 / np.log(2)
    for rule, value, words in (
        (either, bits, "each covers for the other"),
        (both, -bits, "they speak only together"),
    ):
        _, evidence = tile_evidence(rule, image)
        found = evidence.interactions(1, regions=[0, 5, 9])
        (pair, *others) = found.pairs()
        assert (pair.first, pair.second) == (0, 1)
        assert pair.value == pytest.approx(value, rel=1e-5)
        assert pair.meaning == words
        assert words in str(found)
        assert all(abs(other.value) < 1e-5 for other in others)
        assert {other.meaning for other in others} == {"they add up"}
        # The other class is spoken against, by the same pair in the same way.
        (mirrored, *_) = found.pairs(0)
        assert mirrored.value == pytest.approx(-value, rel=1e-5)
        assert mirrored.meaning == f"{words}, against the class"


def test_regions_of_a_linear_model_add_up_but_for_rounding():
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 2)).eval()
    image = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    evidence = EfficientPDA(model, ConstantPrior(0.0), output="raw").evidence(
        image, feature_mask=SQUARES
    )
    assert {pair.meaning for pair in evidence.interactions(1).pairs()} == {"they add up"}


def test_they_take_one_pass_for_each_region_and_pair_and_do_not_overlap():
    image = make_images(1, 3, 16, 16)
    evidence = EfficientPDA(make_classifier()).evidence(image, sliding_window_shapes=4, strides=2)
    pixels = evidence.interactions(1, regions=6).pixels
    assert len(pixels) == 6
    assert pixels.sum(axis=0).max() == 1
    model, evidence = tile_evidence(lambda tiles: tiles[:, :3], bright(0, 1, 2))
    before = model.rows
    evidence.interactions(1, regions=5)
    assert model.rows - before == 5 + 10
    evidence.interactions(0, regions=[0, 1])
    assert model.rows - before <= 15 + 3


def test_regions_that_are_named_are_asked_even_where_they_overlap():
    image = make_images(1, 3, 16, 16)
    evidence = EfficientPDA(make_classifier()).evidence(image, sliding_window_shapes=4, strides=2)
    found = evidence.coalitions(1, regions=[9, 1, 0])
    assert found.numbers == (9, 1, 0)
    assert found.pixels.sum(axis=0).max() > 1
    hidden = found.ask(np.eye(3, dtype=bool))
    torch.testing.assert_close(hidden, evidence.parts[0].scores[0, [9, 1, 0]])


def test_standard_errors_are_those_of_many_repetitions():
    image, model = make_images(1, 3, 8, 9), make_classifier()

    def drawn(seed, n_samples):
        generator = torch.Generator().manual_seed(seed)
        evidence = SampledPDA(model).evidence(
            image, n_samples=n_samples, feature_mask=TILES, generator=generator
        )
        return evidence.interactions(2, regions=range(6))

    runs = [drawn(seed, 8) for seed in range(16)]
    spread = torch.stack([run.values() for run in runs]).std(dim=0)
    said = torch.stack([run.standard_errors() for run in runs]).square().mean(dim=0).sqrt()
    ratio = (said / spread)[~torch.eye(6, dtype=torch.bool)]
    assert 0.75 < float(ratio.mean()) < 1.25
    assert runs[0].pairs()[0].error == pytest.approx(
        float(runs[0].standard_errors()[runs[0].pairs()[0].first, runs[0].pairs()[0].second])
    )
    # What a pair that does not touch has in common with its regions cancels: with random numbers of
    # their own, the pair alone would have about this error.
    evidence_errors = [run.coalitions.evidence.standard_error(2)[0] for run in runs]
    single = torch.stack(evidence_errors).square().mean(dim=0)
    for a, b in ((0, 2), (3, 5)):
        assert float(said[a, b]) < float((single[a] + single[b]).sqrt())


def test_what_was_asked_is_kept_when_interactions_are_interrupted():
    model, evidence = tile_evidence(
        lambda tiles: tiles[:, :3], bright(0, 1), perturbations_per_eval=4
    )
    expected = evidence.interactions(0, regions=[0, 1, 2, 3]).values()
    _, evidence = tile_evidence(lambda tiles: tiles[:, :3], bright(0, 1), perturbations_per_eval=4)
    model = evidence.ask.call.forward_func
    rule, stop = model.rule, model.rows + 8

    def stopping(tiles):
        if model.rows > stop:
            raise KeyboardInterrupt
        return rule(tiles)

    model.rule = stopping
    with pytest.raises(KeyboardInterrupt) as caught:
        evidence.interactions(0, regions=[0, 1, 2, 3])
    values = caught.value.result.values()
    known = values.isfinite()
    assert 0 < int(known.sum()) < 16
    listed = [(pair.first, pair.second) for pair in caught.value.result.pairs()]
    assert sorted(map(list, listed)) == known.triu(1).nonzero().tolist()
    torch.testing.assert_close(values[known], expected[known])


@pytest.mark.parametrize(
    "question",
    [
        lambda evidence: evidence.coalitions(1, regions=4).only,
        lambda evidence: evidence.coalitions(1, regions=4).ask,
        lambda evidence: evidence.as_game(1, regions=4, context="empty"),
        lambda evidence: evidence.as_game(1, regions=4),
    ],
)
def test_an_interruption_carries_what_would_have_been_returned(question):
    model = Counting(make_classifier())
    evidence = EfficientPDA(model).evidence(
        make_images(1, 3, 8, 9), feature_mask=TILES, perturbations_per_eval=2
    )
    asked, sets = question(evidence), np.eye(4, dtype=bool)
    model.stop_after = model.rows + 2
    with pytest.raises(KeyboardInterrupt) as caught:
        asked(sets)
    model.stop_after = None
    known, expected = torch.as_tensor(caught.value.result), torch.as_tensor(asked(sets))
    assert known.shape == expected.shape
    assert known.isfinite().any()
    torch.testing.assert_close(known[known.isfinite()], expected[known.isfinite()])


# Parts


def majority(tiles):
    """Class 1 if three or more of the first six tiles are bright, otherwise 2 or 0."""
    count = tiles[:, :6].sum(dim=1)
    return torch.stack([torch.zeros_like(count), 4 * (count - 2.5), 2 * tiles[:, 7] - 1], dim=1)


def is_minimal(part, goal):
    """Whether a part reaches a goal of pixels, and does not without any single region."""
    fewer = [part.pixels & (number != SQUARES).numpy() for number in part.numbers]
    return goal(part.pixels) and not any(map(goal, fewer))


def test_sufficient_parts_are_minimal_and_disjoint():
    image = bright(0, 1, 2, 3, 4, 5, 7)
    model, evidence = tile_evidence(majority, image)
    before = model.rows
    parts = evidence.sufficient()
    assert model.rows - before <= 100
    assert len(parts) == 2
    assert sorted(parts[0].numbers + parts[1].numbers) == [0, 1, 2, 3, 4, 5]

    def keeps(pixels):
        shown = image * torch.from_numpy(pixels)
        return int(model(shown).argmax()) == 1

    for part in parts:
        assert part.minimal
        assert part.alone
        assert part.first == part.target == 1
        assert len(part.numbers) == 3
        assert is_minimal(part, keeps)
        assert part.share == pytest.approx(3 / 16)
        assert "only 3 of 16 regions" in str(part)
        assert "still first" in str(part)


def test_an_answer_that_is_kept_with_nothing_seen_needs_no_region():
    def leaning(tiles):
        return one_against_zero(2 - 4 * tiles[:, 0])

    _, evidence = tile_evidence(leaning, bright(3, 5))
    (part,) = evidence.sufficient()
    assert part.numbers == ()
    assert not part.pixels.any()
    assert part.minimal
    assert "only 0 of 16 regions" in str(part)
    assert part.prediction == pytest.approx(1 / (1 + np.exp(-2)))
    # With a bound, only what nothing seen does not reach.
    _, evidence = tile_evidence(majority, bright(0, 1, 2, 3))
    assert evidence.sufficient(1, at_least=0.0)[0].numbers == ()
    assert len(evidence.sufficient(1, at_least=0.5)[0].numbers) == 3


def test_bounds_expected_classes_and_few_passes():
    _, evidence = tile_evidence(majority, bright(0, 1, 2, 3, 4, 5))
    (part,) = evidence.sufficient(1, n=1, at_least=0.99)
    assert len(part.numbers) == 4  # 0.99 needs one more than being first does
    assert part.prediction >= 0.99
    _, evidence = tile_evidence(majority, bright(0, 1, 2, 3, 7))
    part = evidence.necessary(expected=0)  # tile 7 speaks for class 2, so it must go too
    assert part.first == 0
    assert 7 in part.numbers
    assert len(part.numbers) == 3
    _, evidence = tile_evidence(majority, bright(*range(16)))
    (part,) = evidence.sufficient(n=1, max_passes=4)
    assert not part.minimal
    assert "not minimal" in str(part)


def test_the_necessary_part_changes_the_answer_and_is_minimal():
    image = bright(0, 1, 2, 3, 4, 7)
    model, evidence = tile_evidence(majority, image)
    before = model.rows
    part = evidence.necessary()
    assert model.rows - before <= 100
    assert part.minimal
    assert not part.alone
    assert (part.target, part.first) == (1, 2)
    assert len(part.numbers) == 3

    def changes(pixels):
        return int(model(image * torch.from_numpy(~pixels)).argmax()) != 1

    assert is_minimal(part, changes)
    assert "class 2 is first" in str(part)
    assert "wolf is first" in part.described(["cat", "husky", "wolf"])


def test_a_class_is_found_that_more_regions_would_hide_again():
    def turning(tiles):
        """Class 1, but with only one or two of the first eight tiles 2, and without them 0."""
        count = tiles[:, :8].sum(dim=1)
        second = torch.where((count > 0.5) & (count < 2.5), 8.0, 0.0)
        return torch.stack([6.0 * (count < 0.5), 1 + 0.1 * count, second], dim=1)

    _, evidence = tile_evidence(turning, bright(*range(8)))
    part = evidence.in_context("full").necessary(expected=2)
    assert part.first == 2
    assert len(part.numbers) == 6
    assert part.minimal


def test_each_further_part_has_passes_of_its_own():
    _, evidence = tile_evidence(majority, bright(0, 1, 2, 3, 4, 5))
    first, second = evidence.sufficient(max_passes=8)
    assert first.minimal
    assert second.minimal
    assert max(first.n_passes, second.n_passes) <= 8 < first.n_passes + second.n_passes


def test_scores_that_are_not_finite_change_no_answer():
    def failing(tiles):
        bright = tiles[:, :4] > 0.5
        fails = ~bright[:, :2].any(dim=1) & bright[:, 2:].all(dim=1)
        return torch.where(fails[:, None], torch.nan, majority(tiles))

    for rule, is_found in ((majority, True), (failing, False)):
        _, evidence = tile_evidence(rule, bright(0, 1, 2, 3))
        assert (evidence.necessary(regions=[0, 1]) is not None) == is_found


def test_passes_and_time_are_said_before_they_start(capsys):
    _, evidence = tile_evidence(majority, bright(0, 1, 2, 3, 7))
    evidence.sufficient(n=2, max_passes=50, show_progress=True)
    evidence.necessary(show_progress=True)
    evidence.as_game(1, regions=[8, 9], show_progress=True)([[0, 0], [0, 1]])
    said = capsys.readouterr().err
    for words in ("parts, at most: 100 passes", "part, at most: 100 passes", "Game: 2 passes"):
        assert words in said


def test_what_cannot_be_reached_is_none():
    _, evidence = tile_evidence(
        lambda tiles: 0 * tiles[:, :3] + torch.tensor([0.0, 2, 1]), bright(0)
    )
    assert evidence.necessary() is None
    assert evidence.necessary(expected=2) is None
    with pytest.raises(ValueError, match="class 1 is first"):
        evidence.sufficient(2)
    with pytest.raises(ValueError, match="nothing to hide"):
        evidence.necessary(expected=1)
    with pytest.raises(ValueError, match="give one of them"):
        evidence.necessary(expected=2, below=0.2)


def test_a_single_logit_and_a_raw_output():
    model = Tiles(lambda tiles: 8 * tiles[:, :3].sum(dim=1, keepdim=True) - 12)
    pda = EfficientPDA(model, ConstantPrior(0.0))
    evidence = pda.evidence(bright(0, 1, 2), feature_mask=SQUARES, context="both")
    (part,) = evidence.sufficient()
    assert len(part.numbers) == 2
    assert len(evidence.necessary().numbers) == 2
    raw = EfficientPDA(model, ConstantPrior(0.0), output="raw")
    evidence = raw.evidence(bright(0, 1, 2), feature_mask=SQUARES, context="both")
    with pytest.raises(ValueError, match="at_least="):
        evidence.sufficient(0)
    (part,) = evidence.sufficient(0, at_least=10.0)
    assert len(part.numbers) == 3
    assert len(evidence.necessary(0, below=10.0).numbers) == 1


def test_labels_that_do_not_exclude_each_other_are_asked_one_by_one():
    model = Tiles(lambda tiles: 8 * tiles[:, [0, 1, 2]] + 8 * tiles[:, [3, 4, 2]] - 4)
    pda = EfficientPDA(model, ConstantPrior(0.0), output="multilabel")
    evidence = pda.evidence(bright(0, 1, 2, 3), feature_mask=SQUARES, context="both")
    assert evidence.top() != 1  # which is present as well
    assert [part.numbers for part in evidence.sufficient(1)] == [(1,)]
    part = evidence.necessary(1)
    assert part.numbers == (1,)
    assert part.minimal
    assert part.first is None
    assert part.prediction < 0.5 < part.seen
    assert {part.numbers for part in evidence.sufficient(0)} == {(0,), (3,)}
    assert sorted(evidence.necessary(0).numbers) == [0, 3]
    with pytest.raises(ValueError, match="is past this already"):
        evidence.necessary(0, expected=2)

    turned = Tiles(lambda tiles: torch.stack([4 * tiles[:, 0], 4 - 8 * tiles[:, 1]], dim=1) - 2)
    pda = EfficientPDA(turned, ConstantPrior(0.0), output="multilabel")
    evidence = pda.evidence(bright(0, 1), feature_mask=SQUARES)
    assert evidence.necessary(0, expected=1).numbers == (1,)


# What can be asked, and what cannot


def test_evidence_without_a_model_says_what_to_do():
    _, evidence = tile_evidence(majority, bright(0))
    loaded = pickle.loads(pickle.dumps(replace(evidence, ask=None)))
    for question in (loaded.interactions, loaded.sufficient, loaded.necessary):
        with pytest.raises(ValueError, match="no model to ask"):
            question(1)
    layers = LayerPDA(make_classifier()).evidence(make_images(1, 3, 8, 9))
    with pytest.raises(ValueError, match="layer's feature map"):
        layers.interactions(1)


def test_arguments_that_make_no_sense_are_named():
    _, evidence = tile_evidence(majority, bright(0, 1, 2))
    for regions, error, message in (
        ([0, 99], ValueError, r"\[99\]"),
        ([0], ValueError, "needs two"),
        ([], TypeError, "how many of the strongest"),
        ([0.5, 1.5], TypeError, "how many of the strongest"),
        ([True] * 16, TypeError, "how many of the strongest"),
        ("all", TypeError, "regions must be an int"),
        (np.ones((2, 3, 3), bool), ValueError, "regions have shape"),
        (np.ones((2, 16, 16)), ValueError, "dtype float64; give .* booleans"),
        (np.zeros((2, 16, 16), bool), ValueError, "without pixels"),
        (0, ValueError, "regions"),
    ):
        with pytest.raises(error, match=message):
            evidence.interactions(1, regions=regions)
    with pytest.raises(ValueError, match="SampledPDA"):
        evidence.interactions(0, regions=2).standard_errors()
    for sets in ([[True, False]], [[0.5, 1, 0, 0]], [["a"] * 4]):
        with pytest.raises(ValueError, match="coalitions have shape"):
            evidence.coalitions(1, regions=4).ask(sets)
    for wrong in (float("nan"), 2.0, "x", [0.5]):
        with pytest.raises(ValueError, match=r"at_least=.* must be a probability"):
            evidence.sufficient(at_least=wrong)
        with pytest.raises(ValueError, match=r"below=.* must be a probability"):
            evidence.necessary(below=wrong)
    with pytest.raises(ValueError, match="expected=9 is out of range"):
        evidence.necessary(expected=9)
    with pytest.raises(ValueError, match="target=0 is past this already"):
        evidence.necessary(0)


def test_masks_of_one_s_own_are_regions():
    _, evidence = tile_evidence(majority, bright(0, 1, 2, 3))
    left = torch.zeros(2, 16, 16, dtype=torch.bool)
    left[0, :, :8], left[1, :, 8:] = True, True
    found = evidence.interactions(1, regions=left)
    assert found.values().shape == (2, 2)
    hidden = evidence.coalitions(1, regions=left).ask([[True, False]])
    expected = evidence.ask(0, torch.where(left[0], 0.0, evidence.inputs[0]))
    torch.testing.assert_close(hidden, expected)


# Games


def test_a_game_has_the_values_of_its_coalitions():
    _, evidence = tile_evidence(majority, bright(0, 1, 2, 3))
    game = evidence.as_game(1, regions=[0, 1, 2])
    assert game.n_players == 3
    values = game([[1, 1, 1], [0, 1, 1], [0, 0, 0]])
    whole = float(evidence.scores[0, 1]) / np.log(2)
    assert values[0] == pytest.approx(whole, rel=1e-5)
    assert values[1] == pytest.approx(
        whole - float(evidence.in_context("full").window_values(1)[0, 0])
    )
    assert values.dtype == np.float64
    empty = evidence.as_game(1, regions=[0, 1, 2], context="empty")
    assert empty([False, False, False])[0] == pytest.approx(
        float(evidence.in_context("empty").parts[0].reference[0, 1]) / np.log(2), rel=1e-5
    )
    assert game(np.zeros((0, 3))).shape == (0,)
    with pytest.raises(ValueError, match="context"):
        evidence.as_game(1, context="both")


@pytest.mark.slow
def test_shapiq_plays_the_game():
    shapiq = pytest.importorskip("shapiq")
    image = make_images(1, 3, 8, 9)
    evidence = PDA(make_classifier()).evidence(image, feature_mask=TILES)
    game = evidence.as_game(2, regions=range(6))
    exact = shapiq.ExactComputer(n_players=6, game=game)(index="SV", order=1)
    found = shapiq.KernelSHAP(n=6, random_state=0).approximate(budget=2**6, game=game)
    for player in range(6):
        assert found[(player,)] == pytest.approx(exact[(player,)], abs=1e-6)
    total = game([[1] * 6])[0] - game([[0] * 6])[0]
    assert sum(exact[(player,)] for player in range(6)) == pytest.approx(total, abs=1e-6)


def test_without_a_target_the_most_probable_output_is_asked_about():
    evidence = EfficientPDA(make_classifier()).evidence(
        make_images(1, 3, 8, 9), feature_mask=TILES, context="both"
    )
    top = evidence.top()
    by_default, by_name = evidence.interactions(regions=3), evidence.interactions(top, regions=3)
    torch.testing.assert_close(by_default.values(), by_name.values())
    sets = np.eye(3, dtype=bool)
    np.testing.assert_allclose(
        evidence.as_game(regions=3)(sets), evidence.as_game(top, regions=3)(sets)
    )
    assert "array" not in repr(evidence.sufficient(at_least=0.0))
