"""How often each memory was written while the model ran."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from captum_pda import _torch
from captum_pda.engines.incremental.memory import memory_of


class WriteLog:
    """How often each memory was written, as far as PyTorch's own count does not tell.

    A tensor's version counter misses what is written through ``tensor.data``. Memory that was
    handed out (``tensor.numpy()``) can be written at any time.
    """

    def __init__(self) -> None:
        self._writes: dict[int, int] = {}
        self._exposed: set[int] = set()

    def note(self, tensor: Tensor) -> None:
        """A tensor is about to be written."""
        memory = memory_of(tensor)
        if memory is not None:
            self._writes[memory] = self._writes.get(memory, 0) + 1

    def expose(self, tensor: Tensor) -> None:
        """A tensor's memory is handed out."""
        memory = memory_of(tensor)
        if memory is not None:
            self._exposed.add(memory)

    def state(self, tensor: Tensor) -> tuple[Any, ...] | None:
        """What changes whenever the tensor's values do; None if nothing can tell."""
        version, memory = _torch.version(tensor), memory_of(tensor)
        if version is None or memory is None or memory in self._exposed:
            return None
        if not tensor.untyped_storage().resizable():
            return None  # memory of someone else's, such as an array of NumPy's
        shape = tuple(tensor.shape), tensor.stride()
        return version, self._writes.get(memory, 0), tensor.data_ptr(), *shape
