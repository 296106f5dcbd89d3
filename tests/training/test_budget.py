import pytest

from voxelocity.observe import FakeClock
from voxelocity.training.budget import StepBudget, TimeBudget


def test_steps_alone_decide_the_progress_of_a_step_budget():
    budget = StepBudget(200)
    assert [budget.progress(step) for step in (0, 50, 200, 300)] == [0.0, 0.25, 1.0, 1.0]


def test_a_time_budget_follows_the_clock():
    clock = FakeClock(10.0)
    budget = TimeBudget(clock, begin_s=10.0, end_s=110.0)
    assert budget.progress(7) == 0.0
    clock.advance(25.0)
    assert budget.progress(8) == pytest.approx(0.25)
    clock.advance(100.0)
    assert budget.progress(9) == 1.0


def test_a_time_budget_with_steps_ends_at_whichever_comes_first():
    clock = FakeClock()
    budget = TimeBudget(clock, begin_s=0.0, end_s=100.0, max_steps=10)
    clock.advance(20.0)
    assert budget.progress(5) == 0.5
    clock.advance(60.0)
    assert budget.progress(5) == pytest.approx(0.8)


def test_a_budget_that_is_spent_before_it_begins_ends_at_once():
    clock = FakeClock(50.0)
    assert TimeBudget(clock, begin_s=49.0, end_s=20.0).progress(0) == 1.0
