"""The one stopwatch of the benchmarks: how long a function takes, with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from voxelocity.core.errors import ConfigError
from voxelocity.observe.clock import Clock, system_clock


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds a call took.

    Attributes:
        median_s: the middle of all repeats.
        low_s: the quickest.
        high_s: the slowest.
        repeats: calls that were timed.
    """

    median_s: float
    low_s: float
    high_s: float
    repeats: int


def measure(
    function: Callable[[], object], *, repeats: int = 5, warmup: int = 1, clock: Clock = system_clock
) -> Timing:
    """How long `function` takes, called repeatedly in this thread.

    Args:
        function: must return only when its work is done; with an accelerator, let it end by synchronizing.
        repeats: timed calls, at least 1.
        warmup: calls before them that are not timed.
        clock: returns seconds.

    Raises:
        ConfigError: `repeats` is below 1 or `warmup` below 0.
    """
    if repeats < 1 or warmup < 0:
        raise ConfigError(f"observe.measure: repeats={repeats}, warmup={warmup}; repeats must be >= 1, warmup >= 0")
    for _ in range(warmup):
        function()
    seconds = []
    for _ in range(repeats):
        start_s = clock()
        function()
        seconds.append(clock() - start_s)
    return Timing(median_s=statistics.median(seconds), low_s=min(seconds), high_s=max(seconds), repeats=repeats)
