"""No function takes more arguments than a reader can hold in mind."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from captum.attr import FeatureAblation, LayerFeatureAblation, Occlusion, ShapleyValueSampling
from captum.attr import visualization as pictures

ROOT = Path(__file__).parents[2] / "captum_pda"
#: Beside those that every user of Captum knows.
MOST_OF_OUR_OWN = 7
#: With those; all but the first few by name.
MOST_IN_ALL = 10
MOST_BY_PLACE = 5
#: What a class is set up with is read once, by name.
MOST_SETTINGS = 8
#: Captum's own signatures, of which ours must take what they take.
CAPTUMS = (
    Occlusion.attribute,
    FeatureAblation.attribute,
    LayerFeatureAblation.attribute,
    ShapleyValueSampling.attribute,
    pictures.visualize_image_attr,
    pictures.visualize_image_attr_multiple,
)
#: Methods and pictures that have Captum's signatures, with arguments of their own.
LIKE_CAPTUMS = ("attribute", "evidence", "visualize_evidence", "visualize_evidence_multiple")


def captums_words() -> set[str]:
    return {name for function in CAPTUMS for name in inspect.signature(function).parameters}


def functions(code: str) -> Iterator[ast.FunctionDef]:
    """All functions but the rules of the incremental engine, which have PyTorch's signatures."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef):
            calls = [each.func for each in node.decorator_list if isinstance(each, ast.Call)]
            if not any(isinstance(call, ast.Name) and call.id == "rule" for call in calls):
                yield node


def complaints(code: str) -> list[str]:
    """What is wrong with the functions of a file."""
    found, known = [], captums_words() | {"self", "cls"}
    for function in functions(code):
        given = function.args
        by_place = [each.arg for each in [*given.posonlyargs, *given.args]]
        names = by_place + [each.arg for each in given.kwonlyargs]
        own = [name for name in names if name not in known]
        n_in_all = len([name for name in names if name not in ("self", "cls")])
        if function.name == "__init__":
            if len(own) > MOST_SETTINGS:
                found.append(f"{function.name} has {len(own)} settings")
        elif len(own) > MOST_OF_OUR_OWN and function.name != "visualize_evidence_multiple":
            found.append(f"{function.name} takes {len(own)} arguments: {own}")
        elif function.name not in LIKE_CAPTUMS and n_in_all > MOST_OF_OUR_OWN:
            if n_in_all > MOST_IN_ALL:
                found.append(f"{function.name} takes {n_in_all} arguments in all")
            if len(by_place) > MOST_BY_PLACE and not function.name.startswith("visualize_"):
                found.append(f"{function.name} takes {len(by_place)} arguments by place")
    return found


def test_functions_take_few_arguments() -> None:
    found = {str(path): complaints(path.read_text()) for path in ROOT.rglob("*.py")}
    assert not {path: wrong for path, wrong in found.items() if wrong}, (
        "let a frozen value carry what belongs together"
    )


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("def f(a, b, c, d, e, f, g): ...", 0),
        ("def f(a, b, c, d, e, f, g, h): ...", 1),
        ("class A:\n    def f(self, a, b, c, d, *, e, f, g, target, strides): ...", 0),
        ("def f(a, b, c, d, e, target, strides, inputs): ...", 1),
        ("def f(a, b, c, d, *, e, f, g, inputs, target, strides, baselines): ...", 1),
        ("def attribute(a, b, c, d, e, f, g, inputs, target, strides, baselines): ...", 0),
        ("def attribute(a, b, c, d, e, f, g, h): ...", 1),
        ("@rule('conv')\ndef f(a, b, c, d, e, f, g, h): ...", 0),
        ("class A:\n    def __init__(self, a, b, c, d, e, f, g, h, i): ...", 1),
    ],
)
def test_too_many_are_noticed(code: str, wrong: int) -> None:
    assert len(complaints(code)) == wrong
