"""The command refuses early, says what fits, and tells what it will cost."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from PIL import Image
from torch import nn

from captum_pda.cli import results
from captum_pda.cli.classifier import default_labels, find_class
from captum_pda.cli.main import main
from captum_pda.cli.usage_errors import UsageError
from captum_pda.report.index import read_summary

pytestmark = pytest.mark.usefixtures("photo_folder")


def no_weights(monkeypatch):
    """Whoever gives a model its weights fails the test."""
    monkeypatch.setattr(
        nn.Module, "load_state_dict", lambda *_, **__: pytest.fail("a model was loaded")
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stride", "20", "--window", "16"], "--stride 20 steps over pixels"),
        (["--window", "500"], "larger than the model's input of 224 pixels"),
        (["--target", "1000"], "--target 1000 is out of range; the model has classes 0 to 999"),
        (["--target", "-1"], "--target -1 is out of range"),
        (["--contrast", "tabby", "281"], "--contrast needs two classes, and both are tabby"),
        (["--target", "notaclass"], "is not a class of this model"),
        (["--contrast", "tabby", "nothing"], "--contrast 'nothing' is not a class"),
        (["--model", "resnet5000"], "is not known"),
        (["--device", "abacus"], "is not on this machine"),
        (["--output", "labels.txt/deep"], "cannot be written"),
        (["--output", "cat.png"], "is read by this command"),
        (["--output", "out.tiff"], "pictures end in .png or .jpg"),
        (["--context", "both"], "--context both does not go with --method pda"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_come_before_a_model_is_loaded(arguments, message, monkeypatch, capsys):
    no_weights(monkeypatch)
    before = sorted(Path().rglob("*"))
    assert main(["explain", "cat.png", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted(Path().rglob("*")) == before


def test_a_name_of_a_picture_means_a_file():
    tiny = ("--model", "tiny:five", "--method", "efficient", "--no-test", "--quiet")
    tiny += ("--raw", "none")
    assert main(["explain", "cat.png", "--output", "out.jpg", *tiny]) == 0
    assert Path("out.jpg").is_file()
    Path("folder.jpg").mkdir()
    assert main(["explain", "cat.png", "--output", "folder.jpg", *tiny]) == 0
    assert Path("folder.jpg/cat.png_evidence.png").is_file()


def test_what_fits_best_is_listed_first_with_numbers():
    labels = default_labels(1000)
    with pytest.raises(UsageError) as refused:
        find_class("cat", labels)
    listed = re.findall(r"index:(\d+) \(([^)]*)\)", str(refused.value))
    assert [labels[int(number)] for number, _ in listed] == [name for _, name in listed]
    assert [name.split()[-1] for _, name in listed] == ["cat"] * 5
    assert str(refused.value).endswith("more; give one of these")
    with pytest.raises(UsageError, match=r"did you mean index:281 \(tabby\)"):
        find_class("tabbi", labels)


def test_an_exact_name_comes_before_an_index_and_what_could_mean_both_is_asked():
    labels = ("1", "10", "2", "3")
    with pytest.raises(UsageError, match=r"index:0 \(1\), index:1 \(10\); give one of these"):
        find_class("1", labels)
    with pytest.raises(UsageError, match=r"--contrast '2' .* index:2 \(1\)") as refused:
        find_class("2", ("2", "0", "1"), "--contrast")
    assert "index:0" in str(refused.value)
    assert [find_class(given, labels) for given in ("10", "3", "0")] == [1, 3, 0]
    assert [find_class(f"index:{number}", labels) for number in range(4)] == [0, 1, 2, 3]
    for given in ("index:4", "index:-1", "4"):
        with pytest.raises(UsageError, match="out of range; the model has classes 0 to 3"):
            find_class(given, labels)
    with pytest.raises(UsageError, match="index:0"):
        find_class("5", ("5", "5"))


# What it says of numbers and times


#: A model that hardly looks at its input; what it needs is imported when it is called.
FLAT = """
import torch

class Flat(torch.nn.Module):
    def forward(self, x):
        return torch.tensor([[2.0, 1.0, 0.5]]).expand(len(x), -1) + 1e-4 * x.mean(dim=(2, 3))

def make():
    import tiny
    return Flat(), tiny.transform()
"""


def test_what_says_nothing_is_no_finding(capsys, monkeypatch):
    Path("flat.py").write_text(FLAT)
    monkeypatch.delitem(sys.modules, "flat", raising=False)
    drawn = []
    monkeypatch.setattr(results, "write_figure", lambda path, figure, _: drawn.append(figure))
    command = ["explain", "cat.png", "--model", "flat:make", "--method", "efficient", "--html"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "\n  no region says anything, to within 0.01 bits\n" in said
    assert "(for)" not in said
    assert "(against)" not in said
    # The picture and the index say the same.
    assert "no region says anything, to within 0.01 bits" in drawn[0].get_supxlabel()
    summary, _ = read_summary(Path("cat.png_evidence.html"))
    assert summary["for"] is summary["against"] is None


def test_words_and_bar_count_the_same_passes(capsys):
    for method in ("pda", "efficient", "sampled", "layer"):
        command = ["explain", "cat.png", "--model", "tiny:five", "--window", "8"]
        command = command[: -2 if method == "layer" else None]
        assert main([*command, "--method", method, "--samples", "3"]) == 0
        said = capsys.readouterr()
        counts = re.findall(r"/(\d+) \[", said.err)
        assert len(set(counts)) == 1
        assert "windows" not in said.out


def test_a_folder_tells_no_time_for_what_is_done(capsys):
    Path("photos").mkdir()
    Path("photos/cat.png").write_bytes(Path("cat.png").read_bytes())
    command = ["explain", "photos", "--output", "out", "--model", "tiny:five", "--window", "8"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "Explained 1 of 1 photo; 0 were done before, 0 failed." in said.out
    assert "Explaining: 100%" in said.err
    assert main(command) == 0
    said = capsys.readouterr()
    assert "Explained 0 of 1 photo; 1 was done before, 0 failed." in said.out
    assert said.err == ""
    Path("photos/dog.png").write_bytes(Path("dog.png").read_bytes())
    assert main(command) == 0
    # One bar, of what is to be explained: so the time left is that of what is left.
    assert re.search(r"Explaining: 100%\|█+\| 1/1 ", capsys.readouterr().err)


def test_files_have_the_same_names_for_a_photo_and_for_a_folder():
    Path("photos").mkdir()
    for name in ("a.png", "a.bmp"):
        Image.open("cat.png").save(f"photos/{name}")
    tiny = ("--model", "tiny:five", "--method", "efficient", "--no-test", "--quiet")
    assert main(["explain", "photos", "--output", "folder", *tiny]) == 0
    assert main(["explain", "photos/a.png", "photos/a.bmp", "--output", "single", *tiny]) == 0
    names = {path.name for path in Path("folder").iterdir()}
    assert names - {path.name for path in Path("single").iterdir()} == {
        "results.csv",
        "settings.json",
        "summary.json",
    }
