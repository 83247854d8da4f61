"""Every incremental run is compared with the dense engine, and run again where they disagree."""

from __future__ import annotations

import contextlib
import time
import warnings
from typing import Any

import pytest
import torch
from conftest import make_convolutional, make_images
from torch import Tensor, nn

from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    IncrementalError,
    MarginalPrior,
    NonFiniteOutputError,
    SampledPDA,
    WindowGrid,
)
from captum_pda.engines import Audit, DenseEngine, EngineReport
from captum_pda.engines.auto import AutoEngine

IMAGE = make_images(1, 3, 20, 22).float()
CALL: dict[str, Any] = {"target": 1, "sliding_window_shapes": 4, "strides": 2}
GRID: dict[str, Any] = {"sliding_window_shapes": 4, "strides": 2}


class WrongOnBoxes(nn.Module):
    """A model that answers otherwise where it is run incrementally."""

    def __init__(self, model: nn.Module, change: Any = lambda outputs: outputs * 1.05) -> None:
        super().__init__()
        self.model = model
        self.change = change
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.model(x)
        return outputs if type(x) is Tensor else self.change(outputs)


def explain(model: Any, engine: Any, **changes: Any) -> tuple[Tensor, EngineReport]:
    pda = EfficientPDA(model, ConstantPrior(0.0), engine=engine)
    attributions = pda.attribute(IMAGE, **{**CALL, **changes})
    assert pda.engine_report is not None
    return attributions, pda.engine_report


class SlowDensely(nn.Module):
    """A model that takes 3 ms of the processor for each row that is run densely, so that "auto"
    chooses the incremental engine."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        until = time.thread_time() + 3e-3 * len(x)
        while type(x) is Tensor and time.thread_time() < until:
            pass
        return self.model(x)


def engine_of(name: str) -> Any:
    return AutoEngine(min_seconds=0.0) if name == "auto" else name


@pytest.mark.parametrize("engine", ["incremental", "auto"])
def test_a_run_that_agrees_says_so(engine: str) -> None:
    found, report = explain(SlowDensely(make_convolutional()).eval(), engine_of(engine))
    expected, dense = explain(make_convolutional(), "dense")
    torch.testing.assert_close(found, expected)
    assert dense.audit is None
    assert (report.engine, report.audit.agrees) == ("incremental", True)
    assert report.audit.n_windows >= 2
    assert report.audit.difference < 2e-3
    assert "windows run densely too, largest difference" in str(report)


@pytest.mark.parametrize("engine", ["incremental", "auto"])
def test_a_run_that_disagrees_is_done_again_densely(engine: str) -> None:
    model = WrongOnBoxes(SlowDensely(make_convolutional()).eval())
    with pytest.warns(UserWarning, match="run again densely.*they disagree.*engine='dense'"):
        found, report = explain(model, engine_of(engine))
    expected, _ = explain(make_convolutional(), "dense")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert report.engine == "dense"
    assert report.reason == "the incremental engine disagreed, so all windows were run again"
    assert not report.audit.agrees


def test_errors_are_measured_by_the_windows_effects_and_not_by_the_outputs() -> None:
    """An offset of a hundredth of the outputs, where all effects together are no larger."""
    model = make_convolutional()

    def forward(x: Tensor) -> Tensor:
        outputs = model(x) * 1e-2 + torch.tensor([3.0, 1.0, 2.0, 0.0])
        return outputs if type(x) is Tensor else outputs * 1.0003

    with pytest.warns(UserWarning, match="run again densely"):
        _, report = explain(forward, "incremental")
    assert report.audit.difference > 0.01


def test_a_remembered_choice_is_still_audited() -> None:
    model = WrongOnBoxes(SlowDensely(make_convolutional()).eval(), lambda outputs: outputs)
    pda = EfficientPDA(model, ConstantPrior(0.0), engine=engine_of("auto"))
    pda.attribute(IMAGE, **CALL)
    assert pda.engine_report.engine == "incremental"
    model.change = lambda outputs: -outputs
    with pytest.warns(UserWarning, match="run again densely"):
        found = pda.attribute(IMAGE, **CALL)
    expected, _ = explain(make_convolutional(), "dense")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    # And from now on nothing is tried that failed before.
    pda.attribute(IMAGE, **CALL)
    assert pda.engine_report.reason == "the incremental engine disagreed on another example"


@pytest.mark.parametrize("wrong", [0, 1])
def test_every_example_is_audited_and_all_of_them_are_run_again(wrong: int) -> None:
    model = make_convolutional()

    def forward(x: Tensor, number: Tensor) -> Tensor:
        outputs = model(x)
        return outputs if type(x) is Tensor else outputs * (1 + (number == wrong))

    images = make_images(2, 3, 20, 22).float()
    arguments = {"additional_forward_args": torch.tensor([[0.0], [1.0]]), **CALL}
    with pytest.warns(UserWarning, match="run again densely"):
        found = EfficientPDA(forward, engine="incremental").attribute(images, **arguments)
    expected = EfficientPDA(forward, engine="dense").attribute(images, **arguments)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("scale", [3, 9])
def test_every_size_is_audited(scale: int) -> None:
    """Wrong for windows of one size only, which the model can tell by how much it sees change."""
    model = make_convolutional()

    def forward(x: Tensor) -> Tensor:
        outputs = model(x)
        if type(x) is Tensor:
            return outputs
        is_wrong = (x.clone() == 0).flatten(1).sum(1, keepdim=True) == 3 * scale**2
        return outputs * torch.where(is_wrong, 1.3, 1.0)

    pda = EfficientPDA(forward, ConstantPrior(0.0), engine="incremental")
    with pytest.warns(UserWarning, match="run again densely"):
        pda.attribute(IMAGE, target=1, scales=[3, 9])


def test_samples_and_contexts_are_audited() -> None:
    model, prior = WrongOnBoxes(make_convolutional()), MarginalPrior().fit(IMAGE)
    call = {"n_samples": 8, "tolerance": 1e-3, "tolerance_target": 0, "scales": [5]}
    with pytest.warns(UserWarning, match="run again densely"):
        found = SampledPDA(model, prior, engine="incremental").evidence(IMAGE, **call)
    expected = SampledPDA(model.model, prior, engine="dense").evidence(IMAGE, **call)
    torch.testing.assert_close(found.parts[0].scores, expected.parts[0].scores)
    with pytest.warns(UserWarning, match="run again densely"):
        explain(model, "incremental", context="empty")


# Precision


def half_network() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 5, padding=2), nn.ReLU()]
    layers += [nn.Conv2d(8, 8, 5, padding=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)).eval()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_in_half_precision_is_no_disagreement(dtype: torch.dtype) -> None:
    pda = EfficientPDA(half_network().to(dtype), ConstantPrior(2.0), engine="incremental")
    pda.attribute(IMAGE.to(dtype), target=1, sliding_window_shapes=9, strides=2)
    assert pda.engine_report.engine == "incremental"
    assert pda.engine_report.audit.agrees


def test_rounding_under_autocast_and_within_the_model_is_no_disagreement() -> None:
    model = half_network()
    call = {"target": 1, "sliding_window_shapes": 9, "strides": 2}
    pda = EfficientPDA(model, ConstantPrior(2.0), engine="incremental")
    with torch.autocast("cpu", torch.bfloat16):
        pda.attribute(IMAGE, **call)
    assert pda.engine_report.audit.agrees
    half = half_network().bfloat16()
    inside = EfficientPDA(
        lambda x: half(x.bfloat16()).float(), ConstantPrior(2.0), engine="incremental"
    )
    inside.attribute(IMAGE, **call)
    assert inside.engine_report.audit.agrees


def test_a_disagreement_in_half_precision_is_found() -> None:
    """Five hundredths of the outputs, which is more than any window does."""
    model = half_network().half()

    def forward(x: Tensor) -> Tensor:
        outputs = model(x) + 1
        return outputs if type(x) is Tensor else outputs * torch.tensor([1.0, 1.05, 1.0, 1.0])

    pda = EfficientPDA(forward, ConstantPrior(0.0), output="raw", engine="incremental")
    with pytest.warns(UserWarning, match="run again densely"):
        pda.attribute(IMAGE.half(), **CALL)


def test_passes_that_differ_by_the_size_of_the_effects_are_said() -> None:
    """As rounding does in half precision; here the model draws at random."""
    model = make_convolutional()

    def forward(x: Tensor) -> Tensor:
        return model(x) + torch.rand((), generator=generator) * size

    pda = EfficientPDA(forward, ConstantPrior(0.0), output="raw", engine="incremental")
    generator, size = torch.Generator().manual_seed(0), 0.1
    random = pytest.warns(UserWarning, match="answers the same input differently")
    with random, pytest.warns(UserWarning, match="two dense passes of the same window differ by"):
        pda.attribute(IMAGE, **CALL)
    assert pda.engine_report.engine == "incremental"
    assert pda.engine_report.audit.rounding > 0.25
    size = 1e-4
    with pytest.warns(UserWarning, match="answers the same input differently"):
        pda.attribute(IMAGE, **CALL)
    assert 1e-3 < pda.engine_report.audit.rounding < 0.25


def test_dynamically_quantised_models_run_each_copy_by_itself() -> None:
    """They round by the largest value of a batch, so copies change each other's answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(half_network(), {nn.Linear})
    call = {"target": 1, "sliding_window_shapes": 9, "strides": 2}
    maps = []
    for engine, size in (("auto", None), ("dense", None), ("dense", 1)):
        pda = EfficientPDA(model, ConstantPrior(2.0), engine=engine)
        with pytest.warns(UserWarning, match="as with dynamic quantisation"):
            maps.append(pda.attribute(IMAGE, **call, perturbations_per_eval=size))
    assert maps[0].equal(maps[1])
    torch.testing.assert_close(maps[0], maps[2])
    alone = EfficientPDA(model, ConstantPrior(2.0), engine="incremental")
    with (
        pytest.warns(UserWarning, match="Each is run by itself"),
        pytest.raises(IncrementalError, match="Use engine='auto' or engine='dense'"),
    ):
        alone.attribute(IMAGE, **call)


# What it costs, and what it leaves behind


MANY: dict[str, Any] = {"target": 1, "sliding_window_shapes": 4, "strides": 1}  # 500 windows
SPACE = (23, 28)


def make_example(seed: int) -> Tensor:
    return make_images(1, 3, *SPACE, seed=seed).float()


def compared_corners(image: Tensor, call: dict[str, Any] = MANY) -> list[tuple[int, int]]:
    """The corners of the windows that are run densely to compare them, in order."""
    model, rows = make_convolutional(), []

    def forward(x: Tensor) -> Tensor:
        if type(x) is Tensor:
            rows.extend(x.clone())
        return model(x)

    pda = EfficientPDA(forward, ConstantPrior(99.0), engine="incremental")
    pda.attribute(image, **call)
    # The image as it is comes first, more than once.
    changed = [(row == 99.0).nonzero() for row in rows if (row == 99.0).any()]
    assert pda.engine_report.audit.n_windows == len(changed)
    return [tuple(places.amin(dim=0)[1:].tolist()) for places in changed]


def test_five_windows_of_each_example_are_compared() -> None:
    large = make_images(1, 3, 40, 60, seed=0).float()
    for example, strides in ((make_example(0), 1), (make_example(0), 3), (large, 2)):
        assert len(compared_corners(example, {**MANY, "strides": strides})) == 5


def test_other_windows_are_compared_in_each_example_and_the_same_ones_again() -> None:
    corners = [compared_corners(make_example(seed)) for seed in (1, 2, 3)]
    assert len({corner for some in corners for corner in some}) >= 13
    assert compared_corners(make_example(1)) == corners[0]


class WrongInPlaces(nn.Module):
    """Wrong where it is run incrementally, for windows of zeros that hide a marked pixel."""

    def __init__(self, marks: Tensor) -> None:
        super().__init__()
        self.model, self.marks, self.training = make_convolutional(), marks, False

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.model(x)
        if type(x) is Tensor:
            return outputs
        wrong = ((x == 0).float() * self.marks).flatten(1).amax(1, keepdim=True)
        return outputs * (1 + 0.05 * wrong)


def marked(*places: tuple[Any, Any]) -> Tensor:
    marks = torch.zeros(SPACE)
    for rows, columns in places:
        marks[rows, columns] = 1
    return marks


#: Pixels that a fifth of the windows hide.
MARKS = {
    "scattered": marked((3, 3), (3, 14), (11, 8), (12, 20), (18, 4), (19, 15)),
    "the left": marked((slice(None), slice(4, 6))),
}


@pytest.mark.slow
@pytest.mark.parametrize("where", MARKS)
def test_an_error_in_a_fifth_of_the_windows_is_found_in_two_of_three_images(where: str) -> None:
    """Windows are compared at random, so it is missed with a chance of 0.8 ** 5 = 0.33."""
    covers = WindowGrid(SPACE, (4, 4), (1, 1)).pixels()
    assert MARKS[where].flatten()[covers].amax(1).mean() == pytest.approx(0.2, abs=0.01)
    pda = EfficientPDA(WrongInPlaces(MARKS[where]), ConstantPrior(0.0), engine="incremental")
    missed = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(40):
            pda.attribute(make_example(seed), **MANY)
            missed += pda.engine_report.audit.agrees
    assert 0.1 < missed / 40 < 0.55


def test_errors_are_shares_of_the_spread_of_what_is_finite() -> None:
    """Each column by its own spread, though some windows have no number."""
    model = make_convolutional()

    def forward(x: Tensor) -> Tensor:
        outputs = model(x)
        broken = torch.where(outputs[:, :1] > unperturbed + 1e-4, torch.nan, outputs[:, :1])
        return torch.cat([broken, outputs[:, 1:] * torch.tensor([1.0, 100.0, 1e-3])], dim=1)

    unperturbed = float(model(IMAGE).detach()[0, 0])
    pda = EfficientPDA(forward, ConstantPrior(0.0), "raw", engine="dense")
    with pytest.raises(NonFiniteOutputError) as caught:
        pda.evidence(IMAGE, **GRID)
    scores = caught.value.result.parts[0].scores[0]
    shift = torch.tensor([0.0, 0.0, 0.5, 0.0]) * scores[:, 2].std(correction=0)
    wrong = WrongOnBoxes(forward, lambda outputs: outputs + shift)
    shifted = EfficientPDA(wrong, ConstantPrior(0.0), "raw", engine="incremental")
    with (
        pytest.warns(UserWarning, match="run again densely"),
        pytest.raises(NonFiniteOutputError),
    ):
        shifted.evidence(IMAGE, **GRID)
    assert shifted.engine_report.audit.difference == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    ("dense", "incremental", "agrees"),
    [
        (torch.nan, torch.nan, True),
        (torch.inf, torch.inf, True),
        (torch.inf, -torch.inf, False),
        (1.0, torch.nan, False),
        (torch.nan, 1.0, False),
    ],
)
def test_what_is_not_finite_in_both_agrees(dense: float, incremental: float, agrees: bool) -> None:
    model = make_convolutional()

    def forward(x: Tensor) -> Tensor:
        outputs = model(x)
        is_dense = type(x) is Tensor
        second = torch.full((len(x), 1), dense if is_dense else incremental)
        if is_dense:
            unchanged = (x == IMAGE).flatten(1).all(dim=1, keepdim=True)
            second = torch.where(unchanged, outputs[:, 1:2], second)
        return torch.cat([outputs[:, :1], second], dim=1)

    pda = EfficientPDA(forward, ConstantPrior(0.0), "raw", engine="incremental")
    with warnings.catch_warnings(), contextlib.suppress(NonFiniteOutputError):
        warnings.simplefilter("ignore")
        pda.evidence(IMAGE, **GRID)
    assert pda.engine_report.audit.agrees is agrees


def test_a_run_stopped_while_it_is_done_again_holds_dense_windows_only() -> None:
    passes = [0]
    model = make_convolutional()

    def forward(x: Tensor) -> Tensor:
        if type(x) is not Tensor:
            return model(x) * 2
        passes[0] += len(x) == 4  # one in the audit, two to measure rounding
        if passes[0] > 6:
            raise KeyboardInterrupt
        return model(x)

    with pytest.warns(UserWarning, match="again"), pytest.raises(KeyboardInterrupt) as caught:
        explain(forward, "incremental", strides=3, perturbations_per_eval=4)
    expected, _ = explain(model, "dense", strides=3, perturbations_per_eval=4)
    known = caught.value.result.isfinite()
    assert known.any()
    assert not known.all()
    # Twelve windows of two rows: nothing but they covers the first pixels.
    torch.testing.assert_close(caught.value.result[..., :3, :], expected[..., :3, :])


def test_reports_can_be_read() -> None:
    report = EngineReport(
        "incremental", "it is faster here", 3.21, {"cumsum": "it has no rule"}, Audit(3, 1e-6)
    )
    assert str(report).splitlines() == [
        "engine: incremental (it is faster here)",
        "predicted speed-up of incremental over dense: 3.2x",
        "audit: 3 windows run densely too, largest difference 1.0e-06 of the spread of the "
        "windows' effects",
        "goes dense at cumsum: it has no rule",
    ]
    both = Audit.of([Audit(), Audit(2, 0.1, 0.3), Audit(1, 0.5, None, False)])
    assert both == Audit(3, 0.5, 0.3, False)
    assert str(both).endswith("where rounding alone makes 3.0e-01: they disagree")
    assert Audit.of([Audit()]) is None
    assert DenseEngine.report.with_audit(None) == DenseEngine.report
