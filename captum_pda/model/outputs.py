"""The scores among what a model returns, checked: one floating-point row per example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from captum_pda import device_sync

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
