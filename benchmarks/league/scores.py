"""How good a map is: symmetric relevance gain with each fill, deletion and insertion."""

from __future__ import annotations

import torch
from torch import Tensor

from captum_pda import diagnostics
from league.networks import BATCH, Network, Photo

FILLS = ("blur", "mean", "linear")


def score(
    network: Network, photo: Photo, relevance: Tensor, fills: list[str], n_steps: int
) -> dict[str, float]:
    """SRG of each fill by its name, with the areas that deletion and insertion are.

    Deletion to the mean colour and insertion into a blurred photo (as RISE's authors have them)
    run through the very images of SRG: with so many of the least relevant pixels removed, the most
    relevant are in.
    """
    found = diagnostics.symmetric_relevance_gain(
        network.forward,
        photo.image,
        relevance[None, None],
        photo.target,
        fills=fills,
        n_steps=n_steps,
        perturbations_per_eval=BATCH,
    )
    scores = {fill: float(gain) for fill, gain in found.by_fill.items()}
    if "mean" in fills:
        scores["deletion"] = float(torch.trapezoid(found.most_first["mean"], found.fractions))
    if "blur" in fills:
        scores["insertion"] = float(torch.trapezoid(found.least_first["blur"], found.fractions))
    return scores
