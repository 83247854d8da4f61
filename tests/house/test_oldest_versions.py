"""The versions that pyproject.toml promises are those that oldest-versions.txt installs."""

import re
from pathlib import Path

PINS = Path(__file__).parents[1] / "oldest-versions.txt"
PROJECT = PINS.parents[1] / "pyproject.toml"


def test_promised_versions_are_the_tested_ones():
    pinned = re.findall(r"^([\w-]+)==([\d.]+)$", PINS.read_text(), re.MULTILINE)
    _, _, after = PROJECT.read_text().partition("\ndependencies = [")
    dependencies, _, rest = after.partition("]")
    promised = re.findall(r'"([\w-]+)>=([\d.]+)"', dependencies)
    # What the command and the tests need besides.
    promised += re.findall(r'"(pillow|scikit-image|torchvision)>=([\d.]+)"', rest)
    assert len(promised) > 8
    assert {name: version.removesuffix(".0") for name, version in pinned} == {
        name: version.removesuffix(".0") for name, version in promised
    }
