"""Output kinds: scores and their averages, at the edges of floating point."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        # Where they sum to 1, the others say what 1 - p has lost.
        ([[1.0, 1e-12, 2e-12]], [[-math.log(3e-12), math.log(1e-12), math.log(2e-12)]]),
        # Otherwise each is a question of its own, whatever another row sums to.
        ([[0.9, 0.1004], [0.9, 0.8]], None),
        ([[0.9, 0.8, 0.1]], None),
    ],
)
def test_probabilities_are_read_row_by_row(probabilities, expected):
    outputs = torch.tensor(probabilities)
    expected = torch.logit(outputs) if expected is None else torch.tensor(expected)
    for rows in (slice(0, 1), slice(0, len(outputs))):
        torch.testing.assert_close(PROBABILITIES.scores(outputs[rows]), expected[rows])


@pytest.mark.parametrize(
    ("outputs", "warns"),
    [
        ([[1.0, 0.0]], True),
        ([[0.0], [1.0]], True),
        ([[0.999999, 1e-6]], False),
        ([[0.001], [0.999]], False),
    ],
)
def test_rounded_probabilities_give_finite_bounds_and_a_warning(outputs, warns):
    outputs = torch.tensor(outputs)
    scores = PROBABILITIES.scores(outputs)
    assert scores.isfinite().all()
    with pytest.warns(UserWarning, match="exactly 0 or 1") if warns else nullcontext():
        ExplainedOutputs.all_of(PROBABILITIES, outputs).warn_of_rounding(scores)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_probabilities_are_bounded_by_what_they_can_say(dtype):
    one, nothing = torch.ones(1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype)
    bound = -math.log(torch.finfo(dtype).eps / 2)
    torch.testing.assert_close(PROBABILITIES.scores(one).item(), bound, rtol=1e-3, atol=0)
    for outputs in (one, nothing):
        explained = ExplainedOutputs.all_of(PROBABILITIES, outputs)
        with pytest.warns(UserWarning, match="bound"):
            explained.warn_of_rounding(PROBABILITIES.scores(outputs))


def test_half_precision_softmaxes_are_told_from_sigmoids():
    sigmoids = torch.tensor([[0.97, 0.04, 0.01]], dtype=torch.float16)
    torch.testing.assert_close(PROBABILITIES.scores(sigmoids), torch.logit(sigmoids.float()))
    logits = torch.tensor([[12.0, 0.0, 0.5]])
    found = PROBABILITIES.scores(logits.softmax(dim=1).half())
    torch.testing.assert_close(found, LOGITS.scores(logits), rtol=0.01, atol=0)


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


def test_probabilities_are_averaged_and_raw_outputs_as_they_are():
    log_odds = torch.tensor([[3.0], [-1.0], [0.2]], dtype=torch.float64)
    mean = torch.sigmoid(log_odds).mean(dim=0)
    torch.testing.assert_close(LOGITS.average(log_odds), torch.logit(mean))
    for sure in (200.0, -200.0):  # saturated
        torch.testing.assert_close(LOGITS.average(torch.full((5, 1), sure)), torch.tensor([sure]))
    torch.testing.assert_close(RAW.average(log_odds), log_odds.mean(dim=0))


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
