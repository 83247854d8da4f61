"""Every incremental run is compared with the dense engine, and run again where they disagree."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_convolutional, make_images
from torch import Tensor, nn

import captum_pda.engines.audit as audit
import captum_pda.engines.auto as auto
from captum_pda import (
    ConstantPrior,
    EfficientPDA,
    IncrementalEngine,
    MarginalPrior,
    SampledPDA,
    WindowGrid,
)
from captum_pda.engines import Audit, BatchSize, DenseEngine, EngineReport
from captum_pda.engines.audit import AuditedEngine
from captum_pda.engines.auto import PreparedAuto
from captum_pda.engines.picked_copies import PickedCopies, Spread

IMAGE = make_images(1, 3, 20, 22).float()
CALL: dict[str, Any] = {"target": 1, "sliding_window_shapes": 4, "strides": 3}


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


@pytest.fixture
def always_incremental(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets "auto" choose the incremental engine whatever the time it takes."""
    monkeypatch.setattr(auto, "WORTH_IT", 0.0)
    monkeypatch.setattr(auto, "WORTH_A_PROBE", 20)
    monkeypatch.setattr(PreparedAuto, "_cost_of_a_try", lambda *_: 0.0)


@pytest.mark.parametrize("engine", ["incremental", "auto"])
def test_a_run_that_agrees_says_so(engine: str, always_incremental: None) -> None:
    found, report = explain(make_convolutional(), engine)
    expected, dense = explain(make_convolutional(), "dense")
    torch.testing.assert_close(found, expected)
    assert dense.audit is None
    assert (report.engine, report.audit.agrees) == ("incremental", True)
    assert report.audit.n_windows >= 2
    assert report.audit.difference < 2e-3
    assert "windows run densely too, largest difference" in str(report)


@pytest.mark.parametrize("engine", ["incremental", "auto"])
def test_a_run_that_disagrees_is_done_again_densely(engine: str, always_incremental: None) -> None:
    with pytest.warns(UserWarning, match="run again densely.*they disagree.*engine='dense'"):
        found, report = explain(WrongOnBoxes(make_convolutional()), engine)
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


def test_a_remembered_choice_is_still_audited(always_incremental: None) -> None:
    model = WrongOnBoxes(make_convolutional(), lambda outputs: outputs)
    pda = EfficientPDA(model, ConstantPrior(0.0))
    pda.attribute(IMAGE, **CALL)
    assert pda.engine_report.engine == "incremental"
    model.change = lambda outputs: -outputs
    with pytest.warns(UserWarning, match="run again densely"):
        found = pda.attribute(IMAGE, **CALL)
    expected, _ = explain(make_convolutional(), "dense")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    # And from now on nothing is tried that failed before.
    pda.attribute(IMAGE, **CALL)
    assert pda.engine_report.reason == auto.DISAGREED_BEFORE


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

    class Scaled(IncrementalEngine):
        def prepare(self, *arguments: Any) -> Any:
            prepared = super().prepare(*arguments)
            inner = prepared.scores
            prepared.scores = lambda grid, *rest: (
                inner(grid, *rest) * (1.3 if grid.window == (scale, scale) else 1)
            )
            return prepared

    pda = EfficientPDA(model, ConstantPrior(0.0), engine=Scaled())
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


def test_an_approximation_that_was_asked_for_is_reported_and_kept() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    approximate = IncrementalEngine(0.3)
    found, report = explain(model, approximate)
    exact, _ = explain(model, "dense")
    assert report.engine == "incremental"
    assert report.audit.approximate
    assert report.audit.difference > 2e-3
    assert not torch.equal(found, exact)
    assert "(approximate, as asked)" in str(report)


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
    with pytest.warns(UserWarning, match="two dense passes of the same window differ by"):
        pda.attribute(IMAGE, **CALL)
    assert pda.engine_report.engine == "incremental"
    assert pda.engine_report.audit.rounding > audit.NOISY
    size = 1e-4
    pda.attribute(IMAGE, **CALL)
    assert 1e-3 < pda.engine_report.audit.rounding < audit.NOISY


def test_dynamically_quantised_models_are_audited() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(half_network(), {nn.Linear})
        call = {"target": 1, "sliding_window_shapes": 9, "strides": 2}
        pda = EfficientPDA(model, ConstantPrior(2.0), engine="incremental")
        pda.attribute(IMAGE, **call)
        assert pda.engine_report.audit.agrees
        wrong = EfficientPDA(
            WrongOnBoxes(model, lambda outputs: outputs * 3),
            ConstantPrior(2.0),
            engine="incremental",
        )
        wrong.attribute(IMAGE, **call)
    assert wrong.engine_report.engine == "dense"


# What it costs, and what it leaves behind


def test_an_audit_takes_at_most_a_fiftieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that is counted by copies: a dense one takes as long as five to twenty others."""
    now = [0.0]
    monkeypatch.setattr(audit, "clock", lambda: now[0])
    for speed_up in (5, 9):
        grid = WindowGrid((20, 22), (4, 4), (1, 1))
        grid = grid.pick(list(range(len(grid))) * 2)[:500]
        model = make_convolutional()

        def forward(x: Tensor, model: nn.Module = model, speed_up: int = speed_up) -> Tensor:
            now[0] += len(x) if type(x) is Tensor else len(x) / speed_up
            return model(x)

        arguments = (forward, IMAGE, BatchSize(50))
        engine = AuditedEngine(IncrementalEngine().prepare(*arguments), *arguments)
        fills = torch.zeros(1, len(grid), 3, 4, 4)
        now[0] = 0.0
        engine.scores(grid, fills, lambda outputs: outputs, lambda rows: None)
        before = now[0]
        assert engine.audit().n_windows >= 1
        assert 0 < now[0] - before <= 0.02 * before


def test_windows_are_picked_at_random_but_always_the_same_and_far_apart() -> None:
    grid = WindowGrid((224, 224), (10, 10), (10, 10))
    fills, scores = torch.zeros(1, len(grid), 3, 10, 10), torch.arange(len(grid))[None, :, None]

    def picked() -> list[int]:
        copies = PickedCopies()
        for start in range(0, len(grid), 100):
            part = slice(start, start + 100)
            copies.offer(grid[part], fills[:, part], scores[:, part])
        return [int(copy.scores) for copy in copies.spread_out()]

    assert picked() == picked()
    assert len(set(picked())) == 16
    corners = grid.corner_array[picked()[:4]]
    apart = [np.abs(a - b).max() for n, a in enumerate(corners) for b in corners[:n]]
    assert min(apart) > 70
    border = np.minimum(corners, 214 - corners).min(axis=1)
    assert border.min() < 30 < border.max()


def test_the_spread_is_the_standard_deviation_of_what_is_finite() -> None:
    values = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) + 100
    values[7, 1] = torch.nan
    values[9, 2] = torch.inf
    spread = Spread()
    for part in values.split([1, 20, 29]):
        spread.add(part)
    for column, found in enumerate(spread.value()):
        some = values[:, column][values[:, column].isfinite()]
        torch.testing.assert_close(found, some.std(correction=0), rtol=1e-4, atol=0)


def test_what_is_not_finite_in_both_agrees() -> None:
    found = torch.tensor([torch.nan, torch.inf, 1.0, torch.nan, torch.inf])
    expected = torch.tensor([torch.nan, torch.inf, 3.0, 1.0, -torch.inf])
    difference = audit._difference(found, expected)
    assert difference.tolist() == [0, 0, 2, torch.inf, torch.inf]


def test_a_run_stopped_while_it_is_done_again_holds_dense_windows_only() -> None:
    passes = [0]
    model = make_convolutional()

    def forward(x: Tensor) -> Tensor:
        if type(x) is not Tensor:
            return model(x) * 2
        passes[0] += len(x) > 2  # neither the first pass nor the audit
        if passes[0] > 3:
            raise KeyboardInterrupt
        return model(x)

    with pytest.warns(UserWarning, match="again"), pytest.raises(KeyboardInterrupt) as caught:
        explain(forward, "incremental", perturbations_per_eval=4)
    expected, _ = explain(model, "dense", perturbations_per_eval=4)
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
