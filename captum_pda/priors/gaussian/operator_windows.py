"""Fill many windows at one place of their outer patch: one operator and one factor for all."""

from __future__ import annotations

import torch
from torch import Tensor

from captum_pda.basics.device_sync import moved_like
from captum_pda.priors.gaussian.conditioning import Conditional


class OperatorWindows:
    """A conditional distribution as matrices, which cost much once and little for each window.

    Args:
        conditional: the distribution of such a window given its ring.
        drawing: whether samples will be asked for.
        like: has the inputs' dtype and device.
        local_scale: whether samples vary as much as their ring does.
    """

    def __init__(
        self, conditional: Conditional, drawing: bool, like: Tensor, local_scale: bool
    ) -> None:
        self._ring_mean = moved_like(conditional.ring_mean, like).unsqueeze(1)
        self._window_mean = moved_like(conditional.window_mean, like).unsqueeze(1)
        self._operator = moved_like(conditional.operator, like)
        self._sample_factor = moved_like(conditional.sample_factor, like) if drawing else None
        self._scale = conditional.scale if local_scale and drawing else None
        self._ring_values = conditional.ring_mean.numel() * conditional.ring_mean.shape[1]

    @property
    def size(self) -> int:
        """How many values are kept."""
        drawing = self._sample_factor
        factors = 0 if self._scale is None else 2 * self._ring_values
        return self._operator.numel() + factors + (0 if drawing is None else drawing.numel())

    def fill(
        self, ring: Tensor, n_samples: int | None, generator: torch.Generator | None
    ) -> Tensor:
        """Fills (S, groups, windows, values) of windows with these rings (groups, windows, values);
        without ``n_samples`` the conditional mean as the only one."""
        means = self._window_mean + (ring - self._ring_mean) @ self._operator
        if n_samples is None or self._sample_factor is None:
            return means.unsqueeze(0)
        noise = torch.randn(
            (n_samples, *means.shape), generator=generator, dtype=means.dtype, device=means.device
        )
        about = noise @ self._sample_factor.mT
        return means + (about if self._scale is None else self._scale(ring) * about)
