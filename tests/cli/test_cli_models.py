"""Models by name, and weights from files without running code in them."""

from __future__ import annotations

import os
import urllib.request
from urllib.error import URLError

import pytest
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file

from captum_pda.cli.classifier import find_class
from captum_pda.cli.models import choose_model, load_classifier, read_checkpoint
from captum_pda.cli.usage_errors import CommandError, UsageError, optional_module


def untrained(name, n_classes=1000, **settings):
    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None, num_classes=n_classes, **settings)


@pytest.mark.parametrize("n_classes", [1000, 7])
@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small"])
def test_a_checkpoint_gives_its_model_back(tmp_path, name, n_classes):
    model = untrained(name, n_classes).eval()
    torch.save(model.state_dict(), tmp_path / "model.pth")
    classifier = load_classifier(name, tmp_path / "model.pth")
    image = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(classifier.model(image), model(image))
    assert not classifier.model.training
    assert len(classifier.labels) == n_classes
    assert classifier.labels[0] == ("tench" if n_classes == 1000 else "class 0")


@pytest.mark.parametrize("heads", [True, False])
def test_googlenet_with_and_without_its_training_heads(tmp_path, heads):
    model = untrained("googlenet", 7, aux_logits=heads, init_weights=False).eval()
    torch.save(model.state_dict(), tmp_path / "model.pth")
    classifier = load_classifier("googlenet", tmp_path / "model.pth")
    assert classifier.model(torch.randn(1, 3, 64, 64)).shape == (1, 7)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": {f"module.{name}": value for name, value in state.items()}},
        lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
    ],
    ids=["in a checkpoint", "of a parallel model", "of a compiled model"],
)
def test_wrapped_checkpoints(tmp_path, wrap):
    state = untrained("mobilenet_v3_small", 5).state_dict()
    torch.save(wrap(state), tmp_path / "model.pth")
    read = read_checkpoint(tmp_path / "model.pth")
    assert list(read) == list(state)


def test_safetensors_in_any_order(tmp_path):
    model = untrained("mobilenet_v3_small", 5).eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    classifier = load_classifier("mobilenet_v3_small", tmp_path / "model.safetensors")
    image = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(classifier.model(image), model(image))


def test_weights_of_another_model(tmp_path):
    torch.save(untrained("mobilenet_v3_small", 5).state_dict(), tmp_path / "model.pth")
    with pytest.raises(CommandError, match=r"does not fit squeezenet1_1: .*Missing key"):
        load_classifier("squeezenet1_1", tmp_path / "model.pth")


class Trap:
    """Pickled, it ends the program when loaded."""

    def __reduce__(self):
        return (os._exit, (13,))


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("content", [Trap(), {"weight": Trap()}, torch.nn.Linear(2, 2), [], {}])
def test_files_that_are_no_weights_are_refused_and_no_code_in_them_is_run(
    tmp_path, content, ending
):
    torch.save(content, tmp_path / f"weights.{ending}")
    with pytest.raises(CommandError, match="does not hold plain weights") as caught:
        read_checkpoint(tmp_path / f"weights.{ending}")
    assert "\n" not in str(caught.value)


def test_offline_says_what_to_fetch(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise URLError("no route to host")

    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    monkeypatch.setattr(torch.hub, "urlopen", offline)
    with pytest.raises(CommandError, match=r"cannot be loaded .*--weights resnet18-\w+\.pth"):
        load_classifier("resnet18")


@pytest.mark.parametrize("name", ["resnet51", "efficientnet-lite0", "fcn_resnet50", "", "ResNet"])
def test_unknown_models(name):
    with pytest.raises(UsageError, match=r"is not known; use \w+"):
        load_classifier(name)


def test_own_transforms():
    white = Image.new("RGB", (500, 400), "white")
    weights = torchvision.models.ResNet50_Weights.DEFAULT
    preprocessing = choose_model("resnet50").preprocessing
    torch.testing.assert_close(preprocessing(white)[0], weights.transforms()(white))
    shown = preprocessing(white) * torch.tensor(preprocessing.std)[:, None, None]
    shown = shown + torch.tensor(preprocessing.mean)[:, None, None]
    torch.testing.assert_close(shown, torch.ones_like(shown))
    assert choose_model("inception_v3").preprocessing(white).shape == (1, 3, 299, 299)


def test_the_default_model_knows_its_classes():
    classifier = load_classifier()
    assert len(classifier.labels) == 1000
    assert find_class("espresso", classifier.labels) == 967
    assert find_class("crane", classifier.labels) == 517
    with pytest.raises(UsageError, match=r"may mean .*282 \(tiger cat\).* give one of these"):
        find_class("cat", classifier.labels)


def test_missing_packages_say_how_to_get_them():
    with pytest.raises(CommandError, match=r'needs nowhere.*pip install "captum_pda\[demo\]"'):
        optional_module("nowhere.to_be_found")
