from __future__ import annotations

import copy
import math
import shutil

import pytest
import yaml

from voxelocity.report import LabeledRun, label_run, pair_runs, read_run
from voxelocity.report.labeled import labels_of, seconds_to_reach
from voxelocity_observe.core.errors import InputError


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


@pytest.fixture
def two(finished_run, tmp_path):
    """Folders of two equal runs on one data set, to be changed."""
    return [shutil.copytree(finished_run, tmp_path / name) for name in ("before", "after")]


def change(folder, **dataset):
    path = folder / "run.yaml"
    record = yaml.safe_load(path.read_text())
    record["dataset"].update(dataset)
    path.write_text(yaml.safe_dump(record))


def pair(folders, **options):
    return pair_runs(*map(read_run, folders), **options)


def test_two_runs_are_labeled_by_their_folders_and_paired_on_all_cases(two):
    found = pair(two)
    assert [run.label for run in found.runs] == ["before", "after"]
    assert (found.target_dice, found.target_reason) == (0.85, "the target of both runs")
    assert found.parity.num_cases == 42
    assert found.parity.overall.judgment == "same"
    assert found.notices == ()


def test_without_a_target_of_both_the_highest_dice_that_both_reached_is_taken(two, write, record, events):
    record["plan"]["train"]["target_dice"] = 0.0
    lower = [{**e, "mean_dice": e["mean_dice"] - 0.1} if e["event"] == "validation" else e for e in events]
    other = write(record=record, events=lower)
    found = pair([two[0], other])
    # The last validation reaches 0.8896 at most; a tenth less is 0.7885.
    assert found.target_dice == 0.78
    assert found.target_reason == "the highest that both runs reached during training, rounded down"
    assert all(run.seconds_to_target is not None for run in found.runs)
    assert pair([two[0], other], target_dice=0.5).target_reason == "asked for"


def test_runs_that_never_validated_have_no_target(two, write, record, events):
    record["plan"]["train"]["target_dice"] = 0.0
    found = pair([two[0], write(record=record, events=[e for e in events if e["event"] != "validation"])])
    assert (found.target_dice, found.target_reason) == (None, "")


def test_one_run_twice_is_refused(two):
    with pytest.raises(InputError, match=r"report: .*before and .*before are the same run; name two to compare them"):
        pair([two[0], two[0].parent / "." / "before"])


def test_runs_on_different_data_sets_are_refused_with_what_differs(two):
    change(two[1], name="Spleen", classes=["background", "spleen"])
    with pytest.raises(InputError) as error:
        pair(two)
    assert str(error.value) == (
        f"report: {two[0]} was trained on Task04_Hippocampus and {two[1]} on Spleen: different data sets (classes "
        "background, anterior, posterior and background, spleen), whose figures cannot be compared; name two runs on "
        "the same data set"
    )


def test_a_data_set_of_the_same_classes_in_another_place_is_reported(two):
    change(two[1], path="/other", num_cases=200)
    (notice,) = pair(two).notices
    assert notice == (
        "The data sets have the same classes but differ (before: Task04_Hippocampus, 260 cases, "
        "/data/Task04_Hippocampus; after: Task04_Hippocampus, 200 cases, /other); the runs are comparable only if "
        "their scans are equal."
    )


def test_other_folds_without_a_common_case_leave_accuracy_open(two, write, record, events, scores):
    record["dataset"]["fold"] = 1
    others = [{**score, "case_id": f"other_{score['case_id']}"} for score in scores]
    found = pair([two[0], write(record=record, events=events, scores=others)])
    assert found.parity is None
    assert found.notices == (
        "The runs were trained on different cases: before on 218 (fold 0), run on 218 (fold 1).",
        "Accuracy is not compared: the 42 cases of before (fold 0) and the 42 cases of run (fold 1) have none in "
        "common; train both with one fold held out.",
    )


def test_only_common_cases_are_paired(two, write, record, events, scores):
    found = pair([two[0], write(record=record, events=events, scores=scores[:30])])
    assert (found.parity.num_cases, found.parity.num_only_first) == (30, 12)


def test_an_unfinished_run_without_scores_is_compared_in_speed_alone(two, write, record, events):
    found = pair([two[0], write(record=record, events=events[:200])])
    assert found.parity is None
    assert found.notices == (
        "run has not finished: its figures cover only the training so far.",
        "Accuracy is not compared: run has no scores of a final validation.",
    )
    interrupted = [*events[:200], {"event": "interrupted", "time_s": 99.0, "signal": 2}]
    (first, _) = pair([two[0], write(record=record, events=interrupted)]).notices
    assert first.startswith("run was interrupted: ")


def test_scores_of_cases_that_were_trained_on_are_not_held_against_held_out_ones(two):
    change(two[1], held_out=False)
    found = pair(two)
    assert found.parity is None
    assert found.notices == (
        "Accuracy is not compared: after was scored on its training cases, the other run on held-out cases.",
    )
    change(two[0], held_out=False)
    found = pair(two)
    assert found.parity is not None
    assert found.notices[0].startswith("Both runs were scored on their training cases")


def test_scores_of_cases_that_the_start_may_have_seen_are_reported(two):
    case_id = read_run(two[1]).scores[0].case_id
    change(two[1], exposed={case_id: "trained on", "another": "trained on"})
    assert pair(two).notices == (
        "The model that after was started from may have learned from 1 of the 42 cases it is judged on; if so, its "
        "Dice is too high.",
    )


def test_validations_of_other_numbers_of_cases_are_reported(write, events, tmp_path):
    folders = []
    for name, num_cases in (("four", 4), ("ten", 10), ("again", 10)):
        of_run = [{**e, "num_cases": num_cases} if e["event"] == "validation" else e for e in events]
        folders.append(write(events=of_run).rename(tmp_path / name))
    said = (
        "The validations on the way were not of equally many cases (4 in four, 10 in ten); curves and times to a Dice "
        "are not directly comparable."
    )
    assert said in pair(folders[:2]).notices
    assert not any("on the way" in notice for notice in pair(folders[1:]).notices)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"target_dice": 1.5}, "report: the target 1.5 is not a Dice; give a number above 0 and up to 1"),
        ({"margin_dice": 0.0}, "report: the margin 0 is not a difference of Dice; give a number above 0 and up to 1"),
        ({"margin_mm": -1.0}, "report: the margin -1 mm is not a distance; give a number above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(two, options, text):
    with pytest.raises(InputError) as error:
        pair(two, **options)
    assert str(error.value) == text


def test_the_margin_decides(two, write, record, events, scores):
    other = copy.deepcopy(scores)
    for index, score in enumerate(other):
        score["dice"] = {name: dice - 0.02 - 0.001 * (index % 2) for name, dice in score["dice"].items()}
    folders = [two[0], write(record=record, events=events, scores=other)]
    assert pair(folders).parity.overall.judgment == "different"
    assert pair(folders, margin_dice=0.03).parity.overall.judgment == "same"


def test_labels_take_in_as_many_parents_as_tell_the_folders_apart(tmp_path):
    assert labels_of([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a/run", "b/run"]
    assert labels_of([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]


def few_validations(events):
    kept = 2
    for event in events:
        if event["event"] == "validation":
            kept -= 1
        if event["event"] != "validation" or kept >= 0:
            yield event


def test_a_run_that_was_validated_hardly_at_all_has_no_time_to_a_dice(write, record, events, finished_run):
    del record["plan"]["train"]["target_dice"]
    rare = write(record=record, events=list(few_validations(events)))
    pair = pair_runs(read_run(finished_run), read_run(rare))
    assert pair.target_dice is None
    assert any("too few validations" in notice and "run 2 times" in notice for notice in pair.notices), pair.notices


@pytest.mark.parametrize(("load", "is_reported"), [(3.0, False), (12.0, True)])
def test_a_machine_that_was_busier_in_one_of_the_runs_is_reported(write, events, tmp_path, load, is_reported):
    folders = []
    for name, own_load in (("quiet", 2.5), ("busy", load)):
        events[-1]["load_average"] = own_load
        folders.append(write(events=events).rename(tmp_path / name))
    notices = pair_runs(*map(read_run, folders)).notices
    assert any(f"load average 2.5 in quiet, {load} in busy" in notice for notice in notices) == is_reported
