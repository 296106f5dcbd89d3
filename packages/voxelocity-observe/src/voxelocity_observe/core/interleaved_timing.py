"""The stopwatch behind measured choices: times several ways to do one thing, alternating, for at most a few seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from voxelocity_observe.core.clock import Clock, Stopwatch, system_clock

MIN_ROUNDS = 3
MAX_ROUNDS = 21
# If this many rounds all agree on a clear difference, they are enough: two equal ways do so by chance once in sixteen.
_ENOUGH_ROUNDS = 5
# Ratios nearer to 1 are not a clear difference: two timings of the same step on a busy machine differ by as much.
_MARGIN = 0.05
# In a round, each way is timed for at least this long, so that the clock's noise does not dominate short steps.
_MIN_TIMED_S = 0.03
_MAX_CALLS = 20
# A first step compiles code and allocates memory. Later ones of DynUNet took 0.5 to 0.9 of its time on two cores
# (docs/log).
_LATER_SHARE = 0.6


@dataclass(frozen=True, kw_only=True)
class SpeedRatio:
    """The time of one way divided by the time of another: below 1 the first is quicker.

    Attributes:
        median: of the ratios within each round.
        low: the smallest of these ratios. `high` is the largest.
        rounds: how many there are.
        num_below: how many ratios are below 1.
    """

    median: float
    low: float
    high: float
    rounds: int
    num_below: int

    @property
    def is_quicker(self) -> bool:
        """Whether it is clearly quicker: by 5 %, with at most one round in five against it."""
        return self.median <= 1.0 - _MARGIN and self.rounds - self.num_below <= self.rounds // 5

    @property
    def is_slower(self) -> bool:
        """Whether it is clearly slower, by the same measure."""
        return self.median >= 1.0 / (1.0 - _MARGIN) and self.num_below <= self.rounds // 5

    @property
    def is_equal(self) -> bool:
        """Whether no round shows a difference of 5 %."""
        return self.low > 1.0 - _MARGIN and self.high < 1.0 / (1.0 - _MARGIN)


@dataclass(frozen=True, kw_only=True)
class Times:
    """What was timed.

    Attributes:
        seconds: of one call, by way, one value a round; empty if there was no time to measure.
        why_not: why nothing was timed; "" if something was.
        ran_out_of_memory: whether the first way did not fit into memory.
    """

    seconds: Mapping[str, tuple[float, ...]]
    why_not: str = ""
    ran_out_of_memory: bool = False

    def ratio(self, way: str, against: str) -> SpeedRatio | None:
        """The time of `way` divided by the other's; None if one of them was not timed."""
        if way not in self.seconds or against not in self.seconds:
            return None
        pairs = zip(self.seconds[way], self.seconds[against], strict=True)
        ratios = [own / other for own, other in pairs]
        return SpeedRatio(
            median=statistics.median(ratios),
            low=min(ratios),
            high=max(ratios),
            rounds=len(ratios),
            num_below=sum(ratio < 1.0 for ratio in ratios),
        )

    def median_s(self, way: str) -> float:
        """Seconds of one call, the median of all rounds."""
        return statistics.median(self.seconds[way])


def time_interleaved(
    ways: Mapping[str, Callable[[], object]],
    *,
    limit_s: float,
    expected_s: float = 0.0,
    ends_if_equal: bool = False,
    clock: Clock = system_clock,
) -> Times:
    """Times of the ways. Each round calls every way, starting with a different one; first calls do not count.

    Ends early if five or more rounds agree on how each way compares with the first. Times at least three rounds of the
    first two ways, or nothing. Leaves out further ways, the last first, if three rounds with them would take longer
    than the limit.

    Args:
        ways: by name, most important first, at least two. A call must return only when its work is done.
        limit_s: seconds for everything. Once begun, one round may exceed the limit.
        expected_s: the caller's estimate of one call.
        ends_if_equal: whether five rounds without a difference of 5 % also count as agreeing.
        clock: returns seconds.
    """
    watch = Stopwatch(clock)
    # A rough estimate: only what would take far too long is not started at all.
    if _least_s(expected_s, num_to_begin=2, num_ways=2) > 3.0 * limit_s:
        return _too_long(expected_s, limit_s)
    first_s: dict[str, float] = {}
    for name, call in ways.items():
        if first_s:
            least_s = _least_s(max(first_s.values()), num_to_begin=1, num_ways=len(first_s) + 1)
            if watch.elapsed_s + least_s > limit_s:
                break
        first_s[name] = _seconds_of(call, clock)
    if len(first_s) < 2:
        return _too_long(max(first_s.values()), limit_s)
    begun = {name: ways[name] for name in first_s}
    is_enough = _is_decided if ends_if_equal else _is_clear
    return _rounds(begun, min(first_s.values()), is_enough, limit_s=limit_s, watch=watch, clock=clock)


def _seconds_of(call: Callable[[], object], clock: Clock, num_calls: int = 1) -> float:
    """Seconds of one call, averaged over `num_calls`."""
    watch = Stopwatch(clock)
    for _ in range(num_calls):
        call()
    return watch.elapsed_s / num_calls


def _rounds(
    ways: Mapping[str, Callable[[], object]],
    quickest_s: float,
    is_enough: Callable[[Sequence[SpeedRatio], int], bool],
    *,
    limit_s: float,
    watch: Stopwatch,
    clock: Clock,
) -> Times:
    num_calls = max(1, min(_MAX_CALLS, math.ceil(_MIN_TIMED_S / max(quickest_s, 1e-6))))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(MAX_ROUNDS):
        begin_s = watch.elapsed_s
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(_seconds_of(ways[name], clock, num_calls))
        now_s = watch.elapsed_s
        left = max(1, MIN_ROUNDS - number - 1)
        if now_s + left * (now_s - begin_s) > limit_s or is_enough(_ratios(seconds), number + 1):
            break
    num_rounds = len(seconds[names[0]])
    if num_rounds < MIN_ROUNDS:
        return _too_long(max(max(values) for values in seconds.values()), limit_s)
    return Times(seconds={name: tuple(values) for name, values in seconds.items()})


def _ratios(seconds: Mapping[str, list[float]]) -> list[SpeedRatio]:
    """Each way against the first one."""
    first, *others = seconds
    times = Times(seconds={name: tuple(values) for name, values in seconds.items()})
    return [ratio for name in others if (ratio := times.ratio(name, first)) is not None]


def _is_clear(ratios: Sequence[SpeedRatio], num_rounds: int) -> bool:
    """Whether all rounds agree on each way against the first one."""
    return num_rounds >= _ENOUGH_ROUNDS and all(
        (ratio.is_quicker and ratio.num_below == num_rounds) or (ratio.is_slower and ratio.num_below == 0)
        for ratio in ratios
    )


def _is_decided(ratios: Sequence[SpeedRatio], num_rounds: int) -> bool:
    """Whether all rounds agree on each way against the first one, or that there is no difference."""
    return num_rounds >= _ENOUGH_ROUNDS and all(ratio.is_equal or _is_clear([ratio], num_rounds) for ratio in ratios)


def _least_s(call_s: float, *, num_to_begin: int, num_ways: int) -> float:
    """Seconds until each of these ways has had its rounds; `num_to_begin` of them have not been called yet."""
    return call_s * (num_to_begin + MIN_ROUNDS * num_ways * _LATER_SHARE)


def _too_long(call_s: float, limit_s: float) -> Times:
    left = f"within {limit_s:.2g} s" if limit_s > 0.0 else "in the time that is left"
    return Times(seconds={}, why_not=f"a step takes about {call_s:.2g} s here, too long to try others {left}")
