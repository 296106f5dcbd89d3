"""What of a recording counts, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxelocity.diagnosis.accounting.watched import (
    between_s,
    counted_passes,
    data_room_s,
    load_change,
    resident_s,
    step_s,
    watched_s,
)
from voxelocity.diagnosis.facts import ExperimentFacts, Step


def test_warm_up_and_what_came_before_it_do_not_count(clean, make):
    early = [Step(start_s=4.0, seconds=1.0, parts={}, phase="warm-up"), *clean.steps]
    facts = replace(clean, steps=early, passes=[make.between("saving", 1.0, at=-20), make.between("saving", 0.5, at=3)])
    assert [one.seconds for one in counted_passes(facts)] == [0.5]
    assert watched_s(facts) == pytest.approx(10.5)


def test_time_between_steps_that_nobody_names_is_watched_time(clean):
    later = [replace(step, start_s=step.start_s + 2.0) for step in clean.steps[50:]]
    facts = replace(clean, steps=[*clean.steps[:50], *later])
    assert between_s(facts) == pytest.approx(2.0)
    assert watched_s(facts) == pytest.approx(12.0)


def test_a_pass_between_steps_is_not_counted_twice(clean, make):
    later = [replace(step, start_s=step.start_s + 2.0) for step in clean.steps[50:]]
    facts = replace(clean, steps=[*clean.steps[:50], *later], passes=[make.between("validation", 2.0, at=50)])
    assert between_s(facts) == pytest.approx(0.0, abs=1e-9)
    assert watched_s(facts) == pytest.approx(12.0)


def test_a_pass_within_the_last_step_is_counted_beside_it(clean, make):
    facts = replace(clean, passes=[make.between("validation", 3.0, at=100)])
    assert (between_s(facts), watched_s(facts)) == (pytest.approx(0.0, abs=1e-9), pytest.approx(13.0))


def test_profiled_steps_are_neither_counted_nor_unnamed_time(clean):
    profiled = replace(
        clean, steps=[replace(s, phase="profiled") if 40 <= i < 50 else s for i, s in enumerate(clean.steps)]
    )
    assert watched_s(profiled) == pytest.approx(9.0)
    assert between_s(profiled) == pytest.approx(0.0, abs=1e-9)


def test_without_steps_the_passes_are_what_was_watched(clean, make):
    facts = replace(clean, steps=[], passes=[make.between("validation", 3.0, at=-20)])
    assert watched_s(facts) == 3.0
    assert step_s(facts) is None


def test_the_step_without_data_comes_from_the_experiment_or_its_steps(clean):
    assert resident_s(clean) == 0.099
    alone = [Step(start_s=20.0, seconds=seconds, parts={}, phase="resident") for seconds in (0.07, 0.08, 0.09)]
    assert resident_s(replace(clean, experiments=[], steps=[*clean.steps, *alone])) == 0.08
    failed = [ExperimentFacts(name="resident batch", unit="step", seconds=[], note="the batch was freed")]
    assert resident_s(replace(clean, experiments=failed)) is None


def test_an_experiment_in_a_slower_moment_does_not_hide_the_wait(clean, make):
    """Steps of 0.15 s of which 0.05 s are waiting cannot take 0.2 s without it."""
    waiting = replace(clean, steps=make.steps({"wait": 0.05, "forward": 0.1}))
    noisy = [ExperimentFacts(name="resident batch", unit="step", seconds=[0.2] * 5)]
    assert resident_s(replace(waiting, experiments=noisy)) == pytest.approx(0.1)
    assert data_room_s(replace(waiting, experiments=noisy)) == pytest.approx(5.0)


def test_an_experiment_under_another_load_is_put_on_that_of_the_counted_steps(clean, make):
    """Unchanged steps among the experiments take a third of what counted ones took: so would the resident ones."""
    waiting = replace(clean, steps=make.steps({"wait": 0.15, "forward": 0.15}))
    later = [Step(start_s=40.0 + n, seconds=0.1, parts={}, phase="unchanged") for n in range(3)]
    resident = [ExperimentFacts(name="resident batch", unit="step", seconds=[0.04] * 5)]
    quiet = replace(waiting, steps=[*waiting.steps, *later], experiments=resident)
    assert load_change(quiet) == pytest.approx(1 / 3)
    assert resident_s(quiet) == pytest.approx(0.12)
    assert resident_s(replace(waiting, experiments=resident)) == 0.04, "nobody knows of another load"
    assert load_change(replace(waiting, steps=[*waiting.steps, *later[:2]])) is None
    same = [replace(one, seconds=0.28) for one in later]
    assert resident_s(replace(waiting, steps=[*waiting.steps, *same], experiments=resident)) == 0.04


def test_the_ceiling_of_batches_made_in_the_own_thread_is_what_their_steps_take_beside_waiting(clean, make):
    """94 % of waiting is a ceiling of 17 times, whatever the machine did while the experiment ran."""
    waiting = replace(clean, steps=make.steps({"wait": 0.94, "forward": 0.06}), loaders=[make.loader(num_workers=0)])
    quick = [ExperimentFacts(name="resident batch", unit="step", seconds=[0.03] * 5)]
    assert resident_s(replace(waiting, experiments=quick)) == pytest.approx(0.06)


def test_data_can_save_what_steps_take_beyond_steps_without_data(clean, make):
    waiting = replace(clean, steps=make.steps({"wait": 0.05, "forward": 0.1}))
    assert data_room_s(waiting) == pytest.approx(15.0 - 9.9)
    assert data_room_s(replace(waiting, experiments=[])) == pytest.approx(5.0)


def test_without_a_loader_all_that_is_no_network_may_be_data(clean, make):
    facts = replace(clean, steps=make.steps({"other": 0.05, "forward": 0.1}), loaders=[], experiments=[])
    assert data_room_s(facts) == pytest.approx(5.0)
    assert data_room_s(replace(facts, loaders=clean.loaders)) == 0.0


def test_without_workers_only_waiting_can_be_saved_whatever_the_resident_steps_took(clean, make):
    """Nothing runs beside the network, so that slower steps are those of a busier machine."""
    steps = make.steps({"wait": 0.02, "forward": 0.2})
    assert data_room_s(replace(clean, steps=steps)) == pytest.approx(100 * (0.22 - 0.099))
    assert data_room_s(replace(clean, steps=steps, loaders=[make.loader(num_workers=0)])) == pytest.approx(2.0)
