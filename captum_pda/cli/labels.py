"""The names of a model's classes, and finding a class by number or name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from captum_pda.cli.usage_errors import CommandError, UsageError, optional_module

IMAGENET_CLASSES = 1000


def class_names(file: Path | None, n_classes: int) -> tuple[str, ...]:
    """The names in a file with one a line; without a file, ImageNet's, or else plain numbers."""
    if file is None:
        if n_classes == IMAGENET_CLASSES:
            models = optional_module("torchvision.models")
            return tuple(models.ResNet18_Weights.IMAGENET1K_V1.meta["categories"])
        return tuple(f"class {number}" for number in range(n_classes))
    try:
        names = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"the labels in {file} cannot be read ({error}); write one name a line, in UTF-8"
        ) from error
    names = [name.strip() for name in names if name.strip()]
    if len(names) != n_classes:
        raise CommandError(
            f"{file} has {len(names)} labels for a model of {n_classes} classes; write one a line"
        )
    return tuple(names)


def find_class(given: str, labels: Sequence[str], option: str = "--target") -> int:
    """The class that a number, a name, or part of one name means."""
    if given.strip().lstrip("-").isdecimal():
        number = int(given)
        if not 0 <= number < len(labels):
            raise UsageError(
                f"{option} {given} is out of range; the model has classes 0 to {len(labels) - 1}"
            )
        return number
    wanted = given.strip().lower()
    names = [label.lower() for label in labels]
    found = [number for number, name in enumerate(names) if name == wanted]
    if not found:
        found = [number for number, name in enumerate(names) if wanted and wanted in name]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(f"{number} ({labels[number]})" for number in found[:5])
        more = " ..." if len(found) > 5 else ""
        raise UsageError(f"{option} {given!r} may mean {listed}{more}; give the number")
    close = difflib.get_close_matches(wanted, names, n=3)
    advice = (
        "did you mean " + " or ".join(labels[names.index(name)] for name in close) + "?"
        if close
        else f"give a number from 0 to {len(labels) - 1}, or part of a class's name"
    )
    raise UsageError(f"{option} {given!r} is no class of this model; {advice}")
