"""Seconds: where they come from and how they are summed."""

import pytest

from voxelocity.observe import FakeClock, PartTimer, Stopwatch, process_age_s, system_clock


def test_system_clock_never_goes_back():
    readings = [system_clock() for _ in range(100)]
    assert readings == sorted(readings)
    assert readings[-1] > readings[0]


def test_fake_clock_moves_only_when_told():
    clock = FakeClock(5.0)
    assert clock() == clock() == 5.0
    clock.advance(2.5)
    assert clock() == 7.5


def test_fake_clock_refuses_to_go_back():
    with pytest.raises(ValueError, match=r"cannot advance by -1\.0 s; a clock never goes back"):
        FakeClock().advance(-1.0)


def test_stopwatch_counts_from_when_it_was_made_and_loses_nothing_at_a_restart():
    clock = FakeClock(100.0)
    watch = Stopwatch(clock)
    clock.advance(3.0)
    assert watch.elapsed_s == 3.0
    assert watch.restart() == 3.0
    clock.advance(1.0)
    assert watch.elapsed_s == 1.0


def test_part_timer_sums_by_name_in_the_order_of_first_use():
    clock = FakeClock()
    parts = PartTimer(clock)
    for _ in range(3):
        with parts("forward"):
            clock.advance(2.0)
        with parts("backward"):
            clock.advance(1.0)
    assert list(parts.seconds.items()) == [("forward", 6.0), ("backward", 3.0)]


def test_inner_part_counts_for_the_outer_one_too():
    clock = FakeClock()
    parts = PartTimer(clock)
    with parts("step"):
        clock.advance(1.0)
        with parts("forward"):
            clock.advance(2.0)
    assert parts.seconds == {"step": 3.0, "forward": 2.0}


def test_part_left_by_an_exception_is_counted():
    clock = FakeClock()
    parts = PartTimer(clock)

    def fail() -> None:
        with parts("read"):
            clock.advance(4.0)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert parts.seconds == {"read": 4.0}


def test_take_gives_the_seconds_since_the_last_take():
    clock = FakeClock()
    parts = PartTimer(clock)
    with parts("read"):
        clock.advance(4.0)
    assert parts.take() == {"read": 4.0}
    with parts("read"):
        clock.advance(1.0)
    assert parts.take() == {"read": 1.0}
    assert parts.take() == {"read": 0.0}


def test_process_age_grows_with_the_clock():
    first, start_s = process_age_s(), system_clock()
    while system_clock() - start_s < 0.02:
        pass
    assert 0.0 < first < process_age_s() < first + 60.0


def test_process_age_without_proc_comes_from_psutil(monkeypatch):
    from_proc = process_age_s()

    def no_clock(_: int) -> float:
        raise OSError

    monkeypatch.setattr("voxelocity.observe.clock.time.clock_gettime", no_clock)
    # psutil knows the boot time to a second only.
    assert process_age_s() == pytest.approx(from_proc, abs=2.5)
