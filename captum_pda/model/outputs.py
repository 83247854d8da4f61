"""Output kinds: from a model's outputs to scores, which are log-odds in nats."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from captum_pda import device_sync
from captum_pda._captum import TargetType
from captum_pda.errors import warn_user
from captum_pda.fingerprints import own_code
from captum_pda.model.inputs import masked_columns, target_columns
from captum_pda.model.measures import (
    Measure,
    RawDifference,
    WeightOfEvidence,
    find,
    find_measure,
    register,
)

#: Outputs agree if they differ by this many units of rounding, up to a share of the largest.
ROUNDINGS, MAX_ROUNDING = 1e3, 0.05
#: The names of scores in models of Hugging Face, and of torchvision for segmentation.
NAMES = ("logits", "out")
#: How far the sum of a row of outputs that look like probabilities may be from 1.
SUM_TOLERANCE = 1e-2
#: The number of logits that do not all lie between 0 and 1 by chance.
ENOUGH_OUTPUTS = 8


def scores_of(outputs: object) -> Tensor:
    """The tensor of scores in a model's outputs: the tensor itself, "logits" or "out" of an object
    or a dict, or the first of a tuple or list."""
    if isinstance(outputs, Tensor):
        return outputs
    #: The values, by the code that reads them.
    found: dict[str, Any]
    if isinstance(outputs, Mapping):
        found = {f"[{name!r}]": value for name, value in outputs.items()}
    elif any(isinstance(getattr(outputs, name, None), Tensor) for name in NAMES):
        found = {f".{name}": getattr(outputs, name, None) for name in NAMES}
    elif isinstance(outputs, tuple | list):
        found = {f"[{number}]": value for number, value in enumerate(outputs)}
    else:
        found = {f".{name}": value for name, value in getattr(outputs, "__dict__", {}).items()}
    kind = type(outputs).__name__
    tensors = {way: value for way, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise TypeError(
            f"the model returned a {kind} without a tensor (it has {list(found)}); wrap the model "
            "in a function that returns its scores"
        )
    scores = [way for name in NAMES for way in (f"[{name!r}]", f".{name}") if way in tensors]
    likely = [*scores, *tensors]
    if "[0]" in tensors:
        # The first of several, unless a later one looks more like scores.
        tables = [way for way, value in tensors.items() if value.dim() == 2]
        likely = tables + likely
        n_dimensions = tensors["[0]"].dim()
        if n_dimensions in (1, 2) or (n_dimensions > 2 and not tables):
            scores = ["[0]"]
    if len(scores) == 1:
        return tensors[scores[0]]
    listed = ", ".join(f"{way} {tuple(value.shape)}" for way, value in tensors.items())
    raise TypeError(
        f"the model returned a {kind} with the tensors {listed}; which of them are the scores is "
        "not clear, so wrap the model in a function that returns them, such as lambda x: "
        f"model(x){likely[0]}"
    )


def check_outputs(outputs: object, inputs: Sequence[Tensor]) -> Tensor:
    """Check outputs and return the scores, one floating-point row per example."""
    scores = scores_of(outputs)
    if not scores.is_floating_point():
        raise TypeError(
            f"the model returned dtype {scores.dtype}; evidence needs its scores, not labels: "
            "return logits or probabilities"
        )
    return one_row_each(scores, len(inputs[0]))


def one_row_each(outputs: object, n_rows: int) -> Tensor:
    """The scores of outputs; refused unless there is one row for each copy."""
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


def agree(
    outputs: Tensor, expected: Tensor, beside: Tensor | None = None, share: float | None = None
) -> bool:
    """Whether outputs differ by rounding, or this share of the largest of them and those
    ``beside``."""
    if outputs.shape != expected.shape:
        return False
    if share is None:
        share = min(ROUNDINGS * unit_of_rounding(expected), MAX_ROUNDING)
    sizes = [_widened(each.detach()) for each in (expected, beside) if each is not None]
    size = torch.stack([each.nan_to_num(0, 0, 0).abs().max() for each in sizes]).max()
    is_same = (outputs == expected) | (outputs.isnan() & expected.isnan())
    return device_sync.is_true((is_same | ((outputs - expected).abs() <= share * size)).all())


def unit_of_rounding(outputs: Tensor) -> float:
    """The unit of rounding of a model's outputs, relative to their size."""
    kind = outputs.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else outputs.dtype
    return torch.finfo(dtype).eps


@dataclass(frozen=True)
class OutputKind(ABC):
    """The kind of a model's outputs, which says how they are read as scores.

    A score is the log-odds of an output in nats, or the output itself if the kind has no
    probabilities. Log-odds do not round a probability p to 0 or 1: log p = logsigmoid(log-odds) and
    log(1 - p) = logsigmoid(-log-odds).

    A subclass with a ``name`` is registered for ``output="name"``; its configuration is its fields,
    all with defaults. Derive it from the most similar kind.

    Attributes:
        name: for ``output="name"``, ``--output-kind`` and files.
        words: a description for the command's help.
        has_probabilities: whether scores are log-odds.
        are_exclusive: whether one class is the answer; otherwise each output has an answer.
        are_logits: whether a softmax or sigmoid follows, so that a model that ends in one
            contradicts this kind.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    has_probabilities: ClassVar[bool] = True
    are_exclusive: ClassVar[bool] = True
    are_logits: ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        register(OUTPUT_KINDS, cls, "an output kind")

    @abstractmethod
    def scores(self, outputs: Tensor) -> Tensor:
        """The scores of outputs (rows, classes, *places), of the same shape, in at least single
        precision. Scores at a place may depend on the classes at this place only."""

    def column(self, outputs: Tensor, column: int) -> Tensor:
        """The score of one flat output column, (rows, 1)."""
        places = math.prod(outputs.shape[2:])
        target, place = divmod(column, places)
        classes = outputs.reshape(len(outputs), -1, places)[..., place]
        return self.scores(classes)[:, target : target + 1]

    def check(self, outputs: Tensor) -> None:  # noqa: B027 - most kinds take any outputs
        """Refuse, or warn of, unperturbed outputs that contradict the kind."""

    def warn_of_rounding(  # noqa: B027 - most kinds lose nothing
        self, dtype: torch.dtype, scores: Iterable[Tensor]
    ) -> None:
        """Warn if outputs of a dtype were rounded so that scores are only bounds."""

    def average(self, scores: Tensor) -> Tensor:
        """The score of the mean prediction over the samples in dimension 0. Probabilities are
        averaged in log space: log p = logsumexp_s(log p_s) - log S, and likewise log(1 - p)."""
        if len(scores) == 1:
            return scores[0]
        # The - log S of both terms cancels in the log-odds.
        return F.logsigmoid(scores).logsumexp(dim=0) - F.logsigmoid(-scores).logsumexp(dim=0)

    def average_error(self, scores: Tensor) -> Tensor:
        """The standard error of ``average``, from the samples in dimension 0.

        By the delta method s / sqrt(S) / (p (1 - p)) in nats, with s the standard deviation of the
        probabilities p_s and p their mean. It is computed from p_s / p, or from (1 - p_s) / (1 - p)
        if that event is rarer, so that nothing is rounded to 0 or 1.
        """
        log_p, log_not_p = F.logsigmoid(scores), F.logsigmoid(-scores)
        mean_p, mean_not_p = (x.logsumexp(dim=0) - math.log(len(x)) for x in (log_p, log_not_p))
        ratios = torch.where(mean_p < mean_not_p, log_p - mean_p, log_not_p - mean_not_p).exp()
        return ratios.std(dim=0) / math.sqrt(len(scores)) / torch.maximum(mean_p, mean_not_p).exp()

    def measure(self, measure: str | Measure = "weight_of_evidence") -> Measure:
        """The measure to apply to scores. Without probabilities the default, weight of evidence, is
        the plain difference. Refuses unknown measures and ones that do not fit the kind."""
        found = find_measure(measure)
        if isinstance(found, WeightOfEvidence):
            return found if self.has_probabilities else RawDifference()
        if found.needs_probabilities != self.has_probabilities:
            needs, other = ("needs", "logits") if found.needs_probabilities else ("takes no", "raw")
            has = "is read as" if self.has_probabilities else "has no"
            raise ValueError(
                f"measure={found.name!r} {needs} probabilities, and output={self.name!r} {has} "
                f"probabilities; leave measure out, or use output={other!r}"
            )
        return found

    def settings(self) -> str | dict[str, Any]:
        """The settings as plain values: the name, if that is all."""
        more = {**asdict(self), **own_code(self)}
        return {"name": self.name, **more} if more else self.name


#: Every output kind by its name.
OUTPUT_KINDS: dict[str, type[OutputKind]] = {}


class Logits(OutputKind):
    """Logits of exclusive classes (dimension 1); a single column is one sigmoid logit."""

    name, words = "logits", "of classes that exclude each other, before a softmax"
    are_logits = True

    def scores(self, outputs: Tensor) -> Tensor:
        logits = _widened(outputs)
        if not _are_several(logits):
            return logits
        # Only a class above a half needs the sum of the others for its 1 - p. It is taken out of
        # the rest, whose gradient would be NaN if its p is rounded to 1.
        top, best = logits.max(dim=1, keepdim=True)
        others = torch.logsumexp(logits.scatter(1, best, -math.inf), dim=1, keepdim=True)
        log_probability = torch.log_softmax(logits, dim=1).scatter(1, best, -1)
        odds = log_probability - torch.log1p(-log_probability.exp())
        return odds.scatter(1, best, top - others)

    def check(self, outputs: Tensor) -> None:
        if outputs.dim() == 1:
            warn_user(
                f"output={self.name!r} reads the model's one number per example as the logit of a "
                "yes-or-no question; for a similarity, a distance or a regression use "
                "output='raw'. A logit of shape (N, 1) says so without this warning"
            )
        if not _are_several(outputs) or not _look_like_probabilities(outputs):
            return
        apart = (outputs.float().sum(1) - 1).abs()
        if outputs.numel() >= ENOUGH_OUTPUTS or device_sync.is_true((apart < SUM_TOLERANCE).all()):
            warn_user(
                f"output={self.name!r} but the model's outputs all lie between 0 and 1, as "
                "probabilities do; if it ends in a softmax or sigmoids, use "
                "output='probabilities'"
            )


class MultilabelLogits(Logits):
    """A sigmoid logit for each label, which are independent."""

    name, words = "multilabel", "logits of labels, each before a sigmoid of its own"
    are_exclusive = False

    def scores(self, outputs: Tensor) -> Tensor:
        return _widened(outputs)


class Probabilities(OutputKind):
    """Probabilities after a softmax (dimension 1) or sigmoids.

    Rows that sum to 1 but for rounding are read as exclusive classes: both readings agree, and the
    sum of the others is more accurate than 1 - p.
    """

    name, words = "probabilities", "of either, after the softmax or sigmoids"

    def scores(self, outputs: Tensor) -> Tensor:
        """log p - log(1 - p), where 1 - p is the sum of the others for exclusive classes."""
        values = _widened(outputs)
        eps, smallest = torch.finfo(outputs.dtype).eps, _smallest(outputs.dtype)
        complement = (1 - values).clamp_min(eps / 2)
        if _are_several(values):
            # The sum of the others is accurate also if a value is near 1.
            best = values.argmax(dim=1, keepdim=True)
            without_best = values.scatter(1, best, 0).sum(dim=1, keepdim=True)
            others = (values.sum(dim=1, keepdim=True) - values).scatter(1, best, without_best)
            # Values rounded to half precision sum to 1 within one unit; the summation adds some.
            tolerance = max(eps, 16 * torch.finfo(values.dtype).eps)
            competing = (values + others - 1).abs() <= tolerance
            complement = torch.where(competing, others.clamp_min(smallest), complement)
        return values.clamp_min(smallest).log() - complement.log()

    def check(self, outputs: Tensor) -> None:
        if not _look_like_probabilities(outputs):
            raise ValueError(
                f"output={self.name!r} but the model returned values outside [0, 1]; if they "
                "are scores before a softmax or sigmoid, use output='logits'"
            )

    def warn_of_rounding(self, dtype: torch.dtype, scores: Iterable[Tensor]) -> None:
        largest, at_one = -math.log(_smallest(dtype)), -math.log(torch.finfo(dtype).eps / 2)
        for each in scores:
            rounded = (each.abs() >= largest - 1e-3) | ((each - at_one).abs() < 1e-3)
            if device_sync.is_true(rounded.any()):
                warn_user(
                    "some probabilities were rounded to exactly 0 or 1, so the weight of evidence "
                    "there is only a bound; return logits and use output='logits' for the full "
                    "value"
                )
                return


class RawOutputs(OutputKind):
    """Numbers that are compared directly: hidden units, regression, similarity."""

    name, words = "raw", "plain numbers, as of a regression"
    has_probabilities = are_exclusive = False

    def scores(self, outputs: Tensor) -> Tensor:
        return _widened(outputs)

    def average(self, scores: Tensor) -> Tensor:
        return scores.mean(dim=0)

    def average_error(self, scores: Tensor) -> Tensor:
        return scores.std(dim=0) / math.sqrt(len(scores))


def find_output_kind(output: str | OutputKind) -> OutputKind:
    """The output kind of a name, or the given object."""
    return cast(OutputKind, find("output", output, OutputKind, OUTPUT_KINDS))


def _widened(outputs: Tensor) -> Tensor:
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def _are_several(outputs: Tensor) -> bool:
    return outputs.dim() > 1 and outputs.shape[1] > 1


def _look_like_probabilities(outputs: Tensor) -> bool:
    return device_sync.is_true(((outputs >= -1e-6) & (outputs <= 1 + 1e-3)).all())


def _smallest(dtype: torch.dtype) -> float:
    """The smallest positive probability of a dtype, which is normal in single precision."""
    info = torch.finfo(dtype)
    normal = torch.finfo(torch.promote_types(dtype, torch.float32)).tiny
    return max(info.tiny * info.eps, normal)


@dataclass(frozen=True)
class ExplainedOutputs:
    """The outputs of a model that are explained, and their kind."""

    kind: OutputKind
    output_shape: tuple[int, ...]  #: Of one example.
    dtype: torch.dtype  #: Says how outputs were rounded.
    columns: tuple[int, ...] | None = None  #: Each example's flat column; None keeps all.
    region: tuple[int, ...] | None = None  #: Columns kept for all examples, to be summed.

    @classmethod
    def all_of(cls, kind: OutputKind, outputs: Tensor) -> ExplainedOutputs:
        """All outputs; unperturbed ``outputs`` are checked."""
        if not device_sync.all_finite(outputs):
            raise ValueError(
                "the model returned NaN or infinity for the unperturbed inputs; check the "
                "model and its input scaling"
            )
        kind.check(outputs)
        return cls(kind, tuple(outputs.shape[1:]), outputs.dtype)

    @classmethod
    def of_target(cls, kind: OutputKind, outputs: Tensor, target: TargetType) -> ExplainedOutputs:
        """The output of each example that ``target`` names, or its region of outputs."""
        every = cls.all_of(kind, outputs)
        region = masked_columns(target, every.output_shape)
        if region is not None:
            return replace(every, region=tuple(region))
        columns = target_columns(target, len(outputs), every.output_shape)
        return replace(every, columns=tuple(columns))

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape of the scores of an example."""
        if self.region is not None:
            return (len(self.region),)
        return self.output_shape if self.columns is None else ()

    @property
    def n_columns(self) -> int:
        return math.prod(self.kept_shape)

    def for_example(self, number: int) -> Callable[[Tensor], Tensor]:
        """From outputs for copies of one example (rows, ...) to scores (rows, columns)."""
        if self.columns is not None:
            column = self.columns[number]
            return lambda outputs: self.kind.column(outputs, column)
        kept = slice(None) if self.region is None else list(self.region)
        return lambda outputs: self.kind.scores(outputs).reshape(len(outputs), -1)[:, kept]

    def scores(self, outputs: Tensor) -> Tensor:
        """The scores of outputs for all examples, (N, columns)."""
        return torch.cat([self.for_example(n)(outputs[n : n + 1]) for n in range(len(outputs))])

    def watched_columns(self, target: TargetType, scores: Tensor, name: str) -> list[int]:
        """The column of each example's ``target``, called ``name`` in errors; by default the
        largest."""
        if target is None and self.kind.has_probabilities and len(self.output_shape) <= 1:
            predicted: list[int] = scores.argmax(dim=1).tolist()
            return predicted
        return target_columns(target, len(scores), self.output_shape, name)

    def warn_of_rounding(self, *scores: Tensor) -> None:
        self.kind.warn_of_rounding(self.dtype, scores)
