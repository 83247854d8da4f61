"""Numbers of things in words."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """A number with what it counts: "1 photo", "1,200 photos"."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
