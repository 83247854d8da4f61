"""The Gaussian patch prior: a region's distribution given the rest of its outer patch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda import device_sync
from captum_pda.distributed import Ranks
from captum_pda.errors import NotFittedError
from captum_pda.fingerprints import fingerprint
from captum_pda.model.inputs import check_choice, check_count
from captum_pda.priors import storage
from captum_pda.priors.batches import Images, batches_of
from captum_pda.priors.empty_context import blurred, pasted
from captum_pda.priors.gaussian.conditioning import PatchConditioning
from captum_pda.priors.gaussian.moments import (
    FullMoments,
    Moments,
    StationaryMoments,
    merged_over_ranks,
)
from captum_pda.regions.protocol import PlacedWindows, Windows

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

KIND = "GaussianPatchPrior"
COVARIANCES: dict[str, type[Moments]] = {"stationary": StationaryMoments, "full": FullMoments}
CHANNELS = ("joint", "independent")


class GaussianPatchPrior:
    """Pixels of an outer patch are jointly Gaussian, so a window given the ring around it is too:
    mean m_w + S_wr S_rr^-1 (x_r - m_r), covariance S_ww - S_wr S_rr^-1 S_rw.

    This is the prior of the papers, for windows of their sizes, such as 10 in a patch of 18, or 4
    in 12. A region, and the ring around it, may have up to 4,096 values each that vary together
    (times the channels, if those are joint). GaussianFieldPrior fills regions of any size.

    Args:
        patch_size: the outer patch, an int or one per spatial dimension; larger than the windows.
        covariance: "stationary" (mean and autocovariance only; can be fitted on one image, serves
            any smaller window) or "full" (mean and covariance of whole patches, the papers' model).
        channels: "joint", or "independent" to treat each channel by itself.
        regularization: S has its diagonal raised by this share of the mean variance.
        clip_samples: whether samples are clipped to each channel's fitted range.
        margin: how far beyond a window the pixels reach that it is given; None is as far as the
            outer patch does. With a margin one large patch_size serves windows of all sizes.

    Example::

        >>> prior = GaussianPatchPrior(patch_size=18).fit(loader, show_progress=True)
        >>> prior.save("chest_xray.safetensors")
        >>> prior = GaussianPatchPrior.load("chest_xray.safetensors")
        >>> EfficientPDA(model, prior=prior).attribute(image, target=3, sliding_window_shapes=10)
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
    ) -> None:
        self.patch_size = (
            tuple(check_count("patch_size", size) for size in patch_size)
            if isinstance(patch_size, Sequence)
            else check_count("patch_size", patch_size)
        )
        if isinstance(self.patch_size, tuple) and not 1 <= len(self.patch_size) <= 3:
            raise ValueError(
                f"patch_size={patch_size!r} has {len(self.patch_size)} entries; images have 1 to 3 "
                "spatial dimensions"
            )
        check_choice("covariance", covariance, COVARIANCES)
        check_choice("channels", channels, CHANNELS)
        if not 0 < regularization < 1:
            raise ValueError(f"regularization={regularization!r} must lie between 0 and 1")
        if not isinstance(clip_samples, bool):
            raise TypeError(f"clip_samples must be True or False, got {clip_samples!r}")
        self.covariance = covariance
        self.channels = channels
        self.regularization = float(regularization)
        self.clip_samples = clip_samples
        self.margin = None if margin is None else check_count("margin", margin)
        self._moments: Moments | None = None
        #: Holds matrices of the fit, and is made anew for another one.
        self._conditioning: PatchConditioning | None = None

    # Fitting

    def fit(
        self,
        data: Images,
        show_progress: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> Self:
        """Fit to a tensor (N, C, *space), an iterable of batches, a Dataset or a DataLoader.

        Batches may be tuples that start with the images, so labels are passed over. Memory does
        not grow with the data. What was fitted before is forgotten once the new fit succeeds.

        With a process group each rank gives its own part of the data, such as a loader with a
        DistributedSampler, and all get the fit to the whole.
        """
        fresh = GaussianPatchPrior(self.patch_size, self.covariance, self.channels)
        ranks = Ranks(process_group)
        with ranks.failing_together():
            shows = show_progress and ranks.rank == 0
            for batch in batches_of(data, shows, may_be_empty=ranks.count > 1):
                fresh._add(batch)
        if ranks.count > 1:
            fresh.merge_across(process_group)
        self._moments, self._conditioning = fresh._moments, None
        return self

    def partial_fit(self, images: Tensor) -> Self:
        """Add one batch (N, C, *space) to the fit."""
        for batch in batches_of(images):
            self._add(batch)
        return self

    def merge(self, other: GaussianPatchPrior) -> Self:
        """Add what another prior of the same settings was fitted to."""
        if not isinstance(other, GaussianPatchPrior):
            raise TypeError(f"merge takes a GaussianPatchPrior, got {type(other).__name__}")
        theirs = other._fitted()
        mine = self._moments
        for name, own, given in (
            ("covariance", self.covariance, other.covariance),
            ("channels", self.channels, other.channels),
            ("patch_size", self._patch_for(len(theirs.patch)), theirs.patch),
            ("number of channels", (mine or theirs).n_channels, theirs.n_channels),
        ):
            if own != given:
                raise ValueError(
                    f"only priors of the same settings merge; the {name} is {own!r} here and "
                    f"{given!r} there"
                )
        if mine is None:
            self._moments = theirs.to(theirs.device)
        else:
            mine.merge(theirs.to(mine.device))
        self._conditioning = None
        return self

    def merge_across(self, process_group: ProcessGroup | None) -> Self:
        """Add what the other ranks of a process group were fitted to; all ranks call it, and a rank
        may have seen nothing. Every rank then has the same fit."""
        self._moments = merged_over_ranks(
            COVARIANCES[self.covariance],
            self.channels == "joint",
            self._moments,
            Ranks(process_group),
        )
        self._conditioning = None
        return self

    def _add(self, batch: Tensor) -> None:
        images = device_sync.in_double(batch.detach())
        moments = self._moments
        if moments is None:
            patch = self._patch_for(images.dim() - 2)
            joint = self.channels == "joint"
            moments = COVARIANCES[self.covariance].empty(patch, joint, images)
        else:
            self._check_channels(images.shape[1])
            images = images.to(moments.device)
        moments.update(images)
        self._moments, self._conditioning = moments, None

    @property
    def device(self) -> torch.device:
        """Where the fit is kept."""
        return self._fitted().device

    @property
    def n_channels(self) -> int:
        """How many channels the fitted images have."""
        return self._fitted().n_channels

    def _fitted(self) -> Moments:
        if self._moments is None:
            raise NotFittedError(
                "this GaussianPatchPrior is not fitted yet; call fit(images) first, or pass "
                "prior=None for the default prior, which needs no fit"
            )
        return self._moments

    def _check_channels(self, n_channels: int) -> None:
        if n_channels != self.n_channels:
            raise ValueError(
                f"this prior was fitted on {self.n_channels} channels; these images have "
                f"{n_channels}"
            )

    def _patch_for(self, dims: int) -> tuple[int, ...]:
        if isinstance(self.patch_size, int):
            return (self.patch_size,) * dims
        if len(self.patch_size) != dims:
            raise ValueError(
                f"patch_size={self.patch_size} has {len(self.patch_size)} entries; these images "
                f"have {dims} spatial dimensions"
            )
        return self.patch_size

    # Filling regions

    def conditional_mean(self, example: Tensor, regions: Windows) -> Tensor:
        """The expected content of each region given the ring around it, (W, C, *window).

        Of a region of another shape than its box, the other pixels of the box belong to its ring,
        and are as they are in the example.
        """
        return self._conditioning_for(example, regions).fill(example, regions)[0]

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws of each region given the ring around it, (S, W, C, *window)."""
        conditioning = self._conditioning_for(example, regions)
        n_samples = check_count("n_samples", n_samples)
        samples = conditioning.fill(example, regions, n_samples, generator)
        if self.clip_samples:
            low, high = device_sync.moved_like(self._fitted().tensors["range"], example)
            shape = (-1, *(1 for _ in regions.window))
            samples = samples.clamp(low.reshape(shape), high.reshape(shape))
        return samples

    def _conditioning_for(self, example: Tensor, regions: Windows) -> PatchConditioning:
        moments = self._fitted()
        self._check_channels(len(example))
        if len(regions.window) != len(moments.patch):
            raise ValueError(
                f"this prior was fitted on {len(moments.patch)} spatial dimensions; the example "
                f"has {len(regions.window)}"
            )
        conditioning = self._conditioning
        if conditioning is None:
            conditioning = PatchConditioning(moments, self.regularization, self.margin)
            self._conditioning = conditioning
        return conditioning

    # The empty context

    def nothing_seen(self, example: Tensor) -> Tensor:
        """The example (C, *space) blurred until only its layout of colours is left, by a Gaussian
        of 20/224 of its shorter side: evidence is then about structure, not about colours."""
        return blurred(example)

    def seen_alone(self, example: Tensor, windows: Windows) -> tuple[PlacedWindows, Tensor]:
        """Each region in the blurred example, n + s (x - n), where s falls from 1 to 0 around the
        region with the softness of 1/16 of its extent: boxes, and contents (W, C, *box)."""
        return pasted(example, self.nothing_seen(example), windows)

    # Moving and storing

    def __getstate__(self) -> dict[str, object]:
        # Copies make their own matrices, which can be far larger than the fit.
        return {**self.__dict__, "_conditioning": None}

    def to(self, device: torch.device | str) -> Self:
        """Move the fit to another device, or to the CPU for one without double precision."""
        self._moments = self._fitted().to(device_sync.double_device(device))
        self._conditioning = None
        return self

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the fit to a safetensors file, which holds numbers and settings only."""
        moments = self._fitted()
        storage.save(path, moments.tensors, {"kind": KIND, **self._options(moments)}, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Read a prior that ``save`` wrote. Loading never runs code, and checks what it reads."""
        with storage.opened(path, device) as file:
            kind = file.settings.pop("kind", None)
            if kind != KIND:
                raise ValueError(f"it holds a {kind!r}; load it with the class of that name")
            prior = cls(**file.settings)
            patch = tuple(file.settings["patch_size"])
            channels = file.shapes.get("range", [0])[-1]
            if channels < 1:
                raise ValueError("its range is that of no channels")
            joint = prior.channels == "joint"
            moments_type = COVARIANCES[prior.covariance]
            tensors = file.read(moments_type.shapes(patch, joint, channels))
            moments = moments_type(patch, joint, tensors)
            moments.check()
            prior._moments = moments
        return prior

    def settings(self) -> dict[str, object]:
        """What fills depend on, as plain values: the options, and a hash of the fitted numbers."""
        moments = self._fitted()
        return {
            "kind": KIND,
            "version": self.version,
            **self._options(moments),
            "fit_sha256": fingerprint(moments.tensors),
        }

    def _options(self, moments: Moments) -> dict[str, object]:
        """The arguments, as plain values."""
        return {
            "patch_size": list(moments.patch),
            "covariance": self.covariance,
            "channels": self.channels,
            "regularization": self.regularization,
            "clip_samples": self.clip_samples,
            "margin": self.margin,
        }

    def __repr__(self) -> str:
        fitted = "not fitted" if self._moments is None else f"fitted on {self.n_channels} channels"
        return (
            f"GaussianPatchPrior({self.patch_size}, covariance={self.covariance!r}, "
            f"channels={self.channels!r}, {fitted})"
        )
