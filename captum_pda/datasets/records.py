"""What a stored result is recognised by: its example, the model's outputs for it, and settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import captum
import torch
from torch import Tensor, nn

from captum_pda._version import __version__
from captum_pda.fingerprints import (
    fingerprint,
    opaque_parts,
    own_code,
    weights_fingerprint,
)
from captum_pda.model.evaluation_mode import evaluation_mode
from captum_pda.model.model_call import ModelCall

#: Rounding may move outputs by this many units in the last place of their largest value, but by no
#: more than this share of it (which matters in half precision).
ROUNDING_UNITS, ROUNDING_SHARE = 100, 0.01
#: Attributes of an attribution that are not settings: the model, and how it is run.
NO_SETTINGS = frozenset({"forward_func", "gradient_func", "process_group"})
#: Longer values are abbreviated in messages about changed settings.
LONGEST_VALUE = 40


@dataclass(frozen=True, eq=False)
class Example:
    """An example to explain, where a plain tensor or pair is not enough.

    Args:
        inputs: (C, *space).
        target: its own target, if it has one.
        source: where it comes from, as plain values that are stored with its result.
    """

    inputs: Tensor
    target: Any = None
    source: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(item: Any) -> Example:
        """The example of a data set's item: an input, or a pair of an input and its target."""
        if isinstance(item, Example):
            return item
        pair = item if isinstance(item, tuple | list) and len(item) == 2 else (item, None)
        inputs, target = pair
        if not isinstance(inputs, Tensor):
            raise TypeError(
                f"an item starts with {type(inputs).__name__} where a tensor (C, *space) was "
                "expected; add a transform that makes one"
            )
        return Example(inputs, target.tolist() if isinstance(target, Tensor) else target)


@dataclass(frozen=True, eq=False)
class Record:
    """What a result was made from.

    Args:
        input_sha256: a hash of the input.
        target: the explained output, as plain values.
        outputs: the model's outputs for the whole input; None without a model.
        source: where the input came from.
    """

    input_sha256: str
    target: Any
    outputs: Tensor | None
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """What is stored of a record as plain values, beside the outputs."""
        return {**self.source, "input_sha256": self.input_sha256, "own_target": self.target}

    def change_of_example(self, stored: Record) -> str | None:
        """How the input or the target differ; None if they don't."""
        if stored.input_sha256 != self.input_sha256:
            return "the input is another one"
        if stored.target != self.target:
            return f"the target was {stored.target} and is now {self.target}"
        return None

    def change_of_model(self, stored: Record) -> str | None:
        """How the model's outputs differ beyond rounding; None if they don't."""
        before, now = stored.outputs, self.outputs
        if before is None or now is None:
            return "it is not known whether the model is the same"
        if before.shape != now.shape:
            return f"the model had outputs {tuple(before.shape)} and has {tuple(now.shape)}"
        tolerance = min(ROUNDING_UNITS * torch.finfo(now.dtype).eps, ROUNDING_SHARE)
        before, now = before.double(), now.double()
        size = float(now.nan_to_num(0, 0, 0).abs().amax()) if now.numel() else 0.0
        if torch.allclose(now, before, rtol=0.0, atol=tolerance * size, equal_nan=True):
            return None
        share = float((now - before).nan_to_num().abs().max()) / (size or 1.0)
        return f"the model's outputs differ from those stored, by {share:.2g} of their size"


def record_of(
    example: Example, target: Any, forward_func: Callable[..., Any] | None, arguments: Any
) -> Record:
    """The record of an example, with one forward pass of the model.

    Args:
        example: with its input on the model's device.
        target: the explained output.
        forward_func: the model, or None without one.
        arguments: its additional arguments.
    """
    outputs = None
    if forward_func is not None:
        batch = example.inputs.unsqueeze(0)
        with torch.no_grad(), evaluation_mode(forward_func), _same_noise(batch.device):
            outputs = ModelCall(forward_func, (batch,), arguments).as_given()[0]
        outputs = outputs.detach().cpu()
    return Record(fingerprint(example.inputs), target, outputs, example.source)


@contextmanager
def _same_noise(device: torch.device) -> Iterator[None]:
    """The same random numbers each time, so that a model with noise can be compared with itself;
    the user's random state stays as it was."""
    kind = device.type if device.type in ("cuda", "xpu") else None
    devices = [device.index or 0] if kind else []
    with torch.random.fork_rng(devices=devices, device_type=kind or "cuda"):
        torch.default_generator.manual_seed(0)
        if kind:
            getattr(torch, kind).default_generators[devices[0]].manual_seed(0)
        yield


# The settings


def describe(
    attribution: Any, target: Any, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """What the results of an attribution depend on, beside the example, as plain values.

    An attribution, prior, engine or measure describes itself by ``settings()``; what has no such
    method is known by a hash of its attributes. A class of the user's own is known by its code as
    well, or by the ``version`` that it states.

    Returns:
        The settings, and the classes of objects that cannot be described: nothing made with them
        can be known to be the same.
    """
    own, unknown = _settings_of(attribution)
    if "generator" in arguments:
        own.pop("seed", None)
    given = {}
    for name, value in arguments.items():
        given[name], opaque = described(value)
        unknown += opaque
    settings = {
        "method": type(attribution).__name__,
        **own_code(attribution),
        **model_settings(getattr(attribution, "forward_func", None)),
        **own,
        "target": described(target)[0],
        "arguments": given,
        **versions(),
    }
    return as_json(settings), unknown


def described(value: Any) -> tuple[Any, list[str]]:
    """A value as it can be read in a file, anything larger by its hash; and what is unknown."""
    if value is None or isinstance(value, bool | int | float | str):
        return value, []
    if isinstance(value, tuple | list):
        parts = [described(part) for part in value]
        return [plain for plain, _ in parts], [name for _, opaque in parts for name in opaque]
    if callable(getattr(value, "settings", None)) and not isinstance(value, type):
        return {**value.settings(), **own_code(value)}, []
    return {"kind": type(value).__qualname__, "sha256": fingerprint(value)}, opaque_parts(value)


def model_settings(forward_func: Any) -> dict[str, Any]:
    """What is known of a model by looking at it: its class and its weights.

    Of a function only the name is known. What else a model depends on shows in its outputs.
    """
    owner = forward_func
    while isinstance(owner, partial):
        owner = owner.func
    owner = getattr(owner, "__self__", owner)
    name = getattr(owner, "__qualname__", type(owner).__qualname__)
    weights = weights_fingerprint(owner) if isinstance(owner, nn.Module) else None
    return {"model": name, "weights_sha256": weights}


def versions() -> dict[str, str]:
    """The versions of the libraries that compute a result."""
    return {"captum_pda": __version__, "captum": captum.__version__, "torch": torch.__version__}


def as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from a file."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(settings), default=repr))
    return plain


def changes(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between settings, in words: "engine.kind was ... and is now ..."."""
    found = []
    for name in dict.fromkeys([*now, *before]):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += changes(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append(f"{prefix}{name} was {_short(old)} and is now {_short(new)}")
    return found


def _settings_of(attribution: Any) -> tuple[dict[str, Any], list[str]]:
    """The settings that an attribution states, or else those of its attributes."""
    if callable(getattr(attribution, "settings", None)):
        parts = [getattr(attribution, name, None) for name in ("prior", "engine")]
        return dict(attribution.settings()), [name for part in parts for name in described(part)[1]]
    # Whether another library's method draws random numbers cannot be seen.
    found: dict[str, Any] = {"seed": torch.initial_seed()}
    unknown: list[str] = []
    model = getattr(attribution, "forward_func", None)
    modules = model.named_modules() if isinstance(model, nn.Module) else ()
    names = {module: name for name, module in modules}
    for name, value in vars(attribution).items():
        if name in NO_SETTINGS or value is model:
            continue
        if isinstance(value, nn.Module) and value in names:
            found[name] = names[value]
        elif hasattr(value, "attribute"):  # a method inside of another, as in a NoiseTunnel
            found[name], opaque = _settings_of(value)
            found[name] |= {"method": type(value).__name__, **own_code(value)}
            unknown += opaque
        else:
            found[name], opaque = described(value)
            unknown += opaque
    return found, unknown


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:16]}..."
