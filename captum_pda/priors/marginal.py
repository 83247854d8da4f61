"""Windows as they occur at the same place in other images, whatever surrounds them."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda import device_sync
from captum_pda.errors import NotFittedError
from captum_pda.fingerprints import fingerprint
from captum_pda.priors.batches import Images, batches_of
from captum_pda.priors.empty_context import pasted
from captum_pda.regions.protocol import PlacedWindows, Windows


class MarginalPrior:
    """P(x_w) in place of P(x_w | surroundings), as in the paper's MNIST experiment.

    Samples are real windows of the fitted images at the same place; the conditional mean is their
    mean. It suits aligned images of one size, such as digits. The images are kept, so memory grows
    with them.

    Example::

        >>> prior = MarginalPrior().fit(train_loader)
        >>> SampledPDA(model, prior=prior).attribute(digit, target=3, sliding_window_shapes=4)
    """

    #: Raised whenever the same example and settings give other fills, so that results never mix.
    version = 1

    def __init__(self) -> None:
        self._images: Tensor | None = None
        self._mean: Tensor | None = None

    def fit(self, data: Images, show_progress: bool = False) -> Self:
        """Take the images of a tensor, an iterable of batches, or a DataLoader."""
        batches = [batch.detach() for batch in batches_of(data, show_progress)]
        shapes = {tuple(batch.shape[1:]) for batch in batches}
        if len(shapes) != 1:
            raise ValueError(
                "MarginalPrior compares the same place in every image, so all need one shape; got "
                f"{sorted(shapes)}"
            )
        images = torch.cat(batches)
        # Pixels first, channels last, so that a window's pixel is one run of memory.
        self._images = images.flatten(2).transpose(1, 2).contiguous()
        exact = self._images.to(device_sync.double_device(images.device))
        self._mean = exact.mean(dim=0, dtype=torch.float64)
        self._shape = tuple(images.shape[1:])
        return self

    def to(self, device: torch.device | str) -> Self:
        """Move the fitted images."""
        images, mean = self._fitted()
        self._images, self._mean = images.to(device), mean
        return self

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        _, mean = self._fitted(example)
        at_pixels = device_sync.moved_like(mean, example)[regions.pixels(example.device)]
        return at_pixels.transpose(1, 2).reshape(-1, len(example), *regions.window)

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        images, _ = self._fitted(example)
        shape = (n_samples, len(regions), 1)
        chosen = torch.randint(len(images), shape, generator=generator, device=example.device)
        fills = images[chosen, regions.pixels(example.device)].transpose(-1, -2)
        return fills.reshape(*fills.shape[:-1], *regions.window).to(example.dtype)

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The mean of the fitted images, (C, *space)."""
        _, mean = self._fitted(example)
        return device_sync.moved_like(mean, example).T.reshape(example.shape)

    def seen_alone(self, example: Tensor, windows: Windows) -> tuple[PlacedWindows, Tensor]:
        """Each region in the mean image, with soft edges: boxes, and contents (W, C, *box)."""
        return pasted(example, self.nothing_seen(example), windows)

    def settings(self) -> dict[str, object]:
        """What describes this prior, as plain values."""
        images, _ = self._fitted()
        return {
            "kind": "MarginalPrior",
            "version": self.version,
            "images": len(images),
            "shape": list(self._shape),
            "fit_sha256": fingerprint(images),
        }

    def _fitted(self, example: Tensor | None = None) -> tuple[Tensor, Tensor]:
        images, mean = self._images, self._mean
        if images is None or mean is None:
            raise NotFittedError("this MarginalPrior is not fitted yet; call fit(images) first")
        if example is not None and tuple(example.shape) != self._shape:
            raise ValueError(
                f"this MarginalPrior was fitted on images of shape {self._shape}; the example has "
                f"shape {tuple(example.shape)}"
            )
        if example is not None and images.device != example.device:
            # Moved once, not with every chunk of windows.
            images = self._images = images.to(example.device)
        return images, mean

    def __repr__(self) -> str:
        fitted = "not fitted" if self._images is None else f"{len(self._images)} images"
        return f"MarginalPrior({fitted})"
