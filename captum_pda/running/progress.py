"""A progress bar that tells what a run will cost, and a warning where nobody watches a long one."""

from __future__ import annotations

import time
from collections.abc import Callable

from tqdm.auto import tqdm

from captum_pda.errors import warn_user
from captum_pda.files import counted

#: A run without a bar is called long if it takes more seconds than this.
LONG_SECONDS = 60.0
#: Seconds over which passes are measured before their cost is told.
MEASURED_SECONDS = 1.0

#: Whether this process was told that a run is long; it needs to know only once.
_was_told = False


class ProgressBar(tqdm):  # type: ignore[misc]
    """Counts forward passes.

    Args:
        total: how many passes there are.
        title: the bar's title; None shows no bar.
        warns: whether to warn of a long run where no bar is shown.
        clock: tells the time in seconds.
    """

    def __init__(
        self,
        total: int,
        title: str | None,
        warns: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._title = title
        self._warns = warns and title is None
        self._clock = clock
        self._n_passes = total
        self._n_done = 0
        self._start = clock()
        self.begin(total)
        # No time yet: a model's first pass may take far longer than those that follow.
        described = None if title is None else f"{title}: {costs(total, 0)}"
        super().__init__(total=total, desc=described, disable=title is None, unit="pass")

    def begin(self, n_passes: int) -> None:
        """The next ``n_passes`` take about the same time each, and perhaps another than those
        before: what follows a layer is a shorter pass than the whole model."""
        self._last_alike = self._n_done + n_passes
        #: When the first batch was done, and its passes: it also does what is done only once.
        self._measured_from: tuple[float, int] | None = None

    def update(self, n: float | None = 1) -> bool | None:
        """Count passes that are done, and tell what all of them cost as soon as that is known."""
        self._n_done += int(n or 0)
        seconds = self._estimate()
        if seconds is not None and self._title is not None:
            self.set_description_str(f"{self._title}: {costs(self._n_passes, seconds)}: ", False)
        if seconds is not None and self._warns:
            self._warns = False
            _warn_if_long(self._n_passes, seconds)
        shown: bool | None = super().update(n)
        return shown

    def expect(self, seconds_per_pass: float) -> None:
        """Tell what all passes will cost, before the first one."""
        if self._title is not None:
            said = costs(self._n_passes, seconds_per_pass * self._n_passes)
            self.set_description_str(f"{self._title}: {said}")

    def _estimate(self) -> float | None:
        """How long all passes take, once some were measured for long enough. Passes from a layer
        on are short, and count from when they begin."""
        now = self._clock()
        if self._measured_from is None:
            self._measured_from = now, self._n_done
            return None
        start, first = self._measured_from
        if now - start < MEASURED_SECONDS or self._n_done <= first:
            return None
        seconds_per_pass = (now - start) / (self._n_done - first)
        return now - self._start + seconds_per_pass * (self._last_alike - self._n_done)


def costs(n_passes: int, seconds: float) -> str:
    """What a run costs, in words: "1,760 passes, about 25 s"."""
    passes = counted(n_passes, "pass", "passes")
    if seconds < 1:
        return passes
    if seconds < 2 * 60:
        return f"{passes}, about {seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{passes}, about {seconds / 60:.0f} min"
    return f"{passes}, about {seconds / 3600:.0f} h"


def _warn_if_long(n_passes: int, seconds: float) -> None:
    global _was_told
    if seconds <= LONG_SECONDS or _was_told:
        return
    _was_told = True
    warn_user(
        f"this will take a while: {costs(n_passes, seconds)}. Pass show_progress=True to watch it, "
        "and larger strides or fewer sizes for fewer passes. This is said once."
    )
