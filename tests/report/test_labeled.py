import math

import pytest

from voxelocity.report import LabeledRun, label_run, read_run, seconds_to_reach
from voxelocity.report.labeled import differing_settings


def test_a_run_folder_becomes_a_labeled_run(finished_run):
    run = label_run(read_run(finished_run), "ours")
    assert run.label == "ours"
    # The first validation at 0.85 or above is the fourth: 16 s of preparation, 104 stretches, 4 validations.
    assert run.seconds_to_target == 16 + 104 + 4 * 2
    assert (run.images_per_s, run.wait_share, run.wall_s) == (704.0, 0.019, 302.1)
    assert run.last_dice is not None
    assert round(run.last_dice, 3) == 0.882
    assert run.settings["data.patch.shape_voxel"] == [40, 56, 40]
    assert run.settings["seed"] == 7
    assert run.notes == ()


def test_a_run_that_was_not_held_out_says_so(write, record):
    record["dataset"]["held_out"] = False
    assert label_run(read_run(write(record=record)), "x").notes == ("The Dice was measured on training cases.",)


def test_the_time_to_another_target_can_be_asked_for(finished_run):
    facts = read_run(finished_run)
    assert label_run(facts, "x", target_dice=0.95).seconds_to_target is None
    assert label_run(facts, "x", target_dice=0.1).seconds_to_target == 16 + 26 + 2


def test_the_first_validation_at_the_target_counts():
    history = ((1.0, 0.2), (2.0, math.nan), (3.0, 0.8), (4.0, 0.7), (5.0, 0.9))
    assert seconds_to_reach(history, 0.8) == 3.0
    assert seconds_to_reach(history, 0.91) is None


def test_best_and_last_dice_come_from_the_history_unless_the_result_was_measured():
    history = ((1.0, 0.7), (2.0, 0.9), (3.0, 0.8))
    assert (LabeledRun(label="a", dice_history=history).best_dice, LabeledRun(label="a").best_dice) == (0.9, None)
    assert LabeledRun(label="a", dice_history=history).last_dice == 0.8
    assert LabeledRun(label="a", dice_history=history, final_dice=0.85).last_dice == 0.85
    assert LabeledRun(label="a").last_dice is None


def test_only_settings_that_differ_are_listed_and_tuples_equal_lists():
    a = LabeledRun(label="a", settings={"spacing": (1, 1, 1), "cache": {"tier": "none"}, "lr": 0.1})
    b = LabeledRun(label="b", settings={"spacing": [1, 1, 1], "cache": {"tier": "memory"}, "seed": 0, "lr": 0.1})
    differing, num_equal = differing_settings([a, b])
    assert differing == {"cache.tier": ("none", "memory"), "seed": (None, 0)}
    assert num_equal == 2
    assert differing_settings([LabeledRun(label="a"), LabeledRun(label="b")]) == ({}, 0)


def test_a_run_brings_its_peaks_its_splits_and_its_reasons(write, record, events):
    events[-1] |= {"peak_host_bytes": 2**30, "peak_device_bytes": 2**31}
    run = label_run(read_run(write(record=record, events=events)), "x")
    assert (run.peak_host_bytes, run.peak_device_bytes) == (2**30, 2**31)
    assert run.reasons["precision.autocast"].startswith("the GPU has bfloat16 units")
    assert run.machine["device"] == "cuda"
    assert sum(part.seconds for part in run.stages) == pytest.approx(302.1)
    # 44 steps a second.
    assert sum(part.seconds for part in run.step_parts) == pytest.approx(1 / 44)
    assert {part.name for part in run.step_parts} >= {"waiting for data", "network"}


def test_a_run_without_steps_has_no_split_of_a_step(write, record):
    assert label_run(read_run(write(record=record)), "x").step_parts == ()
