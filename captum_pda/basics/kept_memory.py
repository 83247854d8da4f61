"""Memory that stays with the process while a map is made.

Each batch asks for the same large blocks as the one before it. The C library of Linux (glibc) gives
blocks of over 32 MB back to the system as they are freed, and gets the next ones page by page,
which takes longer than the arithmetic on them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

MEGABYTE = 2**20
#: glibc's numbers for what ``mallopt`` sets (malloc.h): how much free memory at its end the heap
#: may keep, and from which size on a block comes from the system by itself.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1
STATISTICS = Path("/proc/self/statm")
#: Where glibc's own thresholds settle once a block of 32 MB has been freed.
SETTLED = {TRIM_THRESHOLD: 64 * MEGABYTE, MMAP_THRESHOLD: 32 * MEGABYTE}
#: Whoever has set one of these has chosen already.
CHOICES_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@contextmanager
def kept_memory() -> Iterator[None]:
    """Freed memory stays with the process within this block, where the C library is glibc.

    At the end of the outermost block it goes back to the system. No number depends on it.
    """
    heap = _heap()
    if heap is None:
        yield
        return
    heap.keep()
    try:
        yield
    finally:
        heap.let_go()


@dataclass
class _Heap:
    """The memory that glibc manages, and how many runs of this process keep it now."""

    library: ctypes.CDLL
    runs: int = 0
    before: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self) -> None:
        with self.lock:
            self.runs += 1
            if self.runs == 1:
                self.before = resident_memory()
                for option in SETTLED:
                    self.library.mallopt(option, LARGEST)

    def let_go(self) -> None:
        with self.lock:
            self.runs -= 1
            if self.runs:
                return
            for option, settled in SETTLED.items():
                self.library.mallopt(option, settled)
            # It walks through all free blocks, which a small run need not wait for.
            if resident_memory() > self.before + SETTLED[TRIM_THRESHOLD]:
                self.library.malloc_trim(0)


def resident_memory() -> int:
    """How many bytes of memory this process holds; 0 where that can't be read, such as with too
    many open files, since no map may fail for it."""
    try:
        pages = STATISTICS.read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@cache
def _heap() -> _Heap | None:
    """glibc's, unless this is another C library, or the user has chosen for himself."""
    if not sys.platform.startswith("linux") or any(map(os.environ.get, CHOICES_OF_THE_USER)):
        return None
    try:
        library = ctypes.CDLL(None)
        # musl has the first of these alone, and some systems hide the last.
        library.mallopt, library.malloc_trim, library.gnu_get_libc_version  # noqa: B018
    except (OSError, AttributeError):
        return None
    return _Heap(library)
