"""What a run will cost is said in time."""

from __future__ import annotations

import io
import re
import warnings

import pytest
from conftest import make_convolutional, make_images

from captum_pda import PDA, ConstantPrior, EfficientPDA
from captum_pda.running.run import ProgressBar, costs


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def not_told_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgressBar, "was_told", False)


@pytest.mark.parametrize(
    ("passes", "seconds", "words"),
    [
        (1, 0.2, "1 pass"),
        (1760, 25.3, "1,760 passes, about 25 s"),
        (500, 600, "500 passes, about 10 min"),
        (10**6, 36000, "1,000,000 passes, about 10 h"),
    ],
)
def test_costs_are_said_in_words(passes: int, seconds: float, words: str) -> None:
    assert costs(passes, seconds) == words


def test_the_bar_tells_the_time_once_it_was_measured() -> None:
    clock = Clock()
    with ProgressBar(1760, "Efficient PDA", clock=clock) as bar:
        bar.fp = io.StringIO()
        assert "Efficient PDA: 1,760 passes:" in str(bar)
        clock.now += 9  # a first batch also does what is done only once
        bar.update(10)
        assert "about" not in str(bar)
        clock.now += 2
        bar.update(100)
        assert "Efficient PDA: 1,760 passes, about 44 s" in str(bar)
        assert str(bar).endswith("| 110/1760 [00:00]")  # and no other time


def test_the_bar_and_the_evidence_count_the_same_passes(capsys) -> None:
    images = make_images(2, 3, 64, 64).float()
    pda = PDA(make_convolutional(), prior=ConstantPrior(0.0), output="raw", engine="dense")
    evidence = pda.evidence(images, effort="quick", show_progress=True)
    count = re.search(r"PDA: ([\d,]+) passes", capsys.readouterr().err)
    assert count is not None
    assert str(evidence).endswith(f"  {count[1]} passes")


def test_a_long_run_that_nobody_watches_is_said_once() -> None:
    for expected in (1, 0):
        clock = Clock()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with ProgressBar(1000, None, warns=True, clock=clock) as bar:
                for _ in range(7):
                    clock.now += 1
                    bar.update(10)
        assert len(caught) == expected
        if caught:
            assert "1,000 passes, about 100 s" in str(caught[0].message)
            assert "show_progress=True" in str(caught[0].message)


@pytest.mark.parametrize(("title", "warns", "seconds"), [("PDA", True, 1), (None, False, 1),
                                                        (None, True, 0.1)])  # fmt: skip
def test_nothing_is_said_of_runs_that_are_short_or_watched(
    title: str | None, warns: bool, seconds: float
) -> None:
    clock = Clock()
    with ProgressBar(1000, title, warns=warns, clock=clock) as bar:
        if title:
            bar.fp = io.StringIO()
        for _ in range(30):
            clock.now += seconds
            bar.update(20)


def test_attribute_warns_where_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def slow(x):
        clock.now += 10 * len(x)
        return model(x)

    model = make_convolutional()
    monkeypatch.setattr(
        "captum_pda.running.run.ProgressBar",
        lambda *args, **kwargs: ProgressBar(*args, **kwargs, clock=clock),
    )
    pda = EfficientPDA(slow, ConstantPrior(0.0), engine="dense")
    call = {"target": 1, "sliding_window_shapes": 4, "strides": 4, "perturbations_per_eval": 2}
    images = make_images(1, 3, 12, 12).float()
    with pytest.warns(UserWarning, match="9 passes, about 90 s"):
        pda.attribute(images, **call)
    pda.attribute(images, **call)  # it was said
