"""Measures: the unit of differences of predictions, and the average of predictions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda.fingerprints import own_code
from captum_pda.model.inputs import check_choice

LN2 = math.log(2)


def register(known: dict[str, Any], cls: type[Any], what: str) -> None:
    """Register a class by its own name; refuses the name of another class."""
    if "name" not in vars(cls):
        return
    other = known.get(cls.name, cls)
    if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"{what} named {cls.name!r} exists: {other!r}; choose another name")
    known[cls.name] = cls  # a notebook cell that is run again replaces its class


def find(argument: str, given: Any, base: type[Any], known: Mapping[str, type[Any]]) -> Any:
    """The object of a registered name, or the given object of the base class."""
    if isinstance(given, base):
        return given
    if isinstance(given, type) and issubclass(given, base):
        raise TypeError(f"{argument} is the class {given.__name__}, not an object; add brackets")
    if not isinstance(given, str):
        raise TypeError(f"{argument} must be a name or a {base.__name__}, got {given!r}")
    check_choice(argument, given, known)
    return known[given]()


@dataclass(frozen=True)
class Measure(ABC):
    """A function of a score whose difference is the evidence.

    A score is the log-odds of an output in nats; for a measure without ``needs_probabilities`` it
    is the output itself. A subclass with a ``name`` is registered for ``measure="name"``; its
    configuration is its fields, all with defaults.

    Attributes:
        name: for ``measure="name"``, results and files.
        label: the label of a colour bar, with the unit.
        unit: follows a number: "0.3 bits", "0.3 of probability".
        needs_probabilities: whether scores are log-odds, and not the outputs themselves.

    Example::

        >>> class OddsDifference(Measure):
        ...     name, label, unit = "odds_difference", "difference of odds", "of odds"
        ...     def value(self, scores): return scores.exp()
        ...     def slope(self, scores): return scores.exp()
        >>> EfficientPDA(model, measure="odds_difference")
    """

    name: ClassVar[str]
    label: ClassVar[str]
    unit: ClassVar[str]
    needs_probabilities: ClassVar[bool] = True

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        register(MEASURES, cls, "a measure")

    @abstractmethod
    def value(self, scores: Tensor) -> Tensor:
        """The measured quantity; evidence is its value with a region visible minus that without."""

    @abstractmethod
    def slope(self, scores: Tensor) -> Tensor:
        """The derivative of ``value``, which may be negative."""

    def error(self, errors: Tensor, scores: Tensor) -> Tensor:
        """The standard errors of ``value`` from those of the scores, by the delta method."""
        return errors * self.slope(scores).abs()

    def contrast(self, first: Tensor, second: Tensor) -> Tensor:
        """The quantity for one output rather than another, from their scores."""
        return self.value(first) - self.value(second)

    def prediction(self, scores: Tensor) -> Tensor:
        """The prediction: the probability p, or the output itself."""
        return torch.sigmoid(scores) if self.needs_probabilities else scores

    def in_words(self, prediction: float) -> str:
        """A prediction as text: a probability in percent, or the output."""
        return percent(prediction) if self.needs_probabilities else f"{prediction:.4g}"

    def settings(self) -> dict[str, Any]:
        """The settings as plain values."""
        return {"name": self.name, **asdict(self), **own_code(self)}


#: Every measure by its name.
MEASURES: dict[str, type[Measure]] = {}


class WeightOfEvidence(Measure):
    """Bits of log-odds, log2 p / (1 - p); two outputs are compared by log2 p_1 / p_2."""

    name, label, unit = "weight_of_evidence", "weight of evidence (bits)", "bits"

    def value(self, scores: Tensor) -> Tensor:
        return scores / LN2

    def slope(self, scores: Tensor) -> Tensor:
        return torch.full_like(scores, 1 / LN2)

    def contrast(self, first: Tensor, second: Tensor) -> Tensor:
        return InformationDifference().contrast(first, second)


class ProbabilityDifference(Measure):
    """The probability p itself, as in the paper's Algorithm 3."""

    name, label = "probability_difference", "difference of probability"
    unit = "of probability"

    def value(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores)

    def slope(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores) * torch.sigmoid(-scores)


class InformationDifference(Measure):
    """Bits of probability, log2 p."""

    name, label = "information_difference", "difference of information (bits)"
    unit = "bits"

    def value(self, scores: Tensor) -> Tensor:
        return F.logsigmoid(scores) / LN2

    def slope(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(-scores) / LN2


class RawDifference(Measure):
    """The outputs themselves, for ``output="raw"``: hidden units, regression, similarity."""

    name, label, unit = "raw", "difference of the output", "of the output"
    needs_probabilities = False

    def value(self, scores: Tensor) -> Tensor:
        return scores

    def slope(self, scores: Tensor) -> Tensor:
        return torch.ones_like(scores)


def find_measure(measure: str | Measure) -> Measure:
    """The measure of a name, or the given object."""
    return cast(Measure, find("measure", measure, Measure, MEASURES))


def percent(share: float) -> str:
    """A probability in percent to a tenth, or with the digits that distinguish it from 0 and 1."""
    from_end = min(share, 1 - share)
    digits = -math.floor(math.log10(100 * from_end)) if 0 < from_end < 1 else 1
    return f"{100 * share:.{min(6, max(1, digits))}f}%"


def signed(value: float, unit: str = "bits") -> str:
    """A number with its sign: bits to a tenth, or below 1 to a hundredth, zero without a sign;
    other units below 1 with two significant digits."""
    if unit != "bits":
        return f"{value:+.1f}" if abs(value) >= 1 else f"{value:+.2g}" if value else "0"
    if abs(value) < 0.005:
        return "0.00"
    return f"{value:+.2f}" if abs(value) < 0.995 else f"{value:+.1f}"
