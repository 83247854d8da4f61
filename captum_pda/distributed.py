"""The ranks of a process group: what they agree on, and work that they share.

Everything that this library says to other processes goes through here. Without a group, or in a
group of one, nothing is said.
"""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from tqdm.auto import tqdm

from captum_pda._torch import default_store

#: Backends that move tensors of one kind of device only; the others take those of the CPU.
DEVICES = {"nccl": "cuda", "xccl": "xpu"}


class OtherRankError(RuntimeError):
    """Another rank of the process group failed, and so this one cannot finish either."""


class Ranks:
    """The processes that share a task.

    Args:
        group: a process group of ``torch.distributed``, or None for this process alone.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.rank, self.count = 0, 1
        #: Whether the others can no longer be reached.
        self.lost = False
        if group is None:
            return
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                f"process_group={group!r} needs torch.distributed to run; call "
                "torch.distributed.init_process_group() first, in processes started by torchrun"
            )
        try:
            self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise TypeError(
                f"process_group={group!r} is not a process group; pass "
                "torch.distributed.group.WORLD or what torch.distributed.new_group() returned"
            ) from error
        if self.rank < 0:
            raise ValueError("this process is not a member of the process_group that it was given")

    @property
    def device(self) -> torch.device:
        """Where tensors must be to go to the other ranks."""
        return torch.device(DEVICES.get(str(dist.get_backend(self.group)), "cpu"))

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Some 64-bit integers of each rank, in the order of ranks."""
        signed = [_signed(int(number)) for number in numbers]
        if self.count == 1:
            return [signed]
        own = torch.tensor(signed, dtype=torch.int64, device=self.device)
        each = [torch.empty_like(own) for _ in range(self.count)]
        with self._talking():
            dist.all_gather(each, own, group=self.group)
        return [numbers.tolist() for numbers in each]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all ranks."""
        return self._reduce(tensor, dist.ReduceOp.SUM) if self.count > 1 else tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """The largest values of a tensor over all ranks."""
        return self._reduce(tensor, dist.ReduceOp.MAX) if self.count > 1 else tensor

    def from_rank(self, rank: int, tensor: Tensor) -> Tensor:
        """The tensor of one rank; the others give one of the same shape and dtype."""
        if self.count == 1:
            return tensor
        sent = tensor.to(self.device).contiguous().clone()
        with self._talking():
            dist.broadcast(sent, dist.get_global_rank(self.group, rank), group=self.group)
        return sent.to(tensor.device)

    def gather_objects(self, value: Any) -> list[Any]:
        """A small picklable object of each rank, in the order of ranks."""
        if self.count == 1:
            return [value]
        each: list[Any] = [None] * self.count
        with self._talking():
            dist.all_gather_object(each, value, group=self.group)
        return each

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Where a block fails on one rank it fails on all, so that none waits for another for ever.

        The rank that failed raises its own error, and the others an OtherRankError. ctrl-C is not
        held back: it ends this process at once, which the others notice.
        """
        own_error: Exception | None = None
        try:
            yield
        except Exception as error:
            own_error = error
        if self.count > 1:
            try:
                told = self.gather([own_error is not None])
            except RuntimeError:
                if own_error is None:
                    raise
                raise own_error from None
            failed = [rank for rank, (has_failed,) in enumerate(told) if has_failed]
            if failed and own_error is None:
                raise OtherRankError(
                    f"rank {failed[0]} of {self.count} failed; its own error says why"
                )
        if own_error is not None:
            raise own_error

    def _reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        sent = tensor.to(self.device).contiguous().clone()
        with self._talking():
            dist.all_reduce(sent, operation, group=self.group)
        return sent.to(tensor.device)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.lost = True
            raise OtherRankError(
                f"rank {self.rank} of {self.count} cannot reach another one, which may have ended; "
                "start the job anew"
            ) from error


def _signed(number: int) -> int:
    """An integer modulo 2**64, as 64 bits with a sign."""
    return (number + 2**63) % 2**64 - 2**63


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
