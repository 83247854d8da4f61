"""An explanation in words and bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from captum_pda.cli.explanation import Answer
from captum_pda.evidence.strongest import StrongWindow
from captum_pda.prediction.measures import Measure

#: Windows of fewer bits are not listed: they change the odds by less than a hundredth.
LEAST_BITS = 0.01
ROWS = ("upper", "middle", "lower")
COLUMNS = ("left", "middle", "right")


def top_classes(predictions: Tensor, labels: Sequence[str], measure: Measure, n: int = 5) -> str:
    """The classes with the highest predictions: "espresso 95.0%, cup 1.5%"."""
    best = predictions.topk(min(n, len(labels)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return ", ".join(f"{labels[number]} {prediction_words(one, measure)}" for number, one in pairs)


def prediction_words(prediction: float, measure: Measure) -> str:
    """A probability as "95.0%", an output as it is as "3.14"."""
    return f"{prediction:.1%}" if measure.needs_probabilities else f"{prediction:.4g}"


def answer_lines(answer: Answer, space: tuple[int, ...], measure: Measure) -> Iterator[str]:
    """What speaks for a class and what against it, the strongest first."""
    for verb, windows in (("for", answer.speak_for), ("against", answer.speak_against)):
        yield f"What speaks {verb} {answer.name}:"
        yield from window_lines(windows, space, measure)


def window_lines(
    windows: Sequence[StrongWindow], space: tuple[int, ...], measure: Measure
) -> Iterator[str]:
    """A line for each window that says something, or one that says that none does."""
    least = LEAST_BITS if measure.needs_probabilities else 0.0
    listed = [window for window in windows if abs(window.value) >= least]
    for window in listed:
        yield f"  {window_words(window, space, measure)}"
    if not listed:
        yield f"  nothing, to within {LEAST_BITS} bits" if least else "  nothing"


def window_words(window: StrongWindow, space: tuple[int, ...], measure: Measure) -> str:
    """Where a window lies, its evidence, and for bits what that does to the odds."""
    rows, columns = (
        f"{start}-{start + width - 1}"
        for start, width in zip(window.corner, window.shape, strict=True)
    )
    where = f"{place(window, space)} (rows {rows}, columns {columns})"
    if not measure.needs_probabilities:
        return f"{window.value:+.3g} {measure.unit}  {where}"
    times = 2 ** min(abs(window.value), 99.0)
    change = "higher" if window.value > 0 else "lower"
    return f"{window.value:+.2f} bits  {where}: seeing it makes the odds {times:.3g} times {change}"


def place(window: StrongWindow, space: tuple[int, ...]) -> str:
    """The ninth of the image in which a window's middle lies: "the upper left"."""
    thirds = [
        min(int(3 * (start + width / 2) / size), 2)
        for start, width, size in zip(window.corner, window.shape, space, strict=True)
    ]
    if thirds == [1, 1]:
        return "the centre"
    return f"the {ROWS[thirds[0]]} {COLUMNS[thirds[1]]}"
