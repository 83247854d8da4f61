"""Every code block of README and site runs as it stands, and recipes are short."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import torch
from torch import nn

import captum_pda

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (ROOT / "docs/recipes").glob("*.md") if path.stem != "index")
PAGES = [
    ROOT / "README.md",
    *(ROOT / f"docs/{name}.md" for name in ("index", "choose", "look", "priors", "together")),
]
#: What a recipe needs beyond what the quick tests install.
NEEDS = {
    "huggingface": "transformers",
    "similarity": "transformers",
    "medical": "nibabel",
    "monai": "monai",
}
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def program(page: Path) -> str:
    """All blocks of a page, one after the other."""
    return "\n".join(CODE.findall(page.read_text()))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in NEEDS else [])
        for page in RECIPES + PAGES
    ],
)
def test_the_code_of_a_page_runs_as_it_stands(page, tmp_path, monkeypatch):
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    code = program(page)
    assert code, f"{page} has no code"
    monkeypatch.chdir(tmp_path)  # pages may write files
    exec(compile(code, str(page), "exec"), {"__name__": page.stem})


def test_the_code_about_many_images_runs_as_it_stands(tmp_path, monkeypatch):
    """With what the page takes for granted: a model, data, and the variables of torchrun."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    images = list(torch.randn(13, 3, 24, 24))
    names = {
        "model": nn.Sequential(*layers, nn.Linear(4, 3)).eval(),
        "validation_set": [(image, 1) for image in images],
        "train_set": images,
        "scan": torch.randn(1, 3, 24, 24),
    }
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in {**ranks, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs/scale.md"
    try:
        exec(compile(program(page), str(page), "exec"), names)
        assert names["summary"].explained == len(names["memory"].maps) == len(images)
        assert names["attributions"].shape == names["scan"].shape
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_a_recipe_is_short(page):
    assert len([line for line in program(page).splitlines() if line.strip()]) < 60


def test_every_recipe_is_in_the_list():
    index = (ROOT / "docs/recipes/index.md").read_text()
    assert all(f"({page.name})" in index for page in RECIPES)


def test_the_reference_holds_every_public_name():
    pages = "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    named = set(re.findall(r"^::: captum_pda\.(\w+)", pages, re.MULTILINE))
    assert set(captum_pda.__all__) - {"__version__"} <= named


@pytest.mark.parametrize("name", sorted(set(captum_pda.__all__) - {"__version__"}))
def test_every_public_name_is_explained_with_an_example(name):
    value = getattr(captum_pda, name)
    text = value.__doc__ or ""
    assert text.strip()
    explains_itself = isinstance(value, type) and issubclass(value, Exception)
    if not explains_itself and not isinstance(value, type(captum_pda)):
        assert "Example::" in text or ">>>" in text
