"""A class of one's own is known by its code, or by the version that it states."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable

import pytest

from captum_pda import ConstantPrior
from captum_pda.fingerprints import fingerprint, own_code

#: A module with everything that the results of a class can depend on.
MODULE = '''
"""A module."""
import functools
import torch
SCALE = 2.0
TABLE = {"a": 1}
_memory = {}
def helper(x):
    return inner(x) + 43
def inner(x):
    return x * 53
class Config:
    def __init__(self):
        self.width = 61
CONFIG = Config()
added = functools.partial(lambda number, x: x + number, 67)
@functools.singledispatch
def chosen(x):
    return x
@chosen.register
def for_numbers(x: int):
    return x + 71
class Base:
    shift = 47
    def moved(self, x):
        return x + self.shift
class Kernel:
    def __init__(self):
        self.width = 11
    def apply(self, x):
        return x - 13
class Own(Base):
    """Documented."""
    level = 17
    kernel = Kernel()
    @property
    def halved(self):
        return self.level / 19
    @staticmethod
    def doubled(x):
        return x * 23
    @classmethod
    def made(cls):
        return cls.level * 29
    @functools.cached_property
    def kept(self):
        return 31
    @functools.lru_cache
    def remembered(self):
        return 37
    @torch.no_grad()
    def conditional_mean(self, example, regions):
        """What it does."""
        def local(x):
            return x * 41
        _memory[len(_memory)] = 1
        return local(helper(added(chosen(example)))) * SCALE * TABLE["a"] * CONFIG.width
    def settings(self):
        return {"kind": "Own"}
'''


@pytest.fixture
def load(monkeypatch) -> Callable[[str], types.ModuleType]:
    def loaded(text: str) -> types.ModuleType:
        module = types.ModuleType("someones_module")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(text, "someones_module.py", "exec"), module.__dict__)
        return module

    return loaded


EDITS = [
    ("SCALE = 2.0", "SCALE = 2.5"),
    ('{"a": 1}', '{"a": 2}'),
    *(
        (str(number), str(number + 1))
        for number in (43, 47, 53, 11, 13, 17, 19, 23, 29, 31, 37, 41, 61, 67, 71)
    ),
    ("x - 13", "x + 13"),
    ("inner(x) +", "abs(x) +"),
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: " -> ".join(edit))
def test_an_edit_of_what_a_class_does_is_noticed(load, edit):
    before, after = load(MODULE), load(MODULE.replace(*edit))
    assert MODULE.count(edit[0]) == 1
    assert own_code(before.Own()) != own_code(after.Own())
    del before.Own.settings, after.Own.settings
    assert fingerprint(before.Own()) != fingerprint(after.Own())


def test_an_edit_of_another_module_of_ones_own_is_noticed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    uses = "import own_tools\nfrom own_tools import twice\nfrom scipy import fft\nclass Own:\n"
    uses += "    def a(self, x): return own_tools.once(x)\n"
    codes = set()
    for method, tools in (
        ("twice(x)", "def once(x): return x\ndef twice(x): return 2 * x\n"),
        ("twice(x)", "def once(x): return x + 1\ndef twice(x): return 2 * x\n"),
        ("twice(x)", "def once(x): return x\ndef twice(x): return 3 * x\n"),
        ("fft.fft(x)", "def once(x): return x\ndef twice(x): return 3 * x\n"),
    ):
        (tmp_path / "own_tools.py").write_text(tools)
        (tmp_path / "own_user.py").write_text(f"{uses}    def b(self, x): return {method}\n")
        for name in ("own_tools", "own_user"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        codes.add(str(own_code(importlib.import_module("own_user").Own())))
    assert len(codes) == 4


@pytest.mark.parametrize(
    "edit",
    [("Documented", "Better documented"), ("What it does", "What this does"), ("\n", "\n\n")],
    ids=["class", "method", "lines"],
)
def test_an_edit_of_words_is_none(load, edit):
    before, after = load(MODULE), load(MODULE.replace(*edit))
    before._memory["filled"] = "while it was used"
    assert own_code(before.Own()) == own_code(after.Own())


def test_a_stated_version_stands_for_the_code(load):
    stated = MODULE.replace("    level = 17", "    level = 17\n    version = 3")
    before, after = load(stated), load(stated.replace("23", "24"))
    assert own_code(before.Own()) == own_code(after.Own()) == {"version": 3}
    raised = load(stated.replace("version = 3", "version = 4"))
    assert own_code(raised.Own()) == {"version": 4}


def test_the_librarys_version_is_not_that_of_a_class_that_derives_from_it():
    assert own_code(ConstantPrior(1.0)) == {}

    class Derived(ConstantPrior):
        pass

    assert own_code(Derived(1.0)).keys() == {"code_sha256"}
