"""Output kinds: scores and their averages, at the edges of floating point."""

import math

import numpy as np
import pytest
import torch

from captum_pda.model.measures import WeightOfEvidence
from captum_pda.model.outputs import OUTPUT_KINDS, ExplainedOutputs, find_output_kind

LOGITS, PROBABILITIES, RAW = (find_output_kind(n) for n in ("logits", "probabilities", "raw"))


def exact_log_odds(logits: list[float], target: int) -> float:
    """By definition, in exact-enough arithmetic (terms sorted, relative to the largest)."""
    others = sorted(value for number, value in enumerate(logits) if number != target)
    top = others[-1]
    rest = top + math.log(math.fsum(math.exp(value - top) for value in others))
    return logits[target] - rest


@pytest.mark.parametrize(
    "logits", [[0.1, -0.4, 2.0], [60.0, 0.0, -3.0], [-80.0, 5.0, 5.0], [1e4, -1e4, 0.0], [3.0, 3.0]]
)
def test_log_odds_from_logits_survive_saturation(logits):
    outputs = torch.tensor([logits])
    every = LOGITS.scores(outputs)[0]
    assert every.isfinite().all()
    for target in range(len(logits)):
        expected = torch.tensor(exact_log_odds(logits, target))
        torch.testing.assert_close(every[target], expected, rtol=1e-5, atol=1e-5)
        single = LOGITS.column(outputs, target)
        torch.testing.assert_close(single[0, 0], expected, rtol=1e-5, atol=1e-5)


def test_a_prediction_within_1e_12_of_one_has_the_right_bits():
    logits = torch.tensor([[math.log(1e12 - 1), 0.0]])
    bits = WeightOfEvidence().value(LOGITS.scores(logits))[0]
    torch.testing.assert_close(bits[0].item(), math.log2(1e12 - 1), rtol=1e-6, atol=0)
    torch.testing.assert_close(bits[1].item(), -math.log2(1e12 - 1), rtol=1e-6, atol=0)


def test_a_single_column_is_one_sigmoid_logit():
    outputs = torch.tensor([[1.5], [-2.0]])
    torch.testing.assert_close(LOGITS.column(outputs, 0), outputs)
    torch.testing.assert_close(LOGITS.scores(outputs), outputs)
    flat = torch.tensor([1.5, -2.0])
    with pytest.warns(UserWarning, match="yes-or-no question"):
        explained = ExplainedOutputs.of_target(LOGITS, flat, None)
    torch.testing.assert_close(explained.scores(flat), flat[:, None])


def test_classes_of_a_dense_output_compete_at_their_own_place():
    outputs = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    odds = LOGITS.scores(outputs)
    torch.testing.assert_close(odds, torch.logit(outputs.softmax(dim=1)))
    column = int(np.ravel_multi_index((2, 1, 3), (3, 4, 5)))
    torch.testing.assert_close(LOGITS.column(outputs, column)[:, 0], odds[:, 2, 1, 3])


def test_probabilities_use_the_sum_of_the_others_where_they_sum_to_one():
    probabilities = torch.tensor([[1.0, 1e-12, 2e-12]])
    torch.testing.assert_close(PROBABILITIES.column(probabilities, 0).item(), -math.log(3e-12))
    torch.testing.assert_close(PROBABILITIES.scores(probabilities)[0, 0].item(), -math.log(3e-12))
    torch.testing.assert_close(PROBABILITIES.scores(probabilities)[0, 1].item(), math.log(1e-12))


def test_probabilities_that_do_not_sum_to_one_are_questions_of_their_own():
    probabilities = torch.tensor([[0.9, 0.8, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(PROBABILITIES.scores(probabilities), torch.logit(probabilities))
    torch.testing.assert_close(
        PROBABILITIES.column(probabilities, 1), torch.logit(probabilities[:, 1:2])
    )


def test_separate_probabilities_may_sum_to_one_by_chance():
    """The reading of one row must not depend on another, nor on what the row happens to sum to."""
    probabilities = torch.tensor([[0.9, 0.1004], [0.9, 0.8]], dtype=torch.float64)
    expected = torch.logit(probabilities)
    for rows in (slice(0, 1), slice(0, 2)):
        torch.testing.assert_close(PROBABILITIES.scores(probabilities[rows]), expected[rows])
        torch.testing.assert_close(PROBABILITIES.column(probabilities[rows], 0), expected[rows, :1])


def test_probabilities_of_dense_outputs():
    probabilities = torch.randn(2, 3, 4, dtype=torch.float64).softmax(dim=1)
    expected = torch.logit(probabilities).flatten(1)
    torch.testing.assert_close(PROBABILITIES.scores(probabilities).flatten(1), expected)
    torch.testing.assert_close(PROBABILITIES.column(probabilities, 6), expected[:, 6:7])


@pytest.mark.parametrize("outputs", [[[1.0, 0.0]], [[0.0], [1.0]]], ids=["softmax", "sigmoid"])
def test_rounded_probabilities_give_finite_bounds_and_a_warning(outputs):
    outputs = torch.tensor(outputs)
    scores = PROBABILITIES.scores(outputs)
    assert scores.isfinite().all()
    with pytest.warns(UserWarning, match="exactly 0 or 1"):
        ExplainedOutputs.all_of(PROBABILITIES, outputs).warn_of_rounding(scores)


@pytest.mark.parametrize("outputs", [[[0.999999, 1e-6]], [[0.001], [0.999]]])
def test_ordinary_probabilities_give_no_warning(outputs):
    outputs = torch.tensor(outputs)
    ExplainedOutputs.all_of(PROBABILITIES, outputs).warn_of_rounding(PROBABILITIES.scores(outputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_bounded_by_what_they_can_say(dtype):
    one = torch.ones(1, 1, dtype=dtype)
    bound = -math.log(torch.finfo(dtype).eps / 2)
    torch.testing.assert_close(PROBABILITIES.scores(one).item(), bound, rtol=1e-3, atol=0)
    with pytest.warns(UserWarning, match="bound"):
        ExplainedOutputs.all_of(PROBABILITIES, one).warn_of_rounding(PROBABILITIES.scores(one))
    nothing = torch.zeros(1, 1, dtype=dtype)
    with pytest.warns(UserWarning, match="bound"):
        ExplainedOutputs.all_of(PROBABILITIES, one).warn_of_rounding(PROBABILITIES.scores(nothing))


def test_half_precision_sigmoids_are_not_taken_for_a_softmax():
    probabilities = torch.tensor([[0.97, 0.04, 0.01]], dtype=torch.float16)
    expected = torch.logit(probabilities.float())
    torch.testing.assert_close(PROBABILITIES.scores(probabilities), expected)


def test_half_precision_softmaxes_keep_the_sum_of_the_others():
    logits = torch.tensor([[12.0, 0.0, 0.5]])
    probabilities = logits.softmax(dim=1).half()
    expected = LOGITS.scores(logits)
    torch.testing.assert_close(PROBABILITIES.scores(probabilities), expected, rtol=0.01, atol=0)


def test_half_precision_outputs_are_read_in_single_precision():
    outputs = torch.tensor([[30.0, 0.0]], dtype=torch.float16)
    assert LOGITS.scores(outputs).dtype == torch.float32
    torch.testing.assert_close(LOGITS.column(outputs, 0), torch.tensor([[30.0]]))


def test_outputs_that_contradict_the_setting():
    with pytest.raises(ValueError, match="output='logits'"):
        ExplainedOutputs.all_of(PROBABILITIES, torch.tensor([[1.2, -0.2]]))
    with pytest.warns(UserWarning, match="output='probabilities'"):
        ExplainedOutputs.all_of(LOGITS, torch.tensor([[0.7, 0.3], [0.5, 0.5]]))
    with pytest.raises(ValueError, match="NaN or infinity"):
        ExplainedOutputs.all_of(RAW, torch.tensor([[math.nan]]))
    with pytest.warns(UserWarning, match="sigmoids"):
        ExplainedOutputs.all_of(LOGITS, torch.linspace(0.1, 0.9, 14)[None])
    ExplainedOutputs.all_of(LOGITS, torch.tensor([[0.7, 0.4]]))


def test_marginalising_averages_probabilities_not_logits():
    log_odds = torch.tensor([[3.0], [-1.0], [0.2]], dtype=torch.float64)
    mean = torch.sigmoid(log_odds).mean(dim=0)
    torch.testing.assert_close(LOGITS.average(log_odds), torch.logit(mean))
    assert (LOGITS.average(log_odds) - log_odds.mean()).abs() > 0.01


def test_marginalising_survives_saturation():
    sure = torch.full((5, 1), 200.0)
    torch.testing.assert_close(LOGITS.average(sure), torch.tensor([200.0]))
    torch.testing.assert_close(LOGITS.average(-sure), torch.tensor([-200.0]))


def test_raw_outputs_are_averaged_as_they_are():
    values = torch.tensor([[3.0], [-1.0]])
    torch.testing.assert_close(RAW.average(values), torch.tensor([1.0]))


def test_gradients_are_finite_where_a_probability_is_rounded():
    outputs = torch.tensor([[200.0, 0.0, -1.0]], requires_grad=True)
    for column in range(3):
        (gradient,) = torch.autograd.grad(LOGITS.column(outputs, column).sum(), outputs)
        assert gradient.isfinite().all()
        assert gradient.any()


@pytest.mark.parametrize("kind", OUTPUT_KINDS.values())
def test_one_column_is_that_of_all(kind):
    outputs = torch.rand(2, 3, 4, dtype=torch.float64)
    every = kind().scores(outputs).flatten(1)
    for column in (0, 6, 11):
        torch.testing.assert_close(kind().column(outputs, column)[:, 0], every[:, column])


def test_an_unknown_output_kind_is_refused():
    with pytest.raises(ValueError, match="'logits', 'multilabel', 'probabilities', 'raw'"):
        find_output_kind("softmax")
    with pytest.raises(TypeError, match="add brackets"):
        find_output_kind(type(LOGITS))
