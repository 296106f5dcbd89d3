"""When a program that makes no steps is ended."""

from __future__ import annotations

from voxelocity.diagnosis.recorder.deadline import Deadline


def deadline(now: list[float], *, optimizers: list[bool]) -> Deadline:
    return Deadline(30.0, lambda: now[0], lambda: optimizers.pop(0))


def test_a_program_without_steps_is_over_after_the_limit_from_its_first_call_on() -> None:
    now, optimizers = [100.0], [False]
    one = deadline(now, optimizers=optimizers)
    assert not one.is_over()
    one.begin()
    now[0] = 129.9
    one.begin()
    assert not one.is_over()
    now[0] = 130.0
    assert not one.is_over(grace_s=5.0)
    assert one.is_over()
    assert optimizers == []
    one.turn_off()
    assert not one.is_over()


def test_a_program_that_trains_or_may_do_so_is_given_five_minutes_at_least() -> None:
    now, optimizers = [0.0], [True]
    one = deadline(now, optimizers=optimizers)
    one.begin()
    now[0] = 299.9
    assert not one.is_over()
    now[0] = 300.0
    assert one.is_over()
    one.step_ended()
    now[0] = 599.9
    assert not one.is_over()
    now[0] = 600.0
    assert one.is_over()
