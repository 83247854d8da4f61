"""The engine that chooses between the dense and the incremental one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import make_images
from torch import Tensor, nn

import captum_pda.engines.auto as auto
from captum_pda import EfficientPDA
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

        def seconds(engine: Any, grid: Any, *rest: Any) -> float:
            timed.append(grid.window)
            return 1.0 if isinstance(engine, PreparedDense) else speeds[grid.window]

        speeds = {(3, 3): 0.2, (6, 6): 5.0}
        monkeypatch.setattr(auto, "_seconds_per_copy", seconds)
        monkeypatch.setattr(auto, "WORTH_A_PROBE", 1)
        pda = EfficientPDA(small_network())
        pda.attribute(EXAMPLE, target=1, scales=(3, 6, 9), strides=3)
        chosen = {kind[-1]: report.engine for kind, report in pda.engine.choices.items()}
        assert chosen == {(3, 3): "incremental", (6, 6): "dense", (9, 9): "dense"}
        assert (9, 9) not in timed
        assert pda.engine_report.engine == "incremental"  # that of the most windows
