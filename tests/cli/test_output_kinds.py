"""``--output-kind``: models that return something else than logits of classes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from captum_pda import EfficientPDA
from captum_pda.cli.main import main
from captum_pda.cli.models import choose_model, load_classifier
from captum_pda.cli.photos import read_photo

#: The tiny network with several endings.
ENDINGS = """
import torch
from torch import nn
import tiny

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.gate = tiny.network(), nn.Sigmoid()

    def forward(self, x):
        logits = self.inner(x)
        return logits * self.gate(logits)

class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = tiny.network(classes=9)

    def forward(self, x):
        return torch.sigmoid(self.inner(x))

def given(*layers):
    return nn.Sequential(tiny.network(), *layers), tiny.transform(), tiny.LABELS

def logits(): return given()
def sigmoid(): return given(nn.Sigmoid())
def softmax(): return given(nn.Softmax(dim=1), nn.Flatten(), nn.Identity())
def gated(): return Gated(), tiny.transform(), tiny.LABELS
def functional(): return Functional(), tiny.transform()
def one(): return nn.Sequential(tiny.network(classes=1)), tiny.transform(), ("ill",)

def stated(kind, model):
    made = dict(zip(("model", "transform", "labels"), model()))
    return {**made, "output_kind": kind}

class Unlike(nn.Module):  # says no, unless the upper half of a photo is hidden
    def forward(self, x):
        upper, lower = (half.std(dim=(1, 2, 3)) for half in x.chunk(2, dim=2))
        return 2 * (upper < 0.5 * lower).float()[:, None] - 1

def unlike(): return Unlike(), tiny.transform(), ("ill",)
def says_multilabel(): return stated("multilabel", logits)
def says_raw(): return stated("raw", logits)
def says_probabilities(): return stated("probabilities", sigmoid)
def says_nonsense(): return stated("odds", logits)
def says_too_much(): return {**stated("raw", logits), "colour": 1}
"""


@pytest.fixture(autouse=True)
def folder(photo_folder, monkeypatch):
    Path("endings.py").write_text(ENDINGS)
    monkeypatch.delitem(sys.modules, "endings", raising=False)
    return photo_folder


def explain(model, *options):
    quick = ("--window", "8", "--stride", "8", "--target", "0", "--device", "cpu", "--overwrite")
    return main(["explain", "cat.png", "--model", f"endings:{model}", *quick, *options])


def found():
    with np.load("cat.png_evidence.npz") as file:
        arrays = {name: file[name] for name in file.files}
    return arrays["bits"][0], json.loads(str(arrays["settings"])), arrays


@pytest.mark.parametrize(
    ("model", "kind", "options"),
    [
        ("logits", "logits", []),
        ("logits", "raw", ["--output-kind", "raw"]),
        ("softmax", "probabilities", ["--output-kind", "probabilities"]),
        ("says_multilabel", "multilabel", []),
        ("says_raw", "raw", []),
        ("says_probabilities", "probabilities", []),
        ("says_raw", "logits", ["--output-kind", "logits"]),
        ("gated", "logits", []),
        ("one", "logits", []),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_outputs_are_read_as_what_they_are(model, kind, options, capsys):
    assert explain(model, "--method", "efficient", *options) == 0
    said = capsys.readouterr().out
    bits, settings, arrays = found()
    assert settings["output"] == kind
    network = load_classifier(f"endings:{model}", output=kind)
    image = network.preprocessing(read_photo(Path("cat.png"))[0])
    expected = EfficientPDA(network.model, output=kind).attribute(
        image, target=0, sliding_window_shapes=8, strides=8
    )[0, 0]
    np.testing.assert_allclose(bits, expected, atol=1e-3 * float(expected.abs().max()))
    outputs = network.model(image)[0].detach()
    if kind == "raw":
        assert "probabilities" not in arrays
        assert f"{float(outputs.max()):.4g}" in said
        assert "of the output" in said
        assert "odds" not in said
        # Shares of pixels have a percent sign, and predictions have none.
        assert "%" not in re.sub(r"the strongest \d+%", "", said)
        return
    several = kind == "logits" and len(outputs) > 1
    expected = outputs if kind == "probabilities" else outputs.sigmoid()
    expected = outputs.softmax(0) if several else expected
    np.testing.assert_allclose(arrays["probabilities"], expected, atol=1e-6)
    assert f"{float(expected.max()):.1%}" in said


def test_an_expected_answer_needs_classes_and_may_be_the_only_one(capsys):
    assert explain("says_raw", "--method", "efficient", "--expected", "cat", "--quiet") == 1
    assert "of raw outputs none is" in capsys.readouterr().err
    assert not list(Path().glob("*evidence*"))
    # A single logit under 0 says no, and yes is expected.
    assert explain("unlike", "--method", "efficient", "--expected", "ill", "--no-test") == 0
    said = capsys.readouterr().out
    assert "the answer already" not in said
    assert "ill 26.9% -> 73.1%" in said


@pytest.mark.parametrize("model", ["sigmoid", "softmax", "functional"])
def test_outputs_that_look_like_probabilities_are_asked_about(model, capsys):
    assert explain(model, "--quiet") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "all outputs of the model lie between 0 and 1" in line
    assert "add --output-kind probabilities" in line
    assert not list(Path().glob("*evidence*"))
    with pytest.warns(UserWarning, match="read as multilabel; use --output-kind probabilities"):
        load_classifier(f"endings:{model}", output="multilabel")
    assert explain(model, "--quiet", "--output-kind", "probabilities") == 0


def test_outputs_that_are_no_probabilities_are_refused_with_the_option(capsys):
    assert explain("logits", "--output-kind", "probabilities", "--quiet") == 1
    said = capsys.readouterr().err
    assert "--output-kind probabilities but the model returned values outside [0, 1]" in said


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("says_nonsense", "the model's output_kind is 'odds'; it must be one of logits, "),
        ("says_too_much", "a dict with 'model' and any of 'transform', 'labels' and 'output_kind'"),
    ],
)
def test_what_a_model_cannot_say_of_itself(model, message, capsys):
    assert explain(model, "--quiet") == 2
    assert message in capsys.readouterr().err


def test_raw_outputs_have_a_picture_a_page_and_a_contrast():
    options = ["--output-kind", "raw", "--method", "efficient", "--contrast", "cat", "dog"]
    assert explain("logits", *options, "--html") == 0
    network = load_classifier("endings:logits", output="raw")
    image = network.preprocessing(read_photo(Path("cat.png"))[0])

    def difference(x):
        outputs = network.model(x)
        return outputs[:, 3:4] - outputs[:, 4:5]

    expected = EfficientPDA(difference, output="raw").attribute(
        image, target=0, sliding_window_shapes=8, strides=8
    )[0, 0]
    bits = found()[2]["bits"][1]
    np.testing.assert_allclose(bits, expected, atol=1e-3 * float(expected.abs().max()))
    assert Path("cat.png_evidence.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "kind"),
    [("multi_label_classification", "multilabel"), ("regression", "raw"), (None, "logits")],
)
def test_a_model_of_transformers_says_what_its_outputs_are(problem, kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], num_labels=3, problem_type=problem
    )
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "model")
    processor = transformers.ConvNextImageProcessor(size={"shortest_edge": 32})
    processor.save_pretrained(tmp_path / "model")
    assert choose_model(f"hf/{tmp_path / 'model'}").output == kind
