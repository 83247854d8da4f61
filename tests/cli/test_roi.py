"""A region of interest: only there is anything asked, and the map is 0 elsewhere."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from captum_pda import PDA
from captum_pda.cli.main import main
from captum_pda.regions.superpixels import Superpixels

pytestmark = pytest.mark.usefixtures("photo_folder")


def explain(*options):
    quick = ("--model", "tiny:five", "--device", "cpu", "--superpixels", "5", "--no-test")
    return main(["explain", "cat.png", *quick, *options])


def bits():
    with np.load("cat.png_evidence.npz") as file:
        return file["bits"][0]


def test_a_rectangle_in_pixels_of_the_photo(capsys):
    """The photo of 60 x 48 becomes 40 x 32, of which the middle 32 columns are seen."""
    assert explain("--roi", "24", "12", "12", "18") == 0
    inside = np.zeros((32, 32), dtype=bool)
    inside[8:20, 12:20] = True  # (24 to 36) / 1.5 - 4, (12 to 30) / 1.5
    found = bits()
    assert np.abs(found[inside]).min() > 0
    np.testing.assert_array_equal(found[~inside], 0)
    said = capsys.readouterr().out
    assert "Only the region of interest was explained (9.4%); the map is 0 elsewhere." in said


def test_a_mask_gives_the_same(capsys):
    mask = np.zeros((48, 60), dtype=np.uint8)
    mask[12:30, 24:36] = 1
    Image.fromarray(mask).save("mask.png")
    assert explain("--roi", "24", "12", "12", "18", "--quiet") == 0
    rectangle = bits()
    assert explain("--roi", "mask.png", "--quiet") == 0
    np.testing.assert_array_equal(bits(), rectangle)
    Image.fromarray(mask[:-1]).save("mask.png")
    assert explain("--roi", "mask.png") != 0
    assert "has shape (47, 60) for an image of (48, 60)" in capsys.readouterr().err
    for wrong in (["1", "2", "3"], ["0", "0", "60", "48"], ["90", "0", "9", "9"]):
        assert explain("--roi", *wrong) != 0
        assert "--roi" in capsys.readouterr().err
    assert explain("--roi", "0", "0", "9", "9", "--method", "layer") == 2


def test_superpixels_within_a_region_of_interest():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Tanh(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    ).eval()
    image, roi = torch.rand(1, 3, 40, 40), torch.zeros(40, 40, dtype=torch.bool)
    roi[5:25, 10:30] = True
    regions = (partial(Superpixels, roi=roi), (4, 9))
    evidence = PDA(model).evidence(image, regions=regions).at_depth("input")
    found = evidence.attribution(1)[0, 0]
    assert torch.equal(found != 0, roi)
    for part in evidence.parts:
        n_asked = int((~part.regions.absent(1)).sum())
        assert 1 < n_asked < 16
        assert n_asked == sum(len(boxes) for boxes in part.regions.boxes(0))
