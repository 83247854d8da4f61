"""The ranks of a process group, and all communication between them."""

from __future__ import annotations

import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist
from torch import Tensor
from tqdm.auto import tqdm

from captum_pda._torch import default_store

#: Backends that support tensors of one kind of device only; the others support the CPU.
DEVICES = {"nccl": "cuda", "xccl": "xpu"}
#: How often an idle rank checks whether the others are done, in seconds.
POLL_SECONDS = 0.2


class OtherRankError(RuntimeError):
    """Another rank of the process group failed, so this one cannot finish either."""


class Ranks:
    """The processes of a group of ``torch.distributed``; only this one if the group is None."""

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

    def gather(self, value: Any) -> list[Any]:
        """A small picklable value of each rank, in the order of ranks."""
        each: list[Any] = [value] * self.count
        if self.count > 1:
            self._communicate(dist.all_gather_object, each, value)
        return each

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over all ranks."""
        if self.count == 1:
            return tensor
        device = DEVICES.get(str(dist.get_backend(self.group)), "cpu")
        sent = tensor.to(device).contiguous().clone()
        self._communicate(dist.all_reduce, sent)
        return sent.to(tensor.device)

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Make a block that fails on one rank fail on all, so that none waits forever.

        The failing rank raises its own error, and the others an OtherRankError. Ctrl-C ends this
        process at once, which the others notice.
        """
        try:
            yield
        except Exception:
            with suppress(OtherRankError):
                self.gather(True)
            raise
        failed = self.gather(False)
        if any(failed):
            raise OtherRankError(
                f"rank {failed.index(True)} of {self.count} failed; its own error says why"
            )

    def _communicate(self, operation: Callable[..., Any], *values: Any) -> None:
        try:
            operation(*values, group=self.group)
        except RuntimeError as error:
            self.lost = True
            raise OtherRankError(
                f"rank {self.rank} of {self.count} cannot reach another one, which may have ended; "
                "start the job anew"
            ) from error


def share_work(
    n_tasks: int,
    work: Callable[[int], Any],
    ranks: Ranks,
    title: str | None = None,
    unit: str = "example",
    tracebacks: bool = False,
    delay: float = 0.0,
) -> tuple[dict[int, Any], dict[int, str]]:
    """Call ``work(0)`` to ``work(n_tasks - 1)``, each once and on one rank.

    A failing task does not stop the others. The first rank shows a bar with a ``title``, after
    ``delay`` seconds. All ranks return together: the result of each task, and one line about each
    failure, by their numbers.
    """
    count = _shared_counter(ranks)
    returned: dict[int, Any] = {}
    failed: dict[int, str] = {}
    silent = title is None or ranks.rank > 0 or not n_tasks
    # The remaining time is estimated from all tasks, because ranks finish several at once.
    with tqdm(
        total=n_tasks, desc=title, unit=unit, disable=silent, smoothing=0, delay=delay
    ) as bar:
        try:
            while (number := count("taken", 1) - 1) < n_tasks:
                try:
                    returned[number] = work(number)
                except Exception as error:
                    failed[number] = _in_one_line(error)
                    if tracebacks:
                        traceback.print_exception(error)
                bar.update(count("finished", 1) - bar.n)
        except BaseException:
            count("left", 1)
            raise
        # Not in a collective operation, which would time out before a slow rank is done.
        while (finished := count("finished", 0)) < n_tasks:
            if count("left", 0):
                raise OtherRankError("another rank was stopped; run the same command again")
            bar.update(finished - bar.n)
            time.sleep(POLL_SECONDS)
        bar.update(n_tasks - bar.n)
    for their_returned, their_failed in ranks.gather((returned, failed)):
        returned |= their_returned
        failed |= their_failed
    return returned, dict(sorted(failed.items()))


def _in_one_line(error: BaseException) -> str:
    """An error's message without line breaks, and its kind if the message alone is unclear."""
    message, kind = " ".join(str(error).split()), type(error).__name__
    says_little = isinstance(error, LookupError | AttributeError | AssertionError | ArithmeticError)
    return f"{kind}: {message}" if message and says_little else message or kind


def _shared_counter(ranks: Ranks) -> Callable[[str, int], int]:
    """A function that adds to a named count of all ranks, and returns the new count."""
    counts: Counter[str] = Counter()

    def add_here(name: str, number: int) -> int:
        counts[name] += number
        return counts[name]

    if ranks.count == 1:
        return add_here
    # A new prefix each time, because a group may share work many times.
    prefix, store = ranks.gather(uuid.uuid4().hex)[0], default_store()
    return lambda name, number: int(store.add(f"captum_pda/{prefix}/{name}", number))
