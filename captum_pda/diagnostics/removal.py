"""Pixels removed in the order of a map: fills, deletion and insertion curves, relevance gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType
from captum_pda.engines import BatchLoop, BatchSize
from captum_pda.model.call import ModelCall
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.inputs import check_count, check_images
from captum_pda.model.outputs import ExplainedOutputs, OutputKind, find_output_kind
from captum_pda.priors.empty_context import EmptyContext, blurred

#: The residual, as a share of its size at the start, at which the system counts as solved.
TOLERANCE = 3e-4
MOST_ITERATIONS = 200
#: How far a step of the smoother goes.
DAMPING = 0.8
#: The shortest side of a coarser level.
COARSEST_SIDE = 4
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


def linear_imputation(image: Tensor, seen: Tensor) -> Tensor:
    """Fill what is not seen of an image by its neighbours, (K, C, *space).

    Removed pixels solve a sparse linear system: each is the weighted mean of its neighbours, seen
    or removed themselves,

        x_p = sum_q w_pq x_q / sum_q w_pq,     q within one step of p along every axis,

    with w_pq = 1 / (along how many axes they differ): 1 for direct neighbours and 1/2 for diagonal
    ones in an image, as in ROAD. Where nothing is seen it is the image's mean colour.

    Args:
        image: (C, *space).
        seen: which pixels are seen, one row for each fill, (K, *space) of bool.
    """
    dtype = torch.promote_types(image.dtype, torch.float32)
    known = image.detach().to(dtype)
    hidden = (~seen).unsqueeze(1)
    count = seen.flatten(1).sum(dim=1).reshape(-1, 1, *[1] * (image.dim() - 1))
    total = torch.where(hidden, 0, known).flatten(2).sum(dim=2).reshape(len(seen), len(image))
    own_mean = known.flatten(1).mean(dim=1).reshape(1, -1, *[1] * (image.dim() - 1))
    colour = total.reshape(*total.shape, *[1] * (image.dim() - 1)) / count.clamp_min(1)
    start = torch.where(hidden, torch.where(count > 0, colour, own_mean), known)
    # Where nothing is seen there is nothing to solve; a constant is as good as any other.
    return _solve(start, hidden & (count > 0)).to(image.dtype)


def neighbour_sum(values: Tensor) -> Tensor:
    """sum_q w_pq x_q of values (K, C, *space), over the neighbours within the space."""
    by_axes = [values]  # [n]: the sum over neighbours that differ along n axes
    for axis in range(2, values.dim()):
        moved = [_both_sides(part, axis) for part in by_axes]
        by_axes = [
            by_axes[0],
            *(by_axes[n] + moved[n - 1] for n in range(1, len(by_axes))),
            moved[-1],
        ]
    total = by_axes[1].clone()
    for n, part in enumerate(by_axes[2:], start=2):
        total.add_(part, alpha=1 / n)
    return total


def _both_sides(values: Tensor, axis: int) -> Tensor:
    size = values.shape[axis]
    total = torch.zeros_like(values)
    total.narrow(axis, 1, size - 1).add_(values.narrow(axis, 0, size - 1))
    total.narrow(axis, 0, size - 1).add_(values.narrow(axis, 1, size - 1))
    return total


def _solve(start: Tensor, hidden: Tensor) -> Tensor:
    """Conjugate gradients on the removed pixels, each row of the batch by itself.

    The system is symmetric and positive: with d_p = sum_q w_pq it is d_p x_p - sum_q w_pq x_q = 0
    for removed pixels p. A cycle over coarser and coarser levels is the preconditioner.
    """
    levels = _levels(hidden.to(start.dtype))
    finest = levels[0]
    values = start
    residual = -finest.apply(values)
    size = _inner(residual, residual)
    enough = TOLERANCE**2 * size
    found = finest.precondition(levels, residual)
    direction, along = found, _inner(residual, found)
    for _ in range(MOST_ITERATIONS):
        going = size > enough
        if not bool(going.any()):
            break
        applied = finest.apply(direction)
        curvature = _inner(direction, applied)
        step = torch.where(going, along / curvature.where(going, 1), 0)
        values = values + step * direction
        last, residual = residual, residual - step * applied
        size = _inner(residual, residual)
        found = finest.precondition(levels, residual)
        # The cycle is not quite symmetric, which this form forgives.
        turn = torch.where(going, _inner(found, residual - last) / along.where(going, 1), 0)
        along = _inner(residual, found)
        direction = found + turn * direction
    return values


@dataclass(frozen=True, eq=False)
class _Level:
    """The system at one resolution: which pixels are unknown (K, 1, *space), and d_p."""

    unknown: Tensor
    degrees: Tensor
    scale: float

    def apply(self, values: Tensor) -> Tensor:
        """(d_p x_p - sum_q w_pq x_q) at unknown pixels, 0 elsewhere."""
        return (self.degrees * values - neighbour_sum(values)) * (self.scale * self.unknown)

    def precondition(self, levels: list[_Level], residual: Tensor) -> Tensor:
        """About the solution for a residual: smooth, correct on the coarser level, smooth."""
        smoother = DAMPING / (self.scale * self.degrees)
        found = smoother * residual * self.unknown
        if len(levels) > 1:
            coarse = levels[1]
            rest = residual - self.apply(found)
            correction = coarse.precondition(levels[1:], _restricted(rest, coarse))
            found = found + _prolonged(correction, rest.shape[2:]) * self.unknown
        return found + smoother * (residual - self.apply(found)) * self.unknown


def _levels(unknown: Tensor) -> list[_Level]:
    """The system at finer to coarser resolutions, for unknown pixels (K, 1, *space) of 0 and 1."""
    dims = unknown.dim() - 2
    levels: list[_Level] = []
    while True:
        degrees = neighbour_sum(torch.ones_like(unknown[:1])).clamp_min(1)
        # A Laplacian of twice the mesh, next to sums over twice the mesh.
        levels.append(_Level(unknown, degrees, 2.0 ** ((dims - 2) * len(levels))))
        sides = unknown.shape[2:]
        if min(sides) < 2 * COARSEST_SIDE:
            return levels
        # A coarse pixel is unknown where all that it stands for is.
        seen = F.pad(1 - unknown, _padding(sides), value=1)
        unknown = 1 - _pooled(seen, largest=True)


def _padding(sides: torch.Size) -> list[int]:
    return [amount for side in reversed(sides) for amount in (0, side % 2)]


def _pooled(values: Tensor, largest: bool) -> Tensor:
    """The largest or the sum of each block of two pixels along every axis."""
    for axis in range(2, values.dim()):
        shape = values.shape
        pairs = values.reshape(*shape[:axis], shape[axis] // 2, 2, *shape[axis + 1 :])
        values = pairs.amax(dim=axis + 1) if largest else pairs.sum(dim=axis + 1)
    return values


def _restricted(values: Tensor, coarse: _Level) -> Tensor:
    return _pooled(F.pad(values, _padding(values.shape[2:])), largest=False) * coarse.unknown


def _prolonged(values: Tensor, sides: torch.Size) -> Tensor:
    dims = values.dim() - 2
    mode = ("linear", "bilinear", "trilinear")[dims - 1]
    doubled = F.interpolate(values, scale_factor=2, mode=mode, align_corners=False)
    for axis, side in enumerate(sides, start=2):
        doubled = doubled.narrow(axis, 0, side)
    return doubled


def _inner(left: Tensor, right: Tensor) -> Tensor:
    """The inner product of each row and channel, (K, C, 1, ...)."""
    product = (left * right).flatten(2).sum(dim=2)
    return product.reshape(*product.shape, *[1] * (left.dim() - 2))


@dataclass(frozen=True, eq=False)
class RemovalModel:
    """A model that is asked about copies of examples.

    Args:
        forward_func: the model, or any function of the inputs.
        inputs: (N, C, *space).
        target: what to predict of each example; None is the predicted class.
        additional_forward_args: as in ``attribute``.
        output: "logits", "multilabel", "probabilities" or "raw", or an OutputKind.
        perturbations_per_eval: how many copies go through the model at once.
    """

    forward_func: Callable[..., Any]
    inputs: Tensor
    target: TargetType
    additional_forward_args: object
    output: str | OutputKind
    perturbations_per_eval: int | None

    def __post_init__(self) -> None:
        check_images("inputs", self.inputs)
        find_output_kind(self.output)  # refuses an unknown one
        if self.perturbations_per_eval is not None:
            check_count("perturbations_per_eval", self.perturbations_per_eval)

    @contextmanager
    def examples(self) -> Iterator[list[RemovalExample]]:
        """Every example, while the model is in evaluation mode."""
        inputs = self.inputs.detach()
        call = ModelCall(self.forward_func, (inputs,), self.additional_forward_args)
        batch_size = BatchSize(self.perturbations_per_eval, call.values_per_example)
        with evaluation_mode(self.forward_func), torch.no_grad():
            outputs = call.unperturbed()
            kind = find_output_kind(self.output)
            explained = ExplainedOutputs.all_of(kind, outputs)
            columns = explained.watched_columns(self.target, explained.scores(outputs), "target")
            yield [
                RemovalExample(
                    inputs[number],
                    BatchLoop(batch_size, inputs[number : number + 1]),
                    _predictor(call.for_example(number, 0), kind, column),
                )
                for number, column in enumerate(columns)
            ]


@dataclass(frozen=True, eq=False)
class RemovalExample:
    """One example (C, *space), the loop that takes its copies through the model, and what the
    model predicts of copies (copies, C, *space), (copies,)."""

    image: Tensor
    loop: BatchLoop
    predict: Callable[[Tensor], Tensor]

    def unchanged(self) -> Tensor:
        """The prediction of the example as it is, (1,)."""
        return self.curve(1, lambda rows: self.image.unsqueeze(0).clone())

    def curve(self, n_copies: int, copies: Callable[[Tensor], Tensor]) -> Tensor:
        """The predictions of copies 0, 1, ..., which are made a batch at a time, (n_copies,)."""
        found = self.loop.run(
            n_copies, lambda rows: self.predict(copies(torch.from_numpy(rows)))[:, None]
        )
        return found[:, 0]


def _predictor(
    forward: Callable[[Tensor], Tensor], kind: OutputKind, column: int
) -> Callable[[Tensor], Tensor]:
    measure = kind.measure()
    return lambda copies: measure.prediction(kind.column(forward(copies), column)[:, 0])


def pixel_ranks(attributions: Tensor, inputs: Tensor) -> Tensor:
    """Each pixel's place in the order from most to least important, (N, pixels)."""
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


def step_counts(n_pixels: int, n_steps: int, device: torch.device) -> Tensor:
    """How many pixels are changed after 0, 1, ... of equal steps, (steps + 1,)."""
    return torch.linspace(0, n_pixels, n_steps + 1, device=device).round()


@dataclass(frozen=True, eq=False, repr=False)
class FaithfulnessCurves:
    """The prediction as pixels are taken away, or put in, in the order of a map.

    Args:
        fractions: which share of the pixels was changed, from 0 to 1, (steps + 1,).
        deletion: P(c) with the most important pixels taken away first, (N, steps + 1).
        insertion: P(c) with the most important pixels put in first, (N, steps + 1).
    """

    fractions: Tensor
    deletion: Tensor
    insertion: Tensor

    @property
    def deletion_area(self) -> Tensor:
        """The area under the deletion curve, (N,): small where the map is faithful."""
        return torch.trapezoid(self.deletion, self.fractions, dim=1)

    @property
    def insertion_area(self) -> Tensor:
        """The area under the insertion curve, (N,): large where the map is faithful."""
        return torch.trapezoid(self.insertion, self.fractions, dim=1)

    def __str__(self) -> str:
        return (
            f"{len(self.deletion)} examples: area under the deletion curve "
            f"{float(self.deletion_area.mean()):.3f} (smaller is better), under the insertion "
            f"curve {float(self.insertion_area.mean()):.3f} (larger is better)"
        )

    __repr__ = __str__


def faithfulness_curves(
    forward_func: Callable[..., Any],
    inputs: Tensor,
    attributions: Tensor,
    target: TargetType = None,
    *,
    additional_forward_args: object = None,
    baselines: Tensor | float = 0.0,
    n_steps: int = 50,
    output: str | OutputKind = "logits",
    perturbations_per_eval: int | None = None,
) -> FaithfulnessCurves:
    """Take pixels away (and put them in) in the order of a map, and watch the prediction.

    Works for a map of any method (Petsiuk et al. 2018). Pixels are ranked by the sum of their
    channels' attributions, from the strongest for the target to the strongest against it; all
    channels of a pixel go together.

    Args:
        forward_func: the model, or any function of the inputs.
        inputs: (N, C, *space).
        attributions: the map, of the inputs' shape or (N, 1, *space).
        target: as in ``attribute``; None takes the predicted class of each example.
        additional_forward_args: as in ``attribute``.
        baselines: what stands where a pixel is missing: a number, or a tensor that broadcasts to
            the inputs, such as a blurred copy of them.
        n_steps: in how many equal steps all pixels are changed.
        output: "logits", "probabilities" or "raw", as for EfficientPDA; raw curves are of the
            output itself.
        perturbations_per_eval: how many changed copies go through the model at once.

    Example::

        >>> curves = diagnostics.faithfulness_curves(model, image, attribution, target=3)
        >>> curves.deletion_area, curves.insertion_area
    """
    model = RemovalModel(
        forward_func, inputs, target, additional_forward_args, output, perturbations_per_eval
    )
    n_steps = check_count("n_steps", n_steps)
    inputs = inputs.detach()
    absent = torch.as_tensor(baselines, dtype=inputs.dtype, device=inputs.device).expand_as(inputs)
    ranks = pixel_ranks(attributions, inputs)
    counts = step_counts(ranks.shape[1], n_steps, inputs.device)
    deletion: list[Tensor] = []
    insertion: list[Tensor] = []
    with model.examples() as examples:
        for number, example in enumerate(examples):
            present, missing = inputs[number], absent[number]
            for curves, path in (
                (deletion, _Path(present, missing, ranks[number], counts)),
                (insertion, _Path(missing, present, ranks[number], counts)),
            ):
                curves.append(example.curve(len(counts), path.at))
    fractions = (counts / ranks.shape[1]).to(deletion[0].dtype)
    return FaithfulnessCurves(fractions, torch.stack(deletion), torch.stack(insertion))


@dataclass(frozen=True, eq=False)
class _Path:
    """From one image (C, *space) to another in the order of ``ranks`` (pixels,), with so many
    pixels changed at each step as ``counts`` (steps + 1,) says."""

    start: Tensor
    end: Tensor
    ranks: Tensor
    counts: Tensor

    def at(self, steps: Tensor) -> Tensor:
        """The images at some steps, (steps, C, *space)."""
        changed = self.ranks < self.counts[steps.to(self.counts.device), None]
        return torch.where(changed.view(-1, 1, *self.start.shape[1:]), self.end, self.start)


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
    output: str | OutputKind = "logits",
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
