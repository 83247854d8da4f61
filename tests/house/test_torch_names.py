"""What is taken from PyTorch without its promise: when a name moves, its own test says so."""

import ast
from pathlib import Path

import torch
import torch.distributed as dist

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
                if not name.startswith("captum") and any(map(is_private, name.split("."))):
                    yield name


def test_nothing_else_knows_of_pytorchs_private_names():
    own = set(names_of_its_own())
    elsewhere = {
        (str(file.relative_to(PACKAGE)), name)
        for file in PACKAGE.rglob("*.py")
        if file.name != "_torch.py"
        for name in set(private_names_of_others(file.read_text(), own)) - STANDARD_LIBRARY
    }
    assert not elsewhere, f"private names belong in captum_pda/_torch.py: {sorted(elsewhere)}"


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
