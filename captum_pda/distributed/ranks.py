"""The ranks of a process group: what they agree on, and what they bring together.

Everything that this library says to other processes goes through here. Without a group, or in a
group of one, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: Backends that move tensors of one kind of device only; the others take those of the CPU.
DEVICES = {"nccl": "cuda", "xccl": "xpu"}


class OtherRankError(RuntimeError):
    """Another rank of the process group failed, and so this one can't finish either."""


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
                f"process_group={group!r} is no process group; pass torch.distributed.group.WORLD "
                "or what torch.distributed.new_group() returned"
            ) from error
        if self.rank < 0:
            raise ValueError("this process is no member of the process_group that it was given")

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
                f"rank {self.rank} of {self.count} can't reach another one, which may have ended; "
                "start the job anew"
            ) from error


def _signed(number: int) -> int:
    """An integer modulo 2**64, as 64 bits with a sign."""
    return (number + 2**63) % 2**64 - 2**63
