"""Private names of Captum and PyTorch stand in two files; when one moves, its own test says so."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from captum.attr import GradientAttribution, PerturbationAttribution

import captum_pda
from captum_pda import _torch

PACKAGE = Path(captum_pda.__file__).parent
#: Private by name only: the standard library's documentation has them, or types need them.
STANDARD_LIBRARY = {"argparse._ActionsContainer", "sys._getframe"}


def is_private(name):
    is_of_named_tuple = name in ("_replace", "_asdict", "_fields")
    return name.startswith("_") and not name.endswith("__") and not is_of_named_tuple


def names_of_its_own():
    """Every name that captum_pda itself defines."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.id if isinstance(node, ast.Name) else node.attr


def private_names_of_others(source, own):
    """The private names that a module takes from something that is not captum_pda."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield ast.unparse(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            for name in [a.name if module is None else f"{module}.{a.name}" for a in node.names]:
                if not name.startswith("captum_pda") and any(map(is_private, name.split("."))):
                    yield name


def test_nothing_else_knows_of_private_names():
    own = set(names_of_its_own())
    elsewhere = {
        (str(file.relative_to(PACKAGE)), name)
        for file in PACKAGE.rglob("*.py")
        if file.name not in ("_torch.py", "_captum.py")
        for name in set(private_names_of_others(file.read_text(), own)) - STANDARD_LIBRARY
    }
    assert not elsewhere, f"they belong in _torch.py or _captum.py: {sorted(elsewhere)}"


def test_the_version_counts_writes_through_views():
    """``Tensor._version``."""
    tensor = torch.zeros(4)
    before = _torch.version(tensor)
    tensor[:2].add_(1)
    tensor.view(2, 2).mul_(2)
    assert _torch.version(tensor) == before + 2
    with torch.inference_mode():
        assert _torch.version(torch.zeros(1)) is None


def test_an_operation_says_what_it_writes():
    """``OpOverload._schema``, and ``alias_info`` and ``is_write`` of its arguments."""
    for func in (torch.ops.aten.add_.Tensor, torch.ops.aten.add_):
        for schema in _torch.operator_schemas(func):
            written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
            assert written == ["self"]
    assert _torch.operator_schemas(torch.add) == []


def test_the_default_store_counts(tmp_path):
    """``torch.distributed.distributed_c10d._get_default_store``."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'ranks'}", world_size=1, rank=0
    )
    try:
        store = _torch.default_store()
        assert store.add("captum_pda", 2) == 2
        assert store.add("captum_pda", 3) == 5
    finally:
        dist.destroy_process_group()


TAKEN = sorted(
    (node.module, alias.name)
    for node in ast.walk(ast.parse((PACKAGE / "_captum.py").read_text()))
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "captum"
    for alias in node.names
)


@pytest.mark.parametrize(("module", "name"), TAKEN)
def test_the_name_is_where_it_was(module, name):
    try:
        found = importlib.import_module(module)
    except ImportError:
        pytest.fail(f"Captum has no module {module} any more; {name} in _captum.py came from it")
    assert hasattr(found, name), f"Captum moved {module}.{name}; _captum.py needs it"


@pytest.mark.parametrize("base", [GradientAttribution, PerturbationAttribution])
def test_the_base_classes_keep_the_model_and_have_a_name(base):
    assert [*inspect.signature(base.__init__).parameters][:2] == ["self", "forward_func"]
    model = torch.nn.Identity()
    assert base(model).forward_func is model
    assert isinstance(base.get_name(), str)


def test_gradient_func_differentiates_a_function_of_its_inputs():
    x = torch.tensor([[3.0], [4.0]], requires_grad=True)
    gradient_func = GradientAttribution(torch.nn.Identity()).gradient_func
    (gradient,) = gradient_func(lambda x, gain: (gain * x**2).sum(1), (x,), None, (2,))
    torch.testing.assert_close(gradient, 4 * x.detach())
