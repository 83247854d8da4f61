"""What is installed, what is promised, and what decides: the files that say so agree."""

import re
import sys
from pathlib import Path

import pytest

import captum_pda
from captum_pda import __version__

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()
RUN = (ROOT / ".ci" / "run").read_text()
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text()


@pytest.fixture(scope="module")
def project():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    return tomllib.loads(PROJECT)["project"]


def names(requirements):
    return {re.split(r"[\[<>=~ ]", requirement)[0] for requirement in requirements}


def test_ci_runs_the_readmes_test_command():
    command = 'pip install ".[test]" && pytest'
    assert command in (ROOT / "README.md").read_text()
    assert command in RUN


def test_what_tests_need_holds_no_linter(project):
    extras = project["optional-dependencies"]
    assert not names(extras["test"]) & names(extras["dev"])


@pytest.mark.parametrize("tool", ["ruff", "mypy", "lint-imports", "python -m build", "twine"])
def test_ci_runs_every_tool_of_the_dev_extra(tool):
    assert re.search(rf"^{tool} ?", RUN, re.MULTILINE)


def test_the_workflow_calls_ci_on_three_versions_that_are_promised(project):
    assert "run: .ci/run" in WORKFLOW
    versions = re.findall(r'"(3\.\d+)"', WORKFLOW)
    assert len(versions) == 3
    for version in versions:
        assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert project["requires-python"] == f">={versions[0]}"


def test_the_citation_names_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_this_python_is_promised(project):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_every_room_has_its_place_in_the_order_of_imports():
    """import-linter runs in CI; here only that no room was forgotten, nor a word left behind."""
    layers = PROJECT.partition("layers = [")[2].partition("]")[0]
    named = set(re.findall(r"\w+", layers))
    rooms = {
        path.stem
        for path in (ROOT / "captum_pda").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"__init__", "__main__"} <= named
    assert named - rooms <= {"report"}


def test_dir_shows_the_public_names_only():
    rooms = {"atlas", "report", "visualization"}
    assert set(dir(captum_pda)) == {*captum_pda.__all__, *rooms}
    assert all(getattr(captum_pda, name) is not None for name in dir(captum_pda))


def test_promised_versions_are_the_tested_ones():
    pins = (ROOT / "tests/oldest-versions.txt").read_text()
    dependencies, _, rest = PROJECT.partition("\ndependencies = [")[2].partition("]")
    promised = re.findall(r'"([\w-]+)>=([\d.]+)"', dependencies)
    # What the command and the tests need besides.
    promised += re.findall(r'"(pillow|scikit-image|torchvision)>=([\d.]+)"', rest)
    assert len(promised) > 8
    pinned, promised = (
        {name: version.removesuffix(".0") for name, version in pairs}
        for pairs in (re.findall(r"^([\w-]+)==([\d.]+)$", pins, re.MULTILINE), promised)
    )
    assert pinned == promised
