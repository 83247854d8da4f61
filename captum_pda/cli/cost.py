"""What a run will cost, said before it begins."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

#: Copies that are timed together, as the engines run them.
TIMED = 4
#: Runs of fewer seconds begin without a word.
LONG = 5.0


def cost_line(n_windows: int, n_samples: int, n_photos: int, seconds: float) -> str | None:
    """How much there is to do, and how long it takes; None if that is soon.

    "Up to", since the incremental engine does not run the whole model for each window.
    """
    if seconds < LONG:
        return None
    samples = f" of {n_samples} samples" if n_samples > 1 else ""
    each = f" in each of {n_photos:,} photos" if n_photos > 1 else ""
    return f"{n_windows:,} windows{samples}{each}, up to about {duration(seconds)}"


def seconds_per_pass(model: nn.Module, image: Tensor) -> float:
    """How long the model takes for one copy of an input, in a batch of a few."""
    first = next(model.parameters(), image)
    copies = image.to(first.device).expand(TIMED, *image.shape[1:]).contiguous()
    with torch.no_grad():
        model(copies)  # the first pass of a shape prepares others
        start = time.perf_counter()
        model(copies).sum().item()  # waits for the device
    return (time.perf_counter() - start) / TIMED


def duration(seconds: float) -> str:
    """Seconds in words: "25 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
