"""CONTRIBUTING.md followed to the letter: its blocks run as they stand, and do what they say."""

import math
import re
from pathlib import Path

import pytest
import torch
from conftest import make_classifier, make_images

import captum_pda
from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    GradientPDA,
    SampledPDA,
    WindowGrid,
    strongest_regions,
)
from captum_pda.cli.main import main
from captum_pda.engines.incremental.rules import RULES
from captum_pda.model.measures import MEASURES
from captum_pda.model.outputs import OUTPUT_KINDS
from captum_pda.regions.choice import REGION_KINDS
from captum_pda.regions.contexts import CONTEXTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
WINDOWS = {"sliding_window_shapes": 4, "strides": 2}


def blocks(title):
    """The Python blocks of one section."""
    section = PAGE.partition(f"### {title}\n")[2]
    assert section, f"CONTRIBUTING.md has no section {title!r}"
    return re.findall(r"```python\n(.*?)```", re.split(r"\n##+ ", section)[0], re.DOTALL)


@pytest.fixture
def names():
    """What a reader has at hand, after the blocks of the sections before."""
    found = {"model": make_classifier(), "image": make_images(1, 3, 9, 11), "__name__": "own"}
    found |= {"EfficientPDA": EfficientPDA, "torch": torch}
    return found


def follow(title, names):
    (block,) = blocks(title)
    exec(compile(block, f"CONTRIBUTING.md, {title}", "exec"), names)
    return names


def test_a_prior_is_added_as_the_page_says(names):
    prior = follow("Add a prior", names)["ChannelMean"]()
    image, model = names["image"], names["model"]
    found = EfficientPDA(model, prior).attribute(image, 1, **WINDOWS)
    colour = image.mean(dim=(2, 3)).flatten().tolist()
    expected = EfficientPDA(model, ConstantPrior(colour)).attribute(image, 1, **WINDOWS)
    torch.testing.assert_close(found, expected)


def test_a_measure_is_added_as_the_page_says(names):
    try:
        follow("Add a measure", names)
        evidence = EfficientPDA(names["model"], measure="odds").evidence(names["image"], **WINDOWS)
        odds = evidence.probabilities / (1 - evidence.probabilities)
        part = evidence.parts[0]
        expected = odds[:, [2]] - part.scores[..., 2].exp()
        torch.testing.assert_close(evidence.window_values(2), expected)
        assert evidence.measure.unit == "of odds"
    finally:
        MEASURES.pop("odds", None)


def test_an_output_kind_is_added_as_the_page_says(names, capsys):
    image, model = names["image"], names["model"]
    try:
        follow("Add an output kind", names)
        halved = torch.nn.Sequential(model, Halved())
        for method in (EfficientPDA, SampledPDA, GradientPDA):
            arguments = {"n_samples": 2} if method is SampledPDA else {}
            found = method(model, output="tempered").attribute(image, 1, **WINDOWS, **arguments)
            expected = method(halved).attribute(image, 1, **WINDOWS, **arguments)
            torch.testing.assert_close(found, expected)
        evidence = EfficientPDA(model, output="tempered").evidence(image, **WINDOWS)
        torch.testing.assert_close(evidence.probabilities, (model(image) / 2).softmax(1))
        assert evidence.output == "tempered"
        assert "code_sha256" in EfficientPDA(model, output="tempered").settings()["output"]
        main(["explain", "--help"])
        assert "temperature of 2" in " ".join(capsys.readouterr().out.split())
    finally:
        OUTPUT_KINDS.pop("tempered", None)


class Halved(torch.nn.Module):
    def forward(self, outputs):
        return outputs / 2


def test_a_method_is_added_as_the_page_says(names):
    method = follow("Add a method", names)["ZeroPDA"]
    image, model = names["image"], names["model"]
    expected = EfficientPDA(model, ConstantPrior(0.0)).attribute(image, 1, **WINDOWS)
    torch.testing.assert_close(method(model).attribute(image, 1, **WINDOWS), expected)
    assert method.get_name() == "Zero PDA"


def test_a_rule_is_added_as_the_page_says(names):
    class WithLogGamma(torch.nn.Module):
        def forward(self, x):
            return convolution(torch.lgamma(convolution(x).abs() + 1)).flatten(2).amax(2)

    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 3, 3, padding=1).double().eval()
    image = make_images(1, 3, 24, 24)
    arguments = {"target": 1, "sliding_window_shapes": 4, "strides": 4}
    before = EfficientPDA(WithLogGamma(), engine="incremental")
    expected = EfficientPDA(WithLogGamma(), engine="dense").attribute(image, **arguments)
    torch.testing.assert_close(before.attribute(image, **arguments), expected)
    assert "lgamma" in before.engine_report.goes_dense
    known = dict(RULES)
    try:
        follow("Add a rule", names)
        after = EfficientPDA(WithLogGamma(), engine="incremental")
        torch.testing.assert_close(after.attribute(image, **arguments), expected)
        assert "lgamma" not in after.engine_report.goes_dense
    finally:
        RULES.clear()
        RULES.update(known)


def test_a_region_is_added_as_the_page_says(names):
    image, model = names["image"], names["model"]
    try:
        stripes = follow("Add a region", names)["Stripes"]
        mask = (torch.arange(11) * 3 // 11).expand(9, 11)
        expected = EfficientPDA(model).evidence(image, feature_mask=mask, context="both")
        for regions in (("stripes", 3), stripes(image, 3)):
            found = EfficientPDA(model).evidence(image, regions=regions, context="both")
            torch.testing.assert_close(found.attribution(1), expected.attribution(1))
            assert found.parts[0].regions is found.parts[1].regions
        several = GradientPDA(model).attribute(image, 1, regions=("stripes", (1, 3)))
        one = [GradientPDA(model).attribute(image, 1, regions=("stripes", n)) for n in (1, 3)]
        torch.testing.assert_close(several, (one[0] + one[1]) / 2)
        with pytest.raises(ValueError, match="regions='hexagons' is not known; choose one of"):
            EfficientPDA(model).attribute(image, 1, regions=("hexagons", 3))
        with pytest.raises(TypeError, match="stripes=0 must be about how many regions"):
            EfficientPDA(model).attribute(image, 1, regions=("stripes", 0))
        with pytest.raises(TypeError, match="must be a WindowGrid"):
            EfficientPDA(model).attribute(image, 1, regions=3)
    finally:
        REGION_KINDS.pop("stripes", None)


def test_a_context_is_added_as_the_page_says(names):
    image, model = names["image"], names["model"]
    try:
        follow("Add a context", names)
        grid = WindowGrid((9, 11), (4, 4), (2, 2))
        alone = torch.zeros(len(grid), *image.shape[1:], dtype=image.dtype)
        for copy, (row, column) in zip(alone, grid.corners.tolist(), strict=True):
            box = (..., slice(row, row + 4), slice(column, column + 4))
            copy[box] = image[0][box]
        odds = [torch.logit(model(x).softmax(1)[:, 1]) / math.log(2) for x in (alone, 0 * image)]
        for method in (EfficientPDA, SampledPDA):
            evidence = method(model).evidence(image, **WINDOWS, context="grey")
            torch.testing.assert_close(evidence.window_values(1)[0], odds[0] - odds[1])
            (total,) = evidence.total(1)
            seen = torch.logit(model(image).softmax(1)[0, 1]) / math.log(2)
            torch.testing.assert_close(total, seen - odds[1][0])
            (speak_for, speak_against) = strongest_regions(evidence, 1)
            assert "on grey: " in str([*speak_for, *speak_against][0])
        with pytest.raises(ValueError, match=r"choose one of 'full', .*'grey', 'both'"):
            EfficientPDA(model).attribute(image, 1, context="green")
    finally:
        CONTEXTS.pop("grey", None)


def test_every_room_and_file_that_the_page_names_is_there():
    package = Path(captum_pda.__file__).parent
    for room in re.findall(r"`(\w+)/`", PAGE):
        assert (package / room).is_dir(), room
    for file in re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE):
        assert (package / file).exists() or (ROOT / file).exists(), file
    for row in re.findall(r"^\| (`\w+/`.*) \|$", PAGE, re.MULTILINE):
        rooms = re.findall(r"`(\w+)/`", row)
        for name in re.findall(r"`(\w+)`", row):
            assert any(list((package / room).glob(f"{name}*")) for room in rooms), (rooms, name)
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(re.findall(r"`(\w+)/`", PAGE)), "the table of rooms"
