"""What a report shows in a real browser, against the numbers of the evidence."""

import re

import pytest
import torch
from browser import LOW_CONTRAST, NAMELESS, opened
from report_pages import LABELS, SPACE, TITLE, colour, make_evidence, make_report, strongest_at

from captum_pda.evidence.strongest import strongest_windows

MINUS, TIMES = "\u2212", "\u00d7"


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


def order_of(evidence) -> list[int]:
    """The classes as the page lists them."""
    return evidence.scores[0].argsort(descending=True).tolist()


def assert_told(page, expected: dict, first: float | None = None) -> None:
    """The page tells of this region: bits, place, sentence and predictions."""
    assert number(page.inner_text("#bits")) == pytest.approx(expected["bits"], abs=0.006)
    height, width = expected["size"]
    assert page.inner_text("#where").endswith(f"{height}{TIMES}{width}")
    sentence = page.inner_text("#sentence")
    if abs(expected["bits"]) >= 0.05:
        ratio = float(sentence.split(" by ")[-1].split(" times ")[0].split()[-1].rstrip("."))
        assert ratio == pytest.approx(2 ** abs(expected["bits"]), rel=0.006)
        assert ("divides" in sentence) == (expected["bits"] < 0)
    if first is not None:
        cells = page.locator("#predictions tr").first.locator("td").all_inner_texts()
        shown = [number(cell) / 100 for cell in cells[:2]]
        assert shown == pytest.approx([first, expected["without"][0]], abs=0.0011)


def test_pointing_tells_the_strongest_region_there_and_choices_change_it(page, evidence):
    top, second, third, _ = order_of(evidence)
    seen = torch.sigmoid(evidence.scores[0])
    # Every marker would stop the pointer.
    page.uncheck("#numbers")
    point(page, 7, 20)
    assert_told(page, strongest_at(evidence, top, (7, 20)), float(seen[top]))
    point(page, 17, 3)
    assert_told(page, strongest_at(evidence, top, (17, 3)), float(seen[top]))

    page.locator("#classes label").nth(2).click()
    assert_told(page, strongest_at(evidence, third, (17, 3)), float(seen[third]))
    page.select_option("#other", index=2)  # behind "any other class" and the most probable one
    assert_told(page, strongest_at(evidence, third, (17, 3), second))
    page.select_option("#other", index=0)

    choose(page, "size", f"12{TIMES}12")
    only = evidence.at(12)
    assert_told(page, strongest_at(only, third, (17, 3)), float(seen[third]))
    choose(page, "context", "All else seen")
    assert_told(page, strongest_at(only.in_context("full"), third, (17, 3)), float(seen[third]))
    choose(page, "context", "Seen by itself")
    assert_told(page, strongest_at(only.in_context("empty"), third, (17, 3)))
    assert page.inner_text("#sentence").startswith("By itself, it ")


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
    expected = strongest_at(evidence, top, (14, 15))
    assert_told(page, expected)
    spoken = page.inner_text("#spoken")
    assert f"{abs(expected['bits']):.2f} bits" in spoken
    assert "with it" in spoken
    for _ in range(18):
        page.keyboard.press("ArrowRight")
    assert_told(page, strongest_at(evidence, top, (14, 31)))
    page.keyboard.press("End")
    strongest, against = strongest_windows(evidence, top, 1)
    assert number(page.inner_text("#bits")) == pytest.approx(against[0].value, abs=0.006)
    page.keyboard.press("Home")
    assert number(page.inner_text("#bits")) == pytest.approx(strongest[0].value, abs=0.006)


def test_the_tables_list_the_strongest_regions_and_are_linked_with_the_picture(page, evidence):
    top = order_of(evidence)[0]
    kinds = zip(("for", "against"), strongest_windows(evidence, top, 5), strict=True)
    for kind, windows in kinds:
        rows = page.locator(f"#{kind}-rows tr")
        shown = [number(text) for text in rows.locator("td:nth-child(2)").all_inner_texts()]
        assert shown == pytest.approx([window.value for window in windows], abs=0.006)
        sizes = rows.locator("td:nth-child(4)").all_inner_texts()
        assert sizes == [TIMES.join(map(str, window.shape)) for window in windows]
    last = page.locator("#against-rows tr").last
    last.locator("button").focus()
    assert last.get_attribute("aria-current") == "true"
    assert page.inner_text("#bits").startswith(last.locator("td:nth-child(2)").inner_text())
    assert page.locator(".marker.against").last.get_attribute("aria-pressed") == "true"
    page.locator(".marker.for").first.focus()
    assert page.locator("#for-rows tr").first.get_attribute("aria-current") == "true"
    assert last.get_attribute("aria-current") is None


MAP = """() => {
  const canvas = document.getElementById("picture");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const pixels = copy.getImageData(0, 0, canvas.width, canvas.height).data;
  const shown = [];
  for (let y = 0; y < 24; y += 1) {
    for (let x = 0; x < 32; x += 1) {
      const row = Math.floor(((y + 0.5) * canvas.height) / 24);
      const column = Math.floor(((x + 0.5) * canvas.width) / 32);
      shown.push([...pixels.subarray(4 * (row * canvas.width + column)).subarray(0, 3)]);
    }
  }
  return shown;
}"""


def test_the_map_has_the_colours_of_its_bits_on_the_scale_shown(page, evidence):
    page.evaluate("document.getElementById('opacity').value = 100")
    page.dispatch_event("#opacity", "input")
    stops = page.evaluate("[RED, BLUE]")
    for place, target in ((0, order_of(evidence)[0]), (1, order_of(evidence)[1])):
        page.locator("#classes label").nth(place).click()
        shown = torch.tensor(page.evaluate(MAP), dtype=torch.float64)
        scale = number(page.locator("#ticks span").last.inner_text())
        bits = evidence.attribution(target)[0, 0].flatten() / scale
        expected = torch.tensor([colour(float(one), stops[int(one < 0)]) for one in bits])
        close = (shown - expected).abs().amax(dim=1) <= 4
        # The outline of one region is drawn over the map.
        assert close.float().mean() > 0.8
    largest = max(evidence.attribution(target).abs().max() for target in range(len(LABELS)))
    assert scale == pytest.approx(float(largest), abs=0.006)


@pytest.mark.slow
def test_a_threshold_hides_what_is_weaker(page, evidence):
    top = order_of(evidence)[0]
    before = page.locator("#for-rows tr").count()
    page.evaluate("document.getElementById('threshold').value = 90")
    page.dispatch_event("#threshold", "input")
    bound = number(page.inner_text("#threshold-value"))
    strongest, _ = strongest_windows(evidence, top, 100)
    left = [window for window in strongest if window.value >= bound]
    assert page.locator("#for-rows tr").count() <= min(before, max(len(left), 1))
    shown = page.locator("#for-rows td:nth-child(2)").all_inner_texts()
    assert all(number(text) >= bound - 0.006 for text in shown)


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
