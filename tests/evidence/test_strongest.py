"""The regions that are listed are those of the map, in their own shape, with an answer each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import make_classifier, make_convolutional, make_images
from skimage import data
from torch import nn

from captum_pda import PDA, ConstantPrior, EfficientPDA, LayerPDA, strongest_regions
from captum_pda.evidence.strongest import (
    LEAST_BITS,
    LEAST_SHARE,
    SHARED_PART,
    Size,
    listed_regions,
    means_inside,
    pixels_of,
    strongest_in,
)


def checked(evidence, target, **options):
    """The lists, after what holds for every list was checked."""
    kinds = strongest_regions(evidence, target, **options)
    values = evidence.attribution(target)[0, 0].double().numpy()
    taken = np.zeros(values.shape, dtype=int)
    for sign, regions in zip((1, -1), kinds, strict=True):
        means = [sign * values[region.pixels].mean() for region in regions]
        assert all(mean > 0 for mean in means)
        assert means == sorted(means, reverse=True)
        for region, mean in zip(regions, means, strict=True):
            assert region.value == pytest.approx(sign * mean, rel=1e-5)
            assert max(sign * said for said in region.evidence.values()) > LEAST_BITS
            taken += region.pixels
        assert not any(region.tied for region in regions[-1:])  # there is no next one
    assert taken.max(initial=0) <= 1
    return kinds


def sharp_network(seed, factor):
    """A random network of convolutions, whose logits are multiplied by a factor."""
    last = nn.Linear(4, 4, bias=False)
    last.weight.data = factor * torch.eye(4)
    return nn.Sequential(*make_convolutional(seed=seed), last).eval()


@pytest.mark.parametrize(
    ("name", "seed"), [("astronaut", 0), ("camera", 1), ("coffee", 0), ("rocket", 1)]
)
def test_the_map_decides_in_photos(name, seed):
    photo = torch.from_numpy(getattr(data, name)()).float() / 255
    photo = photo.movedim(2, 0) if photo.dim() == 3 else photo.expand(3, -1, -1)
    image = nn.functional.adaptive_avg_pool2d(photo, (72, 80))[None]
    evidence = PDA(sharp_network(seed, 30.0), engine="dense").evidence(image, effort="quick")
    for target in range(evidence.scores.shape[1]):
        assert any(checked(evidence, target))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "regions",
    [
        {"superpixels": (4, 9)},
        {"scales": (5, 9)},
        {"feature_mask": (torch.arange(20)[:, None] // 5 * 5 + torch.arange(24) // 5)[None, None]},
    ],
    ids=lambda given: next(iter(given)),
)
def test_the_map_decides(seed, regions):
    image = make_images(1, 3, 20, 24, seed=seed)
    evidence = PDA(make_classifier(seed=seed), engine="dense").evidence(image, **regions)
    checked(evidence, 1, n=4)


@pytest.mark.parametrize("seed", range(6))
def test_the_next_region_is_one_that_is_listed(seed):
    """Of a network that hardly cares, some regions answer nothing and are left out."""
    image = make_images(1, 3, 40, 40, seed=seed).float()
    evidence = PDA(sharp_network(seed, 0.4), engine="dense").evidence(image, superpixels=(9, 16))
    for target in range(evidence.scores.shape[1]):
        checked(evidence, target)


def test_patches_of_a_mask_are_listed_one_by_one_in_their_own_shape():
    """Boxes of one shape for several regions once made patches of 16 overlap."""
    mask = (torch.arange(64)[:, None] // 16 * 4 + torch.arange(64) // 16)[None, None]
    image = make_images(1, 3, 64, 64)
    evidence = EfficientPDA(make_classifier()).evidence(image, feature_mask=mask)
    for_it, against_it = checked(evidence, 2, n=16)
    listed = [*for_it, *against_it]
    weak = max(LEAST_BITS, LEAST_SHARE * max(abs(region.value) for region in listed))
    values = evidence.window_values(2)[0]
    assert len(listed) == int((values.abs() > weak).sum())
    assert {region.shape for region in listed} == {(16, 16)}


def test_each_question_has_its_own_answer():
    image = make_images(1, 3, 12, 12)
    mask = (torch.arange(12)[:, None] // 4 * 3 + torch.arange(12) // 4)[None, None]
    evidence = EfficientPDA(make_classifier()).evidence(image, feature_mask=mask, context="both")
    full, empty = (evidence.in_context(context) for context in ("full", "empty"))
    assert full.parts[0].regions is empty.parts[0].regions
    region = next(region for kind in checked(evidence, 0, n=9) for region in kind)
    number = int(mask[0, 0][torch.from_numpy(region.pixels)][0])
    assert region.lost == pytest.approx(float(full.window_values(0)[0, number]))
    assert region.alone == pytest.approx(float(empty.window_values(0)[0, number]))
    assert region.changed["full"] == pytest.approx(float(full.predictions_without(0)[0, number]))
    assert region.seen == pytest.approx(float(evidence.probabilities[0, 0]))
    assert str(region).startswith("without it: ")
    assert "by itself: " in str(region)
    for one in (region for kind in checked(evidence, 0, n=9) for region in kind):
        assert one.main_answer == one.answers()[0 if one.lost * one.value > 0 else 1]


def test_regions_are_listed_that_were_asked_by_themselves():
    """What small regions add is read from random sets, which is not an answer of theirs alone."""
    image = make_images(1, 3, 72, 80).float()
    evidence = PDA(sharp_network(0, 30.0), engine="dense").evidence(image)
    small = evidence.in_context("random").parts[0].regions
    listed = [one for kind in checked(evidence, 2) for one in kind]
    assert listed
    assert all(one.regions != small and "random" not in one.evidence for one in listed)
    assert any(checked(evidence.in_context("random"), 2))


def test_a_contrast_has_the_predictions_of_both_outputs_beside_its_bits():
    """Their ratio changes by these bits; that of the first alone would change by others."""
    evidence = PDA(sharp_network(0, 30.0), engine="dense").evidence(
        make_images(1, 3, 40, 40).float()
    )
    kinds = strongest_regions(evidence, 1, rather_than=2)
    assert any(kinds)
    for region in (one for kind in kinds for one in kind if one.lost is not None):
        (seen, changed), (other, others) = (region.seen, region.changed), region.second
        before, after = seen / other, changed["full"] / others["full"]
        assert np.log2(before / after) == pytest.approx(region.lost, rel=1e-3, abs=1e-4)
        said = region.measure.in_words
        assert f"{said(seen)} : {said(other)} -> {said(changed['full'])} :" in str(region)


def test_places_of_a_feature_map_are_the_pixels_that_they_cover():
    image = make_images(1, 3, 24, 24).float()
    evidence = PDA(make_convolutional()).evidence(image)
    for kind in strongest_regions(evidence.at_depth(evidence.parts[-1].depth), 1):
        for region in kind:
            assert region.pixels.shape == (24, 24)


def test_one_example_of_several_must_be_named():
    images = make_images(2, 3, 12, 12)
    evidence = EfficientPDA(make_classifier()).evidence(images, sliding_window_shapes=4)
    with pytest.raises(ValueError, match="example=0"):
        strongest_regions(evidence, 0)
    alone = EfficientPDA(make_classifier()).evidence(images[1:], sliding_window_shapes=4)
    second, same = strongest_regions(evidence, 0, example=1), strongest_regions(alone, 0)
    assert [r.corner for r in second[0]] == [r.corner for r in same[0]]


def test_regions_that_answer_nothing_are_not_listed():
    """In a uniform image only the last feature map differs, by its borders."""
    evidence = PDA(sharp_network(0, 200.0)).evidence(torch.full((1, 3, 24, 24), 0.3))
    assert float(evidence.parts[-1].values(1).abs().max()) > LEAST_BITS
    assert strongest_regions(evidence, 1) == ([], [])


def test_a_layer_has_a_list_too():
    image = make_images(1, 3, 12, 12).float()
    evidence = LayerPDA(make_convolutional(), prior=ConstantPrior(0.0)).evidence(image)
    assert strongest_regions(evidence, 1)


def test_a_region_that_says_nothing_itself_makes_room_for_the_one_that_makes_the_map():
    """Any quarter of the bright square is enough, so windows of 4 x 4 lose nothing."""
    image = torch.zeros(1, 1, 24, 24)
    image[..., 8:16, 8:16] = 1.0
    image[..., 20:, 20:] = 0.4

    def model(x):
        square, corner = x[..., 8:16, 8:16].amax(dim=(1, 2, 3)), x[..., 22, 22].sum(dim=1)
        return torch.stack([0 * square, 8 * square + 2 * corner], dim=1)

    evidence = EfficientPDA(model, prior=ConstantPrior(0.0), engine="dense").evidence(
        image, scales=(4, 8), strides=(4, 8)
    )
    (first, second, *_), _ = checked(evidence, 1)
    assert (first.corner, first.shape) == ((8, 8), (8, 8))
    assert first.lost == pytest.approx(8 / np.log(2))
    assert (second.corner, second.shape) == ((20, 20), (4, 4))
    assert second.lost > 1


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "given",
    [{"superpixels": (6, 20, 50)}, {"scales": (10, 20)}],
    ids=lambda given: next(iter(given)),
)
def test_no_stronger_region_is_left_out_for_a_few_shared_pixels(seed, given):
    """A region that was replaced by one of another size once kept its neighbours from the list."""
    image = make_images(1, 3, 40, 48, seed=seed)
    evidence = EfficientPDA(make_classifier(), engine="dense").evidence(image, **given)
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:40, :48] / 40
    values = sum(
        weight * np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 0.03)
        for weight, y, x in zip(random.normal(size=15), *random.random((2, 15)), strict=True)
    )
    sizes = []
    for part in evidence.parts:
        numbers, means = means_inside(part.regions, 0, values)
        carried = random.random(len(means)) < 0.7
        said = np.where(carried, random.random(len(means)), 0)
        sizes.append(Size(part.regions, numbers, means, said))
    preferred = listed_regions([size.regions for size in sizes])
    size = next(size for size in sizes if size.regions == preferred)
    kinds = strongest_in(values, sizes, 0, 3)
    listed = [one for kind in kinds for one in kind]
    taken = np.sum([one.pixels for one in listed], axis=0)
    assert taken.max() == 1
    for one in listed:
        whole = pixels_of(one.size.regions, 0, int(one.size.numbers[one.row]), values.shape)
        assert not (one.pixels & ~whole).any()
        assert one.pixels.sum() >= (1 - SHARED_PART) * whole.sum()
        assert one.value == pytest.approx(values[one.pixels].mean())
    for sign, kind in zip((1, -1), kinds, strict=True):
        strengths = [sign * one.value for one in kind]
        assert strengths == sorted(strengths, reverse=True)
        if len(kind) < 3:
            continue
        for row in np.flatnonzero(size.said):
            if any(one.size is size and one.row == row for one in listed):
                continue
            pixels = pixels_of(size.regions, 0, int(size.numbers[row]), values.shape)
            left = pixels & (taken == 0)
            if left.sum() >= (1 - SHARED_PART) * pixels.sum():
                both = sign * size.means[row], sign * values[left].mean()
                assert min(both) <= strengths[-1] + 1e-9


def test_a_region_is_listed_without_the_pixels_that_another_has():
    image = make_images(1, 3, 20, 20)
    part = (
        EfficientPDA(make_classifier(), engine="dense")
        .evidence(image, sliding_window_shapes=10, strides=9)
        .parts[0]
    )
    values = torch.zeros(20, 20)
    values[:10, :10] = 2.0
    values[:10, 10:19] = 1.0
    numbers, means = means_inside(part.regions, 0, values.numpy())
    size = Size(part.regions, numbers, means, np.abs(means))
    (first, second, *_), _ = strongest_in(values.numpy(), [size], 0, 3)
    assert (first.row, first.pixels.sum(), first.value) == (0, 100, 2.0)
    assert (second.pixels[:10, 10:19].sum(), second.pixels.sum(), second.value) == (90, 90, 1.0)
