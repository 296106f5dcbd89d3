"""Where seconds come from, and the one stopwatch.

These are seconds of the host: work queued on an accelerator counts only once something has waited for it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Protocol

import psutil


class Clock(Protocol):
    """A source of seconds. Only differences between two calls mean anything, and they are never negative."""

    def __call__(self) -> float:
        """Seconds since a fixed but arbitrary moment."""


def system_clock() -> float:
    """Seconds of the machine's finest clock that never goes back."""
    return time.perf_counter()


class FakeClock:
    """A clock for tests that moves only when `advance` is called.

    Args:
        start_s: what it shows first.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Moves the clock forward.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0.0:
            raise ValueError(f"observe.clock: cannot advance by {seconds} s; a clock never goes back")
        self._now_s += seconds


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._start_s = clock()

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._start_s


def process_age_s() -> float:
    """Seconds since this process was started, interpreter start-up and imports included; exact to 0.01 s on Linux."""
    try:
        # The name in the second field may hold spaces and parentheses; field 22 counts ticks from boot to start.
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, AttributeError, IndexError, ValueError):
        return max(0.0, time.time() - psutil.Process().create_time())
