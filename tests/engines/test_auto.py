"""The engine that chooses between the dense and the incremental one."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from conftest import make_images
from torch import Tensor, nn

import captum_pda.engines.auto as auto
from captum_pda import PDA, DenseEngine, EfficientPDA, WindowGrid
from captum_pda.engines import BatchSize, IncrementalError
from captum_pda.engines.auto import AutoEngine, PreparedAuto
from captum_pda.engines.dense import PreparedDense

EXAMPLE = make_images(1, 3, 20, 24)


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    return nn.Sequential(*layers).double().eval()


class TestAuto:
    def run(self, forward: Any, monkeypatch: Any, speed: float = 0.0) -> EfficientPDA:
        monkeypatch.setattr(auto, "WORTH_IT", speed)
        monkeypatch.setattr(auto, "WORTH_A_PROBE", 50)
        monkeypatch.setattr(PreparedAuto, "_cost_of_a_try", lambda *_: 0.0)
        pda = EfficientPDA(forward)
        assert pda.engine_report is None
        pda.attribute(EXAMPLE, target=1, strides=2, sliding_window_shapes=5)
        return pda

    def test_incremental_where_faster(self, monkeypatch: Any) -> None:
        pda = self.run(small_network(), monkeypatch)
        assert pda.engine_report.engine == "incremental"
        assert pda.engine_report.audit.difference < 1e-10
        assert "predicted speed-up" in str(pda.engine_report)

    def test_dense_where_not_faster(self, monkeypatch: Any) -> None:
        report = self.run(small_network(), monkeypatch, speed=1e9).engine_report
        assert (report.engine, report.reason) == (
            "dense",
            "the incremental engine is no faster here",
        )

    def test_says_where_it_goes_dense(self, monkeypatch: Any) -> None:
        report = self.run(lambda x: small_network()(x.cumsum(2)), monkeypatch).engine_report
        assert report.engine == "dense"
        assert "cumsum: it has no rule" in str(report)

    def test_disagreement_is_a_warning(self, monkeypatch: Any) -> None:
        model = small_network()

        def forward(x: Tensor) -> Tensor:
            return model(x) if type(x) is Tensor else model(x) * 1.001

        with pytest.warns(UserWarning, match=r"run again densely.*they disagree"):
            pda = self.run(forward, monkeypatch)
        assert pda.engine_report.engine == "dense"

    def test_failure_goes_dense(self, monkeypatch: Any) -> None:
        def forward(x: Tensor) -> Tensor:
            if type(x) is not Tensor:
                raise RuntimeError("only plain tensors")
            return model(x)

        model = small_network()
        report = self.run(forward, monkeypatch).engine_report
        assert report.reason == "the incremental engine failed: only plain tensors"

    def test_small_jobs_are_not_probed(self) -> None:
        pda = EfficientPDA(small_network())
        pda.attribute(EXAMPLE, target=1, sliding_window_shapes=10, strides=10)
        assert pda.engine_report.reason == "too few windows to try another"

    def test_named_engines_report_too(self) -> None:
        for engine in ("dense", "incremental"):
            pda = EfficientPDA(small_network(), engine=engine)
            pda.attribute(EXAMPLE, target=1, sliding_window_shapes=5, strides=5)
            assert str(pda.engine_report).startswith(f"engine: {engine} (as asked)")

    def test_each_size_is_chosen_for_by_itself_and_larger_ones_need_no_probe_once_one_is_slower(
        self, monkeypatch: Any
    ) -> None:
        timed = []

        def seconds(engine: Any, pieces: Any, *rest: Any) -> float:
            window = pieces.grid.window
            timed.append(window)
            return 1.0 if isinstance(engine, PreparedDense) else speeds[window]

        speeds = {(3, 3): 0.2, (6, 6): 5.0}
        monkeypatch.setattr(auto, "_seconds_per_copy", seconds)
        monkeypatch.setattr(PreparedAuto, "_cost_of_a_try", lambda *_: 0.0)
        monkeypatch.setattr(auto, "WORTH_A_PROBE", 1)
        pda = EfficientPDA(small_network())
        pda.attribute(EXAMPLE, target=1, scales=(3, 6, 9), strides=3)
        chosen = {kind[-1]: report.engine for kind, report in pda.engine.choices.items()}
        assert chosen == {(3, 3): "incremental", (6, 6): "dense", (9, 9): "dense"}
        assert (9, 9) not in timed
        assert pda.engine_report.engine == "incremental"  # that of the most windows


# What a try costs


class Watched:
    """A model that counts the copies it is given, and a clock that goes by them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dense: float, incremental: float) -> None:
        self.model = small_network()
        self.seconds = {True: dense, False: incremental}
        self.copies = {True: 0, False: 0}
        self.now = 0.0
        monkeypatch.setattr(auto, "processor_clock", lambda: self.now)

    def __call__(self, x: Tensor) -> Tensor:
        is_dense = type(x) is Tensor
        self.copies[is_dense] += len(x)
        self.now += len(x) * self.seconds[is_dense]
        return self.model(x)


def run_auto(model: Any, grid: WindowGrid, patience: float = 0.03) -> tuple[PreparedAuto, Tensor]:
    prepared = AutoEngine(patience).prepare(model, EXAMPLE, BatchSize(16))
    fills = torch.zeros(1, len(grid), 3, *grid.window, dtype=torch.float64)
    done: list[int] = []
    scores = prepared.scores(grid, fills, lambda outputs: outputs, done.append)
    assert sum(done) == len(grid)
    expected = DenseEngine().prepare(small_network(), EXAMPLE, BatchSize(16))
    found = expected.scores(grid, fills, lambda outputs: outputs, lambda rows: None)
    torch.testing.assert_close(scores, found)
    return prepared, scores


MANY, FEW = WindowGrid((20, 24), (5, 5), (1, 1)), WindowGrid((20, 24), (5, 5), (2, 2))


@pytest.mark.parametrize(("incremental", "chosen"), [(0.2, "incremental"), (2.0, "dense")])
def test_no_window_is_run_twice(
    monkeypatch: pytest.MonkeyPatch, incremental: float, chosen: str
) -> None:
    watched = Watched(monkeypatch, 1.0, incremental)
    prepared, _ = run_auto(watched, MANY)
    assert prepared._auto.report.engine == chosen
    assert sum(watched.copies.values()) == len(MANY)
    assert prepared._auto.report.speed_up == pytest.approx(1 / incremental)


@pytest.mark.parametrize(
    ("incremental", "n_dense"),
    [(0.2, auto.GLANCE), (0.7, auto.GLANCE + auto.TIMED_DENSE)],
)
def test_many_windows_get_a_glance_at_the_dense_engine_and_a_second_one_where_it_is_close(
    monkeypatch: pytest.MonkeyPatch, incremental: float, n_dense: int
) -> None:
    assert len(MANY) >= auto.MANY > len(FEW)
    watched = Watched(monkeypatch, 1.0, incremental)
    prepared, _ = run_auto(watched, MANY)
    assert prepared._auto.report.engine == "incremental"
    assert watched.copies[True] == n_dense


LARGER = WindowGrid((20, 24), (8, 8), (1, 1))


def scores_of(prepared: PreparedAuto, grid: WindowGrid) -> Tensor:
    fills = torch.zeros(1, len(grid), 3, *grid.window, dtype=torch.float64)
    return prepared.scores(grid, fills, lambda outputs: outputs, lambda rows: None)


def test_another_size_of_the_same_example_is_tried_at_the_cost_of_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dense engine's time is known, and the unperturbed example's maps are there."""
    seconds = 2 * auto.SECONDS_PER_BATCH / (0.03 * len(LARGER))  # too quick for a first try
    watched = Watched(monkeypatch, seconds, seconds / 2)
    alone = AutoEngine().prepare(watched, EXAMPLE, BatchSize(16))
    scores_of(alone, LARGER)
    assert alone._auto.report.reason == auto.TOO_FEW
    watched.copies = {True: 0, False: 0}
    prepared = AutoEngine().prepare(watched, EXAMPLE, BatchSize(16))
    scores_of(prepared, MANY)
    assert prepared._auto.report.engine == "incremental"
    n_dense = watched.copies[True]
    scores_of(prepared, LARGER)
    assert watched.copies[True] == n_dense
    assert watched.copies[False] == len(MANY) + len(LARGER) - n_dense


@pytest.mark.parametrize(
    ("known", "seconds", "asked", "is_tried"),
    [
        (8, 0.5, 5, False),  # smaller than what was faster
        (8, 0.5, 10, False),  # a little larger than what was clearly faster
        (8, 0.5, 11, True),
        (8, 0.85, 9, True),  # not so clearly
        (8, 0.85, 8, False),
    ],
)
def test_sizes_learn_from_each_other(
    monkeypatch: pytest.MonkeyPatch, known: int, seconds: float, asked: int, is_tried: bool
) -> None:
    timed: list[Any] = []

    def time(engine: Any, pieces: Any, *rest: Any) -> float:
        timed.append(pieces.grid.window)
        return 1.0 if isinstance(engine, PreparedDense) else seconds

    monkeypatch.setattr(auto, "_seconds_per_copy", time)
    monkeypatch.setattr(auto, "WORTH_A_PROBE", 1)
    monkeypatch.setattr(PreparedAuto, "_cost_of_a_try", lambda *_: 0.0)
    engine = AutoEngine()
    for size in (known, asked):
        # Each in a context of its own, as the empty one has wider windows.
        grid = WindowGrid((20, 24), (size, size), (3, 3))
        scores_of(engine.prepare(small_network(), EXAMPLE, BatchSize(16)), grid)
        assert engine.report.engine == "incremental"
    assert ((asked, asked) in timed[2:]) is is_tried


def test_what_failed_for_small_windows_is_not_tried_for_larger_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing(Watched):
        def __call__(self, x: Tensor) -> Tensor:
            if type(x) is not Tensor:
                self.copies[False] += len(x)
                raise RuntimeError("only plain tensors")
            return super().__call__(x)

    watched = Failing(monkeypatch, 1.0, 0.1)
    prepared = AutoEngine().prepare(watched, EXAMPLE, BatchSize(16))
    scores_of(prepared, MANY)
    tried = watched.copies[False]
    assert tried > 0
    scores_of(prepared, LARGER)
    assert watched.copies[False] == tried


def test_models_too_quick_for_the_number_of_windows_are_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of the incremental engine costs some time whatever the model."""
    watched = Watched(monkeypatch, 0.002, 0.0001)
    prepared, _ = run_auto(watched, MANY)
    assert prepared._auto.report.reason == auto.TOO_FEW
    assert watched.copies[False] == 0
    tried, _ = run_auto(watched, MANY, patience=1.0)
    assert tried._auto.report.engine == "incremental"
    slow = Watched(monkeypatch, 1.0, 0.1)
    tried, _ = run_auto(slow, FEW)
    assert tried._auto.report.engine == "incremental"


def test_what_is_finished_when_something_stops_a_try_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stopping(Watched):
        def __call__(self, x: Tensor) -> Tensor:
            if self.copies[False] >= 20:
                raise KeyboardInterrupt
            return super().__call__(x)

    watched = Stopping(monkeypatch, 1.0, 0.1)
    prepared = AutoEngine().prepare(watched, EXAMPLE, BatchSize(16))
    fills = torch.zeros(1, len(MANY), 3, *MANY.window, dtype=torch.float64)
    with pytest.raises(KeyboardInterrupt):
        prepared.scores(MANY, fills, lambda outputs: outputs, lambda rows: None)
    known = prepared.unfinished[0, :, 0].isfinite()
    assert known.sum() == sum(watched.copies.values())


def test_what_can_no_longer_be_followed_goes_on_densely(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Watched):
        def __call__(self, x: Tensor) -> Tensor:
            if self.copies[False] >= 40 and type(x) is not Tensor:
                raise IncrementalError("no rule")
            return super().__call__(x)

    prepared, _ = run_auto(Refusing(monkeypatch, 1.0, 0.1), MANY)
    assert prepared._auto.report.reason == "the incremental engine failed: no rule"


def test_the_report_on_several_contexts_is_that_of_the_most_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few windows of the other context, run densely at the end, do not speak for all."""

    def seconds(engine: Any, *rest: Any) -> float:
        return 1.0 if isinstance(engine, PreparedDense) else 0.1

    monkeypatch.setattr(auto, "_seconds_per_copy", seconds)
    monkeypatch.setattr(auto, "WORTH_A_PROBE", 130)  # between the smallest size and the others
    pda = PDA(small_network())
    evidence = pda.evidence(make_images(1, 3, 112, 112), scales=(16, 48), strides=8)
    sizes = [len(part.regions) for part in evidence.parts if part.depth == "input"]
    assert sizes[0] >= 130 > sizes[1]
    assert pda.engine_report.reason == "it is faster here"
    assert pda.engine_report.audit.agrees


def test_threads_may_share_an_engine() -> None:
    engine = AutoEngine(patience=float("inf"))
    failed: list[Exception] = []

    def explain_many_sizes(width: int) -> None:
        try:
            for height in range(16, 76):
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
