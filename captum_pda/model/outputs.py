"""From what a model returns to scores: a row for each example, then log-odds in nats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType
from captum_pda.errors import warn_user
from captum_pda.model.inputs import masked_columns, target_columns

#: Differences of this many units of rounding are no surprise; half precision is coarse enough.
ROUNDINGS, AT_MOST = 1e3, 0.05
#: What models call their scores: Hugging Face's, and torchvision's for segmentation.
NAMES = ("logits", "out")

WRAP = "wrap the model in a function that returns them, such as lambda x: model(x)"


def scores_of(outputs: object) -> Tensor:
    """The tensor of scores that a model returned, or that is found by its name or place.

    Read as they are: a tensor; an object or a dict with "logits" or "out"; a tuple or list that
    starts with the scores.

    Raises:
        TypeError: there is none, or more than one that it could be.
    """
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        return _named(outputs, {name: f"[{name!r}]" for name in outputs})
    if any(isinstance(getattr(outputs, name, None), Tensor) for name in NAMES):
        return _named({name: getattr(outputs, name, None) for name in NAMES}, _attributes(NAMES))
    if isinstance(outputs, tuple | list):
        return _first(outputs)
    if hasattr(outputs, "__dict__"):
        return _named(vars(outputs), _attributes(vars(outputs)), type(outputs).__name__)
    raise TypeError(
        f"the model returned {type(outputs).__name__}, where evidence needs a tensor of scores; "
        "wrap it in a function that returns logits or probabilities"
    )


def check_outputs(outputs: object, inputs: tuple[Tensor, ...]) -> Tensor:
    """The scores of outputs; refused unless they are one floating-point row per example."""
    scores = scores_of(outputs)
    if not scores.is_floating_point():
        raise TypeError(
            f"the model returned dtype {scores.dtype}; evidence needs its scores, not labels: "
            "return logits or probabilities"
        )
    return one_row_each(scores, len(inputs[0]))


def one_row_each(outputs: object, n_rows: int) -> Tensor:
    """The scores of outputs; refused unless they are one row for each copy."""
    scores = scores_of(outputs)
    if n_rows == 1 and (scores.dim() == 0 or len(scores) != 1):
        # A model that squeezes its outputs has dropped the batch dimension.
        return scores.unsqueeze(0)
    if scores.dim() == 0 or len(scores) != n_rows:
        raise ValueError(
            f"the model returned shape {tuple(scores.shape)} for {n_rows} examples; the first "
            "dimension must be the batch"
        )
    return scores


def agree(outputs: Tensor, expected: Tensor, beside: Tensor | None = None) -> bool:
    """Whether outputs differ by no more than rounding, for their size and that of others."""
    return differ_by_less(
        outputs, expected, min(ROUNDINGS * unit_of_rounding(expected), AT_MOST), beside
    )


def differ_by_less(
    outputs: Tensor, expected: Tensor, share: float, beside: Tensor | None = None
) -> bool:
    """Whether outputs differ by no more than this share of the largest of them, or of others."""
    if outputs.shape != expected.shape:
        return False
    size = _largest(expected) if beside is None else torch.max(_largest(expected), _largest(beside))
    is_same = (outputs == expected) | (outputs.isnan() & expected.isnan())
    close = is_same | ((outputs - expected).abs() <= share * size)
    return device_sync.is_true(close.all())


def _largest(outputs: Tensor) -> Tensor:
    """The largest finite value, without its sign."""
    finite = torch.nan_to_num(outputs.detach(), 0, 0, 0).abs()
    return finite.to(torch.promote_types(outputs.dtype, torch.float32)).max()


def unit_of_rounding(outputs: Tensor) -> float:
    """How coarsely a model's outputs are rounded, as a share of their size."""
    kind = outputs.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else outputs.dtype
    return torch.finfo(dtype).eps


def _attributes(names: Iterable[str]) -> dict[str, str]:
    return {name: f".{name}" for name in names}


def _named(found: Mapping[str, object], ways: Mapping[str, str], kind: str = "dict") -> Tensor:
    """The only tensor among those of a dict or object whose name says that it holds scores."""
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    scores = [name for name in NAMES if name in tensors]
    if len(scores) == 1:
        return tensors[scores[0]]
    if not tensors:
        raise TypeError(
            f"the model returned a {kind} without a tensor (it has {sorted(found)}); "
            "wrap the model in a function that returns its scores"
        )
    listed = ", ".join(f"{ways[name]} {tuple(value.shape)}" for name, value in tensors.items())
    example = ways[scores[0] if scores else next(iter(tensors))]
    raise TypeError(
        f"the model returned a {kind} with the tensors {listed}; which of them are the scores is "
        f"not clear, so {WRAP}{example}"
    )


def _first(outputs: tuple[object, ...] | list[object]) -> Tensor:
    """The first of several, unless a later one looks more like scores."""
    first = outputs[0] if outputs else None
    others = [
        number
        for number, value in enumerate(outputs[1:], start=1)
        if isinstance(value, Tensor) and value.dim() == 2 and value.is_floating_point()
    ]
    if isinstance(first, Tensor) and (first.dim() in (1, 2) or (first.dim() > 2 and not others)):
        return first
    listed = ", ".join(
        str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
        for value in outputs
    )
    raise TypeError(
        f"the model returned a {type(outputs).__name__} of {listed or 'nothing'}, which does not "
        f"start with its scores; {WRAP}[{others[0] if others else 1}]"
    )


OUTPUTS = ("logits", "multilabel", "probabilities", "raw")

#: How far a row of outputs that look like probabilities may be from a sum of 1.
SUM_TOLERANCE = 1e-2
#: So many logits do not all lie between 0 and 1 by chance.
MANY = 8


@dataclass(frozen=True)
class Readout:
    """How to read a model's outputs.

    Args:
        output: "logits", "multilabel" (a sigmoid logit for each label), "probabilities" or "raw".
        softmax: whether the outputs are logits of classes (dimension 1) that compete, so that the
            odds of one are against all the others. Otherwise each logit or probability is a
            yes-or-no question of its own; where probabilities do compete that makes no
            difference.
        dtype: the outputs' dtype, which says how they were rounded.
    """

    output: str
    softmax: bool
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, output: str, outputs: Tensor) -> Readout:
        """Choose the reading from the outputs for the unperturbed inputs, and check that they do
        not contradict ``output``."""
        if not device_sync.all_finite(outputs):
            raise ValueError(
                "the model returned NaN or infinity for the unperturbed inputs; check the "
                "model and its input scaling"
            )
        several = _are_several(outputs)
        if output == "raw":
            return cls(output, False, outputs.dtype)
        within = device_sync.is_true(((outputs >= -1e-6) & (outputs <= 1 + 1e-3)).all())
        if output == "probabilities":
            if not within:
                raise ValueError(
                    "output='probabilities' but the model returned values outside [0, 1]; if they "
                    "are scores before a softmax or sigmoid, use output='logits'"
                )
            return cls(output, False, outputs.dtype)
        if outputs.dim() == 1:
            warn_user(
                f"output={output!r} reads the model's one number per example as the logit of a "
                "yes-or-no question; for a similarity, a distance or a regression use "
                "output='raw'. A logit of shape (N, 1) says so without this warning"
            )
        if several and within:
            apart = (outputs.float().sum(1) - 1).abs()
            if outputs.numel() >= MANY or device_sync.is_true((apart < SUM_TOLERANCE).all()):
                warn_user(
                    f"output={output!r} but the model's outputs all lie between 0 and 1, as "
                    "probabilities do; if it ends in a softmax or sigmoids, use "
                    "output='probabilities'"
                )
        return cls(output, several and output == "logits", outputs.dtype)

    def every(self, outputs: Tensor) -> Tensor:
        """The scores of all outputs, (rows, columns)."""
        values = _widened(outputs)
        if self.softmax:
            values = _softmax_odds(values)
        elif self.output == "probabilities":
            others = _sum_of_others(values) if _are_several(values) else None
            values = _probability_odds(values, others, outputs.dtype)
        return values.reshape(len(outputs), -1)

    def column(self, outputs: Tensor, column: int) -> Tensor:
        """The score of one flat output column, (rows, 1)."""
        # The classes at the column's place: all that its score depends on.
        places = math.prod(outputs.shape[2:])
        target, place = divmod(column, places)
        classes = _widened(outputs.reshape(len(outputs), -1, places)[..., place])
        value = classes[:, target : target + 1]
        others = torch.cat([classes[:, :target], classes[:, target + 1 :]], dim=1)
        if self.softmax:
            return value - torch.logsumexp(others, dim=1, keepdim=True)
        if self.output == "probabilities":
            total = others.sum(dim=1, keepdim=True) if _are_several(classes) else None
            return _probability_odds(value, total, outputs.dtype)
        return value

    def check_saturation(self, *scores: Tensor) -> None:
        """Warn where a probability was too close to 0 or 1 for its dtype to say how close."""
        if self.output != "probabilities":
            return
        if any(device_sync.is_true(self._saturated(values).any()) for values in scores):
            warn_user(
                "some probabilities were rounded to exactly 0 or 1, so the weight of evidence "
                "there is only a bound; return logits and use output='logits' for the full value"
            )

    def _saturated(self, scores: Tensor) -> Tensor:
        smallest, half_a_unit = _smallest(self.dtype), torch.finfo(self.dtype).eps / 2
        beyond = scores.abs() >= -math.log(smallest) - 1e-3
        rounded_to_one = (scores + math.log(half_a_unit)).abs() < 1e-3
        return beyond | rounded_to_one


def _widened(outputs: Tensor) -> Tensor:
    """Outputs in single precision or wider."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def _softmax_odds(logits: Tensor) -> Tensor:
    """Log-odds of every class against the others, without losing 1 - p to rounding."""
    log_probability = torch.log_softmax(logits, dim=1)
    # At most one class can be above a half: only its 1 - p needs the sum of the others.
    top, best = logits.max(dim=1, keepdim=True)
    others = torch.logsumexp(logits.scatter(1, best, -math.inf), dim=1, keepdim=True)
    odds = log_probability - torch.log1p(-log_probability.exp())
    return odds.scatter(1, best, top - others)


def _probability_odds(probability: Tensor, others: Tensor | None, dtype: torch.dtype) -> Tensor:
    """log p - log(1 - p), where 1 - p is the sum of the others if they compete.

    Whether they do is seen from their sum, row by row: where it is 1 but for rounding in
    ``dtype``, both readings agree, and the sum of the others has kept what 1 - p has lost.
    """
    eps, smallest = torch.finfo(dtype).eps, _smallest(dtype)
    complement = (1 - probability).clamp_min(eps / 2)
    if others is not None:
        # Values rounded to half precision sum to 1 within one unit; summing adds some at most.
        tolerance = max(eps, 16 * torch.finfo(probability.dtype).eps)
        competing = (probability + others - 1).abs() <= tolerance
        complement = torch.where(competing, others.clamp_min(smallest), complement)
    return probability.clamp_min(smallest).log() - complement.log()


def _smallest(dtype: torch.dtype) -> float:
    """The smallest positive probability that outputs of a dtype can have, at least normal when
    read in single precision."""
    info = torch.finfo(dtype)
    normal = torch.finfo(torch.promote_types(dtype, torch.float32)).tiny
    return max(info.tiny * info.eps, normal)


def _sum_of_others(values: Tensor) -> Tensor:
    """The sum over dimension 1 without each value, exact also beside a value near 1."""
    best = values.argmax(dim=1, keepdim=True)
    without_best = values.scatter(1, best, 0).sum(dim=1, keepdim=True)
    others = values.sum(dim=1, keepdim=True) - values
    return others.scatter(1, best, without_best)


def _are_several(values: Tensor) -> bool:
    return values.dim() > 1 and values.shape[1] > 1


@dataclass(frozen=True)
class Reader:
    """Reads the scores that a task asks for.

    Args:
        readout: how the outputs are to be read.
        output_shape: the shape of one example's output.
        columns: each example's flat output column; None keeps all columns.
        region: flat output columns that are kept for all examples, to be summed; or None.
    """

    readout: Readout
    output_shape: tuple[int, ...]
    columns: tuple[int, ...] | None = None
    region: tuple[int, ...] | None = None

    @classmethod
    def of_target(
        cls, readout: Readout, target: TargetType, n_examples: int, output_shape: tuple[int, ...]
    ) -> Reader:
        """What reads the output that ``target`` means, or the region of outputs."""
        region = masked_columns(target, output_shape)
        if region is not None:
            return cls(readout, output_shape, region=tuple(region))
        columns = target_columns(target, n_examples, output_shape)
        return cls(readout, output_shape, tuple(columns))

    @property
    def n_columns(self) -> int:
        """How many scores are kept per example."""
        return math.prod(self.kept_shape)

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape of an example's scores as they are kept."""
        if self.region is not None:
            return (len(self.region),)
        return self.output_shape if self.columns is None else ()

    def for_example(self, number: int) -> Callable[[Tensor], Tensor]:
        """From outputs for copies of one example (rows, ...) to scores (rows, columns)."""
        if self.region is not None:
            kept = list(self.region)
            return lambda outputs: self.readout.every(outputs)[:, kept]
        if self.columns is None:
            return self.readout.every
        column = self.columns[number]
        return lambda outputs: self.readout.column(outputs, column)

    def read(self, outputs: Tensor) -> Tensor:
        """The scores of outputs for all examples, (N, columns)."""
        return torch.cat([self.for_example(n)(outputs[n : n + 1]) for n in range(len(outputs))])
