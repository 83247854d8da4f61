"""The paper's sampled approximation: the mean of a few draws instead of the exact mean."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.model.inputs import check_count
from captum_pda.priors.empty_context import EmptyContext
from captum_pda.priors.patch_prior import PatchPrior
from captum_pda.priors.per_example import prior_for, prior_settings
from captum_pda.regions.protocol import Windows

#: How many draws are held in memory together.
DRAWN_AT_ONCE = 8


class EmpiricalMeanPrior:
    """Wraps a prior and answers with the mean of ``n_samples`` draws as its conditional mean.

    With EfficientPDA this is the paper's figure ``ilsvrc_result2``, which tells the error of
    sampling apart from the error of pushing the expectation down to the input.

    Args:
        prior: the prior to draw from; None is the default one.
        n_samples: how many draws to average.
        generator: seeds the draws, which are then the same whenever the same windows are asked
            for. Without one they follow PyTorch's initial seed.

    Example::

        >>> noisy = EmpiricalMeanPrior(GaussianPatchPrior(18).fit(images), n_samples=10)
        >>> EfficientPDA(model, prior=noisy).attribute(image, target=3)
    """

    #: Raised whenever the same example and settings give other fills, so that results never mix.
    version = 1

    def __init__(
        self,
        prior: PatchPrior | None,
        n_samples: int = 10,
        generator: torch.Generator | None = None,
    ) -> None:
        self.prior = prior
        self.n_samples = check_count("n_samples", n_samples)
        self._seed = device_sync.draw_seed(generator)

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        prior = prior_for(self.prior, "sample")
        generator = device_sync.generator_for((self._seed, regions.first), example.device)
        # A sum of many draws can be beyond half precision.
        dtype = torch.promote_types(example.dtype, torch.float32)
        total = torch.zeros((), dtype=dtype, device=example.device)
        for start in range(0, self.n_samples, DRAWN_AT_ONCE):
            some = min(DRAWN_AT_ONCE, self.n_samples - start)
            draws = prior.sample(example, regions, some, generator)
            total = total + draws.sum(dim=0, dtype=dtype)
        return (total / self.n_samples).to(example.dtype)

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        prior = prior_for(self.prior, "sample")
        return cast(Tensor, prior.sample(example, regions, n_samples, generator))

    def nothing_seen(self, example: Tensor) -> Tensor:
        """What the wrapped prior has where nothing is seen, (C, *space)."""
        return EmptyContext(self.prior).nothing_seen(example)

    def seen_alone(self, example: Tensor, windows: Windows) -> tuple[Windows, Tensor]:
        """Each region alone, as the wrapped prior has it: there is nothing to draw."""
        return EmptyContext(self.prior).seen_alone(example, windows)

    def settings(self) -> dict[str, object]:
        """What describes this prior, as plain values."""
        return {
            "kind": "EmpiricalMeanPrior",
            "version": self.version,
            "prior": prior_settings(self.prior),
            "n_samples": self.n_samples,
            "seed": self._seed,
        }

    def __repr__(self) -> str:
        return f"EmpiricalMeanPrior({self.prior!r}, n_samples={self.n_samples})"
