"""Removal of pixels in the order of a map: fills, deletion and insertion curves, relevance gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType
from captum_pda.engines import BatchLoop, BatchSize
from captum_pda.files import counted
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import check_count, check_images
from captum_pda.model.outputs import ExplainedOutputs, OutputKind, find_output_kind
from captum_pda.priors.empty_context import EmptyContext, blurred
from captum_pda.priors.solver import weighted_means

#: From an image (C, *space) and its visible pixels (K, *space) to the contents of the removed ones,
#: (C, *space) or one for each row, (K, C, *space).
RemovalFill: TypeAlias = Callable[[Tensor, Tensor], Tensor]
#: From a function that makes some copies, and their number, to predictions.
Predict: TypeAlias = Callable[[Callable[[Tensor], Tensor], int], Tensor]


def blur_fill(image: Tensor, seen: Tensor) -> Tensor:
    """The image blurred by 10 pixels in 224."""
    return blurred(image, 10 / 224)


def mean_fill(image: Tensor, seen: Tensor) -> Tensor:
    """The image's own mean colour."""
    return image.mean(dim=tuple(range(1, image.dim())), keepdim=True).expand_as(image)


def linear_fill(image: Tensor, seen: Tensor, noise: float = 0.05) -> Tensor:
    """Each removed pixel as the weighted mean of its neighbours (ROAD), with a little noise, as a
    share of the image's standard deviation, which is the same for all maps."""
    drawn = torch.randn(image.shape, generator=torch.Generator().manual_seed(0), device="cpu")
    spread = noise * image.std()
    return weighted_means(image, seen) + spread * device_sync.moved_like(drawn, image)


def prior_fill(prior: Any = None) -> RemovalFill:
    """``nothing_seen`` of a prior, as in ``context="empty"``; None is the default prior."""
    return lambda image, seen: EmptyContext(prior).nothing_seen(image)


FILLS: dict[str, RemovalFill] = {
    "blur": blur_fill,
    "mean": mean_fill,
    "linear": linear_fill,
    "prior": prior_fill(),
}


def resolve_fills(fills: Sequence[str] | Mapping[str, RemovalFill]) -> dict[str, RemovalFill]:
    """Fills by name, and user-defined ones."""
    if not isinstance(fills, Mapping):
        names = [fills] if isinstance(fills, str) else fills
        for name in names:
            if name not in FILLS:
                raise ValueError(
                    f"fills={fills!r} names {name!r}; choose from {', '.join(FILLS)}, or give "
                    "fills of your own by name, such as {'black': lambda image, seen: 0 * image}"
                )
        fills = {name: FILLS[name] for name in names}
    if not fills:
        raise ValueError("fills is empty; give at least one, such as fills=('blur',)")
    for name, fill in fills.items():
        if not callable(fill):
            raise TypeError(
                f"fills[{name!r}] is a {type(fill).__name__}; give a function from an image "
                "(C, *space) and what is seen of it (K, *space) to a fill"
            )
    return dict(fills)


@contextmanager
def removal_examples(
    forward_func: Callable[..., Any],
    inputs: Tensor,
    target: TargetType,
    additional_forward_args: object,
    output: str | OutputKind,
    perturbations_per_eval: int | None,
) -> Iterator[list[tuple[Tensor, Predict]]]:
    """Every example of inputs (N, C, *space), and a function that predicts copies of it, in
    evaluation mode. Default target: the predicted class."""
    check_images("inputs", inputs)
    kind = find_output_kind(output)
    if perturbations_per_eval is not None:
        check_count("perturbations_per_eval", perturbations_per_eval)
    inputs = inputs.detach()
    call = ModelCall(forward_func, (inputs,), additional_forward_args)
    batch_size = BatchSize(perturbations_per_eval, call.values_per_example)

    def predictor(number: int, column: int) -> Predict:
        forward, measure = call.for_example(number, 0), kind.measure()
        loop = BatchLoop(batch_size, inputs[number : number + 1])

        def predict(copies: Callable[[Tensor], Tensor], n_copies: int) -> Tensor:
            found = loop.run(
                n_copies, lambda rows: kind.column(forward(copies(torch.tensor(rows))), column)
            )
            return measure.prediction(found[:, 0])

        return predict

    with evaluation_mode(forward_func), torch.no_grad():
        outputs = call.unperturbed()
        explained = ExplainedOutputs.all_of(kind, outputs)
        columns = explained.watched_columns(target, explained.scores(outputs), "target")
        yield [(inputs[number], predictor(number, column)) for number, column in enumerate(columns)]


def removal_curve(
    example: tuple[Tensor, Predict], fill: RemovalFill, ranks: Tensor, counts: Tensor
) -> Tensor:
    """The predictions with the first ``counts`` pixels of an order removed, (counts,); ``ranks``
    are the positions of the pixels in the order, (pixels,)."""
    image, predict = example

    def copies(rows: Tensor) -> Tensor:
        seen = (ranks >= counts[rows.to(counts.device), None]).view(-1, *image.shape[1:])
        filled = fill(image, seen)
        if filled.shape not in (image.shape, (len(seen), *image.shape)):
            raise ValueError(
                f"a fill has shape {tuple(filled.shape)} where the image has {tuple(image.shape)} "
                f"and {len(seen)} rows are asked for; give one for all or one for each row"
            )
        return torch.where(seen.unsqueeze(1), image, filled.to(image))

    return predict(copies, len(counts))


def pixel_ranks(attributions: Tensor, inputs: Tensor) -> Tensor:
    """Each pixel's position in the order from most to least important, (N, pixels)."""
    expected = (inputs.shape, (len(inputs), 1, *inputs.shape[2:]))
    if tuple(attributions.shape) not in (tuple(shape) for shape in expected):
        raise ValueError(
            f"attributions have shape {tuple(attributions.shape)}, where the inputs have "
            f"{tuple(inputs.shape)}; give a map of that shape or with one channel"
        )
    if not device_sync.all_finite(attributions):
        raise ValueError("attributions hold NaN or infinite values, which have no order")
    importance = attributions.detach().to(inputs.device).sum(dim=1).flatten(1)
    order = importance.argsort(dim=1, descending=True, stable=True)
    return order.argsort(dim=1)


@dataclass(frozen=True, eq=False, repr=False)
class SymmetricRelevanceGain:
    """The predictions as pixels are removed from the most relevant on, and from the least.

    Args:
        fractions: the share of the pixels that is removed, from 0 to 1, (steps + 1,).
        most_first: P(c) with the most relevant pixels removed first, by fill, (N, steps + 1) each.
        least_first: the same with the least relevant pixels removed first.
    """

    fractions: Tensor
    most_first: dict[str, Tensor]
    least_first: dict[str, Tensor]

    @property
    def by_fill(self) -> dict[str, Tensor]:
        """The area between the two curves for each fill, (N,); 0 for random maps."""
        return {
            name: torch.trapezoid(least - self.most_first[name], self.fractions, dim=1)
            for name, least in self.least_first.items()
        }

    @property
    def gain(self) -> Tensor:
        """The mean over the fills, (N,): larger is better."""
        return torch.stack(list(self.by_fill.values())).mean(dim=0)

    @property
    def deletion_area(self) -> Tensor:
        """The area under P(c) as the most relevant pixels are removed first, the mean over the
        fills, (N,): small for faithful maps."""
        return self._mean_area(self.most_first)

    @property
    def insertion_area(self) -> Tensor:
        """The area under P(c) as the most relevant pixels are inserted first, which is the curve of
        the least relevant removed first in reverse, (N,): large for faithful maps."""
        return self._mean_area(self.least_first)

    def _mean_area(self, curves: dict[str, Tensor]) -> Tensor:
        return torch.trapezoid(torch.stack(list(curves.values())), self.fractions, dim=2).mean(0)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {float(gain.mean()):.3f}" for name, gain in self.by_fill.items())
        n = len(self.gain)
        spread = f" +- {float(self.gain.std() / n**0.5):.3f}" if n > 1 else ""
        return (
            f"{counted(n, 'example')}: symmetric relevance gain {float(self.gain.mean()):.3f}"
            f"{spread} (random is 0, larger is better); by what stands for removed pixels: {parts}"
        )


def symmetric_relevance_gain(
    forward_func: Callable[..., Any],
    inputs: Tensor,
    attributions: Tensor,
    target: TargetType = None,
    *,
    additional_forward_args: object = None,
    fills: Sequence[str] | Mapping[str, RemovalFill] = ("blur", "mean", "linear"),
    n_steps: int = 16,
    output: str | OutputKind = "logits",
    perturbations_per_eval: int | None = None,
) -> SymmetricRelevanceGain:
    """Remove pixels in the order of a map and in the reverse order, and compare the predictions.

    Works for a map of any method. The symmetric relevance gain (Bluecher et al. 2024) of a map is

        area under P(c), least relevant first  -  area under P(c), most relevant first

    over the share of removed pixels, which is the insertion area minus the deletion area (Petsiuk
    et al. 2018) with the same fill. It is 0 for a random order, and depends far less on the fill of
    removed pixels than deletion alone; here it is averaged over several fills. Pixels are ranked by
    the sum of their channels' attributions, and all channels are removed together.

    Args:
        forward_func: the model, or any function of the inputs.
        inputs: (N, C, *space).
        attributions: the map, of the inputs' shape or (N, 1, *space).
        target: as in ``attribute``. Default: the predicted class of each example.
        additional_forward_args: as in ``attribute``.
        output: "logits", "probabilities" or "raw", as for EfficientPDA; curves of raw outputs are
            those of the output itself.
        perturbations_per_eval: the number of changed copies in a batch.
        fills: the contents of removed pixels, by name: "blur" (of 10 pixels in 224), "mean" (the
            image's mean colour), "linear" (the weighted mean of the neighbours, with a little
            noise, as in ROAD), "prior" (the default prior's input with everything hidden). Or a
            dict of functions by name, from an image (C, *space) and its visible pixels (K, *space)
            to a fill, such as ``diagnostics.prior_fill(prior)``.
        n_steps: the number of equal steps in which all pixels are removed; a map takes 2 n_steps -
            1 passes with each fill.
    """
    chosen = resolve_fills(fills)
    most: dict[str, list[Tensor]] = {name: [] for name in chosen}
    least: dict[str, list[Tensor]] = {name: [] for name in chosen}
    model = (forward_func, inputs, target, additional_forward_args, output, perturbations_per_eval)
    with removal_examples(*model) as examples:
        ranks = pixel_ranks(attributions, inputs)
        steps = check_count("n_steps", n_steps) + 1
        counts = torch.linspace(0, ranks.shape[1], steps, device=inputs.device).round()
        for example, order in zip(examples, ranks, strict=True):
            # Both orders begin and end with the same copies, which are run once.
            unchanged = removal_curve(example, mean_fill, order, counts[:1])
            for name, fill in chosen.items():
                down = removal_curve(example, fill, order, counts[1:])
                up = down[:0]
                if len(counts) > 2:
                    up = removal_curve(example, fill, len(order) - 1 - order, counts[1:-1])
                most[name].append(torch.cat([unchanged, down]))
                least[name].append(torch.cat([unchanged, up, down[-1:]]))
    fractions = (counts / ranks.shape[1]).to(unchanged.dtype)
    stacked = ({name: torch.stack(rows) for name, rows in by.items()} for by in (most, least))
    return SymmetricRelevanceGain(fractions, *stacked)
