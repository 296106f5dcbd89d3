from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity_observe.diagnose.accounting import (
    between_s,
    ceiling,
    counted_passes,
    data_room_s,
    load_change,
    making_places,
    making_share,
    place,
    resident_s,
    split,
    step_s,
    watched_s,
)
from voxelocity_observe.diagnose.facts import PARTS, ExperimentFacts, Facts, Pass, ProcessFacts, Step


def test_warm_up_and_what_came_before_it_do_not_count(clean, make):
    early = [Step(start_s=4.0, seconds=1.0, parts={}, phase="warm-up"), *clean.steps]
    facts = replace(clean, steps=early, passes=[make.between("saving", 1.0, at=-20), make.between("saving", 0.5, at=3)])
    assert [interval.seconds for interval in counted_passes(facts)] == [0.5]
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
    """Unchanged steps among the experiments compute for a third as long as counted ones, and so would resident ones."""
    waiting = replace(clean, steps=make.steps({"wait": 0.15, "forward": 0.15}))
    later = [Step(start_s=40.0 + n, seconds=0.1, parts={"wait": 0.05}, phase="unchanged") for n in range(3)]
    resident = [ExperimentFacts(name="resident batch", unit="step", seconds=[0.04] * 5)]
    quiet = replace(waiting, steps=[*waiting.steps, *later], experiments=resident)
    assert load_change(quiet) == pytest.approx(1 / 3)
    assert resident_s(quiet) == pytest.approx(0.12)
    assert resident_s(replace(waiting, experiments=resident)) == 0.04, "nobody knows of another load"
    assert load_change(replace(waiting, steps=[*waiting.steps, *later[:2]])) is None
    same = [replace(step, seconds=0.19) for step in later]
    assert resident_s(replace(waiting, steps=[*waiting.steps, *same], experiments=resident)) == 0.04


def test_steps_that_happen_to_wait_less_do_not_mean_another_load(clean, make):
    waiting = replace(clean, steps=make.steps({"wait": 0.35, "forward": 0.15}))
    kept = [Step(start_s=40.0 + n, seconds=0.15, parts={"wait": 0.0}, phase="unchanged") for n in range(3)]
    assert load_change(replace(waiting, steps=[*waiting.steps, *kept])) == pytest.approx(1.0)


def test_the_ceiling_of_batches_made_in_the_own_thread_is_what_their_steps_take_beside_waiting(clean, make):
    """94 % of waiting is a ceiling of 17 times, whatever the machine did while the experiment ran."""
    waiting = replace(clean, steps=make.steps({"wait": 0.94, "forward": 0.06}), loaders=[make.loader(num_workers=0)])
    quick = [ExperimentFacts(name="resident batch", unit="step", seconds=[0.03] * 5)]
    assert resident_s(replace(waiting, experiments=quick)) == pytest.approx(0.06)


def test_steps_that_other_programs_disturb_are_not_taken_for_data(clean, make):
    """Nine of ten steps take 0.1 s and one 1 s, each with 0.01 s of waiting: only that can be saved."""
    parts = [{"wait": 0.01, "forward": 0.09 if number % 10 else 0.99} for number in range(100)]
    steps = [replace(make.steps(part)[number], parts=part) for number, part in enumerate(parts)]
    disturbed = replace(clean, steps=steps, loaders=[make.loader(num_workers=0)])
    found = ceiling(disturbed)
    assert found.step_s - found.resident_s == pytest.approx(0.01)


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


@pytest.fixture
def looping(clean, make):
    """Reads at line 25, scales at 27, calls the network at 32, and takes a mean of its losses at 40."""
    return replace(
        clean,
        steps=make.steps({"forward": 0.04, "backward": 0.06, "other": 0.1}),
        loaders=[],
        fetches=[],
        experiments=[],
        stacks=[
            make.stack("other", "gunzip", 50, where="train.py:25"),
            make.stack("other", "other", 30, where="train.py:27"),
            make.stack("other", "other", 20, where="train.py:40"),
            make.stack("forward", "other", 40, where="train.py:32"),
            make.stack("forward", "other", 40, where="network.py:30"),
        ],
    )


def test_lines_between_reading_and_the_network_make_the_batch_and_later_ones_do_not(looping):
    assert [stack.where for stack in making_places(looping)] == ["train.py:25", "train.py:27"]
    assert making_share(looping) == pytest.approx(0.8)


def test_a_file_that_reads_and_never_calls_the_network_makes_batches_to_its_end(looping, make):
    stacks = [make.stack("other", "read", 5, where="data.py:3"), make.stack("other", "other", 5, where="data.py:90")]
    found = making_places(replace(looping, stacks=[*looping.stacks, *stacks]))
    assert {"data.py:3", "data.py:90"} <= {stack.where for stack in found}


def test_without_a_look_at_the_network_only_known_work_counts(looping):
    beside = [stack for stack in looping.stacks if stack.part == "other"]
    assert [stack.where for stack in making_places(replace(looping, stacks=beside))] == ["train.py:25"]


def test_own_lines_beside_a_loader_make_no_batches(looping, make):
    assert [stack.where for stack in making_places(replace(looping, loaders=[make.loader()]))] == ["train.py:25"]


def test_the_ceiling_of_a_loop_is_without_its_making(looping):
    assert ceiling(looping).resident_s == pytest.approx(0.2 - 0.08)
    assert data_room_s(looping) == pytest.approx(100 * 0.08)


def test_a_place_without_a_line_has_line_zero():
    assert place("train.py:12") == ("train.py", 12)
    assert place("") == ("", 0)


_SECONDS = st.floats(min_value=0.0, max_value=10.0)


@st.composite
def recordings(draw):
    """Steps and passes one behind the other, with gaps, in any order."""
    steps, passes, now_s = [], [], 0.0
    for _ in range(draw(st.integers(1, 12))):
        parts = {part: draw(_SECONDS) for part in draw(st.sets(st.sampled_from(PARTS)))}
        seconds = sum(parts.values()) + draw(_SECONDS)
        phase = draw(st.sampled_from(["warm-up", "watched", "watched", "profiled"]))
        steps.append(Step(start_s=now_s, seconds=seconds, parts=parts, phase=phase))
        now_s += seconds
        if draw(st.booleans()):
            kind = draw(st.sampled_from(["validation", "saving", "epoch start"]))
            passes.append(Pass(kind=kind, start_s=now_s, seconds=draw(_SECONDS)))
            now_s += passes[-1].seconds
        now_s += draw(_SECONDS)
    main = ProcessFacts(pid=1, parent_pid=0, role="main")
    return Facts(command=(), main=main, seconds=now_s, steps=steps, passes=passes)


@given(recordings())
def test_the_split_sums_to_the_watched_time(facts):
    shares = split(facts)
    is_work = facts.counted or any(interval.kind != "epoch start" for interval in facts.passes)
    assert sum(share.seconds for share in shares) == pytest.approx(watched_s(facts) if is_work else 0.0, abs=1e-9)
    assert not shares or sum(share.share for share in shares) == pytest.approx(1.0)
    assert all(share.seconds >= -1e-9 for share in shares)
    assert watched_s(facts) <= facts.seconds + 1e-9


def test_a_planted_wait_of_thirty_per_cent_is_shown_as_such(clean, make):
    facts = replace(clean, steps=make.steps({"wait": 0.03, "forward": 0.03, "backward": 0.03, "optimizer": 0.01}))
    assert [(share.name, round(share.share, 6)) for share in split(facts)] == [
        ("waiting for data", 0.3),
        ("forward", 0.3),
        ("backward", 0.3),
        ("optimizer", 0.1),
    ]


def test_passes_follow_the_parts_of_a_step_and_other_comes_last(clean, make):
    facts = replace(
        clean,
        steps=make.steps({"wait": 0.02, "copy": 0.02, "forward": 0.05, "other": 0.01}),
        passes=[make.between(kind, 1.0, at=100) for kind in ("epoch start", "saving", "validation")],
    )
    names = [share.name for share in split(facts)]
    assert names == [
        "waiting for data",
        "copy to the device",
        "forward",
        "validation",
        "saving",
        "epoch start",
        "other",
    ]


def test_the_ceiling_is_measured_where_the_experiment_was_done(clean, make):
    waiting = replace(clean, steps=make.steps({"wait": 0.05, "copy": 0.01, "forward": 0.1}))
    found = ceiling(waiting)
    assert (found.step_s, found.resident_s, found.basis) == (pytest.approx(0.16), 0.099, "measured")
    found = ceiling(replace(waiting, experiments=[]))
    assert (found.resident_s, found.basis) == (pytest.approx(0.1), "estimated")


def test_the_ceiling_is_never_above_the_step(clean, make):
    found = ceiling(replace(clean, steps=make.steps({"forward": 0.09})))
    assert found.resident_s == found.step_s == pytest.approx(0.09)


def test_nothing_watched_has_neither_split_nor_ceiling(clean):
    empty = replace(clean, steps=[])
    assert (split(empty), ceiling(empty)) == ((), None)


def test_epochs_that_begin_are_no_time_to_share_out_where_no_step_was_counted(clean, make):
    begun = [make.between("epoch start", 1.0, at=0)]
    assert split(replace(clean, steps=[], passes=begun)) == ()
    both = [*begun, make.between("validation", 3.0, at=1)]
    assert [(share.name, share.share) for share in split(replace(clean, steps=[], passes=both))] == [
        ("validation", 0.75),
        ("epoch start", 0.25),
    ]


def test_a_ceiling_speaks_of_the_same_waiting_as_the_split_where_batches_come_in_bursts(clean, make):
    """Nine of ten steps find their batch there, and the tenth waits for all of them."""
    quick, late = make.steps({"forward": 0.1}, count=90), make.steps({"forward": 0.1, "wait": 1.5}, count=10)
    facts = replace(clean, steps=[*quick, *late], experiments=[], loaders=[make.loader(num_workers=0)])
    (waiting,) = [share.share for share in split(facts) if share.name == "waiting for data"]
    found = ceiling(facts)
    assert found.step_s / found.resident_s == pytest.approx(1.0 / (1.0 - waiting)) == pytest.approx(2.5)
