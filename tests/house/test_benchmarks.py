"""Every benchmark command that a page or a script prints runs, at a size where it takes seconds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()
)
PAGES = [
    *SCRIPTS,
    *sorted((ROOT / "benchmarks").glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]


def commands():
    """Each command line once, without its comment."""
    found = {
        command.strip()
        for page in PAGES
        for command in re.findall(r"python (benchmarks/\w+\.py[^\n`#|]*)", page.read_text())
    }
    return sorted(found)


def test_every_benchmark_prints_how_to_run_it():
    assert {command.split()[0] for command in commands()} == {
        f"benchmarks/{path.name}" for path in SCRIPTS
    }


def runnable():
    """The commands to run here; tests/benchmarks makes a whole tiny league table."""
    return [command for command in commands() if "faithfulness.py" not in command]


@pytest.mark.slow
@pytest.mark.parametrize("command", runnable())
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
