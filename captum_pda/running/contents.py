"""What is put in the place of regions, in each context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from captum_pda.priors import EmptyContext, prior_for
from captum_pda.regions.protocol import Windows
from captum_pda.running.sampling import Sampling

#: From a prior, an example (C, *space), windows and the sampling to fills (S, W, C, *window).
Draw: TypeAlias = Callable[[Any, Tensor, Windows, Sampling], Tensor]


def conditional_mean(prior: Any, example: Tensor, windows: Windows, sampling: Sampling) -> Tensor:
    """The conditional mean of each window, as the only fill, (1, W, C, *window)."""
    means: Tensor = prior.conditional_mean(example, windows)
    return means.unsqueeze(0)


@dataclass(frozen=True, eq=False)
class Contents:
    """How a method fills regions.

    Args:
        prior: the user's prior; None is the default one.
        needs: the prior's method that is called in the full context.
        draw: makes the fills of windows in the full context.
    """

    prior: Any
    needs: str
    draw: Draw

    def of(self, example: Tensor, context: str) -> ExampleContents:
        """The contents for one example (1, C, *space)."""
        return ExampleContents(self, example, context)


@dataclass(frozen=True, eq=False)
class ExampleContents:
    """What is put in the place of one example's regions.

    Args:
        contents: how they are filled.
        example: the example, (1, C, *space).
        context: "full" or "empty".
    """

    contents: Contents
    example: Tensor
    context: str

    def unchanged(self) -> Tensor:
        """What the model gets before a region is changed, (1, C, *space)."""
        if self.context == "full":
            return self.example
        return EmptyContext(self.contents.prior).nothing_seen(self.example[0]).unsqueeze(0)

    def fills(self, windows: Windows, sampling: Sampling) -> tuple[Windows, Tensor]:
        """The boxes that change, and what is put there, (S, W, C, *box)."""
        if self.context == "empty":
            empty = EmptyContext(self.contents.prior)
            boxes, contents = empty.seen_alone(self.example[0], windows)
            return boxes, check_fills(contents.unsqueeze(0), self.example, boxes, 1)
        prior = prior_for(self.contents.prior, self.contents.needs)
        fills = self.contents.draw(prior, self.example[0], windows, sampling)
        fills = check_fills(fills, self.example, windows, sampling.n_samples)
        return windows, _only_where_hidden(fills, self.example, windows)


def check_fills(fills: Tensor, example: Tensor, windows: Windows, n_samples: int) -> Tensor:
    """Refuse fills of another shape, and bring them to the dtype of the example."""
    expected = (n_samples, len(windows), example.shape[1], *windows.window)
    if tuple(fills.shape) != expected:
        raise ValueError(
            f"the prior gave fills of shape {tuple(fills.shape)} for one example, where "
            f"(samples, windows, channels, *window) is {expected}"
        )
    return fills.to(example.dtype)


def _only_where_hidden(fills: Tensor, example: Tensor, windows: Windows) -> Tensor:
    """The fills where the windows are hidden, and the example where they are seen."""
    if windows.hidden is None:
        return fills
    seen = example[0].flatten(1)[:, windows.pixels(example.device)]
    seen = seen.transpose(0, 1).reshape(fills.shape[1:])
    return torch.where(windows.hidden.to(example.device).unsqueeze(1), fills, seen)
