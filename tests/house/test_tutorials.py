"""Every tutorial runs from a clean kernel, and is committed with what its full settings gave.

A tutorial's first code cell holds the line ``FULL_SETTINGS = True``, on which every size depends;
here it is run with False.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

TUTORIALS = Path(__file__).parents[2] / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
SWITCH = re.compile(r"^FULL_SETTINGS = True\b", re.MULTILINE)
SECONDS_PER_CELL = 300
MOST_BYTES = 1_500_000

each_tutorial = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def pictures_of(notebook: Any) -> list[str]:
    """The encoded pictures among the outputs."""
    return [
        picture
        for output in outputs_of(notebook)
        for kind, picture in output.get("data", {}).items()
        if kind in ("image/png", "image/jpeg")
    ]


def run_reduced(path: Path) -> Any:
    """Run a tutorial with reduced settings in a kernel of its own; the executed notebook."""
    from nbclient import NotebookClient  # of the extra dev, which slow tests need

    notebook = read(path)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    first = code_cells(notebook)[0]
    first.source, changed = SWITCH.subn("FULL_SETTINGS = False", first.source)
    assert changed == 1, f"{path.name}: the first code cell needs the line FULL_SETTINGS = True"
    # Says at the end that no later cell went back to the full settings.
    notebook.cells.append(nbformat.v4.new_code_cell("print(FULL_SETTINGS)"))
    client = NotebookClient(
        notebook,
        timeout=SECONDS_PER_CELL,
        kernel_name="python3",
        resources={"metadata": {"path": str(TUTORIALS)}},
    )
    client.execute()
    assert notebook.cells.pop().outputs[0].text.strip() == "False"
    return notebook


def check_clean(notebook: Any) -> None:
    """No errors, and nothing that warned."""
    for output in outputs_of(notebook):
        assert output.output_type != "error", output.get("evalue")
        if output.output_type == "stream" and output.name == "stderr":
            # PyTorch 2.4 says so of how the network's own package loads its weights.
            warned = "Warning" in output.text and "weights_only=False" not in output.text
            assert not warned, output.text


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_tutorials_are_numbered_from_one() -> None:
    assert [int(path.name.split("_")[0]) for path in NOTEBOOKS] == list(
        range(1, len(NOTEBOOKS) + 1)
    )


def test_readmes_link_every_tutorial() -> None:
    beside = (TUTORIALS / "README.md").read_text()
    site = (TUTORIALS.parent / "mkdocs.yml").read_text()
    assert "](tutorials/README.md)" in (TUTORIALS.parent / "README.md").read_text()
    for path in NOTEBOOKS:
        assert f"]({path.name})" in beside
        assert f"tutorials/{path.name}\n" in site


@each_tutorial
def test_links_lead_to_files(path: Path) -> None:
    words = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    for link in re.findall(r"\]\(([^)#\s]+)", words):
        assert link.startswith("https://") or (TUTORIALS / link).exists(), link


@pytest.mark.slow
@each_tutorial
def test_runs_reduced_from_a_clean_kernel(path: Path) -> None:
    executed = run_reduced(path)
    check_clean(executed)
    pictures = pictures_of(executed)
    assert len(pictures) == len(pictures_of(read(path)))
    # What is committed came from other settings than these.
    assert not set(pictures) & set(pictures_of(read(path)))


@each_tutorial
def test_is_committed_with_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), "run all cells in order in a new kernel"
    check_clean(notebook)
    assert pictures_of(notebook)
    assert path.stat().st_size < MOST_BYTES


@each_tutorial
def test_sizes_depend_on_the_switch(path: Path) -> None:
    cells = code_cells(read(path))
    assert SWITCH.search(cells[0].source)
    names = [
        node
        for cell in cells
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Name) and node.id == "FULL_SETTINGS"
    ]
    assert sum(isinstance(name.ctx, ast.Store) for name in names) == 1
    assert any(isinstance(name.ctx, ast.Load) for name in names)


@pytest.mark.slow
def test_mnist_tutorial_without_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPTUM_PDA_MNIST", raising=False)
    executed = run_reduced(TUTORIALS / "2_mnist_as_in_the_paper.ipynb")
    check_clean(executed)
    assert any("scikit-learn's digits" in output.get("text", "") for output in outputs_of(executed))
