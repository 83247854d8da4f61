"""Log-odds, measures and targets, at the edges of floating point."""

import math

import numpy as np
import pytest
import torch

from captum_pda.model.inputs import target_columns
from captum_pda.model.measures import WeightOfEvidence, marginalise
from captum_pda.model.outputs import Readout

SOFTMAX = Readout("logits", softmax=True)
SIGMOID = Readout("logits", softmax=False)


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
    every = SOFTMAX.every(outputs)[0]
    assert every.isfinite().all()
    for target in range(len(logits)):
        expected = torch.tensor(exact_log_odds(logits, target))
        torch.testing.assert_close(every[target], expected, rtol=1e-5, atol=1e-5)
        single = SOFTMAX.column(outputs, target)
        torch.testing.assert_close(single[0, 0], expected, rtol=1e-5, atol=1e-5)


def test_a_prediction_within_1e_12_of_one_has_the_right_bits():
    logits = torch.tensor([[math.log(1e12 - 1), 0.0]])
    bits = WeightOfEvidence().value(SOFTMAX.every(logits))[0]
    torch.testing.assert_close(bits[0].item(), math.log2(1e12 - 1), rtol=1e-6, atol=0)
    torch.testing.assert_close(bits[1].item(), -math.log2(1e12 - 1), rtol=1e-6, atol=0)


def test_a_single_column_is_one_sigmoid_logit():
    outputs = torch.tensor([[1.5], [-2.0]])
    readout = Readout.of("logits", outputs)
    assert not readout.softmax
    torch.testing.assert_close(readout.column(outputs, 0), outputs)
    torch.testing.assert_close(readout.every(outputs), outputs)
    flat = torch.tensor([1.5, -2.0])
    with pytest.warns(UserWarning, match="yes-or-no question"):
        readout = Readout.of("logits", flat)
    torch.testing.assert_close(readout.column(flat, 0), flat[:, None])


def test_classes_of_a_dense_output_compete_at_their_own_place():
    outputs = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    odds = SOFTMAX.every(outputs).reshape(2, 3, 4, 5)
    torch.testing.assert_close(odds, torch.logit(outputs.softmax(dim=1)))
    column = int(np.ravel_multi_index((2, 1, 3), (3, 4, 5)))
    torch.testing.assert_close(SOFTMAX.column(outputs, column)[:, 0], odds[:, 2, 1, 3])


def test_probabilities_use_the_sum_of_the_others_where_they_sum_to_one():
    probabilities = torch.tensor([[1.0, 1e-12, 2e-12]])
    readout = Readout.of("probabilities", probabilities)
    torch.testing.assert_close(readout.column(probabilities, 0).item(), -math.log(3e-12))
    torch.testing.assert_close(readout.every(probabilities)[0, 0].item(), -math.log(3e-12))
    torch.testing.assert_close(readout.every(probabilities)[0, 1].item(), math.log(1e-12))


def test_probabilities_that_do_not_sum_to_one_are_questions_of_their_own():
    probabilities = torch.tensor([[0.9, 0.8, 0.1]], dtype=torch.float64)
    readout = Readout.of("probabilities", probabilities)
    torch.testing.assert_close(readout.every(probabilities), torch.logit(probabilities))
    torch.testing.assert_close(readout.column(probabilities, 1), torch.logit(probabilities[:, 1:2]))


def test_separate_probabilities_may_sum_to_one_by_chance():
    """The reading of one row must not depend on another, nor on what the row happens to sum to."""
    probabilities = torch.tensor([[0.9, 0.1004], [0.9, 0.8]], dtype=torch.float64)
    expected = torch.logit(probabilities)
    for rows in (slice(0, 1), slice(0, 2)):
        readout = Readout.of("probabilities", probabilities[rows])
        torch.testing.assert_close(readout.every(probabilities[rows]), expected[rows])
        torch.testing.assert_close(readout.column(probabilities[rows], 0), expected[rows, :1])


def test_probabilities_of_dense_outputs():
    probabilities = torch.randn(2, 3, 4, dtype=torch.float64).softmax(dim=1)
    readout = Readout.of("probabilities", probabilities)
    expected = torch.logit(probabilities).flatten(1)
    torch.testing.assert_close(readout.every(probabilities), expected)
    torch.testing.assert_close(readout.column(probabilities, 6), expected[:, 6:7])


@pytest.mark.parametrize("outputs", [[[1.0, 0.0]], [[0.0], [1.0]]], ids=["softmax", "sigmoid"])
def test_rounded_probabilities_give_finite_bounds_and_a_warning(outputs):
    outputs = torch.tensor(outputs)
    readout = Readout.of("probabilities", outputs)
    scores = readout.every(outputs)
    assert scores.isfinite().all()
    with pytest.warns(UserWarning, match="exactly 0 or 1"):
        readout.check_saturation(scores)


@pytest.mark.parametrize("outputs", [[[0.999999, 1e-6]], [[0.001], [0.999]]])
def test_ordinary_probabilities_give_no_warning(outputs):
    outputs = torch.tensor(outputs)
    readout = Readout.of("probabilities", outputs)
    readout.check_saturation(readout.every(outputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_bounded_by_what_they_can_say(dtype):
    one = torch.ones(1, 1, dtype=dtype)
    readout = Readout.of("probabilities", one)
    bound = -math.log(torch.finfo(dtype).eps / 2)
    torch.testing.assert_close(readout.every(one).item(), bound, rtol=1e-3, atol=0)
    with pytest.warns(UserWarning, match="bound"):
        readout.check_saturation(readout.every(one))
    nothing = torch.zeros(1, 1, dtype=dtype)
    with pytest.warns(UserWarning, match="bound"):
        readout.check_saturation(readout.every(nothing))


def test_half_precision_sigmoids_are_not_taken_for_a_softmax():
    probabilities = torch.tensor([[0.97, 0.04, 0.01]], dtype=torch.float16)
    readout = Readout.of("probabilities", probabilities)
    expected = torch.logit(probabilities.float())
    torch.testing.assert_close(readout.every(probabilities), expected)


def test_half_precision_softmaxes_keep_the_sum_of_the_others():
    logits = torch.tensor([[12.0, 0.0, 0.5]])
    probabilities = logits.softmax(dim=1).half()
    readout = Readout.of("probabilities", probabilities)
    expected = SOFTMAX.every(logits)
    torch.testing.assert_close(readout.every(probabilities), expected, rtol=0.01, atol=0)


def test_half_precision_outputs_are_read_in_single_precision():
    outputs = torch.tensor([[30.0, 0.0]], dtype=torch.float16)
    assert SOFTMAX.every(outputs).dtype == torch.float32
    torch.testing.assert_close(SOFTMAX.column(outputs, 0), torch.tensor([[30.0]]))


def test_outputs_that_contradict_the_setting():
    with pytest.raises(ValueError, match="output='logits'"):
        Readout.of("probabilities", torch.tensor([[1.2, -0.2]]))
    with pytest.warns(UserWarning, match="output='probabilities'"):
        Readout.of("logits", torch.tensor([[0.7, 0.3], [0.5, 0.5]]))
    with pytest.raises(ValueError, match="NaN or infinity"):
        Readout.of("raw", torch.tensor([[math.nan]]))
    with pytest.warns(UserWarning, match="sigmoids"):
        Readout.of("logits", torch.linspace(0.1, 0.9, 14)[None])
    Readout.of("logits", torch.tensor([[0.7, 0.4]]))


def test_marginalising_averages_probabilities_not_logits():
    log_odds = torch.tensor([[3.0], [-1.0], [0.2]], dtype=torch.float64)
    mean = torch.sigmoid(log_odds).mean(dim=0)
    torch.testing.assert_close(marginalise(log_odds, "logits"), torch.logit(mean))
    assert (marginalise(log_odds, "logits") - log_odds.mean()).abs() > 0.01


def test_marginalising_survives_saturation():
    sure = torch.full((5, 1), 200.0)
    torch.testing.assert_close(marginalise(sure, "logits"), torch.tensor([200.0]))
    torch.testing.assert_close(marginalise(-sure, "logits"), torch.tensor([-200.0]))


def test_raw_outputs_are_averaged_as_they_are():
    values = torch.tensor([[3.0], [-1.0]])
    torch.testing.assert_close(marginalise(values, "raw"), torch.tensor([1.0]))


@pytest.mark.parametrize(
    ("target", "shape", "expected"),
    [
        (None, (), [0, 0]),
        (None, (1,), [0, 0]),
        (0, (), [0, 0]),
        (2, (5,), [2, 2]),
        (-1, (5,), [4, 4]),
        (np.int64(3), (5,), [3, 3]),
        (torch.tensor(3), (5,), [3, 3]),
        (torch.tensor([3]), (5,), [3, 3]),
        (torch.tensor([3, 1]), (5,), [3, 1]),
        (np.array([3, 1]), (5,), [3, 1]),
        ([3, 1], (5,), [3, 1]),
        ((1, 2), (3, 4), [6, 6]),
        ((-1, -1), (3, 4), [11, 11]),
        ([(0, 1), (2, 3)], (3, 4), [1, 11]),
    ],
)
def test_targets_as_captum_has_them(target, shape, expected):
    assert target_columns(target, 2, shape) == expected


@pytest.mark.parametrize(
    ("target", "shape", "error", "says"),
    [
        (None, (5,), ValueError, "target is missing"),
        (5, (5,), ValueError, "out of range"),
        (-6, (5,), ValueError, "out of range"),
        (1, (), ValueError, "entries"),
        ([1], (5,), ValueError, "1 entries for 2 examples"),
        (torch.tensor([1, 2, 3]), (5,), ValueError, "3 entries for 2 examples"),
        (torch.tensor([[1, 2], [3, 4]]), (5,), ValueError, "shape"),
        (torch.tensor([0.5, 1.0]), (5,), TypeError, "integers"),
        (1.0, (5,), TypeError, "integer"),
        ("cat", (5,), TypeError, "integer"),
        (1, (3, 4), ValueError, "tuple of 2"),
        ((1, 9), (3, 4), ValueError, "out of range"),
    ],
)
def test_targets_that_make_no_sense(target, shape, error, says):
    with pytest.raises(error, match=says):
        target_columns(target, 2, shape)
