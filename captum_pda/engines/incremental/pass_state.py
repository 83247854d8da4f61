"""What the rules share while a batch of perturbed copies goes through the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from captum_pda.engines.incremental.call_cache import CallCache
from captum_pda.engines.incremental.postponed import Origin
from captum_pda.engines.incremental.winograd import Convolver
from captum_pda.engines.incremental.write_log import WriteLog

#: The layout with the channels last, by the number of dimensions.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class PassState:
    """The state of one example's passes."""

    def __init__(self) -> None:
        #: What the model has written into ordinary tensors.
        self.write_log = WriteLog()
        self.cache = CallCache(self.write_log)
        self.convolve = Convolver(self.cache)
        #: Where the model went dense, and why, in the order of the first time.
        self.went_dense: dict[str, str] = {}
        #: Whether anything was computed on boxes that costs more than the boxes themselves.
        self.saved_work = False
        #: Whether completed maps have their channels last in memory.
        self.channels_last = True
        #: Whether values left the tensors, so that any other tensor may depend on them.
        self.leaked = False
        self._calls = 0
        self._needed_twice: set[int] = set()

    def start(self) -> None:
        """Begin a batch."""
        self.cache.next_batch()
        self.leaked = False
        self._calls = 0

    def origin(self) -> Origin:
        """A name for the next result that may be postponed."""
        self._calls += 1
        return Origin(self._calls, self._needed_twice)

    def base(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What ``func`` gives for the unperturbed example, computed once."""
        return self.cache(_channels_last_result, func, *args, **kwargs)


def _channels_last_result(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function; give images back with the channels last, where a pixel is one piece."""
    result = func(*args, **kwargs)
    return channels_last(result) if isinstance(result, Tensor) else result


def channels_last(maps: Tensor) -> Tensor:
    """The same maps with the channels last in memory, where PyTorch has such a format."""
    layout = CHANNELS_LAST.get(maps.dim())
    return maps if layout is None else maps.contiguous(memory_format=layout)
