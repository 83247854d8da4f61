"""The mean over places: what the rest of a feature map lets one expect in a window."""

from __future__ import annotations

import torch
from torch import Tensor

from captum_pda.regions.protocol import Windows


class MapMeanPrior:
    """Fills a region with the mean of each channel over all places outside of it.

    LayerPDA's default: for a feature map of a thousand channels on 7 x 7 places a covariance is
    out of the question, and none is needed. In the empty context, nothing seen is the mean over
    all places, everywhere. Where a region is the whole map, its own mean is taken.

    Example::

        >>> LayerPDA(model, model.layer4, prior=MapMeanPrior()).attribute(image, target=3)
    """

    #: Raised whenever the same example and settings give other fills, so that results never mix.
    version = 1

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        values = example.flatten(1)
        pixels = regions.pixels(example.device)
        inside = values[:, pixels].transpose(0, 1)
        hidden = regions.hidden
        if hidden is None:
            count = torch.full((len(pixels), 1), pixels.shape[1], device=example.device)
        else:
            is_hidden = hidden.flatten(1).to(example.device)
            inside = inside.where(is_hidden.unsqueeze(1), 0)
            count = is_hidden.sum(dim=1, keepdim=True)
        # Sums of half precision would be beyond it.
        dtype = torch.promote_types(example.dtype, torch.float32)
        rest = values.shape[1] - count
        total = values.sum(dim=1, dtype=dtype)
        outside = (total - inside.sum(dim=2, dtype=dtype)) / rest.clamp_min(1)
        means = torch.where(rest > 0, outside, total / values.shape[1]).to(example.dtype)
        return self._spread(means, regions.window)

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
        """The mean over all places, everywhere, (C, *space)."""
        dims = tuple(range(1, example.dim()))
        return example.mean(dim=dims, keepdim=True).expand_as(example)

    def seen_alone(self, example: Tensor, regions: Windows) -> tuple[Windows, Tensor]:
        """Regions as they are, in a map of which nothing else is seen, (W, C, *window)."""
        pixels = regions.pixels(example.device)
        content = example.flatten(1)[:, pixels].transpose(0, 1)
        content = content.reshape(len(pixels), len(example), *regions.window)
        if regions.hidden is not None:
            seen = regions.hidden.to(example.device).unsqueeze(1)
            mean = self.nothing_seen(example).flatten(1)[:, 0]
            content = content.where(seen, self._spread(mean.unsqueeze(0), regions.window))
        return regions, content

    @staticmethod
    def _spread(means: Tensor, window: tuple[int, ...]) -> Tensor:
        """Means (W, C) at every place of windows, (W, C, *window)."""
        wide = means.reshape(*means.shape, *(1 for _ in window))
        return wide.expand(*means.shape, *window)

    def settings(self) -> dict[str, object]:
        """What describes this prior, as plain values."""
        return {"kind": "MapMeanPrior", "version": self.version}

    def __repr__(self) -> str:
        return "MapMeanPrior()"
