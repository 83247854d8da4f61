"""Symmetric relevance gain: how much better a map's order of pixels is than its reverse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from captum_pda._captum import TargetType
from captum_pda.diagnostics.removal import (
    RemovalExample,
    RemovalModel,
    pixel_ranks,
    step_counts,
)
from captum_pda.diagnostics.removal_fills import RemovalFill, resolve_fills
from captum_pda.model.inputs import check_count


@dataclass(frozen=True, eq=False, repr=False)
class SymmetricRelevanceGain:
    """The prediction as pixels are removed from the most relevant on, and from the least.

    Args:
        fractions: which share of the pixels is removed, from 0 to 1, (steps + 1,).
        most_first: P(c) with the most relevant pixels removed first, by fill, (N, steps + 1) each.
        least_first: the same with the least relevant pixels removed first.
    """

    fractions: Tensor
    most_first: dict[str, Tensor]
    least_first: dict[str, Tensor]

    @property
    def by_fill(self) -> dict[str, Tensor]:
        """The area between the two curves of each fill, (N,): random maps have 0."""
        return {
            name: torch.trapezoid(least - self.most_first[name], self.fractions, dim=1)
            for name, least in self.least_first.items()
        }

    @property
    def gain(self) -> Tensor:
        """The mean over the fills, (N,): larger is better."""
        return torch.stack(list(self.by_fill.values())).mean(dim=0)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {float(gain.mean()):.3f}" for name, gain in self.by_fill.items())
        n_examples = len(self.gain)
        error = float(self.gain.std() / n_examples**0.5) if n_examples > 1 else None
        spread = "" if error is None else f" +- {error:.3f}"
        return (
            f"{n_examples} {'example' if n_examples == 1 else 'examples'}: symmetric relevance "
            f"gain {float(self.gain.mean()):.3f}{spread} (random is 0, larger is better); by what "
            f"stands for removed pixels: {parts}"
        )

    __repr__ = __str__


def symmetric_relevance_gain(
    forward_func: Callable[..., Any],
    inputs: Tensor,
    attributions: Tensor,
    target: TargetType = None,
    *,
    additional_forward_args: object = None,
    fills: Sequence[str] | Mapping[str, RemovalFill] = ("blur", "mean", "linear"),
    n_steps: int = 16,
    output: str = "logits",
    perturbations_per_eval: int | None = None,
) -> SymmetricRelevanceGain:
    """Remove pixels in the order of a map and in the reverse order, and compare the predictions.

    The symmetric relevance gain (Bluecher et al. 2024) of a map is

        area under P(c), least relevant first  -  area under P(c), most relevant first

    over the share of removed pixels. It is 0 for a random order, and depends far less on what
    stands for removed pixels than deletion alone does; here it is averaged over several fills.
    Pixels are ranked by the sum of their channels' attributions, and all channels go together.

    Args:
        forward_func: the model, or any function of the inputs.
        inputs: (N, C, *space).
        attributions: the map, of the inputs' shape or (N, 1, *space).
        target: as in ``attribute``; None takes the predicted class of each example.
        additional_forward_args: as in ``attribute``.
        fills: what stands for removed pixels, by name: "blur" (of 10 pixels in 224), "mean" (the
            image's mean colour), "linear" (each pixel the weighted mean of its neighbours, with a
            little noise, as in ROAD), "prior" (what our default prior has where nothing is seen).
            Or a dict of functions by name, from an image (C, *space) and what is seen of it
            (K, *space) to a fill; ``diagnostics.PriorFill(prior)`` is one.
        n_steps: in how many equal steps all pixels are removed; a map takes 2 n_steps - 1 passes
            with each fill.
        output: "logits", "probabilities" or "raw", as for EfficientPDA.
        perturbations_per_eval: how many changed copies go through the model at once.

    Example::

        >>> print(diagnostics.symmetric_relevance_gain(model, image, attribution, target=3))
    """
    model = RemovalModel(
        forward_func, inputs, target, additional_forward_args, output, perturbations_per_eval
    )
    n_steps = check_count("n_steps", n_steps)
    ranks = pixel_ranks(attributions, inputs)
    counts = step_counts(ranks.shape[1], n_steps, inputs.device)
    found: dict[str, list[Tensor]] = {name: [] for name in resolve_fills(fills)}
    with model.examples() as examples:
        for number, example in enumerate(examples):
            unchanged = example.unchanged()
            for name, fill in resolve_fills(fills).items():
                removal = _Removal(example, fill, ranks[number], counts)
                found[name].append(removal.curves(unchanged))
    fractions = (counts / ranks.shape[1]).to(unchanged.dtype)
    curves = {name: torch.stack(rows, dim=1) for name, rows in found.items()}
    return SymmetricRelevanceGain(
        fractions,
        {name: pair[0] for name, pair in curves.items()},
        {name: pair[1] for name, pair in curves.items()},
    )


@dataclass(frozen=True, eq=False)
class _Removal:
    """The images on the way from all to nothing seen of an example, in both orders.

    Copies 0 to steps - 1 have the most relevant pixels removed, up to all of them; the others the
    least relevant ones. Both ways begin and end alike, so those are run once.
    """

    example: RemovalExample
    fill: RemovalFill
    ranks: Tensor
    counts: Tensor

    def curves(self, unchanged: Tensor) -> Tensor:
        """P(c), most and least relevant first, (2, steps + 1)."""
        n_steps = len(self.counts) - 1
        predictions = self.example.curve(2 * n_steps - 1, self._images)
        most, least = predictions[:n_steps], predictions[n_steps:]
        end = most[-1:]
        return torch.stack([torch.cat([unchanged, most]), torch.cat([unchanged, least, end])])

    def _images(self, rows: Tensor) -> Tensor:
        image = self.example.image
        seen = self._seen(rows.to(self.ranks.device)).view(-1, *image.shape[1:])
        fill = self.fill(image, seen)
        if fill.shape not in (image.shape, (len(seen), *image.shape)):
            raise ValueError(
                f"a fill has shape {tuple(fill.shape)} where the image has {tuple(image.shape)} "
                f"and {len(seen)} rows are asked for; give {tuple(image.shape)} or "
                f"{(len(seen), *image.shape)}"
            )
        return torch.where(seen.unsqueeze(1), image, fill.to(image))

    def _seen(self, rows: Tensor) -> Tensor:
        """What is seen in some copies, (rows, pixels)."""
        n_steps, n_pixels = len(self.counts) - 1, len(self.ranks)
        from_least = (rows >= n_steps).unsqueeze(1)
        removed = self.counts[1 + torch.where(rows >= n_steps, rows - n_steps, rows)].unsqueeze(1)
        ranks = torch.where(from_least, n_pixels - 1 - self.ranks, self.ranks)
        return ranks >= removed
