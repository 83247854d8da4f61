"""The size of the package, and how many files one call crosses: printed with ``pytest -s``."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import make_convolutional, make_images

import captum_pda
from captum_pda import PDA, EfficientPDA

PACKAGE = Path(captum_pda.__file__).parent
#: What a newcomer can read in an afternoon. The goal for the lines is 17,000: lower the limit
#: whenever something goes.
MOST_FILES, MOST_LINES = 110, 20_967
#: The most files of the package that one call may cross.
CALLS = {
    "EfficientPDA.attribute, dense": (
        lambda model, image: EfficientPDA(model, engine="dense").attribute(image, target=1),
        25,
    ),
    "PDA.evidence, dense": (lambda model, image: PDA(model, engine="dense").evidence(image), 30),
    "EfficientPDA.attribute, incremental": (
        lambda model, image: EfficientPDA(model, engine="incremental").attribute(image, target=1),
        45,
    ),
}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_the_package_has_few_files_and_lines():
    texts = [path.read_text() for path in sources()]
    lines = sum(len(text.splitlines()) for text in texts)
    classes = sum(
        isinstance(node, ast.ClassDef) for text in texts for node in ast.walk(ast.parse(text))
    )
    print(f"\n{len(texts)} files, {lines:,} lines, {classes} classes")
    assert len(texts) <= MOST_FILES
    assert lines <= MOST_LINES


def crossed(call: Callable[[], object]) -> tuple[set[str], set[tuple[str, str, int]]]:
    """The files of the package whose functions are called, and these functions."""
    functions = set()

    def watch(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_name != "<module>":
            functions.add((code.co_filename, code.co_name, code.co_firstlineno))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(before)
    own = {function for function in functions if function[0].startswith(f"{PACKAGE}/")}
    return {name for name, _, _ in own}, own


@pytest.mark.parametrize("name", CALLS)
def test_one_call_crosses_few_files(name):
    call, most = CALLS[name]
    torch.manual_seed(0)
    model, image = make_convolutional(), make_images(1, 3, 24, 24).float()
    files, functions = crossed(lambda: call(model, image))
    print(f"\n{name}: {len(files)} files, {len(functions)} functions")
    for path in sorted(files):
        print("   ", Path(path).relative_to(PACKAGE))
    assert len(files) <= most
