"""What a report shows in a real browser, against the numbers of the evidence."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from browser import LOW_CONTRAST, NAMELESS, opened
from conftest import make_classifier, make_images
from report_pages import (
    LABELS,
    SPACE,
    TITLE,
    by_superpixels,
    make_evidence,
    make_report,
    order_of,
    printed,
)

from captum_pda import EfficientPDA
from captum_pda.evidence.self_test import SelfTest
from captum_pda.evidence.strongest import strongest_regions
from captum_pda.evidence.words import MEAN
from captum_pda.model.measures import percent, signed
from captum_pda.report import write_report
from captum_pda.visualization.drawing import AGAINST, FOR

MINUS = "\u2212"


@pytest.fixture(scope="module")
def evidence():
    return make_evidence()


@pytest.fixture(scope="module")
def path(evidence, tmp_path_factory):
    return make_report(tmp_path_factory.mktemp("report"), evidence, mean=0.5, std=0.2)


@pytest.fixture
def page(browser, path):
    with opened(browser, path) as page:
        yield page


def number(text: str) -> float:
    """The first number of a text."""
    return float(re.search(r"[+-]?\d+(\.\d+)?", text.replace(MINUS, "-"))[0])


def point(page, y: int, x: int) -> None:
    """Move the pointer to the middle of a pixel of the photo."""
    page.locator("#picture").scroll_into_view_if_needed()
    frame = page.locator("#picture").bounding_box()
    page.mouse.move(
        frame["x"] + (x + 0.5) * frame["width"] / SPACE[1],
        frame["y"] + (y + 0.5) * frame["height"] / SPACE[0],
    )


def choose(page, field: str, words: str) -> None:
    page.locator(f"#{field} label", has_text=words).click()


def answers_at(evidence, title: str, target: int, place: tuple[int, int]) -> list[str]:
    """What is said of the window of one size whose middle is nearest to a pixel, by brute force."""
    parts = [part for part in evidence.parts if part.regions.title == title]
    size = parts[0].size
    inside = {
        number: sum(
            (a + side / 2 - at - 0.5) ** 2 for a, side, at in zip(corner, size, place, strict=True)
        )
        for number, corner in enumerate(parts[0].regions.corners.tolist())
        if all(a <= at < a + side for a, side, at in zip(corner, size, place, strict=True))
    }
    number = min(inside, key=inside.get)
    said = []
    for part in parts:
        seen, changed = part.reference[0, target], part.scores[0, number, target]
        bits = float(changed - seen) / np.log(2)
        if part.context == "full":
            chances = [percent(float(torch.sigmoid(one))) for one in (seen, changed)]
            said.append(f"without it: {chances[0]} -> {chances[1]} ({signed(bits)} bits)")
        else:
            said.append(f"by itself: {signed(bits)} bits over nothing")
    return [printed(words) for words in said]


def told(page) -> list[str]:
    return page.locator("#answers li").all_inner_texts()


def test_pointing_tells_each_answer_with_its_question(page, evidence):
    top, _, third, _ = order_of(evidence)
    # Every marker would stop the pointer.
    page.uncheck("#numbers")
    listed, other = "windows of 6x6", "windows of 12x12"  # the first has about a 25th of the image
    for place in ((7, 20), (17, 3)):
        point(page, *place)
        assert told(page) == answers_at(evidence, listed, top, place)
    page.locator("#classes label").nth(2).click()
    assert told(page) == answers_at(evidence, listed, third, (17, 3))
    choose(page, "size", other)
    both = answers_at(evidence, other, third, (17, 3))
    assert told(page) == both
    choose(page, "context", "Without each region")
    assert told(page) == both[:1]
    choose(page, "context", "Each by itself")
    assert told(page) == both[1:]
    assert page.inner_text("#sentence").startswith("By itself, it ")


def test_a_pair_is_told_with_both_classes(page, evidence):
    top, second, *_ = order_of(evidence)
    page.uncheck("#numbers")
    page.select_option("#other", index=2)  # behind "any other class" and the most probable one
    point(page, 7, 20)
    shown = told(page)
    assert len(shown) == 2
    seen = torch.sigmoid(evidence.scores[0, [top, second]]).tolist()
    assert " : ".join(evidence.measure.in_words(one) for one in seen) in shown[0]


@pytest.mark.slow
def test_keys_move_over_the_photo_and_say_what_is_there(page, evidence):
    top = order_of(evidence)[0]
    page.uncheck("#numbers")
    point(page, 12, 16)
    page.focus("#stage")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+ArrowDown")
    # An arrow is a 28th of the longer side, and a pixel with shift.
    expected = answers_at(evidence, "windows of 6x6", top, (14, 15))
    assert told(page) == expected
    assert all(answer in page.inner_text("#spoken") for answer in expected)
    for _ in range(18):
        page.keyboard.press("ArrowRight")
    assert told(page) == answers_at(evidence, "windows of 6x6", top, (14, 31))
    kinds = strongest_regions(evidence, top)
    for key, regions in zip(("Home", "End"), kinds, strict=True):
        page.keyboard.press(key)
        expected = [answer for answer in regions[0].answers() if "uncertain" not in answer]
        assert told(page) == [printed(answer) for answer in expected]


def test_the_lists_are_those_of_strongest_regions_and_linked_with_the_picture(page, evidence):
    top = order_of(evidence)[0]
    values = evidence.attribution(top)[0, 0]
    for kind, regions in zip(("for", "against"), strongest_regions(evidence, top), strict=True):
        rows = page.locator(f"#{kind}-rows li").all()
        for row, region in zip(rows, regions, strict=True):
            answers = [printed(answer) for answer in region.answers()]
            assert row.locator(".answer").all_inner_texts() == answers
            assert (float(values[region.pixels].mean()) > 0) == (kind == "for")
    last = page.locator("#against-rows li").last
    last.locator("button").focus()
    assert last.get_attribute("aria-current") == "true"
    assert page.locator(".marker.against").last.get_attribute("aria-pressed") == "true"
    page.locator(".marker.for").first.focus()
    assert page.locator("#for-rows li").first.get_attribute("aria-current") == "true"
    assert last.get_attribute("aria-current") is None


def test_the_scale_the_total_and_the_test_are_told(page, evidence):
    top = order_of(evidence)[0]
    words = page.inner_text("#scale-words")
    assert words.startswith(f"{MEAN}: ")
    assert "each region by itself (mean of 2 sizes)" in words
    total = printed(f": {signed(float(evidence.total(top)[0]))} bits")
    assert total in page.inner_text("#total")
    assert printed(str(evidence.self_test(top))) in page.inner_text("#tested")
    choose(page, "context", "Each by itself")
    assert page.inner_text("#scale-words") == "each region by itself (mean of 2 sizes)"
    # The map of one question was not tested.
    assert not page.is_visible("#tested")
    assert not page.is_visible("#test-body")
    assert "was tested; this one was not" in page.inner_text("#test-other")


def test_the_slider_hides_the_strongest_pixels_or_shows_only_them(page, evidence):
    top = order_of(evidence)[0]
    test = evidence.self_test(top)
    values = evidence.attribution(top)[0, 0].flatten()
    order = values.argsort(descending=True, stable=True)
    step = 10
    share = float(test.shares[step])
    gone = torch.zeros(len(order), dtype=torch.bool)
    gone[order[: round(share * len(order))]] = True
    changed = """() => {
      const { width, height } = view.photo;
      const context = document.getElementById("test-photo").getContext("2d");
      const now = context.getImageData(0, 0, width, height).data;
      const photo = layer(width, height, (own) => own.drawImage(view.images.photo, 0, 0));
      const before = photo.getContext("2d").getImageData(0, 0, width, height).data;
      return Array.from({ length: width * height }, (_, i) =>
        [0, 1, 2].some((c) => now[4 * i + c] !== before[4 * i + c]));
    }"""
    page.evaluate(f"document.getElementById('share').value = {step}")
    page.dispatch_event("#share", "input")
    for mode, curve, words in (
        ("hide", test.hidden, f"without the strongest {100 * share:.0f}%: "),
        ("show", test.shown, f"with only the strongest {100 * share:.0f}%: "),
    ):
        choose(page, "test-mode", mode)
        shown = page.inner_text("#test-words")
        assert shown.lower().startswith(words)
        assert shown.endswith(percent(float(curve[step])))
        differs = torch.tensor(page.evaluate(changed))
        expected = gone if mode == "hide" else ~gone
        assert not (differs & ~expected).any()
        # Some pixel may have its blurred colour by chance.
        assert (differs & expected).sum() > 0.95 * expected.sum()


def test_a_failed_test_is_said_prominently(browser, evidence, tmp_path):
    good = evidence.self_test(order_of(evidence)[0])
    failed = SelfTest(good.shares, good.shown.flip(0), good.hidden.flip(0), good.measure)
    failed = failed if not failed.passed else replace(good, hidden=good.shown, shown=good.hidden)
    assert not failed.passed
    with opened(browser, make_report(tmp_path, evidence, test=failed)) as page:
        assert page.inner_text("#tested").startswith("Test failed: this map does not explain")
        style = "getComputedStyle(document.getElementById('tested'))"
        assert page.evaluate(f"{style}.borderTopWidth") == "2px"
        assert page.evaluate(LOW_CONTRAST) == []
    loaded = replace(evidence, ask=None)
    with opened(browser, make_report(tmp_path, loaded)) as page:
        assert not page.is_visible("#test")
        assert not page.is_visible("#tested")


PIXELS = """([height, width]) => {
  const canvas = document.getElementById("picture");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  const at = (i, n, size) => Math.floor(((i + 0.5) * size) / n);
  return Array.from({ length: height * width }, (_, i) => {
    const row = at(Math.floor(i / width), height, canvas.height);
    const start = 4 * (row * canvas.width + at(i % width, width, canvas.width));
    return [...data.slice(start, start + 3)];
  });
}"""


def rgb(colour: str) -> torch.Tensor:
    return torch.tensor([int(colour[n : n + 2], 16) for n in (1, 3, 5)], dtype=torch.float64)


def test_the_map_has_its_colours_over_the_grey_photo_on_the_scale_shown(page, evidence):
    page.uncheck("#numbers")
    page.evaluate("view.select(null)")
    page.evaluate("document.getElementById('opacity').value = 100")
    page.dispatch_event("#opacity", "input")
    maps = [evidence.attribution(target)[0, 0] for target in order_of(evidence)]
    largest = max(float(one.abs().max()) for one in maps)
    scale = number(page.locator("#ticks span").last.inner_text())
    assert scale == pytest.approx(largest, abs=0.006)
    shown = torch.tensor(page.evaluate(f"({PIXELS})({list(SPACE)})"), dtype=torch.float64)
    bits = maps[0].flatten()[:, None]
    strength = bits.abs() / largest
    ends = torch.where(bits > 0, rgb(FOR), rgb(AGAINST))
    photo = (evidence.inputs[0][0] * 0.2 + 0.5).clamp(0, 1).mean(dim=0).flatten()[:, None]
    # Zero is transparent: there the grey photo is seen as it is. It is enlarged smoothly, so only
    # what is far from its edges has exactly its own grey.
    expected = strength * ends + (1 - strength) * 255 * (0.15 + 0.8 * photo)
    assert float(((shown - expected).abs().amax(dim=1) <= 12).double().mean()) > 0.8
    strong = (strength > 0.3).squeeze(1)
    redder = shown[strong, 0] > shown[strong, 2]
    assert torch.equal(redder, bits[strong, 0] > 0)


def test_superpixels_are_outlined_in_their_own_shape(browser, tmp_path):
    evidence = by_superpixels()
    top = order_of(evidence)[0]
    speak_for, speak_against = strongest_regions(evidence, top)
    with opened(browser, make_report(tmp_path, evidence)) as page:
        for line, region in zip(
            page.locator(".strongest li").all(), [*speak_for, *speak_against], strict=True
        ):
            line.hover()
            own = page.evaluate("pixelsOf(view.selected, view.photo)")
            np.testing.assert_array_equal(own, np.flatnonzero(region.pixels))


@pytest.mark.slow
def test_a_threshold_hides_what_is_weaker(page, evidence):
    page.evaluate("document.getElementById('threshold').value = 40")
    page.dispatch_event("#threshold", "input")
    bound = number(page.inner_text("#threshold-value"))
    kinds = strongest_regions(evidence, order_of(evidence)[0])
    for kind, regions in zip(("for", "against"), kinds, strict=True):
        left = [region for region in regions if abs(region.value) >= bound]
        assert page.locator(f"#{kind}-rows li").count() == len(left)


def test_names_stay_text(page, evidence):
    order = order_of(evidence)
    assert page.locator("#classes .name").all_inner_texts() == [LABELS[one] for one in order]
    assert page.inner_text("#title") == TITLE
    assert page.title().startswith(TITLE)
    assert page.locator("#classes script, main img, #title script").count() == 0
    page.locator("#classes label", has_text="<script>").click()
    assert "<script>alert(1)</script>" in page.inner_text("#sentence")
    assert page.evaluate("document.scripts.length") == 3


@pytest.mark.slow
def test_a_page_of_a_tall_image_fits_a_narrow_window(browser, tmp_path):
    pda = EfficientPDA(make_classifier(), engine="dense")
    evidence = pda.evidence(make_images(1, 3, 60, 8), sliding_window_shapes=8, strides=8)
    path = write_report(evidence, tmp_path / "tall.html")
    with opened(browser, path, viewport={"width": 360, "height": 740}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_and_every_control_has_a_name(browser, path, scheme):
    narrow = {"width": 360, "height": 740}
    with opened(browser, path, viewport=narrow, color_scheme=scheme) as page:
        assert page.evaluate(LOW_CONTRAST) == []
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
def test_the_view_is_saved_as_a_png(page):
    with page.expect_download() as download:
        page.click("#save")
    content = download.value.path().read_bytes()
    assert content.startswith(b"\x89PNG")
    assert download.value.suggested_filename.endswith(".png")
    assert "<" not in download.value.suggested_filename


def test_a_region_is_chosen_to_see_its_partners(browser, tmp_path):
    evidence = by_superpixels()
    target = order_of(evidence)[0]
    found = evidence.interactions(target, regions=4)
    report = make_report(tmp_path, evidence, interactions=found, test=False)
    with opened(browser, report) as page:
        assert page.is_visible("#together")
        assert page.inner_text("#together-name") == f"For {LABELS[target]}:"
        strongest = found.pairs()[0]
        assert f"with {strongest.second}: " in page.inner_text("#together-partners")
        page.click("#together-regions label:nth-child(3)")
        assert re.fullmatch(
            r"Region 2: .* bits without it alone", page.inner_text("#together-lost")
        )
        rows = page.inner_text("#together-partners").splitlines()
        assert len(rows) == 3
        own = [pair for pair in found.pairs() if 2 in (pair.first, pair.second)]
        assert own[0].meaning in rows[0]
        assert page.evaluate(LOW_CONTRAST) == []
    interrupted = replace(found, samples=found.samples.clone())
    interrupted.samples[:, 3:] = torch.nan  # as what stops a run leaves it
    report = make_report(tmp_path, evidence, interactions=interrupted, test=False)
    with opened(browser, report) as page:
        page.click("#together-regions label:nth-child(4)")
        assert page.inner_text("#together-lost") == "Region 3: not asked"
        assert not page.inner_text("#together-partners")
    with opened(browser, make_report(tmp_path, evidence, test=False)) as page:
        assert not page.is_visible("#together")
