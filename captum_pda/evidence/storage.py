"""Evidence in a file of tensors and JSON, whose entries are all checked when it is read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from captum_pda.errors import warn_user
from captum_pda.evidence.evidence import EvidencePart, MeasuredOutputs, WindowEvidence
from captum_pda.model.measures import MEASURES, Measure
from captum_pda.model.outputs import OUTPUT_KINDS
from captum_pda.priors import prior_settings
from captum_pda.priors.protocol import FLOATS, opened_tensors, save_tensors
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.protocol import Regions
from captum_pda.regions.superpixels import Superpixels
from captum_pda.regions.windows import WindowGrid

FORMAT = "captum_pda evidence"
MOST_BYTES = 2**35
#: Large enough for hundreds of parts, or the settings of a user's prior.
MOST_HEADER_BYTES = 2**22
#: The most pixels of the space of windows, and the longest side, whose places are all stored.
MOST_PIXELS, LONGEST_SIDE = 2**28, 2**24


class PriorOfFile:
    """The prior of evidence that was loaded without it, with its settings but no methods."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)

    def settings(self) -> dict[str, Any]:
        """The settings of the prior when the evidence was saved."""
        return dict(self._settings)

    def __repr__(self) -> str:
        return f"PriorOfFile({self._settings.get('kind', 'unknown')})"


def save_evidence(evidence: WindowEvidence, path: str | os.PathLike[str], overwrite: bool) -> None:
    """Write evidence as safetensors; see ``WindowEvidence.save``."""
    if overwrite and os.path.lexists(path):
        try:
            with opened_tensors(path, "cpu", FORMAT, MOST_BYTES, MOST_HEADER_BYTES):
                pass
        except (ValueError, FileNotFoundError):
            raise FileExistsError(
                f"{path} exists and is not evidence; choose another name, or remove it yourself"
            ) from None
    tensors = {f"input.{n}": tensor for n, tensor in enumerate(evidence.inputs)}
    tensors["scores"] = evidence.scores
    parts = []
    regions = {id(part.regions): part.regions for part in evidence.parts}
    for n, part in enumerate(evidence.parts):
        for name in ("reference", "scores", "drawn", "errors"):
            if (tensor := getattr(part, name)) is not None:
                tensors[f"part.{n}.{name}"] = tensor
        table = {key: getattr(part, key) for key in ("tensor", "context", "depth")}
        place = list(regions).index(id(part.regions))
        parts.append(table | {"regions": place, "errors": part.errors is not None})
    measure, own = evidence.measure, _plain(evidence.measure.settings())
    settings = {
        "inputs": len(evidence.inputs),
        "is_tuple": evidence.is_tuple,
        "output_shape": list(evidence.output_shape),
        "output": evidence.output,
        "summed": evidence.outputs.summed,
        "measure": {"name": measure.name, "fields": asdict(measure), "settings": own},
        "prior": _plain(prior_settings(evidence.prior)),
        "regions": [_described(one, n, tensors) for n, one in enumerate(regions.values())],
        "parts": parts,
    }
    try:
        json.dumps(settings)
    except (TypeError, ValueError):
        raise ValueError(
            f"the measure {measure!r} has fields that JSON cannot hold, so this evidence "
            "cannot be saved; give it fields that are plain numbers, texts and lists"
        ) from None
    # Copies, because safetensors does not store tensors that share memory.
    copies = {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}
    save_tensors(path, copies, settings, overwrite, FORMAT)


def _described(regions: Regions, number: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A description of regions; the numbers of a mask are stored as tensors."""
    if isinstance(regions, WindowGrid) and regions.selected is None:
        sides = {key: list(getattr(regions, key)) for key in ("space", "window", "strides")}
        return {"kind": "windows", **sides}
    if isinstance(regions, FeatureMaskRegions):
        tensors[f"regions.{number}.numbers"] = regions.numbers.to(torch.int32)
        tensors[f"regions.{number}.labels"] = torch.tensor(regions.labels, dtype=torch.int64)
        return {"kind": "mask", "granularity": getattr(regions, "granularity", None)}
    raise TypeError(
        f"regions of {type(regions).__name__} cannot be saved; windows, masks and superpixels can. "
        "Pickle keeps the evidence for yourself"
    )


def load_evidence(
    path: str | os.PathLike[str], device: torch.device | str, prior: Any
) -> WindowEvidence:
    """Read evidence that ``save_evidence`` wrote; see ``WindowEvidence.load``."""
    with opened_tensors(path, device, FORMAT, MOST_BYTES, MOST_HEADER_BYTES) as file:
        settings = file.settings
        tensors = file.read(file.shapes, (*FLOATS, "I32", "I64"), finite=False)
        output, shape = _entry(settings, "output", str), _counts(settings, "output_shape")
        if output not in OUTPUT_KINDS:
            raise ValueError(f"output {output!r} is not known; there are {', '.join(OUTPUT_KINDS)}")
        summed = _entry(settings, "summed", bool)
        outputs = MeasuredOutputs(shape, output, _measure(settings), summed)
        columns = math.prod(shape)
        scores = _take(tensors, "scores", (None, columns))
        n = len(scores)
        n_inputs = range(_entry(settings, "inputs", int))
        inputs = tuple(_take(tensors, f"input.{number}", (n, None, ...)) for number in n_inputs)
        regions = [
            _regions(table, number, n, tensors)
            for number, table in enumerate(_entry(settings, "regions", list))
        ]
        parts = []
        for number, table in enumerate(_entry(settings, "parts", list)):
            tensor, own = _entry(table, "tensor", int), _entry(table, "regions", int)
            context, depth = _entry(table, "context", str), _entry(table, "depth", str)
            if tensor >= len(inputs) or own >= len(regions) or context not in CONTEXTS:
                raise ValueError(
                    f"part {number} has a tensor, regions or a context that is unknown"
                )
            space, count = tuple(inputs[tensor].shape[2:]), len(regions[own])
            other = regions[own].space
            if other != space and (depth == "input" or len(other) != len(space)):
                raise ValueError(f"part {number} has regions in {other} of an input of {space}")
            if CONTEXTS[context].in_sets and not isinstance(regions[own], FeatureMaskRegions):
                raise ValueError(f"part {number} has windows in a context of superpixels and masks")
            name, all_scores = f"part.{number}", (n, count, columns)
            read = (
                _take(tensors, f"{name}.reference", (n, columns)),
                _take(tensors, f"{name}.scores", all_scores),
                _take(tensors, f"{name}.drawn", (n, count), torch.int64),
                _take(tensors, f"{name}.errors", all_scores)
                if _entry(table, "errors", bool)
                else None,
            )
            parts.append(EvidencePart(tensor, regions[own], context, outputs, *read, depth))
        if tensors:
            raise ValueError(f"it holds the tensors {sorted(tensors)}, which do not belong to it")
        if not inputs or n < 1 or {part.tensor for part in parts} != set(range(len(inputs))):
            raise ValueError("it has no example, or no regions for some of its inputs")
        is_tuple, known = _entry(settings, "is_tuple", bool), _entry(settings, "prior", dict)
    if _plain(prior_settings(prior)) != known:
        if prior is not None:
            raise ValueError(
                f"{path} was made with another prior than {prior!r}: its settings are "
                f"{json.dumps(known)[:300]}; leave prior out to load it without one"
            )
        prior = PriorOfFile(known)
    return WindowEvidence(inputs, scores, tuple(parts), outputs, is_tuple, prior)


def _entry(table: Any, key: str, kind: type) -> Any:
    """An entry of a table of a file, with the required type; numbers are not negative."""
    if not isinstance(table, dict):
        raise ValueError(f"what should have {key!r} is not a table")
    if key not in table:
        raise ValueError(f"its settings lack {key!r}")
    value = table[key]
    is_kind = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if not is_kind or (kind is int and not 0 <= int(value) < 2**31):
        raise ValueError(f"{key!r} is {value!r}, which does not belong there")
    return value


def _counts(table: Any, key: str) -> tuple[int, ...]:
    values = _entry(table, key, list)
    if not all(type(one) is int and 0 < one < 2**31 for one in values):
        raise ValueError(f"{key!r} are not counts")
    return tuple(values)


def _take(
    tensors: dict[str, Tensor], name: str, shape: tuple[Any, ...], dtype: torch.dtype | None = None
) -> Tensor:
    """A tensor of a file with this shape, in which None is any size and an ellipsis one to three
    sizes; of real numbers, unless there is a ``dtype``."""
    if name not in tensors:
        raise ValueError(f"it lacks the tensors [{name!r}], which belong to it")
    found = tensors.pop(name)
    own = list(found.shape)
    fits = len(own) == len(shape) or (shape[-1] is ... and 0 <= len(own) - len(shape) <= 2)
    if not fits or any(a not in (None, ..., b) for a, b in zip(shape, own, strict=False)):
        raise ValueError(f"{name} has shape {own} where {list(shape)} belongs")
    if found.dtype != dtype and not (dtype is None and found.is_floating_point()):
        raise ValueError(f"{name} has dtype {found.dtype}, which does not belong there")
    return found


def _measure(settings: dict[str, Any]) -> Measure:
    table = _entry(settings, "measure", dict)
    name, fields = _entry(table, "name", str), _entry(table, "fields", dict)
    if name not in MEASURES:
        raise ValueError(
            f"measure {name!r} is not known here; import the module that defines it first"
        )
    as_tuples = {key: tuple(one) if type(one) is list else one for key, one in fields.items()}
    measure = MEASURES[name](**as_tuples)
    if _plain(measure.settings()) != _entry(table, "settings", dict):
        warn_user(f"the measure {name!r} is not defined as it was when this evidence was saved")
    return measure


def _regions(
    table: dict[str, Any], number: int, n_examples: int, tensors: dict[str, Tensor]
) -> Regions:
    if _entry(table, "kind", str) == "windows":
        space, window, strides = (_counts(table, key) for key in ("space", "window", "strides"))
        if math.prod(space) > MOST_PIXELS or max(space) > LONGEST_SIDE:
            raise ValueError(f"windows in a space of {space} are more than is read")
        if any(width > size for width, size in zip(window, space, strict=True)):
            raise ValueError(f"windows of {window} do not fit in {space}")
        return WindowGrid(space, window, strides)
    numbers = _take(tensors, f"regions.{number}.numbers", (None, ...), torch.int32).cpu().long()
    labels = _take(tensors, f"regions.{number}.labels", (None,), torch.int64).cpu()
    if len(numbers) not in (1, n_examples) or not bool((labels[1:] > labels[:-1]).all()):
        raise ValueError(f"the labels of regions.{number} are not in order, or of other examples")
    if not bool(((numbers >= 0) & (numbers < len(labels))).all()):
        raise ValueError(f"regions.{number} has pixels of regions that are not there")
    if table.get("granularity") is None:
        return FeatureMaskRegions.of_numbers(numbers, tuple(labels.tolist()))
    regions = Superpixels.of_numbers(numbers, tuple(labels.tolist()))
    regions.granularity = _entry(table, "granularity", int)
    return regions


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
    return plain
