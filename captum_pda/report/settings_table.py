"""Settings of any kind as rows of names and short texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_LENGTH = 300


def settings_rows(settings: Mapping[str, Any]) -> list[list[str]]:
    """Each setting as a name and a text; tables within tables get joined names."""
    return [[name, text] for name, text in _rows("", settings)]


def _rows(before: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        whole = f"{before} {name}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            yield from _rows(whole, value)
        elif value is not None and value != []:
            yield whole, _text(value)


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}..."
