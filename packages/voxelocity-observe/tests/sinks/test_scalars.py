import math

import pytest

from voxelocity_observe.sinks.scalars import ScalarStream, Told, begun_after, kept_events, step_of


def values(event):
    scalars = ScalarStream().of(event)
    return None if scalars is None else (scalars.step, dict(scalars.values))


def test_steps_become_the_curves_that_people_expect(first_session):
    assert values(first_session[1]) == (
        10,
        {
            "train/loss": 0.9,
            "train/learning_rate": 0.01,
            "train/epoch": 1.0,
            "train/images_per_s": 10.0,
            "train/wait_share": 0.25,
            "train/time_share/network": 0.75,
        },
    )


def test_a_validation_has_its_mean_and_each_class_that_has_a_score(first_session):
    expected = {"validation/mean_dice": 0.5, "validation/seconds": 1.0, "validation/dice/left atrium (LA)": 0.5}
    assert values(first_session[3]) == (20, expected)


def test_the_end_has_the_final_figures(second_session):
    step, named = values(second_session[-1])
    assert step == 40
    assert named == {
        "final/mean_dice": 0.72,
        "final/images_per_s": 10.0,
        "final/wait_share": 0.25,
        "final/seconds": 9.0,
    }


def test_a_sample_takes_the_step_of_what_came_before(first_session):
    stream = ScalarStream()
    stream.of(first_session[2])
    host = {"core_shares": [0.25, 0.75], "memory_used_bytes": 7, "swap_used_bytes": None}
    host["ranks"] = [{"rank": 1, "cores": 0.5, "memory_bytes": 9}]
    gpus = [{"index": 0, "slice": None, "name": "H100", "busy_share": 0.5}, {"index": 1, "slice": 2, "power_w": 70.0}]
    scalars = stream.of({"event": "sample", "time_s": 2.5, "period_s": 1.0, "host": host, "gpus": gpus})
    assert scalars.step == 20
    assert scalars.values == {
        "system/memory_used_bytes": 7.0,
        "system/cpu_busy_share": 0.5,
        "system/rank.1/cores": 0.5,
        "system/rank.1/memory_bytes": 9.0,
        "system/gpu.0/busy_share": 0.5,
        "system/gpu.1.2/power_w": 70.0,
    }


@pytest.mark.parametrize("name", ["run_started", "stage", "checkpoint", "warning", "interrupted", "of another version"])
def test_other_events_have_no_numbers(name):
    assert values({"event": name, "time_s": 1.0, "seconds": 3.0, "step": 9}) is None


def test_what_is_no_finite_number_is_left_out(first_session):
    lost = {**first_session[1], "loss": None, "learning_rate": math.inf, "seconds": 0.0}
    assert values(lost) == (10, {"train/epoch": 1.0})


def test_a_session_is_known_to_begin_where_its_first_steps_do(first_session, second_session):
    assert [begun_after(event) for event in second_session] == [None, None, 20, 27, 40, 40]
    assert [step_of(event) for event in first_session] == [None, 10, 20, 20, None, 30]


def test_what_is_done_again_does_not_count(first_session):
    kept = kept_events(first_session, 20)
    assert [event.get("step") for event in kept] == [None, 10, 20, 20, 20]
    assert [event["event"] for event in kept_events(first_session, 0)] == ["run_started", "checkpoint"]


def test_what_was_done_again_earlier_counts_once(first_session, second_session):
    kept = kept_events([*first_session, *second_session], 40)
    assert [event["step"] for event in kept if event["event"] == "steps"] == [10, 20, 27, 40]
    assert [event["step"] for event in kept if event["event"] == "validation"] == [20, 40]
    assert kept_events([], 40) == []


def test_a_record_that_takes_nothing_back_knows_what_it_holds(first_session, second_session):
    told = Told(first_session)
    assert [told.holds(event) for event in second_session] == [False, False, True, False, False, False]
    assert told.holds(first_session[3])
    assert not Told([]).holds(first_session[1])


def test_a_validation_that_the_killed_session_did_not_reach_is_told(first_session):
    without = [event for event in first_session if event["event"] != "validation"]
    assert not Told(without).holds(first_session[3])
