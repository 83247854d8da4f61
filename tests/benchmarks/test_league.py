"""The league table's own parts: masks, costs, resuming, and the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from league.networks import Network, Photo, invented_photos, load_network  # noqa: E402
from league.ours import pda  # noqa: E402
from league.peers import rise, rise_masks  # noqa: E402
from league.scores import FILLS  # noqa: E402
from league.store import Cost, Store  # noqa: E402
from league.table import table  # noqa: E402


def constant_network(probability_of_sum: float = 0.0) -> Network:
    class Model(torch.nn.Module):
        def forward(self, images):
            seen = images.mean(dim=(1, 2, 3))
            return torch.stack([probability_of_sum * seen, torch.zeros(len(images))], dim=1)

    return Network("tiny", Model().eval(), torch.nn.Identity())


def test_masks_of_rise_keep_half_of_the_photo_and_are_smooth():
    masks = rise_masks(200, 50, torch.Generator().manual_seed(0))
    assert masks.shape == (200, 1, 50, 50)
    assert (masks.min(), masks.max()) == (0, 1)
    assert masks.mean() == pytest.approx(0.5, abs=0.03)
    # Cells of 8 pixels: neighbours differ by an eighth at the most.
    assert masks.diff(dim=2).abs().max() <= 1 / 8 + 1e-6


def test_rise_is_the_mean_of_masks_weighted_by_the_probability():
    """A model that says one half whatever it sees gives each pixel what the masks do."""
    photo = Photo("one", torch.ones(1, 3, 21, 21), 0)
    network = constant_network()
    found = rise(40)(network, photo)
    generator = torch.Generator().manual_seed(0)
    masks = torch.cat([rise_masks(8, 21, generator) for _ in range(5)])
    torch.testing.assert_close(found, 0.5 * masks.mean((0, 1)) / 0.5)
    assert network.passes == 40


def test_the_quick_way_to_our_map_gives_the_same_map():
    network = load_network("tiny")
    photo = invented_photos(network)[0]
    expected = pda(network, photo)
    network.fast = lambda images: network.model(images).detach()
    assert (pda(network, photo) - expected).abs().max() < 0.01 * expected.std()


def test_the_table_puts_the_best_first_and_pairs_photos(tmp_path):
    store = Store(tmp_path)
    for method, gains in {"PDA": (0.5, 0.7), "GradCAM": (0.4, 0.3), "random": (0.0,)}.items():
        for photo, gain in zip(("a.jpg", "b.jpg"), gains, strict=False):
            store.save_map(photo, method, torch.zeros(2, 2), Cost(10, 12.0))
            scores = dict.fromkeys((*FILLS, "deletion", "insertion"), gain)
            store.save_scores(photo, method, scores)
    lines = table(store, ["random", "GradCAM", "PDA", "RISE 1000"], ["a.jpg", "b.jpg"]).split("\n")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| PDA", "| GradCAM", "| random"]
    assert "0.250 +- 0.150" in lines[3]  # PDA is ahead by 0.1 and by 0.4
    assert "0.500" in lines[4].split(" | ")[6]
    assert "0.600 +- 0.100" in lines[2]


@pytest.mark.slow
def test_a_league_table_of_a_random_network_is_made_and_resumed(tmp_path):
    pytest.importorskip("pytorch_grad_cam")
    pytest.importorskip("shap")
    command = [
        *(sys.executable, "-W", "ignore", str(BENCHMARKS / "faithfulness.py"), "--model", "tiny"),
        *("--folder", str(tmp_path), "--steps", "3"),
    ]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert first.count("\n") > 20
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    second = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert second == first
    assert all(path.stat().st_mtime_ns == changed for path, changed in files.items())
