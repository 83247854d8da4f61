"""The quality of a prior: the error of its fills, and how much of the class survives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType
from captum_pda.diagnostics.removal import removal_examples
from captum_pda.evidence.self_test import hidden_copies
from captum_pda.evidence.strongest import pixels_of
from captum_pda.model.inputs import check_count, check_images
from captum_pda.priors import prior_for
from captum_pda.regions.choice import choose_regions
from captum_pda.regions.protocol import Regions, box_values, inside_regions


@dataclass(frozen=True, eq=False, repr=False)
class PriorQuality:
    """How well a prior fills regions of some images.

    Args:
        error: the root mean square error of the conditional mean at the pixels of each image, each
            hidden with its region, in units of the input, (N,).
        spread: the standard deviation of each image, which is the error of the mean colour, (N,).
        shares: the shares of the regions that were hidden at random, (K,).
        surviving: the probability of the class then, as a share of the unperturbed one, (N, K);
            None without a model.
    """

    error: Tensor
    spread: Tensor
    shares: tuple[float, ...]
    surviving: Tensor | None

    def __repr__(self) -> str:
        error, spread = float(self.error.mean()), float(self.spread.mean())
        words = (
            f"{len(self.error)} images: root mean square error {error:.3g} "
            f"({error / (spread or 1):.0%} of the images' standard deviation)"
        )
        if self.surviving is not None:
            means = self.surviving.mean(dim=0).tolist()
            kept = ", ".join(
                f"{mean:.0%} without {share:.0%}"
                for share, mean in zip(self.shares, means, strict=True)
            )
            words += f"; of the class's probability survive {kept} of the regions"
        return words


def prior_quality(
    prior: Any,
    inputs: Tensor,
    forward_func: Callable[..., Any] | None = None,
    target: TargetType = None,
    *,
    shares: Sequence[float] = (0.1, 0.3, 0.5),
    n_draws: int = 4,
    additional_forward_args: object = None,
    output: str = "logits",
    perturbations_per_eval: int | None = None,
    generator: torch.Generator | None = None,
    **regions: Any,
) -> PriorQuality:
    """Measure a prior on your own images, with your own model.

    The error shows how well the prior predicts hidden pixels. It must not have been fitted to these
    images. What survives of the class when random regions are hidden shows how little the fills
    themselves disturb the model: fills that look like something else lower the probability,
    whichever regions are hidden.

    Args:
        prior: with a method ``conditional_mean``; None is the default prior.
        inputs: (N, C, *space).
        forward_func: the model; without one only the error is measured.
        target: as in ``attribute``. Default: the predicted class of each example.
        shares: the shares of the regions that are hidden together.
        n_draws: how many times regions are drawn for each share.
        additional_forward_args, output, perturbations_per_eval: as in ``attribute``.
        generator: draws the regions; without one they are the same in every call.
        regions: ``superpixels``, ``feature_mask`` or ``sliding_window_shapes``, as in
            ``attribute``. Default: 60 superpixels, or windows in small images.
    """
    check_images("inputs", inputs)
    n_draws = check_count("n_draws", n_draws)
    if not all(0 < share < 1 for share in shares):
        raise ValueError(f"shares={tuple(shares)!r} must lie between 0 and 1")
    inputs = inputs.detach()
    (kinds,) = choose_regions((inputs,), **regions)["full"]
    # The middle one of several sizes, by default 60 superpixels.
    chosen = kinds[len(kinds) // 2]
    errors = torch.stack([_error(prior, image, chosen, n) for n, image in enumerate(inputs)])
    spread = inputs.flatten(2).std(dim=2).square().mean(dim=1).sqrt()
    if forward_func is None:
        return PriorQuality(errors, spread, tuple(shares), None)
    draws = np.random.default_rng(0 if generator is None else device_sync.draw_seed(generator))
    model = (forward_func, inputs, target, additional_forward_args, output, perturbations_per_eval)
    surviving = []
    with removal_examples(*model) as examples:
        for number, (image, predict) in enumerate(examples):
            masks = _random_masks(chosen, number, shares, n_draws, draws)
            copies = torch.cat([image.unsqueeze(0), hidden_copies(image, masks, prior)])
            predictions = predict(copies.__getitem__, len(copies))
            means = predictions[1:].reshape(len(shares), n_draws).mean(dim=1)
            surviving.append(means / predictions[0])
    return PriorQuality(errors, spread, tuple(shares), torch.stack(surviving))


def _error(prior: Any, image: Tensor, regions: Regions, number: int) -> Tensor:
    """The root mean square error of each region's conditional mean, over all of their pixels."""
    prior, total, count = prior_for(prior, "conditional_mean"), 0.0, 0
    for windows in regions.boxes(number):
        differences = prior.conditional_mean(image, windows) - box_values(image, windows)
        errors = inside_regions(windows, differences, torch.zeros_like(differences))
        total += float(device_sync.in_double(errors.square().sum()))
        hidden = windows.hidden
        count += errors.numel() if hidden is None else int(hidden.sum()) * len(image)
    return torch.tensor(math.sqrt(total / count), dtype=torch.float64)


def _random_masks(
    regions: Regions, number: int, shares: Sequence[float], n_draws: int, draws: np.random.Generator
) -> Tensor:
    numbers = np.concatenate(regions.members(number))
    masks = np.zeros((len(shares) * n_draws, *regions.space), dtype=np.bool_)
    for mask, share in zip(masks, np.repeat(shares, n_draws), strict=True):
        for one in draws.permutation(numbers)[: max(1, round(share * len(numbers)))]:
            mask |= pixels_of(regions, number, one, regions.space)
    return torch.from_numpy(masks)
