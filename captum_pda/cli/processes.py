"""The processes that torchrun starts: their group, and the device of each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from captum_pda.cli.arguments import device_for

#: What torchrun tells every process that it starts.
LAUNCHED = frozenset({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
#: A rank may have to wait for another one's largest photo; one that is dead is noticed at once.
PATIENCE = timedelta(days=7)
#: More than a thread of gloo needs to let go of its last message.
SECONDS_TO_SETTLE = 0.2


def is_launched() -> bool:
    """Whether torchrun started this process."""
    return os.environ.keys() >= LAUNCHED


@contextmanager
def process_group() -> Iterator[Any]:
    """The group of all processes that torchrun started, or None for a process by itself."""
    if not is_launched():
        yield None
        return
    # Ranks exchange a few words only, for which the GPUs are not needed.
    dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield dist.group.WORLD
    finally:
        # Older versions of PyTorch wait for gloo's thread with the lock that it needs itself.
        time.sleep(SECONDS_TO_SETTLE)
        dist.destroy_process_group()


def own_device(name: str) -> torch.device:
    """The device of a name; of several GPUs, this process's own."""
    device = device_for(name)
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device
