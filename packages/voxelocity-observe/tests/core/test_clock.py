"""Seconds: where they come from and how they are summed."""

import pytest

from voxelocity_observe.core.clock import FakeClock, Stopwatch, process_age_s, system_clock


def test_fake_clock_moves_only_when_asked_and_never_back():
    clock = FakeClock(5.0)
    assert clock() == clock() == 5.0
    clock.advance(2.5)
    assert clock() == 7.5
    with pytest.raises(ValueError, match=r"cannot advance by -1\.0 s; a clock never goes back"):
        clock.advance(-1.0)


def test_stopwatch_counts_from_when_it_was_made():
    clock = FakeClock(100.0)
    watch = Stopwatch(clock)
    clock.advance(3.0)
    assert watch.elapsed_s == 3.0


def test_process_age_grows_with_the_clock():
    first, start_s = process_age_s(), system_clock()
    while system_clock() - start_s < 0.02:
        pass
    assert 0.0 < first < process_age_s() < first + 60.0


def test_process_age_without_proc_comes_from_psutil(monkeypatch):
    from_proc = process_age_s()

    def no_clock(_: int) -> float:
        raise OSError

    monkeypatch.setattr("voxelocity_observe.core.clock.time.clock_gettime", no_clock)
    # psutil knows the boot time to a second only.
    assert process_age_s() == pytest.approx(from_proc, abs=2.5)
