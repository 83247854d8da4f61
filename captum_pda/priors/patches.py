"""The Gaussian patch prior: the distribution of a region given the rest of its outer patch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from typing_extensions import Self

from captum_pda import device_sync
from captum_pda.distributed import Ranks
from captum_pda.errors import CovarianceError, NotFittedError, warn_user
from captum_pda.files import counted
from captum_pda.fingerprints import fingerprint
from captum_pda.model.inputs import check_choice, check_count
from captum_pda.priors.empty_context import BlurredContext
from captum_pda.priors.moments import FullMoments, Moments, StationaryMoments
from captum_pda.priors.protocol import Images, batches_of, opened_tensors, save_tensors
from captum_pda.regions.protocol import Integers, Windows, row_major_steps

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


#: The most values of a ring, and of a region, that vary together. At this size the matrices of one
#: place take 6 seconds of one core for means, 13 for samples, and 1.2 GB of memory.
MOST_VALUES = 4096
#: The size of the cache of matrices, in values (128 MiB in single precision).
KEPT_VALUES = 2**25
#: The values of rings, and of fills, that are gathered at once.
GATHERED_VALUES = 2**22
#: How often the diagonal of a covariance without a factor is raised tenfold.
MOST_TENFOLDS = 5

#: The pixels of a region in its box, (*box).
Shape = npt.NDArray[np.bool_]

KIND = "GaussianPatchPrior"
COVARIANCES: dict[str, type[Moments]] = {"stationary": StationaryMoments, "full": FullMoments}
CHANNELS = ("joint", "independent")


class GaussianPatchPrior(BlurredContext):
    """Pixels of an outer patch are jointly Gaussian, so a window given the ring around it is too:
    mean m_w + S_wr S_rr^-1 (x_r - m_r), covariance S_ww - S_wr S_rr^-1 S_rw.

    This is the prior of the papers, for windows of their sizes, such as 10 in a patch of 18, or 4
    in 12. A region and the ring around it may have up to 4,096 values each that vary together
    (times the channels if those are joint). GaussianFieldPrior fills regions of any size.

    Args:
        patch_size: the outer patch, an int or one per spatial dimension; larger than the windows.
        covariance: "stationary" (mean and autocovariance, which can be fitted to one image and
            serve any smaller window) or "full" (mean and covariance of whole patches, the papers'
            model).
        channels: "joint", or "independent" to treat each channel separately.
        regularization: added to the diagonal of S, as a share of the mean variance.
        clip_samples: whether samples are clipped to each channel's fitted range.
        margin: the width of the ring around a window; None uses the whole outer patch. With a
            margin one large patch_size serves windows of all sizes.

    Example::

        >>> prior = GaussianPatchPrior(patch_size=18).fit(loader, show_progress=True)
        >>> prior.save("chest_xray.safetensors")
        >>> prior = GaussianPatchPrior.load("chest_xray.safetensors")
        >>> EfficientPDA(model, prior=prior).attribute(image, target=3, sliding_window_shapes=10)
    """

    #: Increase this whenever the same example and settings give other fills.
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
        self._use(None)

    def _use(self, moments: Moments | None) -> None:
        self._moments = moments
        self._kept: dict[object, tuple[Tensor, ...]] = {}

    # Fitting

    def fit(
        self, data: Images, show_progress: bool = False, process_group: ProcessGroup | None = None
    ) -> Self:
        """Fit to a tensor (N, C, *space), an iterable of batches, a Dataset or a DataLoader.

        Batches may be tuples that start with the images. Memory does not grow with the data. An
        earlier fit is replaced once the new one succeeds. With a process group each rank passes its
        own part of the data, such as a loader with a DistributedSampler, and all get the fit to all
        data.
        """
        fresh = GaussianPatchPrior(self.patch_size, self.covariance, self.channels)
        ranks = Ranks(process_group)
        with ranks.failing_together():
            shows = show_progress and ranks.rank == 0
            for batch in batches_of(data, shows, may_be_empty=ranks.count > 1):
                fresh._add(batch)
        own = fresh._moments
        # All ranks merge in the same order.
        fits = [each for each in ranks.gather(own and own.to("cpu")) if each]
        if not fits:
            raise ValueError("there were no batches to fit on any rank; the iterables were empty")
        moments = reduce(Moments.merged, fits)
        self._use(moments.to(own.device) if own else moments)
        return self

    def partial_fit(self, images: Tensor) -> Self:
        """Add one batch (N, C, *space) to the fit."""
        for batch in batches_of(images):
            self._add(batch)
        return self

    def merge(self, other: GaussianPatchPrior) -> Self:
        """Add the fit of another prior with the same settings."""
        if not isinstance(other, GaussianPatchPrior):
            raise TypeError(f"merge takes a GaussianPatchPrior, got {type(other).__name__}")
        own = self._fitted()
        self._use(own.merged(other._fitted().to(own.device)))
        return self

    def _add(self, batch: Tensor) -> None:
        images = device_sync.in_double(batch.detach())
        patch = self._patch_for(images.dim() - 2)
        moments = COVARIANCES[self.covariance].of(patch, self.channels == "joint", images)
        known = self._moments
        self._use(moments if known is None else known.merged(moments.to(known.device)))

    @property
    def n_channels(self) -> int:
        """The number of channels of the fitted images."""
        return self._fitted().n_channels

    def _fitted(self) -> Moments:
        if self._moments is None:
            raise NotFittedError(
                "this GaussianPatchPrior is not fitted yet; call fit(images) first, or pass "
                "prior=None for the default prior, which needs no fit"
            )
        return self._moments

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
        """The expected content of each region given the ring around it, (W, C, *window). The pixels
        of a box that are not hidden belong to the ring and are not changed."""
        return self._filled(example, regions)[0]

    def sample(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples of each region given the ring around it, (S, W, C, *window)."""
        self._fitted()
        n_samples = check_count("n_samples", n_samples)
        samples = self._filled(example, regions, n_samples, generator)
        if self.clip_samples:
            low, high = device_sync.moved_like(self._fitted().tensors["range"], example)
            shape = (-1, *(1 for _ in regions.window))
            samples = samples.clamp(low.reshape(shape), high.reshape(shape))
        return samples

    def _filled(
        self,
        example: Tensor,
        regions: Windows,
        n_samples: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples (S, W, C, *window), or without ``n_samples`` the conditional mean as the only
        one. Pixels of a box that are not hidden are not changed."""
        moments, channels = self._fitted(), len(example)
        fitted, given = (moments.n_channels, len(moments.patch)), (channels, len(regions.window))
        if fitted != given:
            raise ValueError(
                f"the example has {given[0]} channels and {given[1]} spatial dimensions; this "
                f"prior was fitted on {fitted[0]} channels and {fitted[1]}"
            )
        # Autocast is for the model: fills have the precision of the inputs.
        with torch.autocast(example.device.type, enabled=False):
            dtype = torch.promote_types(example.dtype, torch.float32)
            # Pixels first, channels last, as in the moments.
            pixels = example.detach().flatten(1).T.to(dtype)
            fills = pixels[regions.pixels(pixels.device)].unsqueeze(0)
            if n_samples is not None:
                # The noise of a region is stored in the place of its fill, so that its samples do
                # not depend on which regions it shares matrices with.
                shape = (n_samples, *fills.shape[1:])
                noise = torch.empty(shape, dtype=dtype, device=pixels.device)
                noise.normal_(generator=generator)
                if regions.hidden is not None:
                    hidden = regions.hidden.to(pixels.device).flatten(1).unsqueeze(-1)
                    noise = torch.where(hidden, noise, fills)
                fills = noise
            joint = moments.joint

            def grouped(values: Tensor) -> Tensor:
                # From (..., n, pixels, C) to groups of values that vary together, (..., groups, n,
                # values).
                return values.flatten(-2).unsqueeze(-3) if joint else values.movedim(-1, -3)

            for ring, region, *numbers in self._regions_alike(regions, fills.shape[0] * channels):
                ring_mean, mean, operator, factor = self._conditional(
                    ring, region, n_samples is not None, pixels
                )
                members, around, inside = (torch.from_numpy(n).to(pixels.device) for n in numbers)
                where = (slice(None), members, inside)
                found = mean + (grouped(pixels[around]) - ring_mean) @ operator
                if n_samples is not None:
                    found = found + grouped(fills[where]) @ factor.mT
                found = found.squeeze(-3) if joint else found.movedim(-3, -1)
                fills[where] = found.reshape(len(fills), *inside.shape, channels)
        by_channel = fills.transpose(2, 3).reshape(*fills.shape[:2], channels, *regions.window)
        return by_channel.to(example.dtype)

    def _conditional(
        self, ring: Integers, region: Integers, drawing: bool, like: Tensor
    ) -> tuple[Tensor, ...]:
        """The means of ring and region, (S_wr S_rr^-1)^T, and perhaps a factor of the
        covariance."""
        key = (ring.tobytes(), region.tobytes(), drawing, like.dtype, like.device)
        found = self._kept.get(key)
        if found is not None:
            return found
        moments = self._fitted()
        loading = moments.loading(self.regularization)
        cross = moments.covariance(ring, region)
        operator = torch.cholesky_solve(
            cross, loaded_factor(moments.covariance(ring, ring), loading)
        )
        factor = operator[:, :0]
        if drawing:
            covariance = moments.covariance(region, region) - cross.mT @ operator
            factor = loaded_factor((covariance + covariance.mT) / 2, loading)
        means = (moments.mean(places).unsqueeze(1) for places in (ring, region))
        found = tuple(device_sync.moved_like(each, like) for each in (*means, operator, factor))
        kept = sum(tensor.numel() for each in list(self._kept.values()) for tensor in each)
        if kept + operator.numel() + factor.numel() > KEPT_VALUES:
            self._kept = {}
        self._kept[key] = found
        return found

    def _regions_alike(
        self, regions: Windows, values_per_pixel: int
    ) -> Iterator[tuple[Integers, ...]]:
        """Groups of regions with the same shape and place in their outer patches, which share
        matrices.

        Yields the places of rings and regions in the fitted patch, (n, dims); the numbers of the
        regions, (W, 1); the numbers of the rings' pixels in the example, (W, n); and the numbers of
        the regions' pixels in their boxes, (W, n).
        """
        moments, space = self._fitted(), regions.space
        image_steps, box_steps = row_major_steps(space), row_major_steps(regions.window)
        for shape, numbers, starts in regions_by_shape(regions):
            patch = self._patch_around(shape, space)
            corners = regions.corner_array[numbers] + starts
            # Outer patches are centred on their regions, then moved into the input.
            centred = corners - np.maximum(np.subtract(patch, shape.shape), 0) // 2
            patches = np.clip(centred, 0, np.subtract(space, patch))
            offsets = corners - patches
            # One number for each place, because comparing rows of integers is far slower.
            places = offsets @ row_major_steps(patch)
            # A patch smaller than the fitted one is its centre.
            middle = np.subtract(moments.patch, patch) // 2
            within = np.argwhere(shape) @ box_steps
            at_once = max(1, GATHERED_VALUES // (values_per_pixel * int(np.prod(patch))))
            for place in np.unique(places):
                alike = np.flatnonzero(places == place)
                offset = offsets[alike[0]]
                hides = np.zeros(patch, dtype=np.bool_)
                hides[tuple(map(slice, offset, offset + shape.shape))] = shape
                ring, region = np.argwhere(~hides), np.argwhere(hides)
                for first in range(0, len(alike), at_once):
                    some = alike[first : first + at_once]
                    around = (patches[some] @ image_steps)[:, None] + ring @ image_steps
                    inside = (starts[some] @ box_steps)[:, None] + within
                    yield ring + middle, region + middle, numbers[some, None], around, inside

    def _patch_around(self, shape: Shape, space: tuple[int, ...]) -> tuple[int, ...]:
        window, moments = shape.shape, self._fitted()
        fitted = moments.patch
        for width, size, extent in zip(window, fitted, space, strict=True):
            # A window may cover an axis, if the patch does too.
            if width > size or width == size < extent:
                raise ValueError(
                    f"a region of {window} leaves nothing to condition on in an outer patch of "
                    f"{fitted}; use a smaller window, fit with a patch_size beyond "
                    f"{max(window)}, or use GaussianFieldPrior, which fills regions of any size"
                )
        patch = np.minimum(fitted, space)
        if self.margin is not None:
            patch = np.minimum(patch, np.add(window, 2 * self.margin))
        inside = int(shape.sum()) * moments.values_per_pixel
        around = int(patch.prod()) * moments.values_per_pixel - inside
        if max(inside, around) > MOST_VALUES:
            raise ValueError(
                f"a region of {window} has {inside:,} values, with {around:,} around it in its "
                f"outer patch of {tuple(patch.tolist())}, and GaussianPatchPrior takes up to "
                f"{MOST_VALUES:,} of either. Use GaussianFieldPrior, which fills regions of any "
                "size; or smaller regions, a smaller patch_size or margin, or "
                "channels='independent'"
            )
        return tuple(patch.tolist())

    # Moving and storing

    def __getstate__(self) -> dict[str, object]:
        # Copies make their own matrices, which may be far larger than the fit.
        return {**self.__dict__, "_kept": {}}

    def to(self, device: torch.device | str) -> Self:
        """Move the fit to a device, or to the CPU if the device lacks double precision."""
        self._use(self._fitted().to(device_sync.double_device(device)))
        return self

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the fit to a safetensors file, which contains numbers and settings only."""
        moments = self._fitted()
        save_tensors(path, moments.tensors, {"kind": KIND, **self._options(moments)}, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Read a prior that ``save`` wrote. No code is run, and the file is checked."""
        with opened_tensors(path, device) as file:
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
        """The settings as plain values, with a hash of the fitted numbers."""
        moments = self._fitted()
        return {
            "kind": KIND,
            "version": self.version,
            **self._options(moments),
            "fit_sha256": fingerprint(moments.tensors),
        }

    def _options(self, moments: Moments) -> dict[str, object]:
        return {
            "patch_size": list(moments.patch),
            "covariance": self.covariance,
            "channels": self.channels,
            "regularization": self.regularization,
            "clip_samples": self.clip_samples,
            "margin": self.margin,
        }

    def __repr__(self) -> str:
        fitted = "not fitted"
        if self._moments is not None:
            fitted = f"fitted on {counted(self.n_channels, 'channel')}"
        return (
            f"GaussianPatchPrior({self.patch_size}, covariance={self.covariance!r}, "
            f"channels={self.channels!r}, {fitted})"
        )


def loaded_factor(covariance: Tensor, loading: Tensor) -> Tensor:
    """The Cholesky factor of covariances (groups, n, n) with ``loading`` (groups,) added to their
    diagonals; more is added, with a warning, if there is no factor."""
    for factor_of_ten in range(MOST_TENFOLDS + 1):
        raised = loading * 10**factor_of_ten
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(
            covariance + torch.diag_embed(raised[:, None].expand(covariance.shape[:2]))
        )
        if not device_sync.is_true(failed.any()):
            return factor
        if factor_of_ten < MOST_TENFOLDS:
            warn_user(
                "a patch covariance is not positive definite; raising its diagonal loading "
                f"{10 ** (factor_of_ten + 1)}-fold. More images, or a larger regularization, "
                "condition it better."
            )
    raise CovarianceError(
        "a patch covariance is not positive definite, even with its diagonal loading raised "
        f"{10**MOST_TENFOLDS}-fold; fit on more images, or raise regularization"
    )


def regions_by_shape(regions: Windows) -> Iterator[tuple[Shape, Integers, Integers]]:
    """The different shapes of regions, cut to their pixels; the numbers of the regions of each,
    (n,); and the start of the shape in their boxes, (n, dims). Regions without pixels are left
    out."""
    if regions.hidden is None:
        starts = np.zeros_like(regions.corner_array)
        yield np.ones(regions.window, dtype=np.bool_), np.arange(len(regions)), starts
        return
    found: dict[object, tuple[Shape, list[int], list[Integers]]] = {}
    for number, mask in enumerate(regions.hidden.cpu().numpy()):
        places = np.argwhere(mask)
        if len(places):
            low, high = places.min(axis=0), places.max(axis=0) + 1
            shape = np.ascontiguousarray(mask[tuple(map(slice, low, high))])
            key = shape.shape, shape.tobytes()
            _, numbers, lows = found.setdefault(key, (shape, [], []))
            numbers.append(number)
            lows.append(low)
    for shape, numbers, lows in found.values():
        yield shape, np.array(numbers), np.stack(lows)
