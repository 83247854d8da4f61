"""Models of timm, of transformers and of one's own, with their transforms and labels."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captum_pda.cli.main import main
from captum_pda.cli.models import choose_model, load_classifier
from captum_pda.cli.usage_errors import CommandError, UsageError

pytestmark = pytest.mark.usefixtures("photo_folder")


@pytest.mark.parametrize(("name", "package"), [("timm/resnet18", "timm"), ("hf/x", "transformers")])
def test_a_missing_package_is_named(name, package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["explain", "cat.png", "--model", name]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"this command needs {package}" in line
    assert line.endswith(f"install it with: pip install {package}")


# timm

SMALL = "test_efficientnet.r160_in1k"


@pytest.fixture
def untrained(monkeypatch):
    """timm without downloads: random weights, always the same."""
    timm = pytest.importorskip("timm")
    create = timm.create_model

    def create_untrained(name, pretrained=False, **rest):
        torch.manual_seed(0)
        return create(name, pretrained=False, **rest)

    monkeypatch.setattr(timm, "create_model", create_untrained)


@pytest.mark.slow
@pytest.mark.usefixtures("untrained")
def test_a_model_of_timm_brings_its_transforms_and_labels():
    classifier = load_classifier(f"timm/{SMALL}")
    image = classifier.preprocessing(Image.open("cat.png").convert("RGB"))
    assert image.shape == (1, 3, 160, 160)
    assert classifier.labels[281] == "tabby"
    assert not classifier.model.training
    white = classifier.preprocessing(Image.new("RGB", (200, 200), "white"))
    mean, std = (
        torch.tensor(one) for one in (classifier.preprocessing.mean, classifier.preprocessing.std)
    )
    shown = white[0] * std[:, None, None] + mean[:, None, None]
    torch.testing.assert_close(shown, torch.ones_like(shown), rtol=0, atol=1e-4)
    command = ["explain", "cat.png", "--model", f"timm/{SMALL}", "--target", "tabby", "--quiet"]
    assert main([*command, "--method", "efficient", "--no-test", "--window", "40"]) == 0
    with np.load("cat.png_evidence.npz") as file:
        assert file["first"].tolist() == [281]
        assert file["bits"].shape == (1, 160, 160)


@pytest.mark.slow
@pytest.mark.usefixtures("untrained")
def test_own_weights_for_a_model_of_timm(tmp_path):
    import timm

    model = timm.create_model(SMALL, num_classes=7).eval()
    torch.save(model.state_dict(), tmp_path / "seven.pth")
    classifier = load_classifier(f"timm/{SMALL}", tmp_path / "seven.pth")
    assert len(classifier.labels) == 7
    image = torch.randn(1, 3, 160, 160)
    torch.testing.assert_close(classifier.model(image), model(image))


@pytest.mark.slow
def test_unknown_models_of_timm():
    pytest.importorskip("timm")
    with pytest.raises(UsageError, match=r"use timm/resnet\w+ or"):
        choose_model("timm/resnet5")
    with pytest.raises(UsageError, match="leave out what follows the dot"):
        choose_model("timm/resnet18.nonsense")


@pytest.mark.slow
def test_weights_of_timm_that_cannot_be_fetched(monkeypatch):
    timm = pytest.importorskip("timm")

    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(CommandError, match=r"no route to host.*add --weights FILE"):
        load_classifier(f"timm/{SMALL}")


# transformers


@pytest.fixture
def saved(tmp_path):
    """A tiny vision transformer as ``save_pretrained`` writes it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=8,
        id2label={0: "ant", 1: "bee", 2: "cat"},
        label2id={"ant": 0, "bee": 1, "cat": 2},
    )
    folder = tmp_path / "vit"
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    processor = transformers.ViTImageProcessor(
        size={"height": 32, "width": 32}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4]
    )
    processor.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_of_transformers_brings_its_transforms_and_labels(saved):
    import transformers

    classifier = load_classifier(f"hf/{saved}")
    assert classifier.labels == ("ant", "bee", "cat")
    assert classifier.preprocessing.mean == (0.4, 0.5, 0.6)
    image = classifier.preprocessing(Image.open("cat.png").convert("RGB"))
    assert image.shape == (1, 3, 32, 32)
    model = transformers.AutoModelForImageClassification.from_pretrained(saved).eval()
    torch.testing.assert_close(classifier.model(image).logits, model(image).logits)
    command = ["explain", "cat.png", "--model", f"hf/{saved}", "--target", "bee", "--quiet"]
    assert main([*command, "--method", "efficient", "--no-test", "--window", "8"]) == 0
    with np.load("cat.png_evidence.npz") as file:
        assert file["first"].tolist() == [1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_folders_that_hold_no_model(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(CommandError, match=r"cannot be loaded .*save_pretrained"):
        choose_model(f"hf/{tmp_path}")


# One's own


def test_a_model_alone_is_prepared_as_for_imagenet():
    Path("own_alone.py").write_text(
        "import tiny\n\ndef alone():\n    return tiny.network(classes=3)\n"
    )
    classifier = load_classifier("own_alone:alone")
    assert classifier.labels == ("class 0", "class 1", "class 2")
    photo = Image.open("cat.png").convert("RGB")
    torch.testing.assert_close(
        classifier.preprocessing(photo), choose_model("resnet18").preprocessing(photo)
    )
    sys.modules.pop("own_alone")


def test_labels_may_be_a_table_of_numbers():
    Path("own_labels.py").write_text(
        "import tiny\n\ndef own():\n    names = {2: 'c', 0: 'a', 1: 'b'}\n"
        "    return {'model': tiny.network(classes=3), 'labels': names}\n"
    )
    assert load_classifier("own_labels:own").labels == ("a", "b", "c")
    sys.modules.pop("own_labels")


def test_a_model_of_one_channel_alone_gets_grey_photos():
    Path("own_grey.py").write_text(
        "from torch import nn\n\ndef grey():\n    return nn.Sequential(nn.Conv2d(1, 3, 9), "
        "nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    preprocessing = load_classifier("own_grey:grey").preprocessing
    white = preprocessing(Image.new("RGB", (300, 260), "white"))
    assert white.shape == (1, 1, 224, 224)
    torch.testing.assert_close(white, torch.full_like(white, (1 - 0.449) / 0.226))
    assert preprocessing.colours(white) == ((0.449,), (0.226,))
    command = ["explain", "cat.png", "--model", "own_grey:grey", "--quiet", "--no-test"]
    assert main([*command, "--method", "efficient", "--no-test", "--window", "56"]) == 0
    sys.modules.pop("own_grey")


def test_what_is_wrong_with_a_model_of_one_s_own_is_told(capsys):
    Path("wrong.py").write_text(
        "import torch\n\ndef fails():\n    raise KeyError('weights')\n\n"
        "def flat():\n    return torch.nn.Flatten(0)\n\n"
        "def lost(photo):\n    raise KeyError('size')\n\n"
        "def broken():\n    return torch.nn.Flatten(), lost\n\n"
        "def batched():\n    return torch.nn.Flatten(), lambda photo: torch.zeros(1, 3, 8, 8)\n"
    )
    path = list(sys.path)
    for name, message in [
        ("wrong:fails", "failed (KeyError: 'weights'); it is called without arguments"),
        ("wrong:flat", "must return a tensor (N, classes)"),
        ("wrong:broken", "the model's transform failed (KeyError: 'size')"),
        (
            "wrong:batched",
            "transform returned shape (1, 3, 8, 8); it must return a tensor (channels",
        ),
    ]:
        assert main(["explain", "cat.png", "--model", name]) == 1
        assert message in capsys.readouterr().err
    assert main(["explain", "cat.png", "--model", "tiny:five", "--weights", "tiny.py"]) == 2
    assert "--weights does not go with --model tiny:five" in capsys.readouterr().err
    assert sys.path == path
    sys.modules.pop("wrong")
