"""Every method of the command is that of the library, for one size and several."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from captum_pda import PDA, EfficientPDA, LayerPDA, SampledPDA
from captum_pda.cli.main import main
from captum_pda.cli.models import load_classifier
from captum_pda.cli.photos import read_photo

pytestmark = pytest.mark.usefixtures("photo_folder")


def run(*arguments):
    return main(["explain", *arguments, "--model", "tiny:five", "--device", "cpu", "--quiet"])


def bits(name="cat.png_evidence.npz"):
    with np.load(name) as file:
        return file["bits"]


def image(name="tiny:five"):
    classifier = load_classifier(name)
    return classifier.model, classifier.preprocessing(read_photo(Path("cat.png"))[0])


def check(found, expected):
    values = expected[0, 0].detach().numpy()
    np.testing.assert_allclose(found, values, atol=1e-3 * float(abs(values).max()))


@pytest.mark.parametrize(
    ("options", "method", "arguments"),
    [
        ([], PDA, {}),
        (["--scales", "8", "16"], PDA, {"scales": (8, 16)}),
        (["--window", "8"], PDA, {"scales": (8,), "strides": 4}),
        (["--method", "efficient"], EfficientPDA, {}),
        (
            ["--method", "efficient", "--scales", "8", "16", "--context", "both"],
            EfficientPDA,
            {"scales": (8, 16), "context": "both"},
        ),
        (
            ["--method", "efficient", "--window", "8", "--stride", "8", "--context", "empty"],
            EfficientPDA,
            {"scales": 8, "strides": 8, "context": "empty"},
        ),
        (
            ["--method", "sampled", "--samples", "2", "--scales", "8", "16", "--stride", "8"],
            SampledPDA,
            {"scales": (8, 16), "strides": 8, "n_samples": 2},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_map_is_that_of_the_library(options, method, arguments):
    assert run("cat.png", "--target", "dog", *options) == 0
    model, inputs = image()
    if method is SampledPDA:
        arguments = {**arguments, "generator": torch.Generator().manual_seed(0)}
    check(bits()[0], method(model).attribute(inputs, target=4, **arguments))


def test_the_features_of_the_last_layer_are_drawn_over_the_photo(capsys):
    command = ["explain", "cat.png", "--model", "tiny:certain", "--method", "layer"]
    assert main([*command, "--target", "4"]) == 0
    model, inputs = image("tiny:certain")
    layer = LayerPDA(model)
    small = layer.attribute(inputs, target=4)
    larger = torch.nn.functional.interpolate(
        small[:, :1], size=(32, 32), mode="bilinear", align_corners=False
    )
    check(bits()[0], larger)
    lines = [line for line in capsys.readouterr().out.splitlines() if ", rows " in line]
    rows = [line.partition(", rows ")[2].partition(",")[0].split("-") for line in lines]
    # Places of a 15 x 15 map, in pixels of the photo: two or three of them.
    assert rows
    assert all(2 <= int(end) - int(start) + 1 <= 4 for start, end in rows)
    assert any(int(end) > 15 for _, end in rows)


@pytest.fixture
def saved_figures(monkeypatch):
    """All figures that are saved."""
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda self, *given, **named: (figures.append(self), save(self, *given, **named))[1],
    )
    return figures


def test_panels_say_which_method_and_sizes_they_show(saved_figures):
    for method in ("pda", "efficient", "layer"):
        assert run("cat.png", "--method", method) == 0
    said = [
        " ".join(text.get_text() for text in figure.findobj(Text) if text.get_text())
        for figure in saved_figures
    ]
    flat = [" ".join(text.split()) for text in said]
    assert "PDA, windows of 5x5, 9x9 and 14x14" in flat[0]
    assert "EfficientPDA, windows of 5x5" in flat[1]
    assert "LayerPDA, features of 3" in flat[2]
    for figure in saved_figures:
        FigureCanvasAgg(figure).draw()
        boxes = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
        for number, box in enumerate(boxes):
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
            assert not any(box.overlaps(other) for other in boxes[:number])


def test_the_maps_fill_the_picture(saved_figures):
    """A row is left unfilled by less than half of it."""
    n_classes = 4
    assert run("cat.png", "--classes", str(n_classes), "--method", "efficient", "--no-test") == 0
    panels = [axes for axes in saved_figures[0].axes if axes.images and axes.get_title()]
    assert len(panels) == n_classes + 1
    grid = panels[0].get_subplotspec().get_gridspec()
    assert grid.nrows * grid.ncols - len(panels) < grid.ncols / 2
    with Image.open("cat.png_evidence.png") as picture:
        right_half = np.asarray(picture.convert("L"))[:, picture.width // 2 :]
    assert (right_half < 250).mean() > 0.2


@pytest.mark.parametrize("method", ["pda", "layer"])
def test_folders_of_several_sizes_are_explained_once(method):
    Path("photos").mkdir()
    for name in ("cat.png", "dog.png"):
        Path(name).rename(Path("photos") / name)
    command = ("photos", "--output", "out", "--method", method, "--contrast", "dog", "ant")
    assert run(*command) == 0
    when = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.npz")}
    assert len(when) == 2
    assert run(*command) == 0
    assert when == {path: path.stat().st_mtime_ns for path in Path("out").rglob("*.npz")}
    settings = json.loads(Path("out/settings.json").read_text())
    assert (settings["method"], settings["scales"], settings["context"]) == (method, [], None)
    assert run(*command, "--scales", "3") == 2
