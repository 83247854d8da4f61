"""Evidence in a file: tensors and JSON, nothing that runs, and read with suspicion."""

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
from captum_pda.priors.protocol import FLOATS, StoredTensors, opened_tensors, save_tensors
from captum_pda.regions.contexts import CONTEXTS
from captum_pda.regions.masks import FeatureMaskRegions
from captum_pda.regions.protocol import Regions
from captum_pda.regions.superpixels import Superpixels
from captum_pda.regions.windows import WindowGrid

FORMAT = "captum_pda evidence"
MOST_BYTES = 2**35
#: Hundreds of parts, or the settings of a prior of one's own, fit into this.
MOST_HEADER_BYTES = 2**22
#: The most pixels of a feature map; those of inputs are bounded by what the file holds.
MOST_PIXELS = 2**28


class PriorOfFile:
    """The prior of evidence that was loaded without it: it is named, and cannot be asked."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)

    def settings(self) -> dict[str, Any]:
        """What described the prior when the evidence was saved."""
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
    numbers: dict[int, int] = {}
    regions: list[dict[str, Any]] = []
    parts = []
    for n, part in enumerate(evidence.parts):
        if id(part.regions) not in numbers:
            numbers[id(part.regions)] = len(regions)
            regions.append(_described_regions(part.regions, len(regions), tensors))
        parts.append(
            {
                "tensor": part.tensor,
                "regions": numbers[id(part.regions)],
                "context": part.context,
                "depth": part.depth,
                "errors": part.errors is not None,
            }
        )
        tensors[f"part.{n}.reference"] = part.reference
        tensors[f"part.{n}.scores"] = part.scores
        tensors[f"part.{n}.drawn"] = part.drawn
        if part.errors is not None:
            tensors[f"part.{n}.errors"] = part.errors
    outputs = evidence.outputs
    settings = {
        "inputs": len(evidence.inputs),
        "is_tuple": evidence.is_tuple,
        "output_shape": list(outputs.output_shape),
        "output": outputs.output,
        "summed": outputs.summed,
        "measure": {
            "name": outputs.measure.name,
            "fields": asdict(outputs.measure),
            "settings": _plain(outputs.measure.settings()),
        },
        "prior": _plain(prior_settings(evidence.prior)),
        "regions": regions,
        "parts": parts,
    }
    try:
        json.dumps(settings)
    except (TypeError, ValueError):
        raise ValueError(
            f"the measure {outputs.measure!r} has fields that JSON cannot hold, so this evidence "
            "cannot be saved; give it fields that are plain numbers, texts and lists"
        ) from None
    # Copies, since tensors of one evidence may share memory, which safetensors does not store.
    copies = {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}
    save_tensors(path, copies, settings, overwrite, FORMAT)


def _described_regions(regions: Regions, number: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What describes regions; the numbers of a mask go to the tensors."""
    if isinstance(regions, WindowGrid) and regions.selected is None:
        return {
            "kind": "windows",
            "space": list(regions.space),
            "window": list(regions.window),
            "strides": list(regions.strides),
        }
    if isinstance(regions, FeatureMaskRegions):
        tensors[f"regions.{number}.numbers"] = regions.numbers.to(torch.int32)
        tensors[f"regions.{number}.labels"] = torch.tensor(regions.labels, dtype=torch.int64)
        granularity = regions.granularity if isinstance(regions, Superpixels) else None
        return {"kind": "mask", "granularity": granularity}
    raise TypeError(
        f"regions of {type(regions).__name__} cannot be saved; windows, masks and superpixels can. "
        "Pickle keeps the evidence for yourself"
    )


def load_evidence(
    path: str | os.PathLike[str], device: torch.device | str, prior: Any
) -> WindowEvidence:
    """Read evidence that ``save_evidence`` wrote; see ``WindowEvidence.load``."""
    with opened_tensors(path, device, FORMAT, MOST_BYTES, MOST_HEADER_BYTES) as file:
        settings = _Table(file.settings, "the settings")
        outputs = _reading(settings)
        n_inputs = settings.count("inputs", 1)
        shapes, dtypes, kinds = _expected(file, settings, outputs, n_inputs)
        tensors = file.read_any(shapes, dtypes)
        regions = [_regions(kind, n, tensors) for n, kind in enumerate(kinds)]
        parts = []
        for n, table in enumerate(settings.tables("parts")):
            parts.append(
                EvidencePart(
                    table.count("tensor", 0),
                    regions[table.count("regions", 0)],
                    table.text("context"),
                    outputs,
                    tensors[f"part.{n}.reference"],
                    tensors[f"part.{n}.scores"],
                    tensors[f"part.{n}.drawn"],
                    tensors.get(f"part.{n}.errors"),
                    table.text("depth"),
                )
            )
        known = settings.table("prior").values
    if prior is None and _plain(prior_settings(None)) != known:
        prior = PriorOfFile(known)
    elif prior is not None and _plain(prior_settings(prior)) != known:
        raise ValueError(
            f"{path} was made with another prior than {prior!r}: its settings are "
            f"{json.dumps(known)[:300]}; leave prior out to load it without one"
        )
    inputs = tuple(tensors[f"input.{n}"] for n in range(n_inputs))
    is_tuple = settings.flag("is_tuple")
    return WindowEvidence(inputs, tensors["scores"], tuple(parts), outputs, is_tuple, prior)


class _Table:
    """A JSON table of a file, each entry checked as it is read."""

    def __init__(self, values: Any, name: str) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{name} are not a table")
        self.values: dict[str, Any] = values
        self.name = name

    def _entry(self, key: str, kind: type) -> Any:
        if key not in self.values:
            raise ValueError(f"{self.name} lack {key!r}")
        value = self.values[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"{key!r} in {self.name} is not of the right kind")
        return value

    def text(self, key: str) -> str:
        return str(self._entry(key, str))

    def flag(self, key: str) -> bool:
        return bool(self._entry(key, bool))

    def count(self, key: str, least: int) -> int:
        value = int(self._entry(key, int))
        if not least <= value < 2**31:
            raise ValueError(f"{key!r} in {self.name} is {value}")
        return value

    def table(self, key: str) -> _Table:
        return _Table(self._entry(key, dict), f"the entries of {key!r}")

    def tables(self, key: str) -> list[_Table]:
        return [_Table(one, f"the entries of {key!r}") for one in self._entry(key, list)]

    def counts(self, key: str, least: int) -> tuple[int, ...]:
        values = self._entry(key, list)
        if not all(type(one) is int and least <= one < 2**31 for one in values):
            raise ValueError(f"{key!r} in {self.name} are not counts")
        return tuple(values)


def _reading(settings: _Table) -> MeasuredOutputs:
    output = settings.text("output")
    if output not in OUTPUT_KINDS:
        raise ValueError(f"output {output!r} is not known; there are {', '.join(OUTPUT_KINDS)}")
    return MeasuredOutputs(
        settings.counts("output_shape", 1),
        output,
        _measure(settings.table("measure")),
        settings.flag("summed"),
    )


def _measure(table: _Table) -> Measure:
    name, fields = table.text("name"), table.table("fields").values
    if name not in MEASURES:
        raise ValueError(
            f"measure {name!r} is not known here; import the module that defines it first"
        )
    given = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    measure = MEASURES[name](**given)
    if _plain(measure.settings()) != table.table("settings").values:
        warn_user(f"the measure {name!r} is not defined as it was when this evidence was saved")
    return measure


def _expected(
    file: StoredTensors, settings: _Table, outputs: MeasuredOutputs, n_inputs: int
) -> tuple[dict[str, list[int]], dict[str, tuple[str, ...]], list[_Table]]:
    """The shape and the dtypes that each tensor of a file must have, and its kinds of regions."""
    shapes: dict[str, list[int]] = {}
    dtypes: dict[str, tuple[str, ...]] = {}

    def expect(name: str, shape: list[int], *kinds: str) -> None:
        shapes[name], dtypes[name] = shape, kinds

    columns = math.prod(outputs.output_shape)
    n_examples = _dimensions(file, "scores", (2,))[0]
    if n_examples < 1:
        raise ValueError("it holds no example")
    expect("scores", [n_examples, columns], *FLOATS)
    spaces = []
    for n in range(n_inputs):
        shape = _dimensions(file, f"input.{n}", (3, 4, 5))
        expect(f"input.{n}", [n_examples, *shape[1:]], *FLOATS)
        spaces.append(tuple(shape[2:]))
    kinds = settings.tables("regions")
    found: list[tuple[int, tuple[int, ...]]] = []
    for n, table in enumerate(kinds):
        if table.text("kind") == "windows":
            found.append(_count_windows(table))
        elif table.text("kind") == "mask":
            rows, *sides = _dimensions(file, f"regions.{n}.numbers", (2, 3, 4))
            (count,) = _dimensions(file, f"regions.{n}.labels", (1,))
            if rows not in (1, n_examples):
                raise ValueError(f"regions.{n} has {rows} rows for {n_examples} examples")
            expect(f"regions.{n}.numbers", [rows, *sides], "I32")
            expect(f"regions.{n}.labels", [count], "I64")
            found.append((count, tuple(sides)))
        else:
            raise ValueError(f"regions of kind {table.text('kind')!r} are not known")
    for n, table in enumerate(settings.tables("parts")):
        tensor, number = table.count("tensor", 0), table.count("regions", 0)
        if tensor >= n_inputs or number >= len(found) or table.text("context") not in CONTEXTS:
            raise ValueError(f"part {n} names a tensor, regions or a context that is not there")
        count, space = found[number]
        own = spaces[tensor]
        if space != own and (table.text("depth") == "input" or len(space) != len(own)):
            raise ValueError(f"part {n} has regions in {space} of an input of {own}")
        expect(f"part.{n}.reference", [n_examples, columns], *FLOATS)
        expect(f"part.{n}.scores", [n_examples, count, columns], *FLOATS)
        expect(f"part.{n}.drawn", [n_examples, count], "I64")
        if table.flag("errors"):
            expect(f"part.{n}.errors", [n_examples, count, columns], *FLOATS)
    if {table.count("tensor", 0) for table in settings.tables("parts")} != set(range(n_inputs)):
        raise ValueError("it has no regions for some of its inputs")
    return shapes, dtypes, kinds


def _dimensions(file: StoredTensors, name: str, dims: tuple[int, ...]) -> list[int]:
    """The shape of a tensor, which has one of these numbers of dimensions."""
    shape = file.shapes.get(name)
    if shape is None:
        raise ValueError(f"it lacks {name}")
    if len(shape) not in dims:
        raise ValueError(f"{name} has shape {shape}")
    return shape


def _count_windows(table: _Table) -> tuple[int, tuple[int, ...]]:
    """How many windows a grid has, before it is made, and the space that it lies in."""
    space, window, strides = (table.counts(key, 1) for key in ("space", "window", "strides"))
    if math.prod(space) > MOST_PIXELS:
        raise ValueError(f"windows in a space of {space} are more than is read")
    if any(width > size for width, size in zip(window, space, strict=True)):
        raise ValueError(f"windows of {window} do not fit in {space}")
    counts = [
        1 + -(-(size - width) // stride)
        for size, width, stride in zip(space, window, strides, strict=True)
    ]
    return math.prod(counts), space


def _regions(table: _Table, number: int, tensors: Mapping[str, Tensor]) -> Regions:
    if table.text("kind") == "windows":
        return WindowGrid(*(table.counts(key, 1) for key in ("space", "window", "strides")))
    numbers = tensors[f"regions.{number}.numbers"].cpu().long()
    labels = tensors[f"regions.{number}.labels"].cpu()
    if not bool((labels[1:] > labels[:-1]).all()):
        raise ValueError(f"the labels of regions.{number} are not in order")
    if not bool(((numbers >= 0) & (numbers < len(labels))).all()):
        raise ValueError(f"regions.{number} has pixels of regions that are not there")
    if table.values.get("granularity") is None:
        return FeatureMaskRegions.of_numbers(numbers, tuple(labels.tolist()))
    regions = Superpixels.of_numbers(numbers, tuple(labels.tolist()))
    regions.granularity = table.count("granularity", 1)
    return regions


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from a file."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
    return plain
