"""Which tensors lie in the same memory, and which results lead to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from captum_pda.engines.incremental.trees import leaves

#: Results through which a model can neither read nor write values.
HARMLESS = (str, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format)
NUMBERS = (bool, int, float, complex)


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


def lets_out(result: Any, memory: Tensor) -> bool:
    """Whether a result leads to some memory: as a view, or in a form of its own."""
    for leaf in leaves(result):
        if isinstance(leaf, Tensor) and not leaf.is_nested:
            if same_memory(leaf, memory):
                return True
        elif not (leaf is None or isinstance(leaf, (*NUMBERS, *HARMLESS))):
            return True
    return False
