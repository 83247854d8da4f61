"""The index of many reports, in a real browser."""

import io

import numpy as np
import pytest
from browser import LOW_CONTRAST, NAMELESS, opened
from PIL import Image
from report_pages import LABELS, make_evidence, make_report, order_of, printed

from captum_pda.evidence.strongest import strongest_regions
from captum_pda.report import write_index
from captum_pda.report.index import PAGE, read_summary
from captum_pda.report.page_file import Block


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """An index of 2,000 photos, and what it tells of them."""
    generator = np.random.default_rng(0)
    content = io.BytesIO()
    Image.fromarray(generator.integers(0, 255, (112, 112, 3), dtype=np.uint8)).save(content, "JPEG")
    block = Block()
    picture = block.add_bytes(content.getvalue())
    entries = [
        {
            "title": f"{number}<b>.jpg",
            "verdict": LABELS[int(generator.integers(4))],
            "prediction": float(generator.random()),
            "probabilities": True,
            "for": {
                "value": float(generator.random()),
                "words": "by itself: +1.0 bits over nothing",
            },
            "against": (
                {"value": -float(generator.random()), "words": "without it: 1.0% -> 2.0%"}
                if number % 7
                else None
            ),
            "test": None,
            "truth": LABELS[1],
            "right": bool(number % 3),
            "thumbnail": picture,
            "href": f"./{number}.html",
        }
        for number in range(2000)
    ]
    path = tmp_path_factory.mktemp("index") / "index.html"
    path.write_bytes(PAGE.render({"values": block.pack({"title": "many", "entries": entries})}))
    return path, entries


def shown(page) -> list[str]:
    """The names of the photos, in their order."""
    return page.locator("#photos .file").all_text_contents()


def test_an_index_lists_its_reports_and_opens_them(browser, tmp_path):
    evidence = make_evidence("full")
    folder = tmp_path / "a folder & more"
    folder.mkdir()
    report = make_report(folder, evidence)
    hostile = report.rename(folder / "javascript:alert(1) #?%41'\".html")
    index = write_index([hostile], tmp_path / "index.html", title="<i>all</i>")
    summary, _ = read_summary(hostile)
    with opened(browser, index) as page:
        assert page.inner_text("h1") == "<i>all</i>"
        assert page.inner_text("#count") == "1 photo"
        card = page.locator("#photos li")
        assert card.locator(".verdict .name").inner_text() == summary["verdict"]
        assert f"{100 * summary['prediction']:.1f}%" in card.inner_text()
        speak_for, speak_against = strongest_regions(evidence, order_of(evidence)[0])
        for kind, regions in (("for", speak_for), ("against", speak_against)):
            answer = printed(regions[0].answers()[0]).replace(": ", " ", 1)
            assert f"{kind}: {answer}" in card.inner_text()
        assert printed(str(evidence.self_test(order_of(evidence)[0]))) in card.inner_text()
        href = card.locator("a").evaluate("one => one.href")
        assert href == hostile.resolve().as_uri()
        assert page.evaluate(LOW_CONTRAST) == []
        assert page.evaluate(NAMELESS) == []


@pytest.mark.slow
def test_two_thousand_photos_are_sorted_and_filtered(browser, many):
    path, entries = many
    with opened(browser, path) as page:
        assert page.inner_text("#count") == "2000 photos"
        page.select_option("#sort", "against")
        expected = sorted(entries, key=lambda entry: (entry["against"] or {"value": 0})["value"])
        assert shown(page) == [entry["title"] for entry in expected]
        page.select_option("#verdict", index=1)
        name = page.locator("#verdict option").nth(1).get_attribute("value")[1:]
        page.select_option("#right", "wrong")
        page.select_option("#probability", "0.9 1")
        left = [
            entry["title"]
            for entry in expected
            if entry["verdict"] == name and not entry["right"] and entry["prediction"] >= 0.9
        ]
        assert 0 < len(left) < 100
        assert shown(page) == left
        assert page.inner_text("#count") == f"{len(left)} of 2000 photos"
        page.fill("#search", left[0])
        assert shown(page)[:1] == left[:1]


@pytest.mark.slow
def test_photos_out_of_sight_cost_nothing(browser, many):
    path, _ = many
    with opened(browser, path) as page:
        decoded = "document.querySelectorAll('#photos img[src]').length"
        assert 0 < page.evaluate(decoded) < 200
        # A photo out of sight is neither laid out nor painted.
        last = page.locator("#photos li").last
        assert (
            last.evaluate("one => one.firstChild.checkVisibility({contentVisibilityAuto: true})")
            is False
        )
        for share in (0.25, 0.5, 0.75, 1):
            page.evaluate(f"scrollTo(0, {share} * document.documentElement.scrollHeight)")
            page.wait_for_function("document.querySelectorAll('#photos img[src]').length > 0")
        last.scroll_into_view_if_needed()
        page.wait_for_function("document.querySelector('#photos li:last-child img').complete")
        assert page.evaluate(decoded) < 1000
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.html").write_text("<p>no report")
    with pytest.raises(ValueError, match=r"a\.html was not written by write_report"):
        write_index([tmp_path / "a.html"], tmp_path / "index.html")
