"""A progress bar that knows the time left before the first batch is done."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm


class ProgressBar(tqdm):  # type: ignore[misc]
    """Counts forward passes.

    Args:
        total: how many passes there are.
        title: the bar's title; None shows no bar.
        seconds_a_pass: how long the pass of the unperturbed inputs took. A first batch may take
            many seconds, and until then this is all there is to tell the time left from.
    """

    def __init__(self, total: int, title: str | None, seconds_a_pass: float) -> None:
        self._first_rate = 1 / seconds_a_pass if seconds_a_pass > 0 else None
        super().__init__(total=total, desc=title, disable=title is None, unit="pass")

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the bar is drawn from."""
        values: dict[str, Any] = super().format_dict
        if not values.get("n"):
            values["rate"] = self._first_rate
        return values
