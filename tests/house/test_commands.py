"""Every command that a page shows is one that the command line understands."""

import re
import shlex
from pathlib import Path

import pytest

from captum_pda.cli.main import make_parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands():
    """The command lines of all pages, without their comments."""
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                for command in line.partition("#")[0].split(" && "):
                    if "captum-pda " in command and "$" not in command:
                        words = shlex.split(command)
                        yield page.name, words[words.index("captum-pda") + 1 :]


COMMANDS = list(commands())


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=" ".join)
def test_a_command_of_a_page_is_understood(page, words):
    make_parser().parse_args(words)  # ends with its usage where it is wrong


def test_the_readme_shows_commands():
    assert "README.md" in {page for page, _ in COMMANDS}
