"""The decision rules of a class, on photos into which known rules were put."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from browser import LOW_CONTRAST, NAMELESS, opened
from torch import nn

from captum_pda import ConstantPrior, EfficientPDA
from captum_pda.atlas import (
    ClassRegion,
    cut_regions,
    make_atlas,
    read_regions,
    visualize_atlas,
    write_atlas,
    write_regions,
)
from captum_pda.atlas.atlas import ninth
from captum_pda.model.measures import signed

N_PHOTOS = 6


class RedForBlueAgainst(nn.Module):
    """Red speaks for the first class, green too, and blue against it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 3, 1, bias=False)
        self.features.weight = nn.Parameter(torch.eye(3)[:, :, None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        red, green, blue = self.features(x).clamp(min=0).mean(dim=(2, 3)).T
        return torch.stack([20 * (red + green - blue), 0 * red], dim=1)


def make_photo(number: int) -> torch.Tensor:
    """Grey with a red and a blue square somewhere, and in the first photo a green one."""
    places = np.random.default_rng(number).permutation(16)
    photo = torch.zeros(1, 3, 32, 32)
    for channel, place in (
        (0, places[0]),
        (2, places[1]),
        *([(1, places[2])] if not number else []),
    ):
        top, left = 8 * (place // 4), 8 * (place % 4)
        photo[0, channel, top : top + 8, left : left + 8] = 1
    return photo


def find_regions(model: nn.Module | None) -> list:
    pda = EfficientPDA(RedForBlueAgainst().eval(), prior=ConstantPrior(0.0), engine="dense")
    regions = []
    for number in range(N_PHOTOS):
        evidence = pda.evidence(make_photo(number), sliding_window_shapes=8, strides=8)
        found = cut_regions(evidence, 0, f"photo {number}", model, mean=0.0, std=1.0)
        regions += [replace(region, link=f"./{number}.html") for region in found]
    return regions


@pytest.fixture(scope="module", params=["features", "colours"])
def regions(request):
    return find_regions(RedForBlueAgainst().eval() if request.param == "features" else None)


def test_what_was_put_into_the_photos_is_found(regions):
    atlas = make_atlas(regions, "warm")
    assert [group.speaks_for for group in atlas.groups] == [True, False]
    red, blue = atlas.groups
    for group, channel, sign in ((red, 0, 1), (blue, 2, -1)):
        assert len(group.photos) == N_PHOTOS
        assert group.share == 1
        # 20 / 16 of the logit is the square's, and the odds are those of two classes.
        assert group.mean_bits == pytest.approx(sign * 20 / 16 / np.log(2), rel=0.02)
        assert group.spread == pytest.approx(0, abs=1e-4)
        for region in group.regions:
            assert region.crop.mean(axis=(0, 1)).argmax() == channel


def test_a_rule_that_rests_on_one_photo_is_left_out(regions):
    green = [region for region in regions if region.crop.mean(axis=(0, 1)).argmax() == 1]
    assert [region.photo for region in green] == ["photo 0"]
    atlas = make_atlas(regions, "warm")
    assert all(green[0] is not region for group in atlas.groups for region in group.regions)
    assert atlas.n_left_out == 1
    assert len(make_atlas(regions, "warm", min_photos=1).groups) == 3


def test_examples_come_from_many_photos_first(regions):
    doubled = [*regions, *[region for region in regions if region.photo == "photo 1"]]
    group = make_atlas(doubled, "warm").groups[0]
    examples = group.examples(N_PHOTOS)
    assert len({region.photo for region in examples}) == N_PHOTOS
    assert len(group.examples(100)) == len(group.regions)


def test_regions_come_back_from_their_file(regions, tmp_path):
    for some in (regions, []):
        write_regions(tmp_path / "a.safetensors", some, {"target": 0})
        found = read_regions(tmp_path / "a.safetensors")
        assert len(found) == len(some)
        for before, after in zip(some, found, strict=True):
            assert (before.photo, before.bits, before.link) == (after.photo, after.bits, after.link)
            assert (before.corner, before.shape) == (after.corner, after.shape)
            np.testing.assert_array_equal(before.crop, after.crop)
            np.testing.assert_array_equal(before.features, after.features)


def test_the_picture_has_a_row_for_each_group(regions):
    atlas = make_atlas(regions, "warm")
    figure = visualize_atlas(atlas, n_examples=3, use_pyplot=False)
    assert len(figure.axes) == len(atlas.groups) * 4
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    first = atlas.groups[0]
    bits = f"{signed(first.mean_bits)} \u00b1 0.00 bits"
    assert words[0] == f"{bits}\n6 of 6 photos\n{first.name}"
    empty = visualize_atlas(make_atlas([], "warm"), use_pyplot=False)
    assert [text.get_text() for text in empty.axes[0].texts] == [
        "no region occurs in several photos"
    ]


def test_wrong_arguments_are_refused(regions):
    with pytest.raises(ValueError, match="n_photos=2, and the regions come from 6"):
        make_atlas(regions, "warm", n_photos=2)
    other = find_regions(None)[:1]
    other[0].__dict__["features"] = np.zeros(2, dtype=np.float32)
    with pytest.raises(ValueError, match="describe all of them by the same model"):
        make_atlas([*regions, *other], "warm")


def test_the_page_shows_groups_and_links_to_reports(browser, regions, tmp_path):
    regions[0].__dict__["link"] = "javascript:alert(1)"
    atlas = make_atlas(regions, "<b>warm</b>")
    path = write_atlas(atlas, tmp_path / "atlas.html")
    with opened(browser, path) as page:
        assert page.inner_text("h1") == "<b>warm</b>"
        assert page.locator("#for > li").count() == 1
        assert page.locator("#against > li").count() == 1
        assert page.locator("#for strong").inner_text().startswith("+1.8 \u00b1 0.00 bits")
        assert "in 6 of 6 photos (100.0%)" in page.locator("#for .sum").inner_text()
        links = page.locator("#for a").evaluate_all("all => all.map((one) => one.href)")
        assert len(links) == N_PHOTOS - 1
        assert all(link.startswith("file:") for link in links)
        assert page.evaluate(LOW_CONTRAST) == []
        assert page.evaluate(NAMELESS) == []


def test_a_group_is_named_by_class_sign_and_place():
    def region(photo, corner, bits=1.0):
        crop, vector = np.zeros((96, 96, 3), np.uint8), np.ones(2, np.float32)
        place = ninth(corner, (10, 10), (90, 90))
        return ClassRegion(photo, bits, corner, (10, 10), crop, vector, "", "husky", place)

    corners = [(2, 70), (5, 75), (40, 40)]
    above = [region(str(number), corner) for number, corner in enumerate(corners)]
    (group,) = make_atlas(above, "husky").groups
    assert group.name == "for husky, mostly upper right"
    (group,) = make_atlas([region(str(n), (40, 30 * n), -1.0) for n in range(3)], "husky").groups
    assert group.name == "against husky, anywhere"
