"""A tiny model of one's own, so that the command is quick to test."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

TINY = """
import os
import torch
from torch import nn
from torchvision.transforms import v2

LABELS = ("ant", "bee", "honey bee", "cat", "dog")


def network(seed=0, classes=5):
    assert "NO_MODEL" not in os.environ, "a model was made"
    torch.manual_seed(seed)
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 8, 3, stride=2), nn.Tanh()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes))


def transform():
    steps = [v2.Resize(32), v2.CenterCrop(32), v2.PILToTensor()]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,) * 3, (0.25,) * 3)]
    return v2.Compose(steps)


def names():
    return LABELS


def five():
    return network(), transform(), LABELS


def certain():
    # Large logits, which single places of the feature map can change.
    model = network()
    with torch.no_grad():
        model[-1].weight *= 100
    return model, transform(), LABELS


def other():
    return network(seed=1), transform(), LABELS
"""


@pytest.fixture
def photo_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two photos, the module ``tiny`` and the names of its classes."""
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).integers(0, 255, (12, 15, 3), dtype=np.uint8)
    for name in ("cat.png", "dog.png"):
        Image.fromarray(values).resize((60, 48)).save(tmp_path / name)
        values = values[::-1]
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "labels.txt").write_text("ant\nbee\nhoney bee\ncat\ndog\n")
    monkeypatch.delitem(sys.modules, "tiny", raising=False)
    return tmp_path
