"""Detectors by name: one map for each box."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import opened
from PIL import Image

from captum_pda.cli.main import main
from captum_pda.cli.models import choose_model, load_classifier

#: Finds squares of 16 pixels that are bright in one colour: red is class 1, blue class 2.
FINDER = """
import torch
from torch import nn
from torchvision.transforms import v2


class Finder(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.AvgPool2d(16)
        self.colours = nn.Conv2d(3, 2, 1, bias=False)
        with torch.no_grad():
            self.colours.weight.copy_(torch.tensor([[1.0, -1, -1], [-1, -1, 1]])[..., None, None])

    def forward(self, images):
        found = []
        for scores in self.colours(self.places(images)).clamp(0, 1):
            kinds, rows, columns = (scores > 0.1).nonzero(as_tuple=True)
            corners = 16.0 * torch.stack([columns, rows], dim=1)
            found.append({"boxes": torch.cat([corners, corners + 16], dim=1),
                          "labels": kinds + 1, "scores": scores[kinds, rows, columns]})
        return found


def transform():
    return v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


def finder(): return Finder(), transform(), ("nothing", "rose", "violet")
def nameless(): return Finder(), transform()
"""


@pytest.fixture
def garden(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(FINDER)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    pixels = np.full((64, 64, 3), 20, dtype=np.uint8)
    pixels[16:32, 32:48] = (250, 0, 0)
    pixels[48:64, 0:16] = (0, 0, 220)
    Image.fromarray(pixels).save("garden.png")


def explain(*options, model="own:finder"):
    quick = ("--superpixels", "16", "--device", "cpu", "--no-test", "--html")
    return main(["explain", "garden.png", "--model", model, *quick, *options])


def test_every_box_has_a_map_of_its_own(garden, capsys):
    assert explain("--method", "efficient") == 0
    said = capsys.readouterr().out
    assert "Why rose" in said
    assert "Why violet" in said
    with np.load("garden.png_evidence.npz") as file:
        rose, violet = file["bits"]
    assert np.unravel_index(rose.argmax(), rose.shape) >= (16, 32)
    inside = np.zeros((64, 64), dtype=bool)
    inside[16:32, 32:48] = True
    assert rose[inside].mean() > 5 * np.abs(rose[~inside]).mean()
    inside[:], inside[48:, :16] = False, True
    assert violet[inside].mean() > 5 * np.abs(violet[~inside]).mean()


def test_the_page_draws_the_box_of_the_class_that_is_shown(garden, browser):
    assert explain("--method", "efficient") == 0
    inside = """(canvas) => {
        const { width, height } = canvas;
        const copy = new OffscreenCanvas(width, height).getContext("2d");
        copy.drawImage(canvas, 0, 0);
        const { data } = copy.getImageData(0, 0, width, height);
        const found = [];
        for (let n = 0; n < data.length; n += 4)
            if (data[n] === 232 && data[n + 1] === 180 && data[n + 2] === 0)
                found.push([64 * (n / 4 % width) / width, 64 * Math.floor(n / 4 / width) / height]);
        return found;
    }"""
    with opened(browser, Path("garden.png_evidence.html")) as page:
        page.uncheck("#numbers")
        for box in ((32, 16, 48, 32), (0, 48, 16, 64)):
            places = np.array(page.locator("#picture").evaluate(inside))
            assert len(places) > 100
            assert (*places.min(axis=0), *places.max(axis=0)) == pytest.approx(box, abs=0.5)
            page.check("#classes input >> nth=1")


def test_boxes_of_a_class(garden, capsys):
    assert explain("--target", "violet", "--method", "efficient") == 0
    said = capsys.readouterr().out
    assert "Why violet" in said
    assert "Why rose" not in said
    assert explain("--target", "nothing", "--overwrite") == 1
    assert "no box of the --target was found" in capsys.readouterr().err
    assert explain("--contrast", "rose", "violet") == 1
    assert "one by one" in capsys.readouterr().err
    assert explain("--expected", "rose") == 1
    assert "leave out --contrast and --expected" in capsys.readouterr().err


def test_a_detector_by_the_default_method(garden):
    assert explain(model="own:nameless") == 0
    assert Path("garden.png_evidence.png").is_file()
    assert Path("garden.png_evidence.html").is_file()


def test_a_detector_of_torchvision_alone_gets_colours_from_0_to_1(garden):
    Path("bare.py").write_text(
        "from torchvision.models import detection as d\n\ndef ssd():\n    return "
        "d.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)\n"
    )
    image = choose_model("bare:ssd").preprocessing(Image.open("garden.png"))
    assert image.shape == (1, 3, 64, 64)
    assert image.max() == pytest.approx(250 / 255)
    assert image.min() == 0
    sys.modules.pop("bare")


@pytest.mark.parametrize("n_classes", [91, 4])
def test_detectors_of_torchvision_by_name(tmp_path, n_classes):
    from torchvision.models import detection

    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    torch.manual_seed(0)
    model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=n_classes
    )
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    found = load_classifier(f"torchvision/{name}", tmp_path / "weights.pth")
    assert found.output == "raw"
    photo = Image.new("RGB", (1200, 400), "white")
    image = found.preprocessing(photo)
    assert image.shape == (1, 3, 213, 640)
    assert found.model(image).shape == (1, 20)
    assert choose_model(f"torchvision/{name}").labels[18] == "dog"
    # Another number of classes has other names.
    assert found.labels[18] == ("dog" if n_classes == 91 else "class 18")
