"""The names of a model's classes, and finding a class by number or name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from captum_pda.cli.usage_errors import CommandError, UsageError, optional_module

IMAGENET_CLASSES = 1000
#: How many classes of a similar name are listed.
LISTED = 5
#: What comes before a number that is not to be taken for a name.
INDEX = "index:"


def default_labels(n_classes: int) -> tuple[str, ...]:
    """ImageNet's names for a thousand classes, and plain numbers for others."""
    if n_classes == IMAGENET_CLASSES:
        models = optional_module("torchvision.models")
        return tuple(models.ResNet18_Weights.IMAGENET1K_V1.meta["categories"])
    return tuple(f"class {number}" for number in range(n_classes))


def read_labels(file: Path) -> tuple[str, ...]:
    """The names in a file with one per line."""
    try:
        names = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"the labels in {file} cannot be read ({error}); write one name a line, in UTF-8"
        ) from error
    return tuple(name.strip() for name in names if name.strip())


def find_class(given: str, labels: Sequence[str], option: str = "--target") -> int:
    """The class that a name, a number, or part of one name means.

    Where a number is also the name of another class it could mean either, and is refused;
    "index:3" is class number 3 whatever the names.
    """
    wanted = given.strip().casefold()
    names = [label.strip().casefold() for label in labels]
    found = [number for number, name in enumerate(names) if name == wanted]
    digits = wanted.removeprefix(INDEX)
    if not (found and digits != wanted) and digits.removeprefix("-").isdecimal():
        index = int(digits)
        is_class = 0 <= index < len(labels)
        if found and index not in found and is_class:
            choices = [f"{INDEX}{number} (named {labels[number]!r})" for number in (*found, index)]
            raise UsageError(
                f"{option} {given} may mean a class's name or its number; give "
                f"{' or '.join(choices)}"
            )
        if not found and not is_class:
            raise UsageError(
                f"{option} {given} is out of range; the model has classes 0 to {len(labels) - 1}"
            )
        found = found or [index]
    if not found and wanted:
        found = [number for number, name in enumerate(names) if wanted in name]
    if len(found) == 1:
        return found[0]
    if found:
        found.sort(key=lambda number: _distance(wanted, names[number]))
        more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
        advice = f"{INDEX}{found[0]}" if wanted.isdecimal() else "the number"
        raise UsageError(
            f"{option} {given!r} may mean {_listed(found, labels)}{more}; give {advice}"
        )
    close = [names.index(name) for name in difflib.get_close_matches(wanted, names, n=3)]
    advice = (
        f"did you mean {_listed(close, labels)}?"
        if close
        else f"give a number from 0 to {len(labels) - 1}, or part of a class's name"
    )
    raise UsageError(f"{option} {given!r} is no class of this model; {advice}")


def _distance(wanted: str, name: str) -> tuple[int, int, str]:
    """What fits best first: the whole word, then the start of one, then the shorter name."""
    if re.search(rf"\b{re.escape(wanted)}\b", name):
        fit = 0
    else:
        fit = 1 if re.search(rf"\b{re.escape(wanted)}", name) else 2
    return fit, len(name), name


def _listed(numbers: Sequence[int], labels: Sequence[str]) -> str:
    return ", ".join(f"{number} ({labels[number]})" for number in numbers[:LISTED])
