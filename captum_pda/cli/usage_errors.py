"""Errors that end a command with one line and an exit code."""

from __future__ import annotations

import importlib
import re
from types import ModuleType


class CommandError(Exception):
    """The command failed; the message includes the next step."""

    exit_code = 1


class UsageError(CommandError):
    """The command was asked for something that it does not support."""

    exit_code = 2


def optional_module(name: str, package: str = '"captum_pda[demo]"') -> ModuleType:
    """A module that only some commands need, or an error that names the package to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CommandError(
            f"this command needs {name.partition('.')[0]} ({error}); install it with: "
            f"pip install {package}"
        ) from error


def one_line(message: BaseException | str) -> str:
    """A message of the library in one line, with this command's name of an argument."""
    text = " ".join(str(message).split()) or type(message).__name__
    return re.sub(r"\boutput='(\w+)'", r"--output-kind \1", text)
