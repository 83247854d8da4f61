"""Evidence in words, shared by lists, pictures, pages and notebooks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from captum_pda._captum import TargetType
from captum_pda.files import counted
from captum_pda.model.measures import Measure, signed
from captum_pda.regions.contexts import CONTEXTS

if TYPE_CHECKING:
    from captum_pda.evidence.evidence import EvidencePart, WindowEvidence

#: The numbers of examples and of outputs that ``print(evidence)`` lists.
N_EXAMPLES, N_OUTPUTS = 4, 3
#: The name of all questions together, and of their map.
ALL_QUESTIONS = "All questions"
MEAN = "a weighted mean of all questions, with a scale of its own"
#: Marks a region about which the parts of the map disagree.
UNCERTAIN = "uncertain: questions and sizes disagree"
#: Marks a region that might change places with the next one of the list.
TIED = "uncertain order: about as strong as the next"

#: Smaller changes, in bits, are negligible: odds that differ by less than 4 percent.
HARDLY_BITS = 0.05


def effect_words(measure: Measure) -> dict[str, str | float]:
    """The templates of a sentence about the effect of one region.

    ``{start}`` is the context's ``effect``, ``{name}`` and ``{other}`` are outputs, and ``{size}``
    is 2**|value| for a "ratio", 100 |value| for "points" and |value| otherwise.
    """
    kind, hardly, what, pair = "plain", 0.0, "{name}", "the lead of {name} over {other}"
    little, more = "does not change {what}", "raises {what} by {size}"
    less = "lowers {what} by {size}"
    if measure.unit == "bits":
        quantity = "odds" if measure.name == "weight_of_evidence" else "probability"
        kind, hardly, pair = "ratio", HARDLY_BITS, "the ratio of {name} to {other}"
        what, little = f"the {quantity} of {{name}}", "hardly changes {what}"
        more, less = "makes {what} {size} times as high", "divides {what} by {size}"
    elif measure.name == "probability_difference":
        kind, hardly, what = "points", 0.0005, "the probability of {name}"
        little = "hardly changes {what}"
        more, less = "adds {size} points to {what}", "takes {size} points from {what}"
    sentences = {"little": little, "more": more, "less": less}
    told = {name: f"{{start}} {words}." for name, words in sentences.items()}
    return {"kind": kind, "hardly": hardly, "what": what, "pair": pair, **told}


def page_words(measure: Measure) -> dict[str, Any]:
    """All words about regions that a page needs."""
    names = ("choice", "question", "answer", "effect", "picture")
    contexts = {
        name: {
            **{word: getattr(context, word) for word in names},
            "draw": "One draw in its place" if context.is_sampled else context.picture,
        }
        for name, context in CONTEXTS.items()
    }
    return {
        "contexts": contexts,
        "all": ALL_QUESTIONS,
        "mean": MEAN,
        "uncertain": UNCERTAIN,
        "effect": effect_words(measure),
    }


def with_unit(value: float, measure: Measure) -> str:
    """A value with its sign and unit."""
    return f"{signed(value, measure.unit)} {measure.unit}".rstrip()


def answer(
    context: str, value: float, seen: Sequence[float], changed: Sequence[float], measure: Measure
) -> str:
    """The answer to a context's question about one region: its evidence, and the predictions before
    and after the change, of one output or of two that are contrasted."""
    said = [" : ".join(map(measure.in_words, several)) for several in (seen, changed)]
    return CONTEXTS[context].answer.format(
        seen=said[0],
        changed=said[1],
        change=with_unit(-value, measure),
        value=with_unit(value, measure),
    )


def question(part: EvidencePart) -> str:
    """The question about all regions of a part."""
    words = CONTEXTS[part.context].each
    return words if part.depth == "input" else f"{words} of the features of {part.depth}"


def scale_words(parts: Sequence[EvidencePart]) -> str:
    """The caption of a colour bar: the meaning of a value of the map of these parts."""
    sizes = Counter(question(part) for part in parts)
    each = [words if n == 1 else f"{words} (mean of {n} sizes)" for words, n in sizes.items()]
    return each[0] if len(each) == 1 else f"{MEAN}: {'; '.join(each)}"


def total_words(
    evidence: WindowEvidence, number: int, target: TargetType, name: str | None = None
) -> str | None:
    """All evidence of an example for an output, if the model was run with everything hidden."""
    empty = [part for part in evidence.parts if CONTEXTS[part.context].starts_from_nothing]
    if not empty:
        return None
    total = float(evidence.total(target)[number])
    if not math.isfinite(total):
        return None
    prediction = evidence.outputs.prediction(target)
    nothing, everything = (
        evidence.measure.in_words(float(prediction(scores.unsqueeze(1))[number]))
        for scores in (empty[0].reference, evidence.scores)
    )
    subject = f"all evidence for {name}" if name else "all evidence"
    return (
        f"{subject}: {with_unit(total, evidence.measure)}, from {nothing} with nothing seen to "
        f"{everything} with everything seen"
    )


def description(evidence: WindowEvidence) -> str:
    """A few lines about evidence, for ``print``."""
    n = len(evidence.scores)
    shapes = ", ".join("x".join(map(str, tensor.shape[1:])) for tensor in evidence.inputs)
    lines = [
        f"Evidence of {counted(n, 'example')} of {shapes} about "
        f"{counted(evidence.scores.shape[1], 'output')}, measured in {evidence.measure.label}"
    ]
    for example in range(min(n, N_EXAMPLES)):
        before = f"  [{example}] " if n > 1 else "  "
        lines.append(f"{before}{predictions(evidence, example)}")
    if n > N_EXAMPLES:
        lines.append(f"  and {counted(n - N_EXAMPLES, 'more example', 'more examples')}")
    asked: dict[str, list[str]] = {}
    for part in evidence.parts:
        asked.setdefault(question(part), []).append(part.regions.title)
    for words, titles in asked.items():
        lines.append(f"  {words}: {joined(titles)}")
    n_passes = sum(
        int((part.drawn.amax(dim=1) if CONTEXTS[part.context].in_sets else part.drawn).sum())
        for part in evidence.parts
    )
    lines.append(f"  {counted(n_passes, 'pass', 'passes')}")
    return "\n".join(lines)


def predictions(evidence: WindowEvidence, example: int) -> str:
    """The highest outputs of an example."""
    scores = evidence.scores[example]
    top = scores.topk(min(N_OUTPUTS, len(scores))).indices.tolist()
    measure = evidence.measure
    outputs = [
        f"{output_name(evidence, column)} "
        f"({measure.in_words(float(measure.prediction(scores[column])))})"
        for column in top
    ]
    kind = "most probable" if evidence.output != "raw" else "largest"
    return f"{kind}: {', '.join(outputs)}" if len(scores) > 1 else f"output: {outputs[0]}"


def output_name(evidence: WindowEvidence, column: int) -> str:
    """The name of an output without labels: its number, or its place."""
    shape = evidence.output_shape
    if len(shape) <= 1:
        return str(column)
    return str(tuple(int(place) for place in np.unravel_index(column, shape)))


def joined(titles: Sequence[str]) -> str:
    """Titles in one line, with what they share said once: "12, 25 and 60 superpixels"."""
    rows = [title.split(" ") for title in titles]
    differ = [place for place, words in enumerate(zip(*rows, strict=False)) if len({*words}) > 1]
    if len({*map(len, rows)}) > 1 or len(differ) != 1:
        return ", ".join(titles)
    *others, last = (row[differ[0]] for row in rows)
    rows[0][differ[0]] = f"{', '.join(others)} and {last}"
    return " ".join(rows[0])
