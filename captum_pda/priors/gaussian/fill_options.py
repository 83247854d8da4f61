"""What is asked of the fills of a Gaussian prior."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Draws:
    """How many samples are wanted, and what they are drawn with; None is the conditional mean."""

    n_samples: int | None = None
    generator: torch.Generator | None = None

    @property
    def count(self) -> int:
        """How many fills each window gets."""
        return self.n_samples or 1


@dataclass(frozen=True)
class FillOptions:
    """How regions are filled; GaussianPatchPrior says what each option does."""

    regularization: float
    margin: int | None = None
    exact: bool = False
    local_scale: bool = False
