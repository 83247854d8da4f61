"""One file per photo and method, so that a table is made in pieces and none is made twice."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from league.networks import BATCH, Network, Photo


@dataclass(frozen=True)
class Cost:
    """What a map took: passes through the network, and time in dense passes of the same run."""

    passes: int
    time: float


def slug(method: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in method.lower())


@dataclass(frozen=True)
class Store:
    """A folder with maps and scores of one network."""

    folder: Path

    def map_path(self, photo: str, method: str) -> Path:
        return self.folder / "maps" / slug(method) / f"{Path(photo).stem}.npz"

    def score_path(self, photo: str, method: str) -> Path:
        return self.folder / "scores" / slug(method) / f"{Path(photo).stem}.json"

    def has_map(self, photo: str, method: str) -> bool:
        return self.map_path(photo, method).exists()

    def save_map(self, photo: str, method: str, values: Tensor, cost: Cost) -> None:
        path = self.map_path(photo, method)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.npz")
        np.savez_compressed(partial, map=values.numpy(), cost=json.dumps(asdict(cost)))
        partial.replace(path)

    def load_map(self, photo: str, method: str) -> tuple[Tensor, Cost]:
        with np.load(self.map_path(photo, method)) as file:
            return torch.from_numpy(file["map"]), Cost(**json.loads(str(file["cost"])))

    def scores(self, photo: str, method: str) -> dict[str, float]:
        path = self.score_path(photo, method)
        return json.loads(path.read_text()) if path.exists() else {}

    def save_scores(self, photo: str, method: str, scores: dict[str, float]) -> None:
        path = self.score_path(photo, method)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(scores))
        partial.replace(path)


class Meter:
    """Passes, and processor time as a multiple of one dense pass in the same runtime."""

    def __init__(self, network: Network, photo: Photo, fast: bool) -> None:
        self._network, self._photo, self._fast = network, photo, fast

    def __enter__(self) -> Meter:
        self._pass = self._one_pass()
        self._network.passes = 0
        self._start = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.process_time() - self._start
        self.cost = Cost(self._network.passes, seconds / self._pass)

    def _one_pass(self) -> float:
        images = self._photo.image.repeat(BATCH, 1, 1, 1)
        run = self._network.forward if self._fast else self._network.model
        times = []
        with torch.no_grad():
            for _ in range(2):
                start = time.process_time()
                run(images)
                times.append((time.process_time() - start) / BATCH)
        return max(min(times), 1e-6)
