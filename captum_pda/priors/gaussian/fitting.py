"""What a Gaussian patch prior is fitted to, in one go or bit by bit, on one rank or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda.basics import device_sync
from captum_pda.basics.errors import NotFittedError
from captum_pda.distributed.ranks import Ranks
from captum_pda.prediction.inputs import check_choice, check_count
from captum_pda.priors.batches import Images, batches_of
from captum_pda.priors.gaussian.across_ranks import merge_moments
from captum_pda.priors.gaussian.moments import Moments
from captum_pda.priors.gaussian.patch_moments import PatchMoments
from captum_pda.priors.gaussian.stationary_moments import StationaryMoments

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

COVARIANCES: dict[str, type[Moments]] = {"stationary": StationaryMoments, "full": PatchMoments}
CHANNELS = ("joint", "independent")


class FittedGaussian:
    """Mean and covariance of outer patches, and each channel's range, from images.

    Args:
        patch_size: the outer patch, an int or one per spatial dimension.
        covariance: "stationary" or "full".
        channels: "joint" or "independent".
    """

    def __init__(
        self,
        patch_size: int | Sequence[int],
        covariance: str = "stationary",
        channels: str = "joint",
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
        self.covariance = covariance
        self.channels = channels
        self._moments: Moments | None = None
        self._range: Tensor | None = None

    def _forget_fills(self) -> None:
        """Called whenever the fit has changed."""

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
        fresh = FittedGaussian(self.patch_size, self.covariance, self.channels)
        ranks = Ranks(process_group)
        with ranks.failing_together():
            shows = show_progress and ranks.rank == 0
            for batch in batches_of(data, shows, may_be_empty=ranks.count > 1):
                fresh._add(batch)
        if ranks.count > 1:
            fresh.merge_across(process_group)
        self._moments, self._range = fresh._moments, fresh._range
        self._forget_fills()
        return self

    def partial_fit(self, images: Tensor) -> Self:
        """Add one batch (N, C, *space) to the fit."""
        for batch in batches_of(images):
            self._add(batch)
        return self

    def merge(self, other: FittedGaussian) -> Self:
        """Add what another prior of the same settings was fitted to."""
        if not isinstance(other, FittedGaussian):
            raise TypeError(f"merge takes a GaussianPatchPrior, got {type(other).__name__}")
        theirs, their_range = other._fitted()
        mine = self._moments
        self._same("covariance", self.covariance, other.covariance)
        self._same("channels", self.channels, other.channels)
        self._same("patch_size", self._patch_for(len(theirs.patch)), theirs.patch)
        if mine is None:
            self._moments, self._range = theirs.clone(), their_range
        else:
            self._same("number of channels", self.n_channels, other.n_channels)
            mine.merge(theirs.to(self.device))
            self._widen(their_range.to(self.device))
        self._forget_fills()
        return self

    def merge_across(self, process_group: ProcessGroup | None) -> Self:
        """Add what the other ranks of a process group were fitted to; all ranks call it, and a rank
        may have seen nothing. Every rank then has the same fit."""
        ranks = Ranks(process_group)
        moments = self._moments
        self._moments, self._range = merge_moments(
            COVARIANCES[self.covariance],
            self.channels == "joint",
            moments.patch if moments else (),
            self._fitted() if moments else None,
            ranks,
        )
        self._forget_fills()
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
            images = images.to(self.device)
        moments.update(images)
        self._moments = moments
        by_channel = images.transpose(0, 1).flatten(1)
        self._widen(torch.stack([by_channel.amin(dim=1), by_channel.amax(dim=1)]))
        self._forget_fills()

    def _widen(self, extremes: Tensor) -> None:
        if self._range is not None:
            low = torch.minimum(self._range[0], extremes[0])
            high = torch.maximum(self._range[1], extremes[1])
            extremes = torch.stack([low, high])
        self._range = extremes

    @property
    def device(self) -> torch.device:
        """Where the fit is kept."""
        return self._fitted()[1].device

    @property
    def n_channels(self) -> int:
        """How many channels the fitted images have."""
        return self._fitted()[1].shape[1]

    def _fitted(self) -> tuple[Moments, Tensor]:
        if self._moments is None or self._range is None:
            raise NotFittedError(
                "this GaussianPatchPrior is not fitted yet; call fit(images) first, or pass "
                "prior=None to fit each example by itself"
            )
        return self._moments, self._range

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

    @staticmethod
    def _same(name: str, mine: object, theirs: object) -> None:
        if mine != theirs:
            raise ValueError(
                f"only priors of the same settings merge; the {name} is {mine!r} here and "
                f"{theirs!r} there"
            )
