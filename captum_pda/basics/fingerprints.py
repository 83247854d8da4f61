"""Hashes that say whether two results were made with the same model, prior and settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def fingerprint(value: Any) -> str:
    """A hash of numbers: of a tensor, the weights of a model, a fitted prior, or plain values.

    An object that is none of these is known by its class and its ``settings()``, or without that
    method by its attributes; a function by its name.
    """
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()


def file_fingerprint(path: Path) -> str:
    """A hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        digest.update(repr((plain.dtype, tuple(plain.shape))).encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, nn.Module):
        _add(digest, (type(value).__qualname__, dict(value.state_dict())))
    elif isinstance(value, Mapping):
        for name in sorted(value, key=repr):
            digest.update(repr(name).encode())
            _add(digest, value[name])
    elif isinstance(value, tuple | list):
        digest.update(repr(len(value)).encode())
        for part in value:
            _add(digest, part)
    elif callable(getattr(value, "settings", None)) and not isinstance(value, type):
        _add(digest, (type(value).__qualname__, value.settings()))
    elif callable(value):
        digest.update(getattr(value, "__qualname__", type(value).__qualname__).encode())
    elif hasattr(value, "__dict__"):
        _add(digest, (type(value).__qualname__, vars(value)))
    else:
        digest.update(repr(value).encode())
