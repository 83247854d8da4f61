"""Reports of volumes and signals in a real browser, against the numbers of the evidence."""

import numpy as np
import pytest
import torch
from browser import LOW_CONTRAST, NAMELESS, opened
from conftest import make_classifier, make_images
from report_pages import order_of, printed

from captum_pda import ConstantPrior, EfficientPDA, strongest_regions
from captum_pda.report import write_index, write_report
from captum_pda.report.page_file import read_block, unpack

SPACE = (5, 14, 9)


def make_volume():
    pda = EfficientPDA(make_classifier(dims=3, channels=2), ConstantPrior(0.1), engine="dense")
    return pda.evidence(make_images(2, 2, *SPACE), superpixels=(5, 9), context="both")


def make_signal():
    pda = EfficientPDA(make_classifier(dims=1), ConstantPrior(0.1), engine="dense")
    return pda.evidence(make_images(1, 3, 40), scales=(6, 12), context="both")


def slide(page, name: str, value: int) -> None:
    page.evaluate(f"document.getElementById('{name}').value = {value}")
    page.dispatch_event(f"#{name}", "input")


def shown_lists(page) -> list[list[str]]:
    rows = page.locator(".strongest li").all()
    return [row.locator(".answer").all_inner_texts() for row in rows]


def test_sliders_move_through_a_volume_and_lists_lead_to_regions(browser, tmp_path):
    evidence = make_volume()
    path = write_report(
        evidence, tmp_path / "volume.html", example=1, spacing=(3, 1, 1), title="<b>scan</b>"
    )
    order = order_of(evidence, 1)
    with opened(browser, path) as page:
        assert page.inner_text("#title") == "<b>scan</b>"
        for place, target in enumerate(order):
            page.locator("#classes label").nth(place).click()
            values = evidence.attribution(target)[1, 0].flatten().numpy()
            first = place * len(values)
            shown = page.evaluate(f"Array.from(space.maps.slice({first}, {first + len(values)}))")
            np.testing.assert_allclose(shown, values, rtol=1e-3, atol=1e-3 * np.abs(values).max())
            kinds = strongest_regions(evidence, target, example=1)
            regions = [region for kind in kinds for region in kind]
            expected = [[printed(answer) for answer in region.answers()] for region in regions]
            assert shown_lists(page) == expected
            for row, region in zip(page.locator(".strongest li").all(), regions, strict=True):
                row.locator("button").click()
                assert region.pixels[tuple(page.evaluate("space.place"))]
        before = page.locator("canvas").first.screenshot()
        slide(page, "slice-0", 4)
        slide(page, "slice-1", 12)
        assert page.evaluate("space.place.slice(0, 2)") == [4, 12]
        assert page.inner_text("#here").startswith("slice 4, row 12, column ")
        assert page.locator("canvas").first.screenshot() != before
        page.locator("canvas").nth(0).click(position={"x": 3, "y": 3})
        assert page.evaluate("space.place") == [4, 0, 0]
        page.keyboard.press("ArrowDown")
        page.keyboard.press("PageUp")
        assert page.evaluate("space.place") == [3, 1, 0]
        sentence = printed(str(evidence.self_test(order[0], 1)))
        page.locator("#classes label").first.click()
        assert sentence in page.inner_text("#tested")
        ratio = "(one) => one.clientWidth / one.clientHeight"
        ratios = page.evaluate(f"[...document.querySelectorAll('canvas')].map({ratio})")
        assert ratios == pytest.approx([9 / 14, 9 / 15, 14 / 15], rel=0.02)


def test_a_signal_is_drawn_over_its_evidence(browser, tmp_path):
    evidence = make_signal()
    path = write_report(evidence, tmp_path / "signal.html", spacing=0.5)
    top = order_of(evidence)[0]
    values = evidence.attribution(top)[0, 0]
    with opened(browser, path) as page:
        for sample in (0, 17, 39):
            slide(page, "sample", sample)
            text = page.inner_text("#here").replace("\u2212", "-")
            assert text.startswith(f"time {sample * 0.5:g}: ")
            assert float(text.split(": ")[1].split()[0]) == pytest.approx(
                float(values[sample]), abs=0.006
            )
        kinds = strongest_regions(evidence, top)
        expected = [[printed(a) for a in region.answers()] for kind in kinds for region in kind]
        assert shown_lists(page) == expected


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_volume, make_signal])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_signals_and_volumes_can_be_read(browser, tmp_path, make, scheme):
    path = write_report(make()[0], tmp_path / "report.html")
    narrow = {"width": 360, "height": 740}
    with opened(browser, path, viewport=narrow, color_scheme=scheme) as page:
        assert page.evaluate(LOW_CONTRAST) == []
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_slices_of_a_region_meet_where_its_map_is_strongest(tmp_path):
    evidence = make_volume()[0]
    path = write_report(evidence, tmp_path / "volume.html", test=False)
    header, _ = unpack(read_block(path.read_bytes(), "values"))
    values = evidence.attribution(evidence.top())[0, 0].numpy()
    kinds = strongest_regions(evidence, evidence.top())
    assert any(kinds)
    for name, sign, regions in zip(("for", "against"), (1, -1), kinds, strict=True):
        for listed, region in zip(header["listed"][0][name], regions, strict=True):
            assert region.pixels[tuple(listed["place"])]
            strongest = (sign * values)[region.pixels].max()
            assert sign * values[tuple(listed["place"])] == pytest.approx(strongest)


def test_large_volumes_are_thinned_and_listed_in_an_index(tmp_path):
    volume = torch.rand(1, 1, 130, 131, 129)
    pda = EfficientPDA(lambda x: x.mean((2, 3, 4)), ConstantPrior(0.0), "raw", engine="dense")
    evidence = pda.evidence(volume, sliding_window_shapes=70, strides=70)
    path = write_report(evidence, tmp_path / "volume.html", test=False)
    header, arrays = unpack(read_block(path.read_bytes(), "values"))
    assert header["step"] == 2
    assert header["space"] == [65, 66, 65]
    values = evidence.attribution(0)[0, 0, ::2, ::2, ::2].flatten().numpy()
    np.testing.assert_allclose(arrays[header["maps"]][0], values, rtol=1e-3)
    for region in header["listed"][0]["for"]:
        assert all(a < size for a, size in zip(region["place"], header["space"], strict=True))
    index = write_index([path], tmp_path / "index.html")
    entry = unpack(read_block(index.read_bytes(), "values"))[0]["entries"][0]
    assert entry["title"] == "volume"


def test_what_a_page_of_a_volume_cannot_show_is_refused(tmp_path):
    evidence = make_volume()[:1]
    with pytest.raises(ValueError, match="one method, and no contrast or"):
        write_report(evidence, tmp_path / "volume.html", contrast=(0, 1), test=False)
    with pytest.raises(ValueError, match="one method"):
        write_report({"a": evidence, "b": evidence}, tmp_path / "volume.html", test=False)
    assert torch.equal(evidence.inputs[0], make_volume().inputs[0][:1])
