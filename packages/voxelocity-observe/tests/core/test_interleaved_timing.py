import pytest

from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.interleaved_timing import MAX_ROUNDS, MIN_ROUNDS, Times, time_interleaved


class Machine:
    """Ways that take this many seconds by a clock that only they move; the first call of each takes longer."""

    def __init__(self, first=1.0, **seconds):
        self.clock, self.called, self._seconds, self._first = FakeClock(), [], seconds, first

    def ways(self):
        return {name: self._way(name) for name in self._seconds}

    def _way(self, name):
        def call():
            self.clock.advance(self._seconds[name] * (self._first if name not in self.called else 1.0))
            self.called.append(name)

        return call

    def time(self, limit_s, expected_s=0.0):
        return time_interleaved(self.ways(), limit_s=limit_s, expected_s=expected_s, clock=self.clock)


def times(**seconds):
    return Times(seconds={name: tuple(values) for name, values in seconds.items()})


def test_every_way_begins_as_often_as_the_others_and_its_first_call_does_not_count():
    machine = Machine(a=0.2, b=0.199, first=10.0)
    found = machine.time(limit_s=100.0)
    assert machine.called[:6] == ["a", "b", "a", "b", "b", "a"]
    assert found.seconds == {"a": pytest.approx([0.2] * MAX_ROUNDS), "b": pytest.approx([0.199] * MAX_ROUNDS)}
    assert found.median_s("b") == pytest.approx(0.199)


@pytest.mark.parametrize(
    ("seconds", "num_rounds"),
    [
        ({"a": 0.2, "b": 0.1}, 5),
        ({"a": 0.2, "b": 0.3}, 5),
        ({"a": 0.2, "b": 0.3, "c": 0.1}, 5),
        ({"a": 0.2, "b": 0.1, "c": 0.2}, MAX_ROUNDS),
        ({"a": 0.2, "b": 0.195}, MAX_ROUNDS),
    ],
)
def test_five_rounds_that_agree_on_every_way_are_enough(seconds, num_rounds):
    assert len(Machine(**seconds).time(limit_s=100.0).seconds["a"]) == num_rounds


def test_it_ends_within_its_limit_and_has_three_rounds_at_least():
    machine = Machine(a=0.2, b=0.2)
    found = machine.time(limit_s=2.0)
    assert len(found.seconds["a"]) == 4, "0.4 s for the first calls and 0.4 s a round"
    assert machine.clock() <= 2.0
    assert len(Machine(a=0.2, b=0.2).time(limit_s=1.6).seconds["a"]) == MIN_ROUNDS


def test_what_would_take_too_long_is_not_timed_and_said():
    machine = Machine(a=2.0, b=1.0)
    found = machine.time(limit_s=6.0)
    assert found.seconds == {}
    assert found.why_not == "a step takes about 2 s here, too long to try others within 6 s"
    assert machine.called == ["a"], "one call tells it"
    assert found.ratio("a", "b") is None


def test_what_is_expected_to_take_far_too_long_is_not_even_begun():
    machine = Machine(a=60.0, b=60.0)
    assert "about 60 s here" in machine.time(limit_s=6.0, expected_s=60.0).why_not
    assert machine.called == []


def test_calls_that_become_slower_on_the_way_end_it():
    machine = Machine(a=3.0, b=3.0, first=0.1)
    found = machine.time(limit_s=6.0)
    assert (found.seconds, machine.clock()) == ({}, pytest.approx(6.6))
    assert "about 3 s here" in found.why_not


def test_the_least_important_way_is_left_out_where_there_is_no_time_for_it():
    assert Machine(a=0.4, b=0.4, c=0.4).time(limit_s=3.2).seconds.keys() == {"a", "b"}
    assert Machine(a=0.4, b=0.4, c=0.4).time(limit_s=6.0).seconds.keys() == {"a", "b", "c"}


def test_short_calls_are_timed_several_at_once():
    machine = Machine(a=0.001, b=0.001)
    found = machine.time(limit_s=1.0)
    assert len(machine.called) == 2 + MAX_ROUNDS * 2 * 20
    assert found.seconds["a"] == pytest.approx([0.001] * MAX_ROUNDS)


def test_a_ratio_is_the_median_of_the_rounds_with_the_least_and_the_most():
    ratio = times(a=(1.0, 2.0, 9.0), b=(2.0, 2.5, 3.0)).ratio("a", "b")
    assert (ratio.low, ratio.median, ratio.high, ratio.rounds) == (0.5, 0.8, 3.0, 3)


@pytest.mark.parametrize(
    ("ratios", "quicker", "slower"),
    [
        ((0.7, 0.8, 0.9), True, False),
        ((0.7, 0.8, 1.1), False, False),
        ((0.7, 0.7, 0.7, 0.8, 1.1), True, False),
        ((0.7, 0.7, 0.7, 1.2, 1.1), False, False),
        ((0.96, 0.97, 0.98), False, False),
        ((1.02, 1.03, 1.04), False, False),
        ((1.1, 1.2, 1.3), False, True),
        ((1.1, 1.2, 0.9), False, False),
    ],
)
def test_only_a_clear_difference_is_one(ratios, quicker, slower):
    ratio = times(a=ratios, b=(1.0,) * len(ratios)).ratio("a", "b")
    assert (ratio.is_quicker, ratio.is_slower) == (quicker, slower)


@pytest.mark.parametrize("seconds", [{"a": 0.2, "b": 0.2}, {"a": 0.2, "b": 0.195, "c": 0.1}])
def test_five_rounds_without_a_difference_end_it_where_that_is_asked_for(seconds):
    machine = Machine(**seconds)
    found = time_interleaved(machine.ways(), limit_s=100.0, ends_if_equal=True, clock=machine.clock)
    assert len(found.seconds["a"]) == 5


def test_rounds_that_disagree_do_not_end_it():
    machine = Machine(a=0.2, b=0.2)
    ways, numbers = machine.ways(), iter(range(1000))
    ways["b"] = lambda: machine.clock.advance(0.15 if next(numbers) % 2 else 0.25)
    found = time_interleaved(ways, limit_s=100.0, ends_if_equal=True, clock=machine.clock)
    assert len(found.seconds["a"]) == MAX_ROUNDS
