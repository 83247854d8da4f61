"""How many contents each region gets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from captum_pda import device_sync
from captum_pda.regions.protocol import Windows, drawing_numbers
from captum_pda.running.sampling_error import StoppingRule


@dataclass(frozen=True)
class Sampling:
    """How many contents each region gets.

    Args:
        n_samples: how many; with ``stopping``, at most.
        seed: the same one gives the same draws.
        keep_errors: whether to keep the standard error of each score.
        stopping: when a region has contents enough; None runs all of them.
        part: the number of the part whose regions are sampled.
    """

    n_samples: int = 1
    seed: int = 0
    keep_errors: bool = False
    stopping: StoppingRule | None = None
    part: int = 0

    def in_context(self, context: str) -> Sampling:
        """In the empty context the true content is put in, which is one and certain."""
        return self if context == "full" else Sampling(1, self.seed, self.keep_errors)

    def generator(self, windows: Windows, device: torch.device) -> torch.Generator:
        """Draws for these windows, which depend on the seed and on nothing drawn before."""
        first, place = drawing_numbers(windows)
        return device_sync.generator_for((self.seed, first, self.part, place), device)
