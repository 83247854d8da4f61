"""The file of a report: what is in it, that it holds no foreign markup, and how large it is."""

import base64
import hashlib
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import make_classifier, make_images
from PIL import Image
from report_pages import (
    KINDS,
    LABELS,
    TITLE,
    by_mask,
    by_superpixels,
    make_evidence,
    make_report,
    order_of,
)

from captum_pda import EfficientPDA, MarginalPrior, SampledPDA
from captum_pda.evidence.strongest import strongest_regions
from captum_pda.model.measures import percent, signed
from captum_pda.report import write_report
from captum_pda.report.index import read_summary
from captum_pda.report.page_file import Block, read_block, unpack


@pytest.fixture(scope="module")
def evidence():
    return make_evidence()


@pytest.fixture(scope="module")
def page(evidence, tmp_path_factory):
    return make_report(tmp_path_factory.mktemp("report"), evidence).read_bytes()


def test_a_block_gives_back_what_was_put_into_it():
    block = Block()
    kinds = ("float64", "float32", "int32", "uint16", "uint8")
    arrays = {kind: np.arange(7).reshape(7, 1) for kind in kinds}
    header = {kind: block.add(values, kind) for kind, values in arrays.items()}
    header["bytes"] = block.add_bytes(b"abc")
    found, values = unpack(block.pack({**header, "name": "\udce4 ü </script>"}))
    assert found["name"] == "? ü </script>"
    assert values[found["bytes"]].tobytes() == b"abc"
    for kind in kinds:
        assert values[found[kind]].dtype == kind
        np.testing.assert_array_equal(values[found[kind]], arrays[kind])


def test_the_scores_of_every_region_are_in_the_file(evidence, page):
    header, arrays = unpack(read_block(page, "values"))
    assert header["labels"] == [LABELS[number] for number in header["classes"]]
    groups = header["methods"][0]["groups"]
    assert {group["title"] for group in groups} == {"windows of 6x6", "windows of 12x12"}
    for group in groups:
        parts = [part for part in evidence.parts if part.regions.title == group["title"]]
        for part, kept in zip(parts, group["parts"], strict=True):
            assert part.context == kept["context"]
            before = torch.tensor(arrays[kept["reference"]])
            scores = before.unsqueeze(1) + torch.tensor(arrays[kept["changes"]])
            expected = part.scores[0][:, header["classes"]].T
            torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)
        boxes = arrays[group["boxes"]]
        np.testing.assert_array_equal(boxes[:, :2], parts[0].regions.corner_array)


def test_the_fills_are_the_priors_own(tmp_path):
    prior = MarginalPrior().fit(make_images(5, 3, 24, 32, seed=3))
    pda = EfficientPDA(make_classifier(), prior=prior, engine="dense")
    image = make_images(1, 3, 24, 32)
    evidence = pda.evidence(image, sliding_window_shapes=8, strides=4)
    path = write_report(evidence, tmp_path / "a.html", mean=0.5, std=0.1)
    header, arrays = unpack(read_block(path.read_bytes(), "values"))
    fills = header["methods"][0]["groups"][0]["parts"][0]["fills"]
    assert fills["tile"] == [8, 8]
    sheet = np.asarray(Image.open(io.BytesIO(arrays[fills["image"]].tobytes())))
    grid = evidence.parts[0].regions
    means = prior.conditional_mean(image[0], grid) * 0.1 + 0.5
    expected = (255 * means.clamp(0, 1)).permute(0, 2, 3, 1).numpy()
    for number, fill in enumerate(expected):
        row, column = divmod(number, fills["columns"])
        tile = sheet[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        # JPEG keeps colours up to some of 255 steps.
        assert np.corrcoef(tile.ravel(), fill.ravel())[0, 1] > 0.9
        assert np.abs(tile - fill).mean() < 12


def test_names_are_nowhere_markup(page):
    text = page.decode()
    for name in (*LABELS, TITLE):
        assert name not in text
    assert text.count("<script") == 3  # two blocks and the page's own program
    assert "{{" not in text.partition("<script>")[0]


def test_the_policy_allows_nothing_but_the_pages_own_script_and_style(page):
    text = page.decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src 'none'; ")
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        content = re.search(rf"<{tag}>(.*)</{tag}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"\beval\b|innerHTML|https?://(?!www\.w3\.org)", text)
    assert not re.search(r"""(src|href)=["']""", text)


def test_the_same_evidence_gives_the_same_file(evidence, page, tmp_path):
    again = make_report(tmp_path, evidence)
    assert again.read_bytes() == page


def test_standard_errors_are_those_of_the_evidence(tmp_path):
    pda = SampledPDA(make_classifier(), engine="dense")
    image = make_images(1, 3, 16, 16)
    generator = torch.Generator().manual_seed(0)
    evidence = pda.evidence(
        image, n_samples=4, sliding_window_shapes=6, strides=5, generator=generator
    )
    path = write_report(evidence, tmp_path / "sampled.html")
    header, arrays = unpack(read_block(path.read_bytes(), "values"))
    kept = header["methods"][0]["groups"][0]["parts"][0]
    expected = evidence.standard_error(header["classes"][1])[0]
    np.testing.assert_allclose(arrays[kept["errors"]][1], expected, rtol=1e-5)
    assert (expected > 0).all()
    assert kept["drawn"] == 4


def test_the_file_tells_how_it_was_made(page):
    header, _ = unpack(read_block(page, "values"))
    settings = dict(header["settings"])
    assert len(settings["input sha256"]) == 64
    assert settings["prior kind"] == "ConstantPrior"
    assert settings["measure name"] == "weight_of_evidence"
    assert {"captum pda", "captum", "torch"} <= settings.keys()


def test_what_cannot_be_shown_is_refused(evidence, tmp_path):
    model, image = make_classifier(), make_images(2, 3, 16, 16)
    two = EfficientPDA(model, engine="dense").evidence(image, sliding_window_shapes=8, strides=8)
    path = tmp_path / "a.html"
    with pytest.raises(ValueError, match=r"2 examples.*example=0"):
        write_report(two, path)
    with pytest.raises(ValueError, match="example=2 is out of range"):
        write_report(two, path, example=2)
    with pytest.raises(ValueError, match="labels has 2 names for 4 outputs"):
        write_report(evidence, path, labels=["a", "b"])
    with pytest.raises(ValueError, match="target 9 is out of range"):
        write_report(evidence, path, targets=[9])
    with pytest.raises(TypeError, match=r"must be a WindowEvidence.*evidence\(image\)"):
        write_report(image, path)
    with pytest.raises(ValueError, match="same image"):
        write_report({"a": evidence, "b": two}, path)
    with pytest.raises(ValueError, match="empty table"):
        write_report({}, path)
    assert not path.exists()


def read(path):
    return unpack(read_block(path.read_bytes(), "values"))


def test_the_second_of_two_examples_can_be_shown(tmp_path):
    two = by_mask(examples=2)
    header, arrays = read(write_report(two, tmp_path / "b.html", example=1))
    assert header["predictions"] == pytest.approx(
        two.probabilities[1].sort(descending=True).values.tolist()
    )
    (group,) = header["methods"][0]["groups"]
    regions = two.parts[0].regions
    owner = arrays[group["owner"]]
    np.testing.assert_array_equal(owner, regions.numbers[1])
    # Regions that this example lacks are known to none of its pixels.
    assert len(np.unique(owner)) < group["count"] == len(regions)
    speak_for, _ = strongest_regions(two, header["classes"][0], example=1)
    first = header["methods"][0]["listed"][0]["for"][0]
    np.testing.assert_array_equal(owner == first["region"], speak_for[0].pixels)


def test_the_contexts_of_a_mask_are_one_group_of_regions(tmp_path):
    evidence = by_mask()
    header, arrays = read(write_report(evidence, tmp_path / "mask.html", mean=0.5, std=0.2))
    (group,) = header["methods"][0]["groups"]
    assert [part["context"] for part in group["parts"]] == ["full", "empty"]
    for part, kept in zip(evidence.parts, group["parts"], strict=True):
        expected = (part.scores - part.reference.unsqueeze(1))[0][:, header["classes"]].T
        np.testing.assert_allclose(arrays[kept["changes"]], expected, rtol=1e-5, atol=1e-6)
    # All regions are filled in one picture: here each by the constant 0.2.
    content = arrays[group["parts"][0]["filled"]].tobytes()
    filled = np.asarray(Image.open(io.BytesIO(content)))
    assert np.abs(filled - 255 * (0.2 * 0.2 + 0.5)).max() <= 2


def test_superpixels_of_several_granularities_are_filled_each_by_itself(tmp_path):
    evidence = by_superpixels()
    header, arrays = read(write_report(evidence, tmp_path / "slic.html"))
    groups = header["methods"][0]["groups"]
    assert {group["title"] for group in groups} == {f"{n} superpixels" for n in (6, 15, 40)}
    for group in groups:
        regions = next(p.regions for p in evidence.parts if p.regions.title == group["title"])
        np.testing.assert_array_equal(arrays[group["owner"]], regions.numbers[0])
        assert [part["context"] for part in group["parts"]] == ["full", "empty"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_lists_are_those_of_strongest_regions(tmp_path, kind):
    evidence = KINDS[kind]()
    order = order_of(evidence)
    pair = (order[-1], order[0]) if len(order) > 1 else None
    header, arrays = read(write_report(evidence, tmp_path / "a.html", contrast=pair, test=False))
    method = header["methods"][0]
    lists = [(column, None, method["listed"][n]) for n, column in enumerate(header["classes"])]
    if pair is not None:
        lists.append((*pair, method["pair"]))
    for column, second, kept in lists:
        kinds = strongest_regions(evidence, column, 3, second)
        for name, regions in zip(("for", "against"), kinds, strict=True):
            assert [one["answers"] for one in kept[name]] == [one.answers() for one in regions]
            for one, region in zip(kept[name], regions, strict=True):
                assert (one["value"] > 0) == (name == "for")
                group = method["groups"][one["group"]]
                if group["owner"] is not None:
                    own = arrays[group["owner"]] == one["region"]
                    own.reshape(-1)[one["lost"]] = False
                    np.testing.assert_array_equal(own, region.pixels)
                elif group["depth"] == "input":
                    box = arrays[group["boxes"]][one["region"]]
                    own = np.zeros(region.pixels.shape, dtype=bool)
                    own[box[0] : box[0] + box[2], box[1] : box[1] + box[3]] = True
                    own.reshape(-1)[one["lost"]] = False
                    np.testing.assert_array_equal(own, region.pixels)


def test_the_total_is_told_where_nothing_was_seen(evidence, page, tmp_path):
    header, _ = unpack(read_block(page, "values"))
    totals = header["methods"][0]["totals"]
    for words, column in zip(totals, header["classes"], strict=True):
        total = float(evidence.total(column)[0])
        assert words.startswith(f"all evidence for {LABELS[column]}: {signed(total)} bits, from ")
        assert words.endswith(
            f"to {percent(float(evidence.probabilities[0, column]))} with everything seen"
        )
    header, _ = read(make_report(tmp_path, make_evidence("full")))
    assert set(header["methods"][0]["totals"]) == {None}


def test_the_map_is_tested_where_there_is_a_model_to_ask(evidence, page, tmp_path):
    header, _ = unpack(read_block(page, "values"))
    top = header["classes"][0]
    expected = evidence.self_test(top)
    kept = header["methods"][0]["test"]
    assert kept["sentence"] == str(expected)
    assert kept["passed"] == expected.passed
    assert kept["hidden"] == pytest.approx(expected.hidden.tolist())
    assert kept["shown"] == pytest.approx(expected.shown.tolist())
    assert kept["shares"][kept["start"]] == pytest.approx(expected.share)
    summary, _ = read_summary(make_report(tmp_path, evidence))
    assert summary["test"] == {"sentence": str(expected), "passed": expected.passed}

    for settings in ({"test": False}, {"evidence": replace(evidence, ask=None)}):
        report = make_report(tmp_path, settings.pop("evidence", evidence), **settings)
        assert read(report)[0]["methods"][0]["test"] is None
        assert read_summary(report)[0]["test"] is None
    # A test that was made before needs no model, and belongs to the first method.
    loaded = replace(evidence, ask=None)
    report = write_report({"a": loaded, "b": evidence}, tmp_path / "c.html", test=expected)
    tests = [method["test"] for method in read(report)[0]["methods"]]
    assert tests[0]["sentence"] == str(expected)
    assert tests[1] is None


def test_a_test_that_cannot_be_made_is_said_and_the_page_is_written(evidence, tmp_path):
    def broken(example, copies):
        raise RuntimeError("no memory left")

    report = make_report(tmp_path, replace(evidence, ask=broken))
    kept = read(report)[0]["methods"][0]["test"]
    assert kept == {"failure": "the map was not tested: no memory left"}
    assert read_summary(report)[0]["test"] is None


def test_a_run_that_was_stopped_has_a_page(evidence, tmp_path):
    scores = evidence.parts[0].scores.clone()
    scores[0, 5:] = torch.nan
    parts = (replace(evidence.parts[0], scores=scores), *evidence.parts[1:])
    header, _ = read(make_report(tmp_path, replace(evidence, parts=parts), test=False))
    # Its lists are made by the page, from the map of what is known.
    assert header["methods"][0]["listed"] == [None] * len(LABELS)
