"""Measures: their definitions, names, units and slopes, and one of your own."""

import math
import pickle
from dataclasses import dataclass

import pytest
import torch
from conftest import make_images

from captum_pda import EfficientPDA, GradientPDA
from captum_pda.model.measures import (
    MEASURES,
    InformationDifference,
    Measure,
    ProbabilityDifference,
    RawDifference,
    WeightOfEvidence,
    find_measure,
    signed,
)
from captum_pda.model.outputs import find_output_kind

BUILT_IN = (WeightOfEvidence, ProbabilityDifference, InformationDifference, RawDifference)


def test_the_measures_by_their_definitions():
    probability = torch.tensor([0.2, 0.5, 0.99], dtype=torch.float64)
    log_odds = torch.logit(probability)
    expected = {
        WeightOfEvidence(): torch.log2(probability / (1 - probability)),
        ProbabilityDifference(): probability,
        InformationDifference(): torch.log2(probability),
        RawDifference(): log_odds,
    }
    for measure, values in expected.items():
        torch.testing.assert_close(measure.value(log_odds), values)


@pytest.mark.parametrize("kind", BUILT_IN)
def test_slopes_are_derivatives(kind):
    scores = torch.tensor([-3.0, 0.1, 40.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(kind().value(scores).sum(), scores)
    torch.testing.assert_close(kind().slope(scores.detach()), slope)


@pytest.mark.parametrize("kind", BUILT_IN)
def test_a_measure_is_known_by_its_name_and_says_what_it_is_in(kind):
    assert find_measure(kind.name) == kind() == pickle.loads(pickle.dumps(kind()))
    assert kind().settings() == {"name": kind.name}
    assert ("(bits)" in kind.label) == (kind.unit == "bits")


def test_the_contrast_of_two_classes():
    probability = torch.tensor([0.2, 0.7], dtype=torch.float64)
    scores = torch.logit(probability)
    expected = {WeightOfEvidence: math.log2(0.2 / 0.7), ProbabilityDifference: 0.2 - 0.7}
    expected[RawDifference] = float(scores[0] - scores[1])
    for kind, value in expected.items():
        torch.testing.assert_close(kind().contrast(*scores).item(), value)


@pytest.mark.parametrize(
    ("output", "measure", "expected"),
    [
        ("logits", "weight_of_evidence", WeightOfEvidence),
        ("probabilities", InformationDifference(), InformationDifference),
        ("raw", "weight_of_evidence", RawDifference),
        ("raw", RawDifference(), RawDifference),
    ],
)
def test_the_measure_of_an_output(output, measure, expected):
    assert find_output_kind(output).measure(measure) == expected()


@pytest.mark.parametrize(
    ("output", "measure", "error", "says"),
    [
        ("logits", "bits", ValueError, "'weight_of_evidence', 'probability_difference'"),
        ("logits", "raw", ValueError, "output='raw'"),
        ("raw", "information_difference", ValueError, "leave measure out"),
        ("raw", ProbabilityDifference(), ValueError, "needs probabilities"),
        ("logits", WeightOfEvidence, TypeError, "add brackets"),
        ("logits", None, TypeError, "name or a Measure"),
    ],
)
def test_measures_that_make_no_sense(output, measure, error, says):
    with pytest.raises(error, match=says):
        find_output_kind(output).measure(measure)


@dataclass(frozen=True)
class PowerOfOdds(Measure):
    """(p / (1 - p)) ** power: one class, and nothing else to change."""

    name = "power_of_odds"
    label = "difference of powers of the odds"
    unit = "of odds"
    power: float = 1.0

    def value(self, scores):
        return (self.power * scores).exp()

    def slope(self, scores):
        return self.power * self.value(scores)


def test_a_measure_of_your_own_is_one_class(classifier):
    image = make_images(1, 3, 9, 11)
    evidence = EfficientPDA(classifier).evidence(image, sliding_window_shapes=4)
    seen, without = evidence.scores[:, None, 2], evidence.parts[0].scores[..., 2]
    own = EfficientPDA(classifier, measure="power_of_odds").evidence(image, sliding_window_shapes=4)
    torch.testing.assert_close(own.window_values(2), seen.exp() - without.exp())
    half = EfficientPDA(classifier, measure=PowerOfOdds(0.5))
    torch.testing.assert_close(
        half.evidence(image, sliding_window_shapes=4).window_values(2),
        (seen / 2).exp() - (without / 2).exp(),
    )
    settings = half.measure.settings()
    code = settings.pop("code_sha256")
    assert settings == {"name": "power_of_odds", "power": 0.5}
    assert code == PowerOfOdds(2.0).settings()["code_sha256"]
    assert len(code) == 64
    assert GradientPDA(classifier, measure="power_of_odds").attribute(image, target=2).any()


def test_a_name_is_not_taken_twice():
    with pytest.raises(ValueError, match="choose another"):
        type("Again", (RawDifference,), {"name": "weight_of_evidence"})
    assert MEASURES["weight_of_evidence"] is WeightOfEvidence


def test_a_change_that_rounds_to_zero_has_no_sign():
    said = {
        0.0: "0.00",
        -1.8e-5: "0.00",
        0.0019: "0.00",
        -0.021: "-0.02",
        0.996: "+1.0",
        -4.98: "-5.0",
    }
    assert {value: signed(value) for value in said} == said
    # The outputs of a model have a scale of their own.
    assert [signed(value, "of the output") for value in (0.0019, 0.0)] == ["+0.0019", "0"]
