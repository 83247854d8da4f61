"""Which tensors lie in the same memory."""

from __future__ import annotations

from torch import Tensor


def memory_of(tensor: Tensor) -> int | None:
    """Where a tensor's memory begins, the same for all its views; None where that is not known."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # sparse tensors have several
        return None


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether writing into one tensor may be seen in another."""
    memory = memory_of(one)
    return memory is not None and memory == memory_of(other)
