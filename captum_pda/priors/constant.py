"""The same values in every window: occlusion, measured in bits."""

from __future__ import annotations

import torch
from torch import Tensor

from captum_pda.fingerprints import fingerprint
from captum_pda.priors.empty_context import pasted
from captum_pda.regions.protocol import PlacedWindows, Windows


class ConstantPrior:
    """Fills every window with a constant, as `captum.attr.Occlusion
    <https://captum.ai/api/occlusion.html>`_ does with its baseline.

    Args:
        value: a number, one number per channel (C,), or a whole baseline (C, *space).

    Example::

        >>> EfficientPDA(model, prior=ConstantPrior(0.0)).attribute(image, target=3)
    """

    #: Raised whenever the same example and settings give other fills, so that results never mix.
    version = 1

    def __init__(self, value: float | Tensor = 0.0) -> None:
        self.value = value

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        baseline = self._baseline(example)
        fills = baseline.flatten(1)[:, regions.pixels(example.device)].movedim(0, 1)
        return fills.reshape(-1, len(example), *regions.window)

    def _baseline(self, example: Tensor) -> Tensor:
        """The constant at every pixel, (C, *space)."""
        channels, *space = example.shape
        value = torch.as_tensor(self.value, dtype=example.dtype, device=example.device)
        if value.dim() == 1:
            value = value.reshape(-1, *(1 for _ in space))
        try:
            return value.expand(channels, *space)
        except RuntimeError:
            raise ValueError(
                f"ConstantPrior's value has shape {tuple(value.shape)}; for an example of shape "
                f"{tuple(example.shape)} give a number, {channels} numbers, or "
                f"{(channels, *space)}"
            ) from None

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        mean = self.conditional_mean(example, regions)
        return mean.expand(n_samples, *mean.shape)

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The constant everywhere, (C, *space)."""
        return self._baseline(example)

    def seen_alone(self, example: Tensor, windows: Windows) -> tuple[PlacedWindows, Tensor]:
        """Each region in the constant, with soft edges: boxes, and contents (W, C, *box)."""
        return pasted(example, self._baseline(example), windows)

    def settings(self) -> dict[str, object]:
        """What describes this prior, as plain values."""
        value: object = self.value
        if isinstance(value, Tensor):
            value = value.tolist() if value.dim() <= 1 else {"sha256": fingerprint(value)}
        return {"kind": "ConstantPrior", "version": self.version, "value": value}

    def __repr__(self) -> str:
        return f"ConstantPrior({self.value!r})"
