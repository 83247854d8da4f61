"""The engine that chooses between the dense and the incremental one."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest
import torch
from conftest import make_images
from torch import Tensor, nn

from captum_pda import DenseEngine, EfficientPDA, WindowGrid
from captum_pda.engines import BatchSize, EngineReport, IncrementalError
from captum_pda.engines.auto import AutoEngine, PreparedAuto

EXAMPLE = make_images(1, 3, 20, 24)
#: 320, 221 and 30 windows.
SMALL = WindowGrid((20, 24), (5, 5), (1, 1))
LARGE = WindowGrid((20, 24), (8, 8), (1, 1))
FEW = WindowGrid((20, 24), (5, 5), (3, 4))


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    return nn.Sequential(*layers).double().eval()


class Timed:
    """A model that counts the copies it is given, and a clock that advances by them."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        dense: float = 1.0,
        incremental: float = 0.1,
        model: Any = None,
    ) -> None:
        self.model = model or small_network()
        self.seconds = {True: dense, False: incremental}
        self.copies = {True: 0, False: 0}
        self.now = 0.0
        monkeypatch.setattr(time, "thread_time", lambda: self.now)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def __call__(self, x: Tensor) -> Tensor:
        is_dense = type(x) is Tensor
        self.copies[is_dense] += len(x)
        self.now += len(x) * self.seconds[is_dense]
        return self.model(x)


def scores_of(prepared: PreparedAuto, grid: WindowGrid) -> Tensor:
    fills = torch.zeros(1, len(grid), 3, *grid.window, dtype=torch.float64)
    done: list[int] = []
    scores = prepared.scores(grid, fills, lambda outputs: outputs, done.append)
    assert sum(done) == len(grid)
    return scores


def run(
    model: Any, *grids: WindowGrid, engine: AutoEngine | None = None
) -> tuple[EngineReport, PreparedAuto]:
    """Run windows of several sizes; all scores are the dense engine's."""
    engine = engine or AutoEngine()
    prepared = engine.prepare(model, EXAMPLE, BatchSize(16))
    dense = DenseEngine().prepare(small_network(), EXAMPLE, BatchSize(16))
    for grid in grids:
        torch.testing.assert_close(scores_of(prepared, grid), scores_of(dense, grid))
    assert engine.report is not None
    return engine.report, prepared


@pytest.mark.parametrize(("incremental", "chosen"), [(0.2, "incremental"), (2.0, "dense")])
def test_the_faster_engine_is_chosen_and_no_window_is_run_twice(
    monkeypatch: pytest.MonkeyPatch, incremental: float, chosen: str
) -> None:
    model = Timed(monkeypatch, 1.0, incremental)
    report, _ = run(model, SMALL)
    assert report.engine == chosen
    assert sum(model.copies.values()) == len(SMALL)
    assert report.speed_up == pytest.approx(1 / incremental)
    assert "predicted speed-up" in str(report)
    # The slower engine runs a small part.
    assert model.copies[chosen == "incremental"] < len(SMALL) / 10


def test_methods_report_the_choice_and_audit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pda = EfficientPDA(Timed(monkeypatch))
    assert pda.engine_report is None
    pda.attribute(EXAMPLE, target=1, strides=2, sliding_window_shapes=5)
    assert pda.engine_report.engine == "incremental"
    assert pda.engine_report.audit.difference < 1e-10


def test_says_where_it_goes_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_network()
    pda = EfficientPDA(Timed(monkeypatch, model=lambda x: model(x.cumsum(2))))
    pda.attribute(EXAMPLE, target=1, strides=2, sliding_window_shapes=5)
    assert pda.engine_report.engine == "dense"
    assert "cumsum: it has no rule" in str(pda.engine_report)


@pytest.mark.parametrize("after", [0, 40])
def test_failures_go_on_densely(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    class Refusing(Timed):
        def __call__(self, x: Tensor) -> Tensor:
            if self.copies[False] >= after and type(x) is not Tensor:
                raise IncrementalError("only plain tensors")
            return super().__call__(x)

    model = Refusing(monkeypatch)
    report, _ = run(model, SMALL, LARGE)  # larger windows are not tried again
    assert report.reason == "the incremental engine failed: only plain tensors"
    assert model.copies[False] < 60


def test_calls_that_are_over_soon_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    too_few = "too few windows to try another"
    assert run(Timed(monkeypatch), FEW)[0].reason == too_few
    quick = Timed(monkeypatch, 0.002, 0.0001)
    assert run(quick, SMALL)[0].reason == too_few
    assert quick.copies[False] == 0
    assert run(quick, SMALL, engine=AutoEngine(min_seconds=0.0))[0].engine == "incremental"


def test_named_engines_report_too() -> None:
    for engine in ("dense", "incremental"):
        pda = EfficientPDA(small_network(), engine=engine)
        pda.attribute(EXAMPLE, target=1, sliding_window_shapes=5, strides=5)
        assert str(pda.engine_report).startswith(f"engine: {engine} (as asked)")


def test_another_size_of_the_same_example_is_tried_at_the_cost_of_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dense engine's time is known, and the unperturbed example's maps are there."""
    seconds = 6.1 / len(SMALL)  # too quick for the larger windows alone, which are fewer
    model = Timed(monkeypatch, seconds, seconds / 2)
    assert run(model, LARGE)[0].engine == "dense"
    model.copies = {True: 0, False: 0}
    report, _ = run(model, SMALL, LARGE)
    assert report.engine == "incremental"
    assert model.copies == {True: 4, False: len(SMALL) + len(LARGE) - 4}


def test_what_is_finished_when_something_stops_a_try_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stopping(Timed):
        def __call__(self, x: Tensor) -> Tensor:
            if self.copies[False] >= 20:
                raise KeyboardInterrupt
            return super().__call__(x)

    model = Stopping(monkeypatch)
    prepared = AutoEngine().prepare(model, EXAMPLE, BatchSize(16))
    with pytest.raises(KeyboardInterrupt):
        scores_of(prepared, SMALL)
    known = prepared.unfinished[0, :, 0].isfinite()
    assert known.sum() == sum(model.copies.values())


def test_the_report_on_several_sizes_is_that_of_the_most_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few windows of another size, run densely at the end, do not speak for all."""
    pda = EfficientPDA(Timed(monkeypatch))
    evidence = pda.evidence(EXAMPLE, scales=(5, 16), strides=2)
    sizes = [len(part.regions) for part in evidence.parts]
    assert sizes[0] >= 64 > sizes[1]
    assert pda.engine_report.reason == "it is faster here"
    assert pda.engine_report.audit.agrees


def test_threads_may_share_an_engine() -> None:
    engine = AutoEngine(min_seconds=0.0)
    failed: list[Exception] = []

    def explain_many_sizes(width: int) -> None:
        try:
            for height in range(16, 46):
                example = torch.zeros(1, 1, height, width)
                prepared = engine.prepare(lambda x: x.flatten(1)[:, :2], example, BatchSize(64))
                for size in range(1, 5):
                    grid = WindowGrid((height, width), (size, size), (1, 2))[:64]
                    fills = torch.zeros(1, len(grid), 1, size, size)
                    prepared.scores(grid, fills, lambda outputs: outputs, lambda rows: None)
        except Exception as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=explain_many_sizes, args=(16 + n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed
