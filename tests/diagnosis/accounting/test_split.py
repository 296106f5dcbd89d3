"""Where the time went: the parts sum to the watched time, whatever was planted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.diagnosis.accounting.split import ceiling, split
from voxelocity.diagnosis.accounting.watched import watched_s
from voxelocity.diagnosis.facts import PARTS, Facts, Pass, ProcessFacts, Step

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
    is_work = facts.counted or any(one.kind != "epoch start" for one in facts.passes)
    assert sum(one.seconds for one in shares) == pytest.approx(watched_s(facts) if is_work else 0.0, abs=1e-9)
    assert not shares or sum(one.share for one in shares) == pytest.approx(1.0)
    assert all(one.seconds >= -1e-9 for one in shares)
    assert watched_s(facts) <= facts.seconds + 1e-9


def test_a_planted_wait_of_thirty_per_cent_is_shown_as_such(clean, make):
    facts = replace(clean, steps=make.steps({"wait": 0.03, "forward": 0.03, "backward": 0.03, "optimizer": 0.01}))
    assert [(one.name, round(one.share, 6)) for one in split(facts)] == [
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
    names = [one.name for one in split(facts)]
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
    assert [(one.name, one.share) for one in split(replace(clean, steps=[], passes=both))] == [
        ("validation", 0.75),
        ("epoch start", 0.25),
    ]


def test_a_ceiling_speaks_of_the_same_waiting_as_the_split_where_batches_come_in_bursts(clean, make):
    """Nine of ten steps find their batch there, and the tenth waits for all of them."""
    quick, late = make.steps({"forward": 0.1}, count=90), make.steps({"forward": 0.1, "wait": 1.5}, count=10)
    facts = replace(clean, steps=[*quick, *late], experiments=[], loaders=[make.loader(num_workers=0)])
    (waiting,) = [one.share for one in split(facts) if one.name == "waiting for data"]
    found = ceiling(facts)
    assert found.step_s / found.resident_s == pytest.approx(1.0 / (1.0 - waiting)) == pytest.approx(2.5)
