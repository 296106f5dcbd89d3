"""How much of a run is done, for runs that end by step count and runs that end by the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Budget(Protocol):
    """Says how far a run has come. Progress never falls while a run goes on."""

    def progress(self, step: int) -> float:
        """Share of the training done before optimiser step `step`, 0 to 1; at 1 the training ends."""
        ...


class StepBudget:
    """Ends after a number of steps; progress depends on the step alone, so resumed runs repeat it exactly."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def progress(self, step: int) -> float:
        return min(1.0, step / self._steps)


class TimeBudget:
    """Ends when the clock says so.

    Args:
        elapsed_s: seconds since the program started, of all sessions of this run.
        begin_s: what `elapsed_s` said when the training began.
        end_s: what it says when the training must end, so that what follows still fits.
        max_steps: ends earlier after this many steps; 0 for no limit.
    """

    def __init__(self, elapsed_s: Callable[[], float], *, begin_s: float, end_s: float, max_steps: int = 0) -> None:
        self._elapsed_s = elapsed_s
        self._begin_s = begin_s
        self._end_s = max(end_s, begin_s + 1e-3)
        self._max_steps = max_steps

    def progress(self, step: int) -> float:
        by_clock = (self._elapsed_s() - self._begin_s) / (self._end_s - self._begin_s)
        by_steps = step / self._max_steps if self._max_steps else 0.0
        return min(1.0, max(by_clock, by_steps))
