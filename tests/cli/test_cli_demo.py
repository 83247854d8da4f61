"""The demonstration, and explanations in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from captum_pda.cli.explainer import Answer
from captum_pda.cli.main import main
from captum_pda.cli.results import answer_lines, place, top_classes, window_words
from captum_pda.evidence.strongest import StrongWindow
from captum_pda.prediction.measures import RawDifference, WeightOfEvidence

BITS = WeightOfEvidence()


@pytest.mark.slow
def test_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert "PDA: 99 passes" in said.err
    assert "100%" in said.err
    assert "What speaks for" in said.out
    assert "What speaks against" in said.out
    assert said.out.count(" bits  the ") >= 2
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.width > 1000
        # Red, blue and plenty of white: something was drawn.
        assert len(picture.convert("RGB").getcolors(2**24)) > 1000
    check_words(figures[0])


def check_words(figure: Figure) -> None:
    """What is written lies within the picture, and nothing over anything else."""
    FigureCanvasAgg(figure).draw()
    written = [axes.title for axes in figure.axes] + [axes.xaxis.label for axes in figure.axes]
    boxes = [text.get_window_extent() for text in written if text.get_text()]
    assert len(boxes) == 5 + 5 + 4
    for number, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:number])


@pytest.mark.parametrize(
    ("corner", "words"),
    [
        ((0, 0), "the upper left"),
        ((0, 45), "the upper middle"),
        ((90, 90), "the lower right"),
        ((45, 0), "the middle left"),
        ((45, 45), "the centre"),
        ((90, 45), "the lower middle"),
    ],
)
def test_places(corner: tuple[int, int], words: str) -> None:
    assert place(StrongWindow(corner, (10, 10), 1.0), (100, 100)) == words


def test_bits_in_words() -> None:
    window = StrongWindow((0, 90), (10, 10), 2.0)
    assert window_words(window, (100, 100), BITS) == (
        "+2.00 bits  the upper right (rows 0-9, columns 90-99): seeing it makes the odds 4 times "
        "higher"
    )
    against = StrongWindow((0, 90), (10, 10), -1.0)
    assert window_words(against, (100, 100), BITS).endswith(
        "-99): seeing it makes the odds 2 times lower"
    )


def test_an_answer_in_words() -> None:
    window = StrongWindow((0, 0), (10, 10), 1.0)
    answer = Answer("cat", (3,), torch.zeros(100, 100), [window], [])
    lines = list(answer_lines(answer, (100, 100), BITS))
    assert lines[0] == "What speaks for cat:"
    assert lines[2:] == ["What speaks against cat:", "  nothing, to within 0.01 bits"]


def test_top_classes_in_words() -> None:
    predictions, names = torch.tensor([0.25, 0.7, 0.05]), ["a", "b", "c"]
    assert top_classes(predictions, names, BITS, 2) == "b 70.0%, a 25.0%"
    assert top_classes(100 * predictions, names, RawDifference(), 2) == "b 70, a 25"
