"""Reports of every kind of evidence: each opens, and its map has the colours of its bits."""

import numpy as np
import pytest
import torch
from browser import opened
from conftest import make_classifier, make_images
from report_pages import colour
from test_report_file import many_windows

from captum_pda import PDA, ConstantPrior, EfficientPDA, SampledPDA
from captum_pda.report import write_report
from captum_pda.report.page_file import read_block, unpack

SPACE = (20, 28)


def by_pda():
    pda = PDA(make_classifier(), prior=ConstantPrior(0.2), engine="dense")
    return pda.evidence(make_images(1, 3, *SPACE), scales=(5, 10), strides=5)


def by_mask():
    mask = (torch.arange(20)[:, None] // 7 * 3 + torch.arange(28)[None] ** 2 // 300)[None, None]
    pda = EfficientPDA(make_classifier(), prior=ConstantPrior(0.2), engine="dense")
    return pda.evidence(make_images(1, 3, *SPACE), feature_mask=mask, context="both")


def by_samples():
    pda = SampledPDA(make_classifier(), engine="dense")
    generator = torch.Generator().manual_seed(0)
    image = make_images(1, 3, *SPACE)
    return pda.evidence(image, n_samples=3, sliding_window_shapes=8, strides=4, generator=generator)


def of_outputs(output: str, measure: str):
    model = make_classifier()
    function = (lambda x: model(x).softmax(1)) if output == "probabilities" else model
    pda = EfficientPDA(function, ConstantPrior(0.0), output, measure, "dense")
    return pda.evidence(make_images(1, 3, *SPACE), sliding_window_shapes=8, strides=4)


def of_one_output():
    model = make_classifier(channels=1, classes=1)
    pda = EfficientPDA(model, prior=ConstantPrior(0.0), engine="dense")
    return pda.evidence(make_images(1, 1, *SPACE), sliding_window_shapes=8, strides=4)


KINDS = {
    "features": by_pda,
    "mask": by_mask,
    "samples": by_samples,
    "raw": lambda: of_outputs("raw", "weight_of_evidence"),
    "probabilities": lambda: of_outputs("probabilities", "probability_difference"),
    "information": lambda: of_outputs("logits", "information_difference"),
    "one output": of_one_output,
}

MAP = """([height, width]) => {
  const canvas = document.getElementById("picture");
  const copy = new OffscreenCanvas(width, height).getContext("2d");
  copy.imageSmoothingEnabled = false;
  copy.drawImage(canvas, 0, 0, width, height);
  const { data } = copy.getImageData(0, 0, width, height);
  return Array.from({ length: width * height }, (_, i) => [...data.slice(4 * i, 4 * i + 3)]);
}"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_map_of_every_kind_has_the_colours_of_its_values(browser, tmp_path, kind):
    evidence = KINDS[kind]()
    path = write_report(evidence, tmp_path / "report.html")
    target = int(evidence.scores[0].argmax())
    values = evidence.attribution(target)[0, 0].flatten()
    with opened(browser, path) as page:
        page.evaluate("document.getElementById('opacity').value = 100")
        page.dispatch_event("#opacity", "input")
        stops = page.evaluate("[RED, BLUE]")
        shown = torch.tensor(page.evaluate(f"({MAP})({list(SPACE)})"), dtype=torch.float64)
        scale = page.evaluate("document.getElementById('ticks').lastChild.textContent")
        places = [evidence.attribution(one).abs().max() for one in range(len(evidence.scores[0]))]
        assert float(scale) == pytest.approx(float(max(places)), abs=0.006)
        relative = values / max(places)
        expected = torch.tensor([colour(float(one), stops[int(one < 0)]) for one in relative])
        close = (shown - expected).abs().amax(dim=1) <= 4
        # The outline of one region, and what lies under it, differ.
        assert close.double().mean() > 0.75
        # Keys reach every region's words, whatever it is.
        page.focus("#stage")
        for key in ("ArrowRight", "ArrowDown", "End", "Home"):
            page.keyboard.press(key)
            assert page.inner_text("#sentence").endswith(".")
            assert "NaN" not in page.inner_text("main")
            assert "undefined" not in page.inner_text("main")
        if kind == "samples":
            assert "\u00b1" in page.inner_text("#bits")
        for label in page.locator("#size label:visible").all():
            label.click()
            assert page.inner_text("#sentence").endswith(".")


@pytest.mark.slow
def test_methods_can_be_compared(browser, tmp_path):
    image = make_images(1, 3, *SPACE)
    methods = {
        name: EfficientPDA(make_classifier(), prior=ConstantPrior(value), engine="dense").evidence(
            image, sliding_window_shapes=8, strides=4
        )
        for name, value in (("black", 0.0), ("<b>grey</b>", 0.5))
    }
    path = write_report(methods, tmp_path / "report.html")
    with opened(browser, path) as page:
        page.check("#hold")
        before = page.inner_text("#ticks")
        target = int(methods["black"].scores[0].argmax())
        for name in methods:
            page.locator("#method label", has_text=name).click()
            page.locator("#numbers").uncheck()
            frame = page.locator("#picture").bounding_box()
            page.mouse.move(frame["x"] + 5, frame["y"] + 5)
            bits = float(methods[name].window_values(target)[0, 0])
            shown = page.inner_text("#bits").replace("\u2212", "-")
            assert float(shown.split()[0]) == pytest.approx(bits, abs=0.006)
        assert page.inner_text("#ticks") == before


@pytest.mark.slow
def test_the_page_reads_numbers_of_sixteen_bits_as_python_does(browser, tmp_path):
    path = write_report(many_windows(), tmp_path / "report.html")
    header, arrays = unpack(read_block(path.read_bytes(), "values"))
    number = header["methods"][0]["groups"][0]["parts"][0]["changes"]
    with opened(browser, path) as page:
        read = "readBlock('values').then(({ arrays }) => "
        read += f"[...arrays[{number}]].filter((_, i) => i % 997 === 0))"
        shown = page.evaluate(read)
    np.testing.assert_allclose(shown, arrays[number].flatten()[::997], rtol=1e-12)
