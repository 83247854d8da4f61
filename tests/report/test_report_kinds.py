"""Reports of every kind of evidence in a real browser, against what Python says of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from browser import opened
from conftest import make_classifier, make_images
from report_pages import KINDS, SPACE, by_mask, make_evidence, order_of, printed

from captum_pda import ConstantPrior, EfficientPDA
from captum_pda.evidence.strongest import strongest_regions
from captum_pda.report import write_report

#: The lists that the page shows.
LISTS = """() => {
  const plain = (one) => (
    { value: one.value, answers: one.answers, pixels: pixelsOf(one, view.photo) });
  return { for: view.listed.for.map(plain), against: view.listed.against.map(plain) };
}"""


def assert_same_map(page, expected) -> None:
    shown = np.array(page.evaluate("Array.from(view.map)"))
    expected = expected.double().flatten().numpy()
    np.testing.assert_allclose(shown, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


def assert_same_lists(page, expected) -> None:
    shown = page.evaluate(LISTS)
    for kind, regions in zip(("for", "against"), expected, strict=True):
        assert [one["answers"] for one in shown[kind]] == [one.answers() for one in regions]
        pixels = [np.flatnonzero(one.pixels).tolist() for one in regions]
        assert [one["pixels"] for one in shown[kind]] == pixels


def assert_lists_of_the_map(page, expected) -> None:
    """The page's own lists: regions in the order of the map inside them, which do not overlap."""
    assert_same_map(page, expected)
    values, listed = expected.double().flatten().numpy(), page.evaluate(LISTS)
    for kind, sign in (("for", 1), ("against", -1)):
        means = [sign * values[one["pixels"]].mean() for one in listed[kind]]
        assert means == sorted(means, reverse=True)
        assert all(one["answers"] for one in listed[kind])
        assert means == pytest.approx([sign * one["value"] for one in listed[kind]], rel=1e-3)
        assert all(mean > 0 for mean in means)
    pixels = [pixel for one in (*listed["for"], *listed["against"]) for pixel in one["pixels"]]
    assert 0 < len(pixels) == len(set(pixels))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_maps_and_lists_of_every_kind_are_those_of_python(browser, tmp_path, kind):
    evidence = KINDS[kind]()
    path = write_report(evidence, tmp_path / "report.html")
    order = order_of(evidence)
    with opened(browser, path) as page:
        for place, target in enumerate(order):
            page.locator("#classes label").nth(place).click()
            assert_same_map(page, evidence.attribution(target)[0, 0])
            assert_same_lists(page, strongest_regions(evidence, target))
        if len(order) > 1:
            page.evaluate("document.querySelectorAll('#classes input')[0].click()")
            page.select_option("#other", index=2)
            assert_lists_of_the_map(page, evidence.contrast(*order[:2])[0, 0])
            page.select_option("#other", index=0)
        # One question by itself.
        for place, context in enumerate(("full", "empty"), start=1):
            if page.locator("#context label:visible").count() > 1:
                page.locator("#context label").nth(place).click()
                only = evidence.in_context(context)
                assert_lists_of_the_map(page, only.attribution(order[0])[0, 0])
        page.evaluate("view.choose({ context: null })")
        # Keys reach every region's words, whatever it is.
        page.focus("#stage")
        for key in ("ArrowRight", "ArrowDown", "End", "Home"):
            page.keyboard.press(key)
            assert page.inner_text("#sentence").endswith(".")
            assert page.locator("#answers li").count() > 0
            for broken in ("NaN", "undefined", "null"):
                assert broken not in page.inner_text("main")
        if kind == "samples":
            assert "standard error" in page.inner_text("#answers")
        for label in page.locator("#size label:visible").all():
            label.click()
            assert page.inner_text("#sentence").endswith(".")


@pytest.mark.slow
def test_an_example_that_lacks_regions_of_a_mask_is_shown_by_its_own(browser, tmp_path):
    evidence = by_mask(examples=3)
    path = write_report(evidence, tmp_path / "report.html", example=2)
    top = order_of(evidence, 2)[0]
    with opened(browser, path) as page:
        assert_same_map(page, evidence.attribution(top)[2, 0])
        assert_same_lists(page, strongest_regions(evidence, top, example=2))
        lines = page.locator("#for-rows li, #against-rows li").all()
        kinds = strongest_regions(evidence, top, example=2)
        regions = [region for regions in kinds for region in regions]
        for line, region in zip(lines, regions, strict=True):
            shown = line.locator(".answer").all_inner_texts()
            assert shown == [printed(answer) for answer in region.answers()]
            line.hover()
            # The region that is looked at has the region's own pixels.
            own = page.evaluate("pixelsOf(view.selected, view.photo)")
            np.testing.assert_array_equal(own, np.flatnonzero(region.pixels))
            answers = page.locator("#answers li").all_inner_texts()
            assert answers == [
                printed(answer) for answer in region.answers() if "uncertain" not in answer
            ]


@pytest.mark.slow
def test_the_map_of_a_stopped_run_is_that_of_what_is_known(browser, tmp_path):
    evidence = make_evidence()
    scores = evidence.parts[0].scores.clone()
    scores[0, 40:] = torch.nan
    evidence = replace(
        evidence, parts=(replace(evidence.parts[0], scores=scores), *evidence.parts[1:])
    )
    path = write_report(evidence, tmp_path / "report.html", test=False)
    with opened(browser, path) as page:
        assert_same_map(page, evidence.partial_attribution(order_of(evidence)[0])[0, 0])
        assert page.locator("#for-rows li").count() > 0
        assert "NaN" not in page.inner_text("main")


@pytest.mark.slow
def test_methods_can_be_compared(browser, tmp_path):
    image = make_images(1, 3, *SPACE)
    methods = {
        name: EfficientPDA(make_classifier(), prior=ConstantPrior(value), engine="dense").evidence(
            image, superpixels=12
        )
        for name, value in (("black", 0.0), ("<b>grey</b>", 0.5))
    }
    path = write_report(methods, tmp_path / "report.html")
    top = order_of(methods["black"])[0]
    with opened(browser, path) as page:
        page.check("#hold")
        before = page.inner_text("#ticks")
        for name, evidence in methods.items():
            page.locator("#method label", has_text=name).click()
            assert_same_map(page, evidence.attribution(top)[0, 0])
            speak_for, _ = strongest_regions(evidence, top)
            shown = page.locator("#for-rows li").first.locator(".answer").all_inner_texts()
            assert shown == [printed(answer) for answer in speak_for[0].answers()]
            assert printed(str(evidence.self_test(top))) in page.inner_text("#tested")
        assert page.inner_text("#ticks") == before


@pytest.mark.slow
@pytest.mark.parametrize("space", [(20, 20), (8, 8, 8)])
def test_the_ticks_of_a_small_scale_differ(browser, tmp_path, space):
    model = make_classifier(dims=len(space))
    pda = EfficientPDA(
        lambda image: model(image) / 1000, ConstantPrior(0.5), output="raw", engine="dense"
    )
    evidence = pda.evidence(make_images(1, 3, *space), superpixels=6)
    with opened(browser, write_report(evidence, tmp_path / "report.html", test=False)) as page:
        ticks = page.locator("#ticks span").all_inner_texts()
        assert len(set(ticks)) == 5
        for scale, half in ((0.03, "+0.015"), (0.002, "+0.0010"), (3e-6, "+1.5e-06"), (9, "+4.50")):
            assert page.evaluate(f"signed({scale / 2}, {scale})") == half
