"""What stands where pixels are removed: a blur, the mean colour, neighbours, or a prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda.diagnostics.linear_imputation import linear_imputation
from captum_pda.priors.empty_context import EmptyContext, blurred

#: From an image (C, *space) and what is seen of it (K, *space) to what stands in the place of the
#: rest, (C, *space) or one for each row, (K, C, *space).
RemovalFill: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class BlurFill:
    """The image blurred; ``share`` is the blur's standard deviation over the shorter side."""

    share: float = 10 / 224

    def __call__(self, image: Tensor, seen: Tensor) -> Tensor:
        """The same fill whatever is seen, (C, *space)."""
        return blurred(image, self.share)


@dataclass(frozen=True)
class MeanFill:
    """The image's own mean colour."""

    def __call__(self, image: Tensor, seen: Tensor) -> Tensor:
        """The same fill whatever is seen, (C, *space)."""
        colour = image.flatten(1).mean(dim=1)
        return colour.reshape(-1, *[1] * (image.dim() - 1)).expand_as(image)


@dataclass(frozen=True)
class LinearFill:
    """Each removed pixel as the weighted mean of its neighbours, with a little noise (ROAD).

    Args:
        noise: its standard deviation, as a share of the image's own. The same noise serves all
            maps, so that they are compared on equal terms.
    """

    noise: float = 0.05

    def __call__(self, image: Tensor, seen: Tensor) -> Tensor:
        """A fill for each row of what is seen, (K, C, *space)."""
        noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0), device="cpu")
        spread = self.noise * image.std()
        return linear_imputation(image, seen) + spread * device_sync.moved_like(noise, image)


@dataclass(frozen=True, eq=False)
class PriorFill:
    """What a prior has where nothing is seen, as in ``context="empty"``.

    Args:
        prior: any with a method ``nothing_seen``; None is the default prior.
    """

    prior: Any = None

    def __call__(self, image: Tensor, seen: Tensor) -> Tensor:
        """The same fill whatever is seen, (C, *space)."""
        return EmptyContext(self.prior).nothing_seen(image)


FILLS: dict[str, RemovalFill] = {
    "blur": BlurFill(),
    "mean": MeanFill(),
    "linear": LinearFill(),
    "prior": PriorFill(),
}


def resolve_fills(fills: Sequence[str] | Mapping[str, RemovalFill]) -> dict[str, RemovalFill]:
    """Fills by name: some of the known ones, or one's own."""
    if isinstance(fills, Mapping):
        found = dict(fills)
    else:
        names = [fills] if isinstance(fills, str) else list(fills)
        unknown = [name for name in names if name not in FILLS]
        if unknown:
            raise ValueError(
                f"fills={fills!r} names {unknown[0]!r}; choose from {', '.join(FILLS)}, or give "
                "fills of your own by name, such as {'black': lambda image, seen: 0 * image}"
            )
        found = {name: FILLS[name] for name in names}
    if not found:
        raise ValueError("fills is empty; give at least one, such as fills=('blur',)")
    for name, fill in found.items():
        if not callable(fill):
            raise TypeError(
                f"fills[{name!r}] is a {type(fill).__name__}; give a function from an image "
                "(C, *space) and what is seen of it (K, *space) to a fill"
            )
    return found
