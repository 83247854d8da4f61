"""Many tasks over the ranks of a process group: the next free rank takes the next one."""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from captum_pda._torch import default_store
from captum_pda.distributed.ranks import OtherRankError, Ranks

#: How often a rank that has nothing left to do looks whether the others are done, in seconds.
LOOK_EVERY = 0.2


@dataclass(frozen=True)
class Display:
    """What is seen of work while it goes on.

    Args:
        title: of the one progress bar for all ranks, which the first shows; None shows none.
        unit: what the bar counts.
        tracebacks: whether to print where a task failed.
        delay: after how many seconds the bar is shown.
    """

    title: str | None = None
    unit: str = "example"
    tracebacks: bool = False
    delay: float = 0.0


@dataclass(frozen=True)
class WorkDone:
    """What became of tasks on all ranks, by their numbers.

    Args:
        returned: what was returned for each task that was finished.
        failed: why the others were not, in one line each.
    """

    returned: dict[int, Any]
    failed: dict[int, str]


def share_work(
    n_tasks: int, work: Callable[[int], Any], ranks: Ranks, display: Display
) -> WorkDone:
    """Call ``work(0)`` to ``work(n_tasks - 1)``, each once and on one rank.

    A task that fails does not stop the others. All ranks return together.

    Args:
        n_tasks: how many tasks there are; the same on all ranks.
        work: does one of them.
        ranks: the processes that share them.
        display: what is seen of it.

    Returns:
        What was returned, and what failed, on any rank; the same on all of them.
    """
    counter = _Counter(ranks)
    done = WorkDone({}, {})
    silent = display.title is None or ranks.rank > 0 or not n_tasks
    # The time left is estimated from all tasks so far, as ranks finish several at once.
    bar = tqdm(
        total=n_tasks,
        desc=display.title,
        unit=display.unit,
        disable=silent,
        smoothing=0,
        delay=display.delay,
    )
    with bar:
        try:
            while (number := counter.take()) < n_tasks:
                try:
                    done.returned[number] = work(number)
                except Exception as error:
                    done.failed[number] = in_one_line(error)
                    if display.tracebacks:
                        traceback.print_exception(error)
                counter.finish()
                bar.update(counter.finished() - bar.n)
        except BaseException:
            counter.leave()
            raise
        # Not in a collective operation, which would give up long before a slow rank is done.
        while (finished := counter.finished()) < n_tasks:
            if counter.has_left():
                raise OtherRankError("another rank was stopped; run the same command again")
            bar.update(finished - bar.n)
            time.sleep(LOOK_EVERY)
        bar.update(n_tasks - bar.n)
    together = ranks.gather_objects(done)
    return WorkDone(
        {number: part.returned[number] for part in together for number in part.returned},
        dict(sorted(item for part in together for item in part.failed.items())),
    )


def in_one_line(error: BaseException) -> str:
    """An error's message without line breaks, and its kind if the message alone is unclear."""
    message, kind = " ".join(str(error).split()), type(error).__name__
    says_little = isinstance(error, LookupError | AttributeError | AssertionError | ArithmeticError)
    return f"{kind}: {message}" if message and says_little else message or kind


class _Counter:
    """Counts tasks, for all ranks at once: in the store that their process group was made with."""

    def __init__(self, ranks: Ranks) -> None:
        self._taken, self._finished = 0, 0
        self._store: Any = None
        if ranks.count > 1:
            # A name of its own, as a group may share work many times.
            self._name = ranks.gather_objects(uuid.uuid4().hex)[0]
            self._store = default_store()

    def take(self) -> int:
        """The number of the next task, which no other rank gets."""
        if self._store is None:
            self._taken += 1
            return self._taken - 1
        return self._add("taken", 1) - 1

    def finish(self) -> None:
        if self._store is None:
            self._finished += 1
        else:
            self._add("finished", 1)

    def finished(self) -> int:
        """How many tasks are done, or have failed, on any rank."""
        return self._finished if self._store is None else self._add("finished", 0)

    def leave(self) -> None:
        """Tell the others that this rank does not come back."""
        if self._store is not None:
            self._add("left", 1)

    def has_left(self) -> bool:
        return self._store is not None and self._add("left", 0) > 0

    def _add(self, what: str, number: int) -> int:
        return int(self._store.add(f"captum_pda/{self._name}/{what}", number))
