"""The demonstration, and explanations in words."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from captum_pda.cli.explainer import Answer, Explanation
from captum_pda.cli.main import main
from captum_pda.cli.results import explanation_lines, place, top_classes
from captum_pda.evidence.strongest import StrongRegion
from captum_pda.model.measures import RawDifference, WeightOfEvidence

BITS = WeightOfEvidence()


@pytest.mark.slow
def test_demo(tmp_path, capsys, monkeypatch):
    """The real thing, with as few windows as there can be."""
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda self, *given, **named: (figures.append(self), save(self, *given, **named))[1],
    )
    assert main(["demo", "--quick", "--output", str(tmp_path / "demo.png")]) == 0
    said = capsys.readouterr()
    assert re.search(r"PDA: \d+ passes", said.err)
    assert "100%" in said.err
    assert re.search(r"\nWhy espresso.* \(\d+\.\d%\)\?\n  all evidence: \+.* bits, from", said.out)
    assert "the strongest " in said.out
    assert said.out.count(" (for) without it: ") >= 1
    assert said.out.count("; by itself: ") >= 1
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.width > 1000
        # Red, blue and plenty of white: something was drawn.
        assert len(picture.convert("RGB").getcolors(2**24)) > 1000
    check_words(figures[0])


def check_words(figure):
    """What is written lies within the picture, and nothing over anything else."""
    FigureCanvasAgg(figure).draw()
    written = [axes.title for axes in figure.axes]
    written += [text for axes in figure.axes for text in axes.texts if len(text.get_text()) > 2]
    boxes = [text.get_window_extent() for text in written if text.get_text()]
    # Four columns, and below them the test of the map.
    assert len(boxes) == 4 + 1
    for number, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:number])


def make_region(corner, value=1.0):
    """A square of ten pixels, that is asked about in both contexts."""
    pixels = np.zeros((100, 100), dtype=np.bool_)
    pixels[corner[0] : corner[0] + 10, corner[1] : corner[1] + 10] = True
    return StrongRegion(
        pixels, value, 0.5, {"full": 2.0, "empty": -0.25}, {"full": 0.2, "empty": 0.4}, False, BITS
    )


@pytest.mark.parametrize(
    ("corner", "words"),
    [
        ((0, 0), "upper left, rows 0-9, columns 0-9"),
        ((0, 45), "upper middle, rows 0-9, columns 45-54"),
        ((90, 90), "lower right, rows 90-99, columns 90-99"),
        ((45, 0), "middle left, rows 45-54, columns 0-9"),
        ((45, 45), "centre, rows 45-54, columns 45-54"),
        ((90, 45), "lower middle, rows 90-99, columns 45-54"),
    ],
)
def test_places(corner, words):
    assert place(make_region(corner)) == words


def lines_of(*answer):
    whole = Answer("cat", (1,), torch.zeros(100, 100), *answer)
    evidence = SimpleNamespace(measure=BITS, scores=torch.zeros(1, 2))
    return list(explanation_lines(Explanation([whole], "PDA", ("a", "b"), evidence)))


def test_an_answer_in_words():
    against = make_region((90, 90), -1.0)
    answers = "without it: 50.0% -> 20.0% (-2.0 bits); by itself: -0.25 bits over nothing"
    assert lines_of([make_region((0, 0))], [against]) == [
        "Why cat (50.0%)?",
        f"  1 (for) {answers} (upper left, rows 0-9, columns 0-9)",
        f"  1 (against) {answers} (lower right, rows 90-99, columns 90-99)",
    ]


def test_no_answer_in_words():
    nothing = "  no region says anything, to within 0.01 bits"
    assert lines_of([], []) == ["Why cat (50.0%)?", nothing]


def test_top_classes_in_words():
    shares = torch.tensor([[0.25, 0.7, 0.05]])
    evidence = SimpleNamespace(measure=BITS, scores=shares.logit())
    explanation = Explanation([], "PDA", ["a", "b", "c"], evidence)
    assert top_classes(explanation, 2) == "b 70.0%, a 25.0%"
    raw = SimpleNamespace(measure=RawDifference(), scores=100 * shares)
    assert top_classes(replace(explanation, evidence=raw), 2) == "b 70, a 25"
