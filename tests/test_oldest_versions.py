"""The versions that pyproject.toml promises are those that oldest-versions.txt installs."""

import re
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

PINS = Path(__file__).with_name("oldest-versions.txt")


def test_promised_versions_are_the_tested_ones():
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)$", PINS.read_text(), re.MULTILINE))
    promised = {}
    for text in requires("captum_pda") or []:
        requirement = Requirement(text)
        if not requirement.marker or requirement.name == "torchvision":
            (specifier,) = requirement.specifier
            assert specifier.operator == ">="
            promised[requirement.name] = specifier.version
    assert set(pinned) == set(promised)
    for name, version in promised.items():
        assert Version(pinned[name]) == Version(version), name
