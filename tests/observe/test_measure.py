"""The stopwatch of the benchmarks."""

import pytest

from voxelocity.core.errors import ConfigError
from voxelocity.observe import FakeClock, Timing, measure


def test_timing_leaves_out_the_warmup_and_gives_median_and_spread():
    clock = FakeClock()
    seconds = iter([100.0, 3.0, 1.0, 2.0, 10.0, 2.5])
    timing = measure(lambda: clock.advance(next(seconds)), repeats=5, warmup=1, clock=clock)
    assert timing == Timing(median_s=2.5, low_s=1.0, high_s=10.0, repeats=5)


def test_without_warmup_every_call_is_timed():
    clock = FakeClock()
    assert measure(lambda: clock.advance(4.0), repeats=1, warmup=0, clock=clock).median_s == 4.0


def test_no_repeats_are_refused():
    with pytest.raises(ConfigError, match="repeats=0, warmup=1; repeats must be >= 1"):
        measure(lambda: None, repeats=0)
