"""Every code block and every command of README and site runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import captum_pda
from captum_pda.cli.main import make_parser

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


def commands_of_pages():
    """The command lines of all pages, without their comments."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                for command in line.partition("#")[0].split(" && "):
                    if "captum-pda " in command and "$" not in command:
                        words = shlex.split(command)
                        yield words[words.index("captum-pda") + 1 :]


def test_the_commands_of_pages_are_understood():
    commands = list(commands_of_pages())
    assert len(commands) > 10
    for words in commands:
        make_parser().parse_args(words)  # ends with its usage where it is wrong


BENCHMARKS = sorted(
    path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()
)
#: Each command line once, without its comment.
BENCHMARK_COMMANDS = sorted(
    {
        command.strip()
        for page in (
            *BENCHMARKS,
            *(ROOT / "benchmarks").glob("*.md"),
            *(ROOT / "docs").glob("*.md"),
            ROOT / "README.md",
            ROOT / "CONTRIBUTING.md",
        )
        for command in re.findall(r"python (benchmarks/\w+\.py[^\n`#|]*)", page.read_text())
    }
)


def test_every_benchmark_prints_how_to_run_it():
    named = {command.split()[0] for command in BENCHMARK_COMMANDS}
    assert named == {f"benchmarks/{path.name}" for path in BENCHMARKS}


@pytest.mark.slow
@pytest.mark.parametrize(
    # tests/benchmarks makes a whole tiny league table.
    "command",
    [command for command in BENCHMARK_COMMANDS if "faithfulness.py" not in command],
)
def test_a_benchmark_command_runs(command):
    done = subprocess.run(
        [sys.executable, *command.split(), "--tiny"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
