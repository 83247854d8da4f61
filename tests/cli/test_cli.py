"""The command ``captum-pda``: what it takes, writes and says, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from captum_pda import EfficientPDA, GaussianPatchPrior
from captum_pda.cli.main import main
from captum_pda.cli.models import load_classifier
from captum_pda.cli.photos import read_photo

MODEL = "tiny:five"
WINDOW = 8
COARSE = ("--window", "8", "--stride", "8")
#: For tests in which the algorithm does not matter.
QUICK = ("--method", "efficient", "--no-test")
LABELS = ("ant", "bee", "honey bee", "cat", "dog")


pytestmark = pytest.mark.usefixtures("photo_folder")


def run(*arguments, model=MODEL):
    return main(["explain", *arguments, *COARSE, "--model", model, "--device", "cpu"])


def expected(photo="cat.png"):
    """The classifier and the input that the command should use."""
    classifier = load_classifier(MODEL)
    return classifier.model, classifier.preprocessing(read_photo(Path(photo))[0])


def test_a_picture_and_the_map_of_the_top_class(capsys):
    assert run("cat.png", "--method", "efficient") == 0
    with Image.open("cat.png_evidence.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300
    model, image = expected()
    probabilities = model(image).softmax(1)[0].detach()
    top = int(probabilities.argmax())
    bits = EfficientPDA(model).attribute(image, top, None, WINDOW, WINDOW)[0, 0]
    with np.load("cat.png_evidence.npz") as file:
        np.testing.assert_allclose(file["bits"], bits[None], atol=1e-3 * float(abs(bits).max()))
        np.testing.assert_allclose(file["probabilities"], probabilities, atol=1e-6)
        assert (file["first"].tolist(), file["second"].tolist()) == ([top], [-1])
        settings = json.loads(str(file["settings"]))
    assert settings["answers"] == [LABELS[top]]
    assert (settings["model"], settings["weights"]) == (MODEL, MODEL)
    assert (settings["scales"], settings["stride"], settings["method"]) == ([8], 8, "efficient")
    said = capsys.readouterr()
    assert f"cat.png: {LABELS[top]} {probabilities[top]:.1%}" in said.out
    assert f"\nWhy {LABELS[top]} ({probabilities[top]:.1%})?\n" in said.out
    listed = [line for line in said.out.splitlines() if ") without it: " in line]
    found = [line.partition(":")[0].strip() for line in listed]
    counts = [sum(kind in line for line in found) for kind in ("(for)", "(against)")]
    assert found == [
        f"{number} ({kind}) without it"
        for kind, count in zip(("for", "against"), counts, strict=True)
        for number in range(1, count + 1)
    ]
    # What is said of the strongest region is what the library found there.
    first = float(bits.max() if "(for)" in listed[0] else bits.min())
    assert f" -> {1 / (1 + (1 / float(probabilities[top]) - 1) * 2**first):.1%} (" in listed[0]
    assert "Written: cat.png_evidence.png, cat.png_evidence.npz" in said.out
    assert "Efficient PDA: 16 passes: 100%" in said.err
    assert "16/16" in said.err
    assert not list(Path().glob(".*"))


def test_several_classes_from_one_pass(monkeypatch):
    calls = []
    gather = EfficientPDA.evidence
    monkeypatch.setattr(
        EfficientPDA,
        "evidence",
        lambda self, *given, **named: calls.append(1) or gather(self, *given, **named),
    )
    three = ("--classes", "3", "--contrast", "4", "cat", "--quiet")
    assert run("cat.png", "--method", "efficient", *three) == 0
    assert calls == [1]
    model, image = expected()
    top = model(image)[0].topk(3).indices.tolist()
    contrast = gather(EfficientPDA(model), image, None, WINDOW, WINDOW).contrast(4, 3)
    with np.load("cat.png_evidence.npz") as file:
        assert file["first"].tolist() == [*top, 4]
        assert file["second"].tolist() == [-1, -1, -1, 3]
        np.testing.assert_allclose(
            file["bits"][3], contrast[0, 0], atol=1e-3 * float(contrast.abs().max())
        )


def test_the_picture_of_several_classes_has_their_tests_and_says_what_its_scale_is(monkeypatch):
    figures = []
    monkeypatch.setattr(
        "captum_pda.cli.results.write_figure", lambda _, one, __: figures.append(one)
    )
    assert run("cat.png", "--method", "efficient", "--classes", "2", "--quiet") == 0
    labels = [" ".join(axes.get_xlabel().split()) for axes in figures[0].axes]
    assert sum("with only these" in label for label in labels) == 2
    assert "without each region" in labels[-1]
    figures[0].draw_without_rendering()
    titles = [axes.title.get_window_extent() for axes in figures[0].axes[:3]]
    assert all(one.x1 < other.x0 for one, other in pairwise(titles))


def test_an_expected_class(capsys):
    model, image = expected()
    first, second = model(image)[0].topk(2).indices.tolist()
    options = ("cat.png", "--method", "efficient", "--quiet", "--expected")
    assert run(*options[:3], "--expected", f"index:{second}", "--no-test") == 0
    said = capsys.readouterr().out
    assert "regions (" in said
    assert LABELS[first] in said
    assert f"{LABELS[second]} is first" in said or f"make {LABELS[second]} the answer" in said
    assert run(*options, "wolf", "--overwrite") == 2
    assert "--expected" in capsys.readouterr().err
    assert run("cat.png", "--method", "layer", "--expected", "cat") == 2
    assert "several regions of the photo at once" in capsys.readouterr().err


def test_several_targets_by_number_and_part_of_a_name():
    assert run(*QUICK, "cat.png", "--target", "ANT", "--target", "honey", "--target", "0") == 0
    with np.load("cat.png_evidence.npz") as file:
        assert file["first"].tolist() == [0, 2]


def test_safetensors():
    assert run(*QUICK, "cat.png", "--raw", "safetensors", "--output", "out/mine.png") == 0
    with safe_open("out/mine.safetensors", framework="pt") as file:
        assert file.get_tensor("bits").shape == (1, 32, 32)
        assert json.loads(file.metadata()["settings"])["photo"] == "cat.png"
    assert sorted(path.name for path in Path("out").iterdir()) == ["mine.png", "mine.safetensors"]


def test_a_broken_photo_does_not_stop_the_others(capsys):
    Path("broken.jpg").write_bytes(b"nothing")
    assert run(*QUICK, "broken.jpg", "cat.png") == 1
    assert Path("cat.png_evidence.npz").exists()
    lines = capsys.readouterr().err.splitlines()
    (named,) = (line for line in lines if "broken.jpg" in line)  # once
    assert "broken.jpg is not a photo" in named
    assert "1 of 2 photos could not be explained; the others are written" in lines[-1]


def test_prior_from_a_folder(capsys):
    Path("photos").mkdir()
    for name in ("cat.png", "dog.png"):
        Path(name).rename(Path("photos") / name)
    (Path("photos") / "broken.png").write_bytes(b"nothing")
    fit = ["fit-prior", "photos", "--output", "mine.safetensors", "--patch-size", "6"]
    assert main([*fit, "--model", MODEL]) == 0
    said = capsys.readouterr()
    assert "Fitting: 100%" in said.err
    assert "left out: photos/broken.png" in said.err
    assert "Fitted on 2 photos, 1 could not be read." in said.out
    model, image = expected("photos/cat.png")
    _, other = expected("photos/dog.png")
    prior = GaussianPatchPrior(6).fit(torch.cat([image, other]))
    loaded = GaussianPatchPrior.load("mine.safetensors")
    assert loaded._moments is not None
    assert prior._moments is not None
    for name, tensor in prior._moments.tensors.items():
        torch.testing.assert_close(loaded._moments.tensors[name], tensor)

    arguments = ["explain", "photos/cat.png", "--model", MODEL]
    arguments += ["--window", "4", "--stride", "4", *QUICK, "--target", "1"]
    assert main([*arguments, "--prior", "mine.safetensors", "--quiet"]) == 0
    bits = EfficientPDA(model, prior=prior).attribute(
        image, target=1, sliding_window_shapes=4, strides=4
    )
    with np.load("cat.png_evidence.npz") as file:
        np.testing.assert_allclose(file["bits"][0], bits[0, 0], atol=1e-3 * float(abs(bits).max()))

    assert main([*fit, "--model", MODEL]) == 2
    assert "mine.safetensors exists; choose another --output" in capsys.readouterr().err
    assert main([*fit, "--model", MODEL, "--overwrite", "--quiet", "--limit", "2"]) == 0
    assert "left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["explain"], 2, "the following arguments are required: IMAGE"),
        (["nonsense"], 2, "invalid choice"),
        ([], 2, "COMMAND"),
        (["explain", "cat.png", "--method", "magic"], 2, "invalid choice: 'magic'"),
        (["explain", "cat.png", "--window", "0"], 2, "not a whole number of at least 1"),
        (["explain", "cat.png", "--target", "1", "--classes", "2"], 2, "not allowed with argument"),
        (["explain", "cat.png", "dog.png", "--output", "x.png"], 2, "give a folder"),
        (["explain", "cat.png", "--scales", "8", "8"], 2, "holds a size twice"),
        (["explain", "cat.png", "--weights", "no.pth"], 1, "there are no weights at no.pth"),
        (["explain", "cat.png", "--prior", "no.safetensors"], 1, "there is no prior at"),
        (["explain", "cat.png", "--prior", "labels.txt"], 1, "labels.txt is not a prior"),
        (["explain", "no.png"], 1, "there is no photo at no.png"),
        (["explain", "."], 2, "Add --output and the name of a folder"),
        (["explain", ".", "--output", "../nowhere.png"], 2, "must be a folder"),
        (["explain", ".", "--output", "out", "--raw", "none"], 2, "use npz or safetensors"),
        (["fit-prior", "nowhere"], 1, "there is no folder nowhere"),
        (["fit-prior", ".", "--output", "no/prior.safetensors"], 2, "in a folder that exists"),
        (["demo", "--output", "cat.png/demo.png"], 2, "written (cat.png is not a folder)"),
        (["demo", "--output", "demo"], 2, "must end in .png or .jpg"),
        (["explain", "cat.png", "--model", "nowhere:five"], 2, "No module named 'nowhere'"),
        (["explain", "cat.png", "--model", "tiny:six"], 2, "tiny has no function 'six'"),
        (["explain", "cat.png", "--model", "tiny:LABELS"], 2, "has no function 'LABELS'"),
        (["explain", "cat.png", "--model", "tiny:names"], 2, "returned {'model': 'str'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line_with_the_next_step(arguments, code, message, capsys):
    if arguments[:1] == ["explain"] and "--model" not in arguments and code == 1:
        arguments = [*arguments, "--model", "resnet18" if "--weights" in arguments else MODEL]
    if arguments[:1] == ["demo"]:
        arguments = [*arguments, "--quiet"]
    assert main(arguments) == code
    said = capsys.readouterr()
    last = said.err.splitlines()[-1]
    assert message in last
    assert last.startswith("captum-pda")
    assert "Traceback" not in said.err


def test_labels_must_fit_the_model(capsys):
    Path("labels.txt").write_text("one\ntwo\n")
    assert run("cat.png", "--labels", "labels.txt") == 1
    assert ": 2 labels for a model of 5 classes; write one" in capsys.readouterr().err
    Path("labels.txt").unlink()
    assert run("cat.png", "--labels", "labels.txt") == 1
    assert "cannot be read" in capsys.readouterr().err


def test_library_errors_are_one_line_too(capsys):
    GaussianPatchPrior(3).fit(torch.rand(1, 3, 9, 9)).save("small.safetensors")
    assert run("cat.png", "--prior", "small.safetensors") == 1
    assert "leaves nothing to condition on" in capsys.readouterr().err.splitlines()[-1]
    assert run("cat.png", "--prior", "small.safetensors", "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def own_model(monkeypatch, text):
    """A module ``mine`` in the working folder."""
    Path("mine.py").write_text(text)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def test_unexpected_errors_say_how_to_see_more(monkeypatch, capsys):
    own_model(
        monkeypatch,
        "import torch\n\nclass Broken(torch.nn.Module):\n    def forward(self, photos):\n"
        "        raise KeyError('a\\nb')\n\ndef model():\n    return Broken()\n",
    )
    assert run("cat.png", model="mine:model") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "(KeyError; run again with --debug to see where)" in line
    with pytest.raises(KeyError):
        run("cat.png", "--debug", model="mine:model")


def test_warnings_are_one_line(monkeypatch, capsys):
    own_model(
        monkeypatch,
        "import tiny, warnings\n\ndef model():\n"
        "    warnings.warn('two\\nlines')\n    return tiny.five()\n",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert run("cat.png", *QUICK, "--quiet", model="mine:model") == 0
    assert capsys.readouterr().err == "captum-pda: note: two lines\n"


def test_help_and_version(capsys):
    for arguments in (["--help"], ["explain", "--help"], ["demo", "-h"], ["fit-prior", "-h"]):
        assert main(arguments) == 0
        assert "usage: captum-pda" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("captum-pda 0.")


def test_a_folder_in_the_place_of_a_result_is_refused(photo_folder):
    (photo_folder / "out" / "cat.png_evidence.npz").mkdir(parents=True)
    assert run(*QUICK, "cat.png", "--output", "out") == 2
    assert [path.name for path in (photo_folder / "out").iterdir()] == ["cat.png_evidence.npz"]


def environment():
    here = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_ctrl_c_ends_cleanly(photo_folder):
    # What runs in the background may be told to pass ctrl-C over.
    listen = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('captum_pda', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", listen, "explain", "cat.png", "--model", MODEL]
    command += ["--method", "sampled", "--samples", "5000", "--window", "8", "--stride", "1"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, cwd=photo_folder, env=environment()
    ) as process:
        assert process.stderr is not None
        seen = b""
        deadline = time.monotonic() + 120
        while b"Sampled PDA" not in seen and time.monotonic() < deadline:
            seen += os.read(process.stderr.fileno(), 4096)
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "captum-pda: stopped; of a folder, the same command" in rest.decode()
    assert "Traceback" not in rest.decode()
    assert not list(photo_folder.glob("*evidence*"))


def test_importing_the_library_stays_light():
    """Nothing beyond what Captum itself imports: photos and pictures are loaded when used."""
    script = (
        "import sys, captum.attr; before = set(sys.modules); import captum_pda; "
        "heavy = ('matplotlib', 'PIL', 'torchvision', 'skimage', 'captum_pda.visualization', "
        "'captum_pda.cli'); "
        "print([name for name in set(sys.modules) - before if name.startswith(heavy)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert done.stdout.strip() == "[]"
