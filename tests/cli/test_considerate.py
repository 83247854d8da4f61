"""The command refuses early, says what fits, and tells what it will cost."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from captum_pda.cli import cost, explain, preparation
from captum_pda.cli.labels import default_labels, find_class
from captum_pda.cli.main import main
from captum_pda.cli.usage_errors import UsageError


@pytest.fixture(autouse=True)
def folder(photo_folder: Path) -> Path:
    return photo_folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stride", "20", "--window", "16"], "--stride 20 steps over pixels"),
        (["--stride", "20", "--scales", "16", "32"], "--stride 20 steps over pixels"),
        (["--window", "500"], "larger than the model's input of 224 pixels"),
        (["--target", "1000"], "--target 1000 is out of range"),
        (["--target", "notaclass"], "is no class of this model"),
        (["--contrast", "tabby", "nothing"], "--contrast 'nothing' is no class"),
        (["--model", "resnet5000"], "is not known"),
        (["--device", "abacus"], "is not on this machine"),
        (["--output", "labels.txt/deep"], "cannot be written"),
        (["--output", "cat.png"], "is read by this command"),
        (["--output", "out.tiff"], "pictures end in .png or .jpg"),
        (["--context", "both"], "--context both does not go with --method pda"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_come_before_a_model_is_loaded(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(preparation.Classifier, "of", lambda *_: pytest.fail("a model was loaded"))
    before = sorted(Path().rglob("*"))
    assert main(["explain", "cat.png", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted(Path().rglob("*")) == before


def test_a_missing_photo_is_found_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation.Classifier, "of", lambda *_: pytest.fail("a model was loaded"))
    assert main(["explain", "no.png"]) == 1


def test_a_name_of_a_picture_means_a_file() -> None:
    tiny = ("--model", "tiny:five", "--method", "gradient", "--quiet", "--raw", "none")
    assert main(["explain", "cat.png", "--output", "out.jpg", *tiny]) == 0
    assert Path("out.jpg").is_file()
    Path("folder.jpg").mkdir()
    assert main(["explain", "cat.png", "--output", "folder.jpg", *tiny]) == 0
    assert Path("folder.jpg/cat_evidence.png").is_file()


@pytest.mark.parametrize("others", [[], ["cat.png"]])
def test_a_bad_file_is_named_once(others: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.jpg").write_bytes(b"nothing")
    tiny = ("--model", "tiny:five", "--method", "gradient", "--quiet")
    assert main(["explain", "broken.jpg", *others, *tiny]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "broken.jpg" in line]
    assert len(lines) == 1
    assert lines[0].count("broken.jpg") == 1


def test_what_fits_best_is_listed_first_with_numbers() -> None:
    labels = default_labels(1000)
    with pytest.raises(UsageError) as refused:
        find_class("cat", labels)
    listed = re.findall(r"(\d+) \(([^)]*)\)", str(refused.value))
    assert [labels[int(number)] for number, _ in listed] == [name for _, name in listed]
    assert [name.split()[-1] for _, name in listed] == ["cat"] * 5
    assert str(refused.value).endswith("more; give the number")
    with pytest.raises(UsageError, match=r"did you mean 281 \(tabby\)"):
        find_class("tabbi", labels)


def test_words_count_before_their_parts() -> None:
    with pytest.raises(UsageError, match=r"may mean 2 \(wild cat\), 1 \(catfish\), 0 \(bobcats\);"):
        find_class("cat", ["bobcats", "catfish", "wild cat"])


def test_an_exact_name_comes_before_an_index_and_what_could_mean_both_is_asked() -> None:
    labels = ("1", "10", "2", "3")
    with pytest.raises(UsageError, match=r"index:0 \(named '1'\) or index:1 \(named '10'\)"):
        find_class("1", labels)
    with pytest.raises(UsageError, match=r"--contrast 2 .* index:2 \(named '1'\)") as refused:
        find_class("2", ("2", "0", "1"), "--contrast")
    assert "index:0" in str(refused.value)
    assert [find_class(given, labels) for given in ("10", "3", "0")] == [1, 3, 0]
    assert [find_class(f"index:{number}", labels) for number in range(4)] == [0, 1, 2, 3]
    for given in ("index:4", "index:-1", "4"):
        with pytest.raises(UsageError, match="out of range; the model has classes 0 to 3"):
            find_class(given, labels)
    with pytest.raises(UsageError, match="index:0"):
        find_class("5", ("5", "5"))


def test_a_folder_of_classes_named_by_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    Path("labels.txt").write_text("1\n10\n2\n3\n4\n")
    tiny = ("--model", "tiny:five", "--labels", "labels.txt", "--method", "gradient", "--quiet")
    assert main(["explain", "cat.png", *tiny, "--target", "1"]) == 2
    assert "--target 1 may mean a class's name or its number" in capsys.readouterr().err
    assert main(["explain", "cat.png", *tiny, "--target", "10"]) == 0
    with np.load("cat_evidence.npz") as file:
        assert file["first"].tolist() == [1]


def test_cost_in_words() -> None:
    assert cost.cost_line(1760, 1, 1, 25.2) == "1,760 windows, up to about 25 s"
    assert cost.cost_line(49, 10, 1, 720.0) == "49 windows of 10 samples, up to about 12 min"
    assert (
        cost.cost_line(1042, 1, 2000, 12_600.0)
        == "1,042 windows in each of 2,000 photos, up to about 3.5 h"
    )
    assert cost.cost_line(1760, 1, 1, 0.3) is None


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(3, 2), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return self.linear(x.mean(dim=(2, 3)))


def test_a_few_passes_are_timed() -> None:
    model = Counting()
    assert cost.seconds_per_pass(model, torch.zeros(1, 3, 8, 8)) > 0
    assert model.seen == 2 * cost.TIMED


@pytest.mark.parametrize(
    ("options", "line"),
    [
        # 7 x 7 windows of 8 at strides of 4, in two contexts.
        (["--window", "8"], "98 windows, up to about 1 s"),
        (["--window", "8", "--method", "efficient"], "49 windows, up to about 1 s"),
        (["--window", "8", "--method", "sampled"], "49 windows of 10 samples, up to about 1 s"),
        (["--window", "8", "--method", "gradient"], None),
        (["--method", "layer"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_tells_the_cost_before_the_run(
    options: list[str],
    line: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cost, "LONG", 0.0)
    monkeypatch.setattr(explain, "seconds_per_pass", lambda *_: 1e-6)
    command = ["explain", "cat.png", "--model", "tiny:five", *options]
    assert main([*command, "--overwrite"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert (said[0] == line) if line else ("windows" not in said[0])
    assert main([*command, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
