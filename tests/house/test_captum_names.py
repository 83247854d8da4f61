"""What is taken from Captum, name by name: when one moves, the test of that name says so."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest
import torch
from captum.attr import GradientAttribution, PerturbationAttribution

import captum_pda

PACKAGE = Path(captum_pda.__file__).parent


def imports_from_captum(file):
    """Each (module, name) that a file imports from Captum."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "captum":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.split(".")[0] == "captum")


TAKEN = sorted(imports_from_captum(PACKAGE / "_captum.py"))


@pytest.mark.parametrize(("module", "name"), TAKEN)
def test_the_name_is_where_it_was(module, name):
    try:
        found = importlib.import_module(module)
    except ImportError:
        pytest.fail(f"Captum has no module {module} any more; {name} in _captum.py came from it")
    assert hasattr(found, name), f"Captum moved {module}.{name}; _captum.py needs it"


def test_nothing_else_knows_of_captums_private_names():
    elsewhere = {
        (file.name, module, name)
        for file in PACKAGE.rglob("*.py")
        if file.name != "_captum.py"
        for module, name in imports_from_captum(file)
        if "_" in (part[:1] for part in (*module.split("."), name))
    }
    assert not elsewhere


def takes(function, *names):
    """Whether a function takes these arguments first, in this order."""
    return tuple(inspect.signature(function).parameters)[: len(names)] == names


@pytest.mark.parametrize("base", [GradientAttribution, PerturbationAttribution])
def test_the_base_classes_keep_the_model_and_have_a_name(base):
    assert takes(base.__init__, "self", "forward_func")
    model = torch.nn.Identity()
    assert base(model).forward_func is model
    assert isinstance(base.get_name(), str)


def test_gradient_func_differentiates_a_function_of_its_inputs():
    x = torch.tensor([[3.0], [4.0]], requires_grad=True)
    gradient_func = GradientAttribution(torch.nn.Identity()).gradient_func
    (gradient,) = gradient_func(lambda x, gain: (gain * x**2).sum(1), (x,), None, (2,))
    torch.testing.assert_close(gradient, 4 * x.detach())
