import pytest

from voxelocity.core.records import CaseScore
from voxelocity.report import read_run
from voxelocity.report.columns import CLASS_COLUMNS, classes_of, mean_hd95_mm, page_table, worst_first
from voxelocity.report.page import run_document
from voxelocity.report.summary import (
    absent_text,
    judged_text,
    mean_dice,
    part_shares,
    stage_shares,
    throughput,
    verdict,
    without_surface_text,
)

SCORES = (
    CaseScore(case_id="a", dice={"liver": 0.9, "tumour": 0.5}, hd95_mm={"liver": 2.0, "tumour": 4.0}),
    CaseScore(case_id="b", dice={"liver": 0.8, "tumour": 0.0}, hd95_mm={"liver": 3.0, "tumour": None}),
    CaseScore(case_id="c", dice={"liver": 1.0, "tumour": 0.7}, hd95_mm={"liver": 1.0, "tumour": 6.0}),
)


def test_the_verdict_says_where_the_cases_were_trained_on(write, record, events, scores):
    record["dataset"] |= {"held_out": False, "fold": "all"}
    text = verdict(read_run(write(record=record, events=events, scores=scores)))
    assert text.startswith("Mean foreground Dice 0.882 on 42 cases trained on after")


def test_the_verdict_counts_the_marked_among_the_cases_that_were_scored(write, record, events, scores):
    first = scores[0]["case_id"]
    record["dataset"]["exposed"] = {first: "trained on", "another": "trained on"}
    run = read_run(write(record=record, events=events, scores=scores))
    assert judged_text(run).endswith(", 1 of them marked")
    record["dataset"]["exposed"] = {"another": "trained on"}
    assert "marked" not in judged_text(read_run(write(record=record, events=events, scores=scores)))


def test_the_verdict_of_an_interrupted_run_names_the_signal_and_the_best_validation(write, events):
    for number, name in ((2, "Ctrl-C"), (15, "SIGTERM"), (99, "signal 99")):
        stop = {"event": "interrupted", "time_s": 130.0, "signal": number}
        text = verdict(read_run(write(events=[*events[:112], stop])))
        assert text.startswith(f"Interrupted by {name} at step 4,")
        assert "best validation so far: mean foreground Dice 0.817 at step 3,432." in text


def test_the_verdict_of_an_unfinished_run_says_how_far_it_came(write, events):
    assert verdict(read_run(write(events=events[:3]))) == "Unfinished after 5.1 s, before the first training step."
    assert verdict(read_run(write(events=events[:10]))) == (
        "Unfinished at step 220 after 21 s, before the first validation."
    )


def test_a_run_without_scores_takes_the_dice_it_finished_with(write, events):
    run = read_run(write(events=events))
    assert mean_dice(run) == 0.881
    events[-1]["mean_dice"] = None
    run = read_run(write(events=events))
    assert mean_dice(run) is None
    assert verdict(run).startswith("Trained for 11,440 steps without a final validation after")


def test_classes_are_summed_up_with_their_worst_case():
    assert page_table("", CLASS_COLUMNS, classes_of(SCORES)).rows == [
        ["liver", "0.900", "0.900", "0.800", "b", "2.00", "0", "0"],
        ["tumour", "0.400", "0.500", "0.000", "b", "5.00", "1", "0"],
    ]


def test_absent_classes_count_in_no_mean_and_missed_ones_stay_in_sight(write, events):
    scores = [
        CaseScore(case_id="a", dice={"liver": 0.9, "jaw": 0.0, "cyst": None}, hd95_mm={"liver": 2.0, "jaw": None}),
        CaseScore(case_id="b", dice={"liver": 0.7, "jaw": 0.0, "cyst": None}, hd95_mm={"liver": 4.0, "jaw": None}),
        CaseScore(case_id="c", dice={"liver": 0.5, "jaw": None, "cyst": None}, hd95_mm={"liver": 6.0, "jaw": None}),
    ]
    for score in scores:
        score.hd95_mm["cyst"] = None
    assert page_table("", CLASS_COLUMNS, classes_of(scores)).rows == [
        ["liver", "0.700", "0.700", "0.500", "c", "4.00", "0", "0"],
        ["jaw", "0.000", "0.000", "0.000", "a", "n/a", "2", "1"],
        ["cyst", "n/a", "n/a", "n/a", "", "n/a", "0", "3"],
    ]
    assert without_surface_text(scores).startswith("2 of 5 structures left out")
    assert absent_text(scores) == "1 of 3 classes in no case, counted in no mean"
    run = read_run(write(events=events, scores=[vars(score) for score in scores]))
    assert mean_dice(run) == pytest.approx((0.7 + 0.0) / 2)
    complete = [score for score in SCORES if score.case_id != "b"]
    assert absent_text(complete) == without_surface_text(complete) == ""


def test_surface_distances_that_do_not_exist_are_left_out_of_the_mean():
    assert mean_hd95_mm(SCORES) == pytest.approx((2 + 4 + 3 + 1 + 6) / 5)
    assert mean_hd95_mm([CaseScore(case_id="x", dice={"liver": 0.0}, hd95_mm={"liver": None})]) is None
    assert classes_of(()) == []


def test_cases_come_worst_first_and_equal_ones_by_name():
    even = CaseScore(case_id="0", dice={"liver": 0.4, "tumour": 0.4})
    assert [score.case_id for score in worst_first((*SCORES, even))] == ["0", "b", "a", "c"]


def test_a_case_without_any_class_is_not_the_worst(write, record, events):
    empty = CaseScore(case_id="0", dice={"liver": None, "tumour": None})
    assert [score.case_id for score in worst_first((empty, *SCORES))] == ["b", "a", "c", "0"]
    run = read_run(write(record=record, events=events, scores=[vars(score) for score in (empty, *SCORES)]))
    (card,) = [card for card in run_document(run).cards if card.name == "Mean Dice"]
    assert "lowest case 0.400" in card.note


def test_stages_add_up_to_the_wall_time_and_training_is_distinguished(finished_run):
    shares = {part.name: part for part in stage_shares(read_run(finished_run))}
    assert list(shares) == [
        "start-up",
        "planning",
        "filling the cache",
        "rehearse validation",
        "training steps",
        "validation on the way",
        "checkpoints",
        "final validation",
        "other",
    ]
    assert "train" not in shares
    assert shares["training steps"].seconds == pytest.approx(260.0)
    assert shares["validation on the way"].seconds == pytest.approx(20.0)
    assert sum(part.seconds for part in shares.values()) == pytest.approx(302.1)
    assert sum(part.share for part in shares.values()) == pytest.approx(1.0)
    assert shares["other"].seconds == pytest.approx(302.1 - 2 - 3.1 - 8.4 - 2.5 - 260 - 20 - 0.4 - 4.6)


def test_stages_of_several_sessions_are_summed(write, events):
    again = [{"event": "stage", "time_s": 30.0, "name": "cache", "seconds": 1.6}]
    shares = {part.name: part.seconds for part in stage_shares(read_run(write(events=[*events[:20], *again])))}
    assert shares["filling the cache"] == pytest.approx(10.0)


def test_stages_that_overlap_still_make_shares_of_one(write, events):
    long = {"event": "stage", "time_s": 31.0, "name": "cache", "seconds": 500.0}
    shares = stage_shares(read_run(write(events=[*events[:20], long])))
    assert sum(part.share for part in shares) == pytest.approx(1.0)
    assert "other" not in {part.name for part in shares}


def test_parts_of_the_steps_add_up_and_waiting_comes_first(finished_run):
    parts = part_shares(read_run(finished_run))
    assert [part.name for part in parts] == ["waiting for data", "forward", "augment", "network", "other"]
    assert parts[0].share == pytest.approx(0.019)
    assert sum(part.seconds for part in parts) == pytest.approx(260.0)


def test_a_run_without_steps_has_no_speed_and_no_shares(write):
    run = read_run(write())
    speed = throughput(run)
    assert (speed.images_per_s, speed.wait_share, speed.seconds_per_epoch) == (None, None, None)
    assert stage_shares(run) == part_shares(run) == ()


def test_speed_before_the_end_comes_from_the_steps(write, events):
    events[5]["seconds"] = 3.0
    events[5]["wait_s"] = 1.981
    speed = throughput(read_run(write(events=events[:7])))
    assert speed.images_per_s == pytest.approx(2 * 704 / 4.0)
    assert speed.wait_share == pytest.approx(2.0 / 4.0)


def test_time_per_epoch_is_taken_between_changes_of_epoch(write, events):
    # 44 steps a second at 14 steps an epoch.
    assert throughput(read_run(write(events=events))).seconds_per_epoch == pytest.approx(14 / 44, rel=0.01)
    for event in events:
        if event["event"] == "steps":
            event["epoch"] = 0
    assert throughput(read_run(write(events=events))).seconds_per_epoch is None


def test_parts_of_the_steps_have_plain_names_and_the_waiting_is_the_devices(write, events):
    for event in events:
        if event["event"] == "steps":
            event["parts"] = {"wait": 0.1, "copy": 0.05, "forward": 0.3, "backward": 0.5, "optimizer": 0.05}
    parts = {part.name: part.share for part in part_shares(read_run(write(events=events)))}
    assert parts == {
        "waiting for data": pytest.approx(0.1),
        "copy to the device": pytest.approx(0.05),
        "forward": pytest.approx(0.3),
        "backward": pytest.approx(0.5),
        "optimizer": pytest.approx(0.05),
    }


def test_what_was_written_down_after_the_end_counts_for_the_whole(write, events):
    before = read_run(write(events=events))
    page = {"event": "stage", "time_s": 302.9, "name": "report", "seconds": 0.8}
    run = read_run(write(events=[*events, page]))
    assert (before.seconds, run.seconds) == (302.1, pytest.approx(302.9))
    shares = {part.name: part.seconds for part in stage_shares(run)}
    assert shares["report"] == 0.8
    assert sum(shares.values()) == pytest.approx(302.9)
