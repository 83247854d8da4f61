"""One file per photo and method, so that a table is made in pieces and none is made twice."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from league.networks import BATCH, Network, Photo

MakeMap = Callable[[Network, Photo], Tensor]


@dataclass(frozen=True)
class Method:
    """How a map is made.

    Args:
        make: from a network and a photo to a map (H, W).
        settings: what the map depends on besides; maps of other settings are kept apart.
        inside: whether it needs the model's layers or gradients, so that it must run in PyTorch.
        group: "ours", "peer" or "control".
    """

    make: MakeMap
    settings: Mapping[str, Any] = field(default_factory=dict)
    inside: bool = False
    group: str = "peer"


def method(maker: Callable[..., MakeMap], inside: bool = False, **settings: Any) -> Method:
    """A peer whose maker is called with its settings."""
    return Method(maker(**settings), settings, inside)


@dataclass(frozen=True)
class Cost:
    """What a map took: passes through the network, and time in dense passes of the same run."""

    passes: int
    time: float


def slug(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text.lower())


@dataclass(frozen=True)
class Store:
    """A folder with maps and scores of one network.

    Several processes may work on one folder: each file is written under another name first and
    then renamed, and ``claim`` keeps two processes from making the same map.

    Args:
        folder: where they are.
        settings: by a method's name, what its maps depend on.
        n_steps: of the curves that scores are the area of.
    """

    folder: Path
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    n_steps: int = 10

    def key(self, method: str) -> str:
        """The name of a method's folder, another one for other settings."""
        settings = self.settings.get(method)
        if not settings:
            return slug(method)
        text = json.dumps(settings, sort_keys=True, default=str)
        return f"{slug(method)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def map_path(self, photo: str, method: str) -> Path:
        return self.folder / "maps" / self.key(method) / f"{Path(photo).stem}.npz"

    def score_path(self, photo: str, method: str) -> Path:
        scores = self.folder / f"scores_{self.n_steps}_steps"
        return scores / self.key(method) / f"{Path(photo).stem}.json"

    def has_map(self, photo: str, method: str) -> bool:
        return self.map_path(photo, method).exists()

    def save_map(self, photo: str, method: str, values: Tensor, cost: Cost) -> None:
        path = self.map_path(photo, method)
        if not path.parent.exists() and self.settings.get(method):
            text = json.dumps(self.settings[method], sort_keys=True, default=str)
            _write(path.parent / "settings.json", text)
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
        _write(self.score_path(photo, method), json.dumps(scores))

    def kept_values(self, setting: str) -> list[str]:
        """The values of a setting that there are maps of."""
        files = sorted(self.folder.glob("maps/*/settings.json"))
        found = (json.loads(file.read_text()).get(setting) for file in files)
        return sorted({str(value) for value in found if value is not None})

    @contextmanager
    def claim(self, photo: str, method: str) -> Iterator[bool]:
        """Whether this process may make a map: False while another one is at it."""
        path = self.folder / "claims" / f"{self.key(method)}-{Path(photo).stem}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
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
