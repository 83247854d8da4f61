"""The league table's own parts: masks, costs, resuming, and the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from league import digits  # noqa: E402
from league.controls import CONTROLS  # noqa: E402
from league.lrp import for_lrp, lrp  # noqa: E402
from league.networks import Network, Photo, invented_photos, load_network  # noqa: E402
from league.ours import pda  # noqa: E402
from league.peers import occlusion_of, quietly, rise, rise_masks, stride_for  # noqa: E402
from league.scores import FILLS  # noqa: E402
from league.store import Cost, Store  # noqa: E402
from league.table import differences, read_rows, table  # noqa: E402


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
    groups = {"random": "control", "GradCAM": "peer", "PDA": "ours", "RISE 1000": "peer"}
    lines = table(store, list(groups), ["a.jpg", "b.jpg"], groups=groups).split("\n")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| **PDA**", "| GradCAM", "| *random*"]
    assert "0.250 +- 0.150" in lines[3]  # PDA is ahead by 0.1 and by 0.4
    assert "0.500" in lines[4].split(" | ")[6]
    assert "0.600 +- 0.100" in lines[2]


def test_differences_are_paired_in_each_network(tmp_path):
    rows = {}
    for network, gains in {"one": (0.5, 0.7), "two": (0.3, 0.3)}.items():
        store = Store(tmp_path / network)
        for method, offset in {"PDA": 0.0, "GradCAM": -0.1}.items():
            for photo, gain in zip("ab", gains, strict=True):
                store.save_map(photo, method, torch.zeros(2, 2), Cost(1, 1.0))
                store.save_scores(photo, method, dict.fromkeys(FILLS, gain + offset))
        rows[network] = read_rows(store, ["PDA", "GradCAM", "LRP"], ["a", "b"])
    assert differences(rows, "PDA", ["GradCAM", "LRP"]).split("\n") == [
        "| PDA less | one | two |",
        "| --- | --- | --- |",
        "| GradCAM | 0.100 +- 0.000 (2) | 0.100 +- 0.000 (2) |",
    ]


def test_maps_of_other_settings_are_kept_apart(tmp_path):
    first, second = (Store(tmp_path, {"PDA": {"code": code}}) for code in ("aaa", "bbb"))
    first.save_map("a.jpg", "PDA", torch.ones(2, 2), Cost(1, 1.0))
    first.save_scores("a.jpg", "PDA", {"blur": 0.5})
    assert not second.has_map("a.jpg", "PDA")
    assert second.scores("a.jpg", "PDA") == {}
    second.save_map("a.jpg", "PDA", torch.zeros(2, 2), Cost(1, 1.0))
    assert first.load_map("a.jpg", "PDA")[0].sum() == 4
    assert first.kept_values("code") == ["aaa", "bbb"]
    assert Store(tmp_path, first.settings, n_steps=5).scores("a.jpg", "PDA") == {}


def test_a_map_is_made_by_one_run_at_a_time(tmp_path):
    first, second = Store(tmp_path), Store(tmp_path)
    with first.claim("a.jpg", "PDA") as free:
        assert free
        with second.claim("a.jpg", "PDA") as too, second.claim("b.jpg", "PDA") as other:
            assert (too, other) == (False, True)
    with second.claim("a.jpg", "PDA") as free:
        assert free


@pytest.mark.parametrize("side", [224, 260])
@pytest.mark.parametrize("size", [16, 32, 48, 64, 96])
def test_occlusion_takes_the_passes_of_what_it_is_compared_with(side, size):
    windows = (1 + -(-(side - size) // stride_for(side, size, 470))) ** 2
    assert windows == pytest.approx(470, rel=0.16)


def test_occlusion_counts_its_windows_as_captum_does():
    network = constant_network(1.0)
    occlusion_of(8, 40)(network, Photo("one", torch.ones(1, 3, 32, 32), 0))
    assert stride_for(32, 8, 40) == 5  # six windows along each axis
    assert network.passes == 36 + 1


class Skip(torch.nn.Module):
    """A skip connection, batch normalization, one ReLU6 for all calls, and a plain mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.second = torch.nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(6)
        self.relu = torch.nn.ReLU6(inplace=True)
        self.last = torch.nn.Linear(6, 4)

    def forward(self, images):
        x = self.relu(self.first(images))
        x = x + self.relu(self.norm(self.second(x)))
        return self.last(torch.nn.functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


def test_relevance_is_kept_through_skip_connections_and_means():
    pytest.importorskip("zennit")
    torch.manual_seed(0)
    model = Skip()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    image = torch.randn(1, 3, 9, 9)
    before = model.eval()(image).detach()
    torch.testing.assert_close(for_lrp(model)(image), before)
    network = Network("tiny", model, torch.nn.Identity())
    found = lrp("EpsilonPlusFlat", "bias")(network, Photo("one", image, 2))
    assert found.shape == (9, 9)
    # All of the class's relevance, which is 1, less what falls on the padding around the photo.
    assert 0.7 < found.sum() < 1.01
    torch.testing.assert_close(model(image), before)
    assert not image.requires_grad


def test_controls_know_the_photo_or_nothing():
    network = load_network("tiny")
    photos = invented_photos(network)
    for name, method in CONTROLS.items():
        first, second = (quietly(method.make, network, photo) for photo in photos)
        assert first.shape == (32, 32), name
        assert torch.equal(first, quietly(method.make, network, photos[0])), name
        assert torch.equal(first, second) == (name in ("random", "centred Gaussian")), name
    middle = CONTROLS["centred Gaussian"].make(network, photos[0])
    assert middle.argmax() in (15 * 32 + 15, 15 * 32 + 16, 16 * 32 + 15, 16 * 32 + 16)


def test_the_trained_transformer_is_kept(tmp_path):
    """There is no MNIST here, so training would fail."""
    torch.save(digits.DigitTransformer().state_dict(), tmp_path / "weights.pt")
    first, second = (
        load_network("digits_vit", folder=tmp_path, photos=tmp_path).model for _ in range(2)
    )
    image = torch.randn(2, 3, 64, 64)
    assert first(image).shape == (2, 10)
    torch.testing.assert_close(first(image), second(image))


def run_tool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(BENCHMARKS / "faithfulness.py")]
    options = ["--folder", str(folder), "--steps", "3", *arguments]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_scores_of_other_diagnostics_are_not_added_to(tmp_path):
    first = run_tool(tmp_path, "--model", "tiny", "--methods", "controls")
    assert first.returncode == 0, first.stderr
    store = Store(tmp_path / "tiny", n_steps=3)
    kept = store.scores("noise0", "centred Gaussian")
    store.save_scores("noise0", "centred Gaussian", kept | {"blur": kept["blur"] + 0.1})
    second = run_tool(tmp_path, "--model", "tiny", "--methods", "GradCAM")
    assert second.returncode != 0
    assert "the diagnostics have changed" in second.stderr


@pytest.mark.slow
def test_our_maps_are_kept_by_the_code_that_made_them_and_written_into_a_page(tmp_path):
    methods = ("--model", "tiny", "--methods", "PDA;EfficientPDA;GradCAM;Occlusion 32")
    made = run_tool(tmp_path, *methods, "--code", "old")
    assert made.returncode == 0, made.stderr
    other = run_tool(tmp_path, *methods, "--code", "new", "--table")
    assert "PDA |" not in other.stdout.split("\n", 1)[1]
    assert "--code names it: old" in other.stderr
    page = tmp_path / "page.md"
    names = ("tiny", "PDA less", "EfficientPDA less", "effort")
    page.write_text("".join(f"x\n<!-- league: {name} -->\nold\n<!-- end -->\n" for name in names))
    picture = tmp_path / "passes.svg"
    options = ("--write", str(page), "--picture", str(picture))
    written = run_tool(tmp_path, "--code", "old", *options)
    assert written.returncode == 0, written.stderr
    text = page.read_text()
    assert "| **PDA** | 2 |" in text
    assert text.count("x\n<!-- league: ") == text.count("<!-- end -->\n") == len(names)
    assert "old" not in text
    assert "| PDA less | tiny |" in text
    assert "| EfficientPDA less | tiny |" in text
    assert picture.read_text().count("GradCAM") == 1


@pytest.mark.slow
def test_a_league_table_of_a_random_network_is_made_and_resumed(tmp_path):
    pytest.importorskip("pytorch_grad_cam")
    for package in ("shap", "shap_bpt", "lime", "zennit"):
        pytest.importorskip(package)
    first = run_tool(tmp_path, "--model", "tiny")
    assert first.stdout.count("\n") > 20, first.stderr
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert run_tool(tmp_path, "--model", "tiny").stdout == first.stdout
    assert all(path.stat().st_mtime_ns == changed for path, changed in files.items())
