"""Two processes that run functions together, as the ranks of one process group.

Starting a process costs seconds for importing PyTorch, so one pair serves all tests of a module.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT = 120


class RankPool:
    """Real processes on gloo. ``pool(function, *arguments)`` calls ``function(rank, *arguments)``
    on all of them, and returns what each returned or raised."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for rank in range(count):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve, args=(there, str(folder / "store"), rank, count), daemon=True
            )
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((function, arguments))
        sent = []
        for pipe in self._pipes:
            assert pipe.poll(TIMEOUT), "a rank does not answer: the ranks wait for each other"
            sent.append(pipe.recv_bytes())
        return [pickle.loads(one) for one in sent]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send((None, ()))
        for process in self._processes:
            process.join(TIMEOUT)


def _serve(pipe: Any, store: str, rank: int, count: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, count),
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=TIMEOUT / 2),
    )
    while True:
        function, arguments = pipe.recv()
        if function is None:
            break
        try:
            result = function(rank, *arguments)
        except Exception as error:
            result = error
        pipe.send_bytes(pickle.dumps(result))
    dist.destroy_process_group()
