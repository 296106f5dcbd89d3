import pytest

from voxelocity.training.budget import Budget, allot, first_dice_is_due, left_at_end_s, left_for_validation
from voxelocity_observe.core.clock import FakeClock


def test_steps_alone_decide_the_progress_of_a_step_budget():
    budget = Budget(FakeClock(), max_steps=200)
    assert [budget.progress(step) for step in (0, 50, 200, 300)] == [0.0, 0.25, 1.0, 1.0]


def test_a_time_budget_follows_the_clock():
    clock = FakeClock(10.0)
    budget = Budget(clock, begin_s=10.0, end_s=110.0)
    assert budget.progress(7) == 0.0
    clock.advance(25.0)
    assert budget.progress(8) == pytest.approx(0.25)
    clock.advance(100.0)
    assert budget.progress(9) == 1.0


def test_a_time_budget_with_steps_ends_at_whichever_comes_first():
    clock = FakeClock()
    budget = Budget(clock, begin_s=0.0, end_s=100.0, max_steps=10)
    clock.advance(20.0)
    assert budget.progress(5) == 0.5
    clock.advance(60.0)
    assert budget.progress(5) == pytest.approx(0.8)


def test_a_budget_that_is_spent_before_it_begins_ends_at_once():
    clock = FakeClock(50.0)
    assert Budget(clock, begin_s=49.0, end_s=20.0).progress(0) == 1.0


def test_training_gets_what_is_left_of_a_budget():
    allotted = allot(100.0, now_s=10.0, trained_s=0.0, validate_s=20.0, report_s=3.0)
    assert (allotted.begin_s, allotted.end_s, allotted.is_short) == (10.0, 77.0, False)
    assert allotted.late_s == (0.0, 0.0)


def test_a_resumed_training_goes_on_in_its_schedule():
    allotted = allot(100.0, now_s=50.0, trained_s=30.0, validate_s=20.0, report_s=3.0)
    assert (allotted.begin_s, allotted.end_s, allotted.is_short) == (20.0, 77.0, False)


def test_an_end_that_moves_away_lets_progress_wait_and_never_fall():
    clock = FakeClock()
    budget = Budget(clock, begin_s=0.0, end_s=100.0)
    clock.advance(50.0)
    assert (budget.progress(1), budget.remaining_s()) == (0.5, 50.0)
    budget.end_at(200.0)
    assert (budget.progress(1), budget.remaining_s()) == (0.5, 150.0)
    clock.advance(100.0)
    assert budget.progress(2) == 0.75
    budget.end_at(120.0)
    assert (budget.progress(3), budget.remaining_s()) == (1.0, 0.0)


def test_asking_ahead_does_not_bring_the_end_nearer():
    clock = FakeClock()
    budget = Budget(clock, begin_s=0.0, end_s=100.0, max_steps=10)
    assert budget.progress_ahead(9) == 0.9
    assert budget.progress(1) == 0.1
    clock.advance(50.0)
    assert (budget.progress_ahead(1), budget.progress(1)) == (0.5, 0.5)
    assert Budget(FakeClock(), max_steps=10).progress_ahead(9) == 0.9


@pytest.mark.parametrize(
    ("budget_s", "now_s", "stepped_s", "windows_s", "cases_s"),
    [
        # 90 % of up to two minutes and 95 % from five minutes on are for steps; half of it before a case is left out.
        (100.0, 5.0, 0.0, 2.0, 42.0),
        (120.0, 5.0, 0.0, 4.0, 52.0),
        (210.0, 5.0, 0.0, 210.0 * 0.075 - 8.0, 97.0),
        (300.0, 5.0, 0.0, 7.0, 142.0),
        (3600.0, 5.0, 0.0, 172.0, 1792.0),
        # Validations and what else came between took 20 s of the 80.
        (100.0, 80.0, 60.0, 1.0, 17.0),
        (100.0, 95.0, 90.0, 2.0, 2.0),
    ],
)
def test_steps_get_most_of_a_budget_before_the_final_validation_is_done_in_full(
    budget_s, now_s, stepped_s, windows_s, cases_s
):
    left = left_for_validation(budget_s, now_s=now_s, stepped_s=stepped_s, report_s=3.0, validation_share=0.0)
    assert left == pytest.approx((windows_s, cases_s))


def test_the_time_for_validations_on_the_way_is_kept():
    windows_s, _ = left_for_validation(300.0, now_s=5.0, stepped_s=0.0, report_s=3.0, validation_share=0.01)
    assert windows_s == pytest.approx(7.0 - 2.85)


@pytest.mark.parametrize(("validate_s", "late_s"), [(1.25, (0.0, 0.25)), (4.0, (0.0, 3.0)), (5.5, (1.5, 4.5))])
def test_a_short_budget_gives_training_a_twentieth_and_tells_how_late_the_run_may_end(validate_s, late_s):
    allotted = allot(10.0, now_s=5.5, trained_s=0.0, validate_s=validate_s, report_s=3.0)
    assert (allotted.begin_s, allotted.end_s, allotted.is_short) == (5.5, 6.0, True)
    assert allotted.late_s == pytest.approx(late_s)


def test_a_resumed_run_that_is_past_its_budget_counts_from_now():
    allotted = allot(10.0, now_s=30.0, trained_s=2.0, validate_s=1.0, report_s=3.0)
    assert allotted.is_short
    assert allotted.late_s == pytest.approx((21.0, 24.0))


def test_a_training_that_may_end_early_is_late_for_sure_only_by_what_follows_it():
    allotted = allot(10.0, now_s=5.5, trained_s=0.0, validate_s=4.0, report_s=3.0, may_end_early=True)
    assert allotted.late_s == pytest.approx((0.0, 3.0))
    later = allot(10.0, now_s=9.0, trained_s=0.0, validate_s=4.0, report_s=3.0, may_end_early=True)
    assert later.late_s == pytest.approx((3.0, 6.5))


@pytest.mark.parametrize(
    ("trained_s", "progress", "expected_s", "is_due"),
    [(12.0, 0.24, 0.9, True), (9.0, 0.18, 0.9, False), (12.0, 0.24, 1.1, False), (2.0, 0.5, 0.01, False)],
)
def test_a_first_dice_is_due_after_a_fifth_of_the_training_if_it_is_cheap(trained_s, progress, expected_s, is_due):
    assert first_dice_is_due(trained_s, progress=progress, expected_s=expected_s) == is_due


def test_a_validation_of_a_hundredth_of_the_budget_is_never_shortened():
    left = left_for_validation(100.0, now_s=60.0, stepped_s=1.0, report_s=3.0, validation_share=0.0)
    assert left == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize(
    ("now_s", "planned_s", "left_s"),
    [(90.0, 5.0, 7.0), (95.5, 5.0, 1.5), (96.9, 5.0, 1.0), (98.0, 5.0, 1.0), (98.0, 0.4, 0.4), (98.0, 0.0, 0.0)],
)
def test_late_steps_do_not_take_a_short_final_validation_away(now_s, planned_s, left_s):
    left = left_at_end_s(100.0, now_s=now_s, report_s=3.0, planned_s=planned_s)
    assert left == pytest.approx(left_s)
