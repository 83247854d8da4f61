"""Simple priors: a constant, other images, the mean of a map, and a mean of samples."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda import device_sync
from captum_pda.errors import NotFittedError
from captum_pda.fingerprints import fingerprint
from captum_pda.model.inputs import check_count
from captum_pda.priors.empty_context import EmptyContext
from captum_pda.priors.field import prior_for, prior_settings
from captum_pda.priors.protocol import Images, PatchPrior, batches_of
from captum_pda.regions.protocol import Windows, box_values, drawing_numbers, inside_regions


class _OneImage:
    """A prior that fills from one image, ``nothing_seen``, without randomness."""

    #: Increase this whenever the same example and settings give other fills.
    version = 1

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The image that replaces an example (C, *space) with everything hidden."""
        raise NotImplementedError

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        """The content of ``nothing_seen`` in each region, (W, C, *window)."""
        return box_values(self.nothing_seen(example), regions)

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The conditional mean ``n_samples`` times, (S, W, C, *window)."""
        mean = self.conditional_mean(example, regions)
        return mean.expand(n_samples, *mean.shape)


class ConstantPrior(_OneImage):
    """Fills each region with a constant, as `captum.attr.Occlusion
    <https://captum.ai/api/occlusion.html>`_ does with its baseline.

    Args:
        value: a number, one number per channel (C,), or a whole baseline (C, *space).

    Example::

        >>> EfficientPDA(model, prior=ConstantPrior(0.0)).attribute(image, target=3)
    """

    def __init__(self, value: float | Tensor = 0.0) -> None:
        self.value = value

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The constant everywhere, (C, *space)."""
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

    def settings(self) -> dict[str, object]:
        value: object = self.value
        if isinstance(value, Tensor):
            value = value.tolist() if value.dim() <= 1 else {"sha256": fingerprint(value)}
        return {"kind": "ConstantPrior", "version": self.version, "value": value}

    def __repr__(self) -> str:
        return f"ConstantPrior({self.value!r})"


class MarginalPrior(_OneImage):
    """P(x_w) instead of P(x_w | surroundings), as in the paper's MNIST experiment.

    Samples are the windows of the fitted images at the same place; the conditional mean is their
    mean. Suits aligned images of one size, such as digits. All images are kept in memory.

    Example::

        >>> prior = MarginalPrior().fit(train_loader)
        >>> SampledPDA(model, prior=prior).attribute(digit, target=3, sliding_window_shapes=4)
    """

    def __init__(self) -> None:
        self._images: Tensor | None = None

    def fit(self, data: Images, show_progress: bool = False) -> Self:
        """Store the images of a tensor, an iterable of batches, or a DataLoader."""
        batches = [batch.detach() for batch in batches_of(data, show_progress)]
        shapes = {tuple(batch.shape[1:]) for batch in batches}
        if len(shapes) != 1:
            raise ValueError(
                "MarginalPrior compares the same place in every image, so all need one shape; got "
                f"{sorted(shapes)}"
            )
        self._images = torch.cat(batches)
        self._mean = device_sync.in_double(self._images).mean(dim=0)
        return self

    def to(self, device: torch.device | str) -> Self:
        """Move the fitted images."""
        self._images = self._fitted().to(device)
        return self

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        images = self._fitted(example).flatten(2)
        shape = (n_samples, len(regions), 1)
        chosen = torch.randint(len(images), shape, generator=generator, device=example.device)
        fills = images.transpose(1, 2)[chosen, regions.pixels(example.device)].transpose(-1, -2)
        return fills.reshape(*fills.shape[:-1], *regions.window).to(example.dtype)

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The mean of the fitted images, (C, *space)."""
        self._fitted(example)
        return device_sync.moved_like(self._mean, example)

    def settings(self) -> dict[str, object]:
        images = self._fitted()
        return {
            "kind": "MarginalPrior",
            "version": self.version,
            "images": len(images),
            "shape": list(images.shape[1:]),
            "fit_sha256": fingerprint(images),
        }

    def _fitted(self, example: Tensor | None = None) -> Tensor:
        images = self._images
        if images is None:
            raise NotFittedError("this MarginalPrior is not fitted yet; call fit(images) first")
        if example is None:
            return images
        if example.shape != images.shape[1:]:
            raise ValueError(
                f"this MarginalPrior was fitted on images of shape {tuple(images.shape[1:])}; the "
                f"example has shape {tuple(example.shape)}"
            )
        # Moved once, instead of with every chunk of windows.
        self._images = images = images.to(example.device)
        return images

    def __repr__(self) -> str:
        fitted = "not fitted" if self._images is None else f"{len(self._images)} images"
        return f"MarginalPrior({fitted})"


class MapMeanPrior(_OneImage):
    """Fills a region with the mean of each channel over all places outside of it.

    This is LayerPDA's default: the covariance of a thousand channels at 7 x 7 places could not be
    estimated. In the empty context, and for a region that is the whole map, it is the mean of the
    map.

    Example::

        >>> LayerPDA(model, model.layer4, prior=MapMeanPrior()).attribute(image, target=3)
    """

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        # Sums could overflow half precision.
        dtype = torch.promote_types(example.dtype, torch.float32)
        inside = box_values(example.to(dtype), regions)
        inside = inside_regions(regions, inside, torch.zeros_like(inside)).flatten(2).sum(-1)
        count = torch.full((len(regions), 1), math.prod(regions.window), device=example.device)
        if regions.hidden is not None:
            count = regions.hidden.to(example.device).flatten(1).sum(1, keepdim=True)
        n_pixels = math.prod(regions.space)
        total, rest = example.flatten(1).sum(1, dtype=dtype), n_pixels - count
        outside = (total - inside) / rest.clamp_min(1)
        means = torch.where(rest > 0, outside, total / n_pixels).to(example.dtype)
        wide = means.reshape(*means.shape, *(1 for _ in regions.window))
        return wide.expand(*means.shape, *regions.window)

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The mean over all places, everywhere, (C, *space)."""
        dims = tuple(range(1, example.dim()))
        return example.mean(dim=dims, keepdim=True).expand_as(example)

    def seen_alone(self, example: Tensor, regions: Windows) -> tuple[Windows, Tensor]:
        """Regions without softened edges, in a map of means, (W, C, *window)."""
        nothing = box_values(self.nothing_seen(example), regions)
        return regions, inside_regions(regions, box_values(example, regions), nothing)

    def settings(self) -> dict[str, object]:
        return {"kind": "MapMeanPrior", "version": self.version}

    def __repr__(self) -> str:
        return "MapMeanPrior()"


#: The number of samples in memory at once.
DRAWN_AT_ONCE = 8


class EmpiricalMeanPrior:
    """Wraps a prior and uses the mean of ``n_samples`` samples as its conditional mean.

    With EfficientPDA this gives the paper's figure ``ilsvrc_result2``, which separates the error of
    sampling from the error of replacing an expectation of outputs by the output for the expected
    input.

    Args:
        prior: the prior to sample from; None is the default one.
        n_samples: how many samples to average.
        generator: seeds the samples, which are the same for the same windows. Default: PyTorch's
            initial seed.

    Example::

        >>> noisy = EmpiricalMeanPrior(GaussianPatchPrior(18).fit(images), n_samples=10)
        >>> EfficientPDA(model, prior=noisy).attribute(image, target=3)
    """

    #: Increase this whenever the same example and settings give other fills.
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
        generator = device_sync.generator_for(
            (self._seed, *drawing_numbers(regions)), example.device
        )
        # The sum of many samples could overflow half precision.
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
        """``nothing_seen`` of the wrapped prior, (C, *space)."""
        return EmptyContext(self.prior).nothing_seen(example)

    def seen_alone(self, example: Tensor, windows: Windows) -> tuple[Windows, Tensor]:
        """``seen_alone`` of the wrapped prior, which has no randomness."""
        return EmptyContext(self.prior).seen_alone(example, windows)

    def settings(self) -> dict[str, object]:
        return {
            "kind": "EmpiricalMeanPrior",
            "version": self.version,
            "prior": prior_settings(self.prior),
            "n_samples": self.n_samples,
            "seed": self._seed,
        }

    def __repr__(self) -> str:
        return f"EmpiricalMeanPrior({self.prior!r}, n_samples={self.n_samples})"
