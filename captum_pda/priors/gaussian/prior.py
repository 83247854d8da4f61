"""The Gaussian patch prior: a window's distribution given the rest of its outer patch."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda.basics import device_sync
from captum_pda.basics.fingerprints import fingerprint
from captum_pda.prediction.inputs import check_count
from captum_pda.priors.empty_context import blurred, pasted
from captum_pda.priors.gaussian import storage
from captum_pda.priors.gaussian.fill_options import Draws, FillOptions
from captum_pda.priors.gaussian.fills import GaussianFills
from captum_pda.priors.gaussian.fitting import COVARIANCES, FittedGaussian
from captum_pda.regions.placed_windows import PlacedWindows
from captum_pda.regions.protocol import Windows


class GaussianPatchPrior(FittedGaussian):
    """Pixels of an outer patch are jointly Gaussian, so a window given the ring around it is too:
    mean m_w + S_wr S_rr^-1 (x_r - m_r), covariance S_ww - S_wr S_rr^-1 S_rw.

    Args:
        patch_size: the outer patch, an int or one per spatial dimension; larger than the windows.
        covariance: "stationary" (mean and autocovariance only; can be fitted on one image, serves
            any smaller window) or "full" (mean and covariance of whole patches, the papers' model).
        channels: "joint", or "independent" to treat each channel by itself.
        regularization: S has its diagonal raised by this share of the mean variance.
        clip_samples: whether samples are clipped to each channel's fitted range.
        margin: how far beyond a window the pixels reach that it is given; None is as far as the
            outer patch does. With a margin one large patch_size serves windows of all sizes.
        exact: whether large windows are given every pixel of their ring too. Otherwise, where a
            ring has more than 768 values (windows beyond 12x12 of three channels with a margin of
            4) and the covariance is stationary, they are given all pixels at its inner edge and
            ever fewer outside, and what is deep inside is interpolated: 20 times faster, with a
            root mean square error within 3% of the exact one's on photos of 224x224 (a small image
            that is explained by its own fit may differ more).
        local_scale: whether the covariance of samples is scaled by how much the ring itself varies,
            (x_r - m_r)^T S_rr^-1 (x_r - m_r) / n_r: about 1 for Gaussian data, and less where a
            photo is smooth, so that samples have no texture there.

    Example::

        >>> prior = GaussianPatchPrior(patch_size=18).fit(loader, show_progress=True)
        >>> prior.save("chest_xray.safetensors")
        >>> prior = GaussianPatchPrior.load("chest_xray.safetensors")
        >>> EfficientPDA(model, prior=prior).attribute(image, target=3)
    """

    #: Raised whenever the same example and settings give other fills, so that results never mix.
    version = 1

    def __init__(
        self,
        patch_size: int | Sequence[int],
        covariance: str = "stationary",
        channels: str = "joint",
        regularization: float = 1e-5,
        clip_samples: bool = False,
        margin: int | None = None,
        exact: bool = False,
        local_scale: bool = False,
    ) -> None:
        super().__init__(patch_size, covariance, channels)
        if not 0 < regularization < 1:
            raise ValueError(f"regularization={regularization!r} must lie between 0 and 1")
        for name, value in (
            ("clip_samples", clip_samples),
            ("exact", exact),
            ("local_scale", local_scale),
        ):
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {value!r}")
        self.regularization = float(regularization)
        self.clip_samples = clip_samples
        self.margin = None if margin is None else check_count("margin", margin)
        self.exact = exact
        self.local_scale = local_scale
        self._fills: GaussianFills | None = None

    def _forget_fills(self) -> None:
        self._fills = None

    # Filling windows

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        """The expected content of each region given the ring around it, (W, C, *window).

        Of a region of another shape than its box, the other pixels of the box belong to its ring,
        and are as they are in the example.
        """
        return self._fills_for(example, regions).fill(example, regions, Draws())[0]

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws of each region given the ring around it, (S, W, C, *window)."""
        draws = Draws(check_count("n_samples", n_samples), generator)
        samples = self._fills_for(example, regions).fill(example, regions, draws)
        if self.clip_samples:
            low, high = device_sync.moved_like(self._fitted()[1], example)
            shape = (-1, *(1 for _ in regions.window))
            samples = samples.clamp(low.reshape(shape), high.reshape(shape))
        return samples

    # The empty context

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The example (C, *space) blurred until only its layout of colours is left, by a Gaussian
        of 20/224 of its shorter side: evidence is then about structure, not about colours."""
        return blurred(example)

    def seen_alone(self, example: Tensor, windows: Windows) -> tuple[PlacedWindows, Tensor]:
        """Each region in the blurred example, n + s (x - n), where s falls from 1 to 0 around the
        region with the softness of 1/16 of its extent: boxes, and contents (W, C, *box)."""
        return pasted(example, self.nothing_seen(example), windows)

    def _fills_for(self, example: Tensor, regions: Windows) -> GaussianFills:
        moments, _ = self._fitted()
        self._check_channels(len(example))
        if len(regions.window) != len(moments.patch):
            raise ValueError(
                f"this prior was fitted on {len(moments.patch)} spatial dimensions; the example "
                f"has {len(regions.window)}"
            )
        fills = self._fills
        if fills is None:
            options = FillOptions(self.regularization, self.margin, self.exact, self.local_scale)
            fills = self._fills = GaussianFills(moments, options)
        return fills

    # Moving and storing

    def __getstate__(self) -> dict[str, object]:
        # Copies make their own matrices, which can be far larger than the fit.
        return {**self.__dict__, "_fills": None}

    def to(self, device: torch.device | str) -> Self:
        """Move the fit to another device, or to the CPU for one without double precision."""
        moments, extremes = self._fitted()
        device = device_sync.double_device(device)
        self._moments, self._range, self._fills = moments.to(device), extremes.to(device), None
        return self

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the fit to a safetensors file, which holds numbers and settings only."""
        moments, extremes = self._fitted()
        storage.save(
            path,
            {**moments.tensors, "range": extremes},
            {"patch_size": list(moments.patch), **self._options()},
            overwrite,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Read a prior that ``save`` wrote. Loading never runs code, and checks what it reads."""
        with storage.opened(path, device) as file:
            prior = cls(**file.settings)
            patch = tuple(file.settings["patch_size"])
            channels = file.shapes.get("range", [0])[-1]
            if channels < 1:
                raise ValueError("its range is that of no channels")
            joint = prior.channels == "joint"
            moments_type = COVARIANCES[prior.covariance]
            shapes = moments_type.shapes(patch, joint, channels) | {"range": [2, channels]}
            tensors = file.read(shapes)
            extremes = tensors.pop("range")
            if bool((extremes[0] > extremes[1]).any()):
                raise ValueError("its range has a lowest value above the highest")
            prior._moments = moments_type(patch, joint, tensors)
            prior._moments.check()
            prior._range = extremes
        return prior

    # What is fitted

    def settings(self) -> dict[str, object]:
        """What fills depend on, as plain values: the options, and a hash of the fitted numbers."""
        moments, extremes = self._fitted()
        return {
            "kind": "GaussianPatchPrior",
            "version": self.version,
            "patch_size": list(moments.patch),
            **self._options(),
            "fit_sha256": fingerprint([moments.tensors, extremes]),
        }

    def _options(self) -> dict[str, object]:
        """The arguments beside the patch size."""
        return {
            "covariance": self.covariance,
            "channels": self.channels,
            "regularization": self.regularization,
            "clip_samples": self.clip_samples,
            "margin": self.margin,
            "exact": self.exact,
            "local_scale": self.local_scale,
        }

    def __repr__(self) -> str:
        fitted = "not fitted" if self._moments is None else f"fitted on {self.n_channels} channels"
        return (
            f"GaussianPatchPrior({self.patch_size}, covariance={self.covariance!r}, "
            f"channels={self.channels!r}, {fitted})"
        )
