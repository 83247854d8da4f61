"""Standard errors against repeated runs, and sampling that stops when there is enough."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import Counting, make_classifier, make_convolutional, make_images
from torch import nn

from captum_pda import ConstantPrior, DenseEngine, EfficientPDA, GaussianPatchPrior, SampledPDA
from captum_pda.model.measures import Measure, RawDifference, WeightOfEvidence
from captum_pda.model.outputs import find_output_kind
from captum_pda.running.sampling import StoppingRule, checks

LOGITS, RAW = find_output_kind("logits"), find_output_kind("raw")

MEASURED = (
    ("logits", WeightOfEvidence()),
    ("logits", "probability_difference"),
    ("logits", "information_difference"),
    ("raw", "weight_of_evidence"),
)


def uncertain_classifier() -> nn.Module:
    """A classifier that depends strongly on what stands in a window."""
    model = make_classifier()
    with torch.no_grad():
        model[-1].weight *= 4
    return model


# The formula


@pytest.mark.parametrize("shift", [-3.0, 0.0, 5.0])
def test_error_of_log_odds_is_the_delta_method(shift):
    scores = torch.randn(20, 3, 2, generator=torch.Generator().manual_seed(0)).double() + shift
    p_s = 1 / (1 + np.exp(-scores.numpy()))
    p = p_s.mean(axis=0)
    expected = p_s.std(axis=0, ddof=1) / np.sqrt(20) / (p * (1 - p))
    torch.testing.assert_close(LOGITS.average_error(scores), torch.from_numpy(expected))


def test_error_of_raw_outputs_is_that_of_a_mean():
    scores = torch.tensor([[1.0], [2.0], [6.0]])
    torch.testing.assert_close(RAW.average_error(scores), scores.std(0) / 3**0.5)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [30.0, 200.0, 5000.0])
def test_errors_survive_where_probabilities_round_to_zero_or_one(sign, size):
    """Far out, log-odds are those of the rarer event, whose relative spread is the error."""
    shifts = torch.tensor([0.0, 0.5, -0.25, 1.0], dtype=torch.float64)
    scores = (sign * (size + shifts)).unsqueeze(1)
    rarer = np.exp(-shifts.numpy())
    expected = rarer.std(ddof=1) / rarer.mean() / 2
    error = LOGITS.average_error(scores)
    torch.testing.assert_close(error, torch.tensor([expected]), rtol=1e-9, atol=0)


# On evidence


@pytest.mark.parametrize(
    ("output", "measure"),
    [MEASURED[0], *(pytest.param(*measured, marks=pytest.mark.slow) for measured in MEASURED[1:])],
)
def test_standard_error_is_the_spread_of_repeated_runs(output, measure):
    runs, n_samples = 150, 40
    images = make_images(1, 3, 8, 9)
    prior = GaussianPatchPrior(8).fit(images)
    pda = SampledPDA(uncertain_classifier(), prior, output, measure, engine="dense")
    generator = torch.Generator().manual_seed(8)
    values, errors, maps, map_errors = [], [], [], []
    for _ in range(runs):
        evidence = pda.evidence(
            images, sliding_window_shapes=4, strides=3, n_samples=n_samples, generator=generator
        )
        values.append(evidence.window_values(2))
        errors.append(evidence.standard_error(2))
        maps.append(evidence.attribution(2))
        map_errors.append(evidence.standard_error_map(2))
    for each, error in ((values, errors), (maps, map_errors)):
        spread = torch.stack(each).std(dim=0)
        reported = torch.stack(error).square().mean(dim=0).sqrt()
        assert reported.shape == each[0].shape
        # The spread of 150 runs is itself known within 6%.
        torch.testing.assert_close(reported / spread, torch.ones_like(spread), rtol=0, atol=0.2)
        assert 0.95 < (reported / spread).mean() < 1.05


def test_tuples_and_batches_have_errors_of_their_own(classifier):
    images, more = make_images(2, 3, 9, 11), make_images(2, 3, 9, 11, seed=4)
    pda = SampledPDA(lambda a, b: classifier(a + b), engine="dense")
    arguments = {"sliding_window_shapes": 4, "strides": 4, "n_samples": 6, "tolerance": 10.0}
    evidence = pda.evidence((images, more), **arguments)
    errors = evidence.standard_error([1, 2])
    assert isinstance(errors, tuple)
    assert [error.shape for error in errors] == [(2, len(part.regions)) for part in evidence.parts]
    assert [n.shape for n in evidence.n_drawn] == [error.shape for error in errors]
    alone = pda.evidence((images[1:], more[1:]), **arguments)
    torch.testing.assert_close(errors[1][1:], alone.standard_error(2)[1])
    assert [m.shape for m in evidence.standard_error_map([1, 2])] == [images.shape] * 2


def test_no_error_without_several_samples(classifier, images):
    for evidence in (
        EfficientPDA(classifier).evidence(images, sliding_window_shapes=5),
        SampledPDA(classifier).evidence(images, sliding_window_shapes=5, n_samples=1),
    ):
        with pytest.raises(ValueError, match="two samples or more"):
            evidence.standard_error(1)
        assert (evidence.n_drawn == 1).all()


# Stopping


@pytest.mark.parametrize(("n", "point"), [(5, 0.7107), (8, 2.1673), (18, 8.6718), (101, 77.929)])
def test_a_window_stops_at_the_upper_limit_of_its_error(n, point):
    """The 5% points of chi-squared with n - 1 degrees of freedom, from a table."""
    scores = torch.randn(n, 1, 1, generator=torch.Generator().manual_seed(0)).double()
    limit = float(RAW.average_error(scores)) * ((n - 1) / point) ** 0.5
    for tolerance, enough in ((limit * 1.001, True), (limit * 0.999, False)):
        rule = StoppingRule(tolerance, [0], RAW, RawDifference())
        assert bool(rule.enough(0, scores)) is enough


class Surprise(Measure):
    """-log p in nats: the less likely, the larger."""

    name, label, unit = "surprise", "surprise (nats)", "nats"

    def value(self, scores):
        return -F.logsigmoid(scores)

    def slope(self, scores):
        return -torch.sigmoid(-scores)


def test_a_measure_that_falls_with_the_score_has_the_errors_of_one_that_rises(images):
    pda = SampledPDA(uncertain_classifier(), measure=Surprise(), engine="dense")
    information = SampledPDA(uncertain_classifier(), measure="information_difference")
    arguments = {"sliding_window_shapes": 4, "n_samples": 12}
    falling = pda.evidence(images, **arguments, tolerance=1e-9)
    assert (falling.n_drawn == 12).all()
    rising = information.evidence(images, **arguments)
    torch.testing.assert_close(
        falling.standard_error(1), rising.standard_error(1) * np.log(2), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        falling.standard_error_map(1), rising.standard_error_map(1) * np.log(2)
    )
    # A bound that some windows keep stops both at the same draws.
    bound = float(falling.standard_error(1).median()) * 3
    torch.testing.assert_close(
        pda.evidence(images, **arguments, tolerance=bound, tolerance_target=1).n_drawn,
        information.evidence(
            images, **arguments, tolerance=bound / np.log(2), tolerance_target=1
        ).n_drawn,
    )


@pytest.mark.parametrize(("output", "measure"), MEASURED)
def test_stopping_saves_passes_and_keeps_the_bound(output, measure):
    images = make_images(1, 3, 20, 20)
    images[..., :10] *= 0.02  # windows of one half hardly matter
    images[..., 10:] *= 2
    model = Counting(uncertain_classifier())
    pda = SampledPDA(model, None, output, measure, engine="dense")
    arguments = {"sliding_window_shapes": 5, "strides": 5, "n_samples": 60}
    full = pda.evidence(images, **arguments)
    tolerance = float(full.standard_error(1).median()) * 2
    model.rows = 0
    evidence = pda.evidence(images, **arguments, tolerance=tolerance, tolerance_target=1)
    drawn = evidence.n_drawn
    # The image as it is, and four rows that check the model.
    assert model.rows == 1 + 4 + drawn.sum()
    assert drawn.min() >= 5
    assert drawn.max() <= 60
    assert drawn.unique().numel() > 2
    stopped = drawn < 60
    assert (evidence.standard_error(1)[stopped] <= tolerance).all()
    # Windows that went to the end have what they would have had without a tolerance.
    torch.testing.assert_close(
        evidence.window_values(1)[~stopped], full.window_values(1)[~stopped], rtol=0, atol=1e-12
    )
    attribution = pda.attribute(images, target=1, **arguments, tolerance=tolerance)
    torch.testing.assert_close(attribution, evidence.attribution(1))


class Remembering(DenseEngine):
    """Keeps the samples of all windows."""

    def prepare(self, *arguments):
        prepared = super().prepare(*arguments)
        scores = prepared.scores

        def remembered(*arguments):
            self.samples = scores(*arguments)
            return self.samples

        prepared.scores = remembered
        return prepared


@pytest.mark.parametrize("engine", ["dense", "incremental"])
def test_a_stopped_window_has_the_first_of_its_samples(engine):
    images = make_images(1, 3, 24, 24).float() * 3
    arguments = {"sliding_window_shapes": 4, "strides": 4, "n_samples": 30}
    remembering = Remembering()
    full = SampledPDA(make_convolutional(), engine=remembering).evidence(images, **arguments)
    target = int(full.probabilities.argmax())
    tolerance = float(full.standard_error(target).median()) * 1.5
    evidence = SampledPDA(make_convolutional(), engine=engine).evidence(
        images, **arguments, tolerance=tolerance
    )
    drawn = evidence.n_drawn[0]
    assert drawn.unique().numel() > 3
    expected = torch.stack(
        [LOGITS.average(remembering.samples[:n, window]) for window, n in enumerate(drawn.tolist())]
    )
    torch.testing.assert_close(evidence.parts[0].scores[0], expected)


@pytest.mark.parametrize(
    ("mean", "spread"), [(0.0, 0.5), (4.0, 0.7), (-8.0, 0.4), (-5.0, 1.0)], ids=str
)
def test_stopping_by_chance_is_rare_enough(mean, spread):
    """The true error of windows that stop is under the bound, though they choose when to stop."""
    generator = torch.Generator().manual_seed(0)
    tolerance, n_windows, n_samples = 0.2, 4_000, 400
    samples = torch.randn(n_samples, n_windows, 1, generator=generator).double() * spread + mean
    truth = LOGITS.average(samples.reshape(-1, 1))
    rule = StoppingRule(tolerance, [0], LOGITS, WeightOfEvidence())
    running = torch.ones(n_windows, dtype=torch.bool)
    result = torch.full((n_windows, 1), float("nan"), dtype=torch.float64)
    for look in checks(n_samples):
        ready = running & (rule.enough(0, samples[:look]) if look < n_samples else running)
        result[ready] = LOGITS.average(samples[:look, ready])
        running &= ~ready
    wrong = (result - truth) / np.log(2)
    assert wrong.square().mean().sqrt() < tolerance
    assert wrong.mean().abs() < tolerance / 5


def test_few_samples_or_certain_ones_end_soon(classifier, images):
    certain = SampledPDA(classifier, prior=ConstantPrior(0.0)).evidence(
        images, n_samples=50, tolerance=1e-6
    )
    assert (certain.n_drawn == 5).all()
    few = SampledPDA(classifier).evidence(
        images, sliding_window_shapes=5, n_samples=3, tolerance=100.0
    )
    assert (few.n_drawn == 3).all()


def test_the_predicted_class_is_bounded_without_a_target(images):
    pda = SampledPDA(uncertain_classifier(), engine="dense")
    arguments = {"sliding_window_shapes": 4, "strides": 3, "n_samples": 40, "tolerance": 0.02}
    evidence = pda.evidence(images, **arguments)
    predicted = evidence.probabilities.argmax(1)
    named = pda.evidence(images, **arguments, tolerance_target=predicted)
    assert torch.equal(evidence.n_drawn, named.n_drawn)
    others = pda.evidence(images, **arguments, tolerance_target=(predicted + 1) % 4)
    assert not torch.equal(evidence.n_drawn, others.n_drawn)


def test_raw_outputs_must_say_which_one_is_bounded(classifier, images):
    with pytest.raises(ValueError, match="tolerance_target is missing"):
        SampledPDA(classifier, output="raw").evidence(images, tolerance=0.1)


@pytest.mark.parametrize(
    ("tolerance", "error"),
    [(0, ValueError), (-1.0, ValueError), (float("nan"), ValueError), ("1", TypeError)],
)
def test_a_tolerance_is_a_positive_number(classifier, images, tolerance, error):
    with pytest.raises(error, match="tolerance"):
        SampledPDA(classifier).attribute(images, target=0, tolerance=tolerance)
    with pytest.raises(error, match="tolerance"):
        SampledPDA(classifier).evidence(images, tolerance=tolerance)


def test_the_progress_bar_ends_full(classifier, images, capsys):
    call = {"target": 0, "sliding_window_shapes": 5, "n_samples": 20, "tolerance": 1.0}
    SampledPDA(classifier).attribute(images, **call, show_progress=True)
    assert "100%" in capsys.readouterr().err
