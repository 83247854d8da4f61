"""Memory that stays with the process while a map is made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import captum_pda.basics.kept_memory as kept
from captum_pda import EfficientPDA
from captum_pda.basics.kept_memory import (
    CHOICES_OF_THE_USER,
    LARGEST,
    MEGABYTE,
    MMAP_THRESHOLD,
    SETTLED,
    TRIM_THRESHOLD,
    kept_memory,
)

KEPT = {TRIM_THRESHOLD: LARGEST, MMAP_THRESHOLD: LARGEST}


class Library:
    """In place of the C library: what was set last, and how often memory was given back."""

    def __init__(self) -> None:
        self.options: dict[int, int] = {}
        self.given_back = 0

    def mallopt(self, option: int, value: int) -> int:
        self.options[option] = value
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.given_back += 1
        return 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    heap = kept._Heap(found)
    monkeypatch.setattr(kept, "_heap", lambda: heap)
    monkeypatch.setattr(kept, "resident_memory", lambda: 0)
    return found


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """Which C library there is, is asked again, and once more afterwards."""
    kept._heap.cache_clear()
    yield
    kept._heap.cache_clear()


def test_memory_is_kept_until_the_last_block_ends(library: Library) -> None:
    with kept_memory():
        assert library.options == KEPT
        with kept_memory():
            pass
        assert library.options == KEPT
    assert library.options == SETTLED


def test_it_goes_back_after_an_error(library: Library) -> None:
    with pytest.raises(ZeroDivisionError), kept_memory():
        raise ZeroDivisionError
    assert library.options == SETTLED


@pytest.mark.parametrize(("grown", "given_back"), [(65, 1), (63, 0)])
def test_what_a_run_has_added_is_given_back(
    monkeypatch: pytest.MonkeyPatch, library: Library, grown: int, given_back: int
) -> None:
    with kept_memory():
        monkeypatch.setattr(kept, "resident_memory", lambda: grown * MEGABYTE)
    assert library.given_back == given_back


def test_a_map_does_not_fail_where_its_memory_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert kept.resident_memory() > 0 or kept._heap() is None
    monkeypatch.setattr(kept, "STATISTICS", tmp_path / "nothing")
    assert kept.resident_memory() == 0
    with kept_memory():
        pass


def test_a_map_keeps_memory_while_the_model_runs(library: Library) -> None:
    seen = []

    def model(images: torch.Tensor) -> torch.Tensor:
        seen.append(dict(library.options))
        return images.mean(3).flatten(1)[:, :4]

    EfficientPDA(model).attribute(torch.rand(1, 1, 12, 12), target=0, sliding_window_shapes=4)
    assert seen[-1] == KEPT
    assert library.options == SETTLED


@pytest.mark.parametrize("name", CHOICES_OF_THE_USER)
def test_a_choice_of_the_user_stands(
    monkeypatch: pytest.MonkeyPatch, asked_anew: None, name: str
) -> None:
    monkeypatch.setenv(name, "1000000")
    assert kept._heap() is None
    with kept_memory():
        pass


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch, asked_anew: None) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert kept._heap() is None


FRESH_PROCESS = """
import resource
import torch
from captum_pda.basics.kept_memory import kept_memory, resident_memory

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(6):
        torch.ones(2**24)  # 64 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = page_faults()
with kept_memory():
    within = page_faults()
after = page_faults()
small = resident_memory()
with kept_memory():
    blocks = [torch.ones(2**22) for _ in range(20)]  # 16 MB each
    above = torch.ones(2**18)
    del blocks
    large = resident_memory()
print(before, within, after, large - small, resident_memory() - small)
"""


def test_pages_are_asked_for_once_and_given_back() -> None:
    """In a process of its own, since what was freed before is used first."""
    if kept._heap() is None:
        pytest.skip("the C library is not glibc")
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS], capture_output=True, text=True, check=True
    )
    before, within, after, grown, left = map(int, done.stdout.split())
    if before < 6 * 2**24 * 4 // os.sysconf("SC_PAGE_SIZE"):
        pytest.skip("the system hands out memory in large pages")
    assert within <= before / 2
    assert after > before / 2
    assert grown > 250 * MEGABYTE
    assert left < 50 * MEGABYTE
