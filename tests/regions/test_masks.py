"""Regions of any shape from a mask: which pixels they hold, and how values come back."""

import numpy as np
import pytest
import torch
from conftest import make_classifier, make_images

from captum_pda import PDA, FeatureMaskRegions
from captum_pda.regions.masks import feature_mask_regions


def hidden_pixels(regions, example):
    """For each region, the flat numbers of its pixels, as the boxes say."""
    found = {}
    groups = zip(regions.boxes(example), regions.members(example), strict=True)
    for windows, members in groups:
        places = zip(members, windows.pixels(), windows.hidden.flatten(1), strict=True)
        for number, pixels, hidden in places:
            found[int(number)] = sorted(pixels[hidden].tolist())
    return found


@pytest.mark.parametrize("space", [(17,), (9, 13), (4, 5, 6)])
@pytest.mark.parametrize("rows", [1, 3])
def test_each_region_holds_the_pixels_of_its_number_and_no_others(space, rows):
    generator = torch.Generator().manual_seed(len(space))
    mask = torch.randint(-3, 40, (rows, *space), generator=generator) // 7 * 5
    regions = FeatureMaskRegions(mask)
    assert list(regions.labels) == mask.unique().tolist()
    for example in range(rows):
        expected = {
            number: (mask[example].flatten() == label).nonzero().flatten().tolist()
            for number, label in enumerate(regions.labels)
            if (mask[example] == label).any()
        }
        assert hidden_pixels(regions, example) == expected
    values = torch.tensor([[float(label) for label in regions.labels]] * 3)
    assert (regions.average(values) == mask).all()
    assert (regions.coverage() == 1).all()


def test_a_region_that_an_example_lacks_is_in_no_group():
    regions = FeatureMaskRegions(torch.tensor([[[0, 0, 1]], [[0, 0, 0]]]))
    assert hidden_pixels(regions, 0) == {0: [0, 1], 1: [2]}
    assert hidden_pixels(regions, 1) == {0: [0, 1, 2]}
    assert regions.absent(2).tolist() == [[False, False], [False, True]]
    assert FeatureMaskRegions(torch.tensor([[[5, 9]]])).absent(2).tolist() == [[False] * 2] * 2


def test_draws_are_numbered_by_the_masks_own_numbers():
    """So that an example gets the same ones alone as beside examples with other regions."""
    masks = torch.tensor([[[0, 3, 3]], [[3, 3, 7]]])
    alone, together = FeatureMaskRegions(masks[1:]), FeatureMaskRegions(masks)
    firsts = [[windows.first for windows in r.boxes(n)] for r, n in ((alone, 0), (together, 1))]
    assert firsts[0] == firsts[1] == [7, 3]


def test_regions_of_about_one_size_share_the_shape_of_their_boxes():
    mask = torch.arange(100).reshape(1, 10, 10) // 30
    mask[0, :, 9] = 7
    regions = FeatureMaskRegions(mask)
    boxes = regions.boxes(0)
    assert len(boxes) < len(regions) == 5
    assert all(len(windows[0:1].pick([0]).pixels()) == 1 for windows in boxes)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[0, 1]], "must be a tensor or a NumPy array of integers, got list"),
        (torch.zeros(1, 1, 4, 5), "dtype torch.float32; give integers"),
        (torch.zeros(1, 1, 4, 5).bool(), "dtype torch.bool; give integers"),
        (torch.zeros(3, 1, 4, 5).long(), r"expected \(1, 1, 4, 5\), .*, or \(4, 5\) for all"),
        (torch.zeros(1, 2, 4, 5).long(), r"shape \(1, 2, 4, 5\) for inputs of \(2, 3, 4, 5\)"),
        (torch.zeros(5, 4).long(), r"shape \(5, 4\).*or \(4, 5\) for all examples"),
        (np.zeros((4, 5)), "dtype float64; give integers"),
        (np.zeros((4, 5), dtype=bool), "dtype bool; give integers"),
        (torch.arange(3).reshape(1, 3, 1, 1).expand(1, 3, 4, 5), "one channel than in another"),
    ],
)
def test_a_mask_that_cannot_be_meant_is_refused_by_name(mask, message):
    with pytest.raises((TypeError, ValueError), match=message):
        feature_mask_regions(mask, torch.zeros(2, 3, 4, 5), "feature_mask")


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("space", [(20,), (4, 5), (2, 2, 5)])
def test_a_mask_of_the_space_serves_all_examples_as_an_array_or_a_tensor(space, dtype):
    numbers = (np.arange(20).reshape(space) // 3).astype(dtype)
    numbers.setflags(write=False)
    images = torch.zeros(2, 3, *space)
    whole = torch.from_numpy(numbers.astype(np.int64))[None, None]
    expected = feature_mask_regions(whole, images, "feature_mask")
    turned = np.flip(np.flip(numbers, 0).copy(), 0)
    for mask in (numbers, turned, numbers[None, None], whole[0, 0]):
        found = feature_mask_regions(mask, images, "feature_mask")
        assert found.settings() == expected.settings()


def test_superpixels_of_scikit_image_are_a_mask_as_they_are():
    segmentation = pytest.importorskip("skimage.segmentation")
    image = make_images(1, 3, 20, 22)
    picture = image[0].permute(1, 2, 0).numpy()
    superpixels = segmentation.slic(picture, n_segments=12, start_label=1)
    found = PDA(make_classifier()).attribute(image, target=1, feature_mask=superpixels)
    whole = torch.from_numpy(superpixels)[None, None]
    expected = PDA(make_classifier()).attribute(image, target=1, feature_mask=whole)
    torch.testing.assert_close(found, expected)


def test_settings_tell_masks_apart_but_not_copies_of_one():
    mask = torch.arange(20).reshape(1, 4, 5) // 3
    regions = FeatureMaskRegions(mask)
    regions.boxes(0)
    assert regions.settings() == FeatureMaskRegions(mask.clone()).settings()
    assert regions.settings() != FeatureMaskRegions(mask.flip(2)).settings()
    assert regions.settings() != FeatureMaskRegions(mask + 1).settings()
