"""The same values in every window: occlusion, measured in bits."""

from __future__ import annotations

import torch
from torch import Tensor

from captum_pda.regions.window_grid import WindowGrid


class ConstantPrior:
    """Fills every window with a constant, as `captum.attr.Occlusion
    <https://captum.ai/api/occlusion.html>`_ does with its baseline.

    Args:
        value: a number, one number a channel (C,), or a whole baseline (C, *space).

    Example::

        >>> EfficientPDA(model, prior=ConstantPrior(0.0)).attribute(image, target=3)
    """

    def __init__(self, value: float | Tensor = 0.0) -> None:
        self.value = value

    def conditional_mean(self, inputs: Tensor, grid: WindowGrid) -> Tensor:
        channels, space = inputs.shape[1], inputs.shape[2:]
        value = torch.as_tensor(self.value, dtype=inputs.dtype, device=inputs.device)
        if value.dim() == 1:
            value = value.reshape(-1, *(1 for _ in space))
        try:
            baseline = value.expand(channels, *space)
        except RuntimeError:
            raise ValueError(
                f"ConstantPrior's value has shape {tuple(value.shape)}; for an input of shape "
                f"{tuple(inputs.shape)} give a number, {channels} numbers, or "
                f"{(channels, *space)}"
            ) from None
        fills = baseline.flatten(1)[:, grid.pixels(inputs.device)].movedim(0, 1)
        return fills.reshape(1, -1, channels, *grid.window).repeat_interleave(len(inputs), dim=0)

    def sample(
        self,
        inputs: Tensor,
        grid: WindowGrid,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        mean = self.conditional_mean(inputs, grid)
        return mean.expand(n_samples, *mean.shape)

    def __repr__(self) -> str:
        return f"ConstantPrior({self.value!r})"
