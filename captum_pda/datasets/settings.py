"""What the results of an attribution depend on, in plain values that can be compared and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import captum
import torch
from torch import nn

from captum_pda.basics.fingerprints import fingerprint, opaque_parts, own_code, weights_fingerprint
from captum_pda.basics.version import __version__

#: Attributes of an attribution that are no settings: the model, and how it is run.
NO_SETTINGS = frozenset({"forward_func", "gradient_func", "process_group"})


@dataclass(frozen=True)
class Description:
    """What results depend on.

    Args:
        settings: plain values; equal ones give equal results, as far as they can say.
        unknown: classes of objects that cannot be described, so that nothing made with them can
            be known to be the same.
    """

    settings: dict[str, Any]
    unknown: tuple[str, ...] = ()


def describe(attribution: Any, target: Any, arguments: Mapping[str, Any]) -> Description:
    """What the results of an attribution depend on, beside the example.

    An attribution, prior, engine or measure describes itself by ``settings()``; what has no such
    method is known by a hash of its attributes. A class of the user's own is known by its code as
    well, or by the ``version`` that it states.
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
    return Description(as_json(settings), tuple(dict.fromkeys(unknown)))


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

    Of a function, a name is all there is. What else a model depends on shows in its outputs.
    """
    owner = forward_func
    while isinstance(owner, partial):
        owner = owner.func
    owner = getattr(owner, "__self__", owner)
    name = getattr(owner, "__qualname__", type(owner).__qualname__)
    weights = weights_fingerprint(owner) if isinstance(owner, nn.Module) else None
    return {"model": name, "weights_sha256": weights}


def versions() -> dict[str, str]:
    """The versions of what computes a result."""
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
    """What an attribution says of itself, or else what its attributes say."""
    if callable(getattr(attribution, "settings", None)):
        parts = [getattr(attribution, name, None) for name in ("prior", "engine")]
        return dict(attribution.settings()), [name for part in parts for name in described(part)[1]]
    # Whether a method of somebody else draws random numbers cannot be seen.
    found: dict[str, Any] = {"seed": torch.initial_seed()}
    unknown: list[str] = []
    model = getattr(attribution, "forward_func", None)
    names = {module: name for name, module in _modules(model)}
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


def _modules(model: Any) -> list[tuple[str, nn.Module]]:
    return list(model.named_modules()) if isinstance(model, nn.Module) else []


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:16]}..."
