"""One fit from the fits of all ranks of a process group."""

from __future__ import annotations

import torch
from torch import Tensor

from captum_pda.distributed.ranks import Ranks
from captum_pda.priors.gaussian.moments import Moments


def merge_moments(
    moments_type: type[Moments],
    joint: bool,
    patch: tuple[int, ...],
    own: tuple[Moments, Tensor] | None,
    ranks: Ranks,
) -> tuple[Moments, Tensor]:
    """The moments and the range of all that any rank has seen.

    All sums go to the others in one all-reduce. Before it the ranks agree on what they add up: the
    first rank with data says about which origin, so that nothing is lost to rounding where data lie
    far from zero.

    Args:
        moments_type: how moments are kept.
        joint: whether all channels form one group.
        patch: the outer patch's shape; empty where this rank has seen nothing and can't know it.
        own: what this rank was fitted to; None for a rank that has seen nothing.
        ranks: the processes that were fitted.
    """
    channels = own[1].shape[1] if own else 0
    padded = [*patch, 0, 0, 0][:3] if own else [0, 0, 0]
    told = ranks.gather([channels, *padded])
    fitted = [rank for rank, (number, *_) in enumerate(told) if number]
    if not fitted:
        raise ValueError("there were no batches to fit on any rank; the iterables were empty")
    if len({tuple(told[rank]) for rank in fitted}) > 1:
        shapes = [(numbers[0], [size for size in numbers[1:] if size]) for numbers in told]
        raise ValueError(
            "only fits of the same settings merge; the ranks have these numbers of channels and "
            f"patch sizes: {shapes}"
        )
    channels, *padded = told[fitted[0]]
    patch = tuple(size for size in padded if size)
    device = own[1].device if own else torch.device("cpu")
    zeros = {
        name: torch.zeros(shape, dtype=torch.float64, device=device)
        for name, shape in moments_type.shapes(patch, joint, channels).items()
    }
    moments = moments_type(patch, joint, zeros)
    origin = ranks.from_rank(fitted[0], own[0].origin if own else moments.origin)
    # A rank that has seen nothing has sums of zero, about any origin.
    sums = own[0].sums_about(origin) if own else moments.sums_about(moments.origin)
    moments.set_sums(origin, _sum_at_once(sums, ranks))
    low, high = (
        own[1] if own else torch.full((2, channels), -torch.inf, dtype=torch.float64, device="cpu")
    )
    extremes = ranks.largest(torch.stack([-low if own else low, high]))
    return moments, torch.stack([-extremes[0], extremes[1]])


def _sum_at_once(sums: dict[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """The sums over all ranks, in a single message."""
    flat = ranks.sum(torch.cat([tensor.reshape(-1) for tensor in sums.values()]))
    parts = torch.split(flat, [tensor.numel() for tensor in sums.values()])
    return {
        name: part.view_as(tensor) for (name, tensor), part in zip(sums.items(), parts, strict=True)
    }
