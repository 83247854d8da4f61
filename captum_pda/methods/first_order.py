"""Evidence from a gradient: what replacing windows would change, to first order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from captum_pda.execution.loop import check_fills, fill_chunks
from captum_pda.prediction.inputs import attribution_dtype
from captum_pda.regions.window_grid import WindowGrid


def conditional_means(
    prior: Any, example: Tensor, grid: WindowGrid
) -> Iterator[tuple[WindowGrid, Tensor]]:
    """The conditional means of an example's windows (W, C, *window), some windows at a time."""
    for chunk in fill_chunks(grid, example.shape[1]):
        fills = check_fills(
            prior.conditional_mean(example[0], chunk).unsqueeze(0), example, chunk, 1
        )
        yield chunk, fills[0].to(attribution_dtype(example))


def window_evidence(
    gradient: Tensor, example: Tensor, expected: Iterator[tuple[WindowGrid, Tensor]]
) -> Tensor:
    """The sum over each window of df/dx (x - x'), (1, W)."""
    slopes, values = (
        tensor[0].flatten(1).to(attribution_dtype(tensor)) for tensor in (gradient, example)
    )
    evidence = []
    for grid, means in expected:
        pixels = grid.pixels(example.device)
        change = values[:, pixels] - means.flatten(2).transpose(0, 1)
        evidence.append((slopes[:, pixels] * change).sum(dim=(0, 2)))
    return torch.cat(evidence).unsqueeze(0)


def pixel_evidence(
    gradient: Tensor,
    example: Tensor,
    grid: WindowGrid,
    expected: Iterator[tuple[WindowGrid, Tensor]],
) -> Tensor:
    """R_i = df/dx_i (x_i - x_i'), x_i' averaged over the windows that cover i, (1, C, *space)."""
    total = sum(chunk.sum_pixels(means) for chunk, means in expected)
    mean = total / grid.coverage(example.device)
    return (gradient * (example - mean)).to(attribution_dtype(example))
