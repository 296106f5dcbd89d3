from __future__ import annotations

import json
import math

import numpy as np
import pytest

from voxelocity.report import folder_kind, read_run
from voxelocity_observe.core.errors import InputError


def test_a_finished_run_is_read_in_full(finished_run):
    run = read_run(finished_run)
    assert (run.status, run.seed, run.device, run.step) == ("finished", 7, "cuda", 11_440)
    assert (len(run.steps), len(run.validations), len(run.scores), len(run.slices)) == (260, 10, 42, 4)
    assert run.seconds == 302.1
    assert run.foreground == ("anterior", "posterior")
    assert run.environment["gpu"] == "NVIDIA H100 80GB HBM3"
    assert run.choices[0].key == "data.cache.tier"
    assert not run.choices[0].changes_results
    assert run.steps[0].parts == {"forward": 0.03, "augment": 0.12, "network": 0.8}
    assert run.best_validation is run.validations[-1]
    assert (run.budget_s, run.target_dice) == (600.0, 0.85)
    assert [stack.plane for stack in run.slices[0].stacks] == ["axial", "coronal"]
    assert run.slices[0].stacks[0].image.shape == (3, 51, 36)
    assert run.slices[0].stacks[1].pixel_mm == (3.0, 1.0)


def test_a_training_of_a_recipe_is_named_as_one(tmp_path):
    (tmp_path / "run.yaml").write_text("recipe: tractography\ndata: /d\n")
    with pytest.raises(InputError, match="holds a training of the recipe 'tractography', whose page"):
        read_run(tmp_path)


def test_the_folder_of_several_folds_names_them(tmp_path):
    for fold in ("fold_0", "fold_2"):
        (tmp_path / fold).mkdir()
        (tmp_path / fold / "run.yaml").write_text("dataset: {}\n")
    with pytest.raises(InputError, match="name one of fold_0, fold_2 in it"):
        read_run(tmp_path)


def test_a_torn_last_line_is_left_out(write, events):
    folder = write(events=events[:-1])
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps(events[-1])[:37])
    run = read_run(folder)
    assert run.status == "unfinished"
    assert run.finish is None
    assert run.seconds == events[-2]["time_s"]
    assert len(run.steps) == 260


def test_a_run_that_has_only_a_plan_can_be_read(write):
    run = read_run(write())
    assert (run.status, run.seconds, run.steps, run.scores, run.slices) == ("unfinished", 0.0, (), (), ())
    assert run.best_validation is None


def test_a_budget_is_known_before_the_end(write, events):
    assert read_run(write(events=events[:20])).budget_s == 600.0


def test_numbers_that_were_not_finite_come_back_as_nan(write, events):
    events[5]["loss"] = None
    validation = next(event for event in events if event["event"] == "validation")
    validation |= {"mean_dice": None, "dice": {"anterior": None, "posterior": 0.5}}
    run = read_run(write(events=events))
    assert math.isnan(run.steps[0].loss)
    assert math.isnan(run.validations[0].mean_dice)
    assert math.isnan(run.validations[0].dice["anterior"])
    assert run.best_validation is run.validations[-1]


def test_an_interruption_is_reported_until_the_run_continues(write, events):
    stop = {"event": "interrupted", "time_s": 100.0, "signal": 15}
    start = {"event": "run_started", "time_s": 100.0, "environment": {"cpu": "another"}}
    stopped = read_run(write(events=[*events[:60], stop]))
    assert (stopped.status, stopped.signal_number) == ("interrupted", 15)
    resumed = read_run(write(events=[*events[:60], stop, start]))
    assert resumed.status == "unfinished"
    assert len(resumed.starts) == 2
    assert resumed.environment == {"cpu": "another"}


def test_a_finished_run_that_is_validated_again_is_finished_meanwhile(write, events):
    start = {"event": "run_started", "time_s": 900.0, "environment": {}}
    stop = {"event": "interrupted", "time_s": 901.0, "signal": 2}
    once = read_run(write(events=events))
    assert once.status == "finished"
    for more in ([start], [start, stop]):
        again = read_run(write(events=[*events, *more]))
        assert (again.status, again.finish) == ("finished", once.finish)


def test_steps_done_again_after_a_resume_are_counted_once_and_their_time_as_lost(write, events):
    begin, rest = events[:5], events[5:]
    index = next(i for i, event in enumerate(rest) if event["event"] == "validation") + 4
    # The checkpoint was taken ten stretches before the kill; a validation lies between.
    redone = [event for event in rest[:index] if event["step"] > rest[index - 11]["step"]]
    assert any(event["event"] == "validation" for event in redone)
    run = read_run(write(events=[*begin, *rest[:index], events[0], *redone, *rest[index:]]))
    assert [record.step for record in run.steps] == [44 * (i + 1) for i in range(260)]
    assert len(run.validations) == 10
    assert run.lost_s == pytest.approx(sum(event["seconds"] for event in redone))


def test_scores_of_a_first_part_that_was_too_short_are_not_those_of_a_run_that_gets_more_time(write, events, scores):
    more = {"event": "extended", "time_s": 303.0, "taken_s": 303.0, "time_budget_s": 903.0}
    folder = write(events=[*events, more], scores=scores)
    assert len(read_run(folder).scores) == len(scores)
    path = folder / "scores.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "unlearned": "it made only 3 training steps"}))
    assert read_run(folder).scores == ()


def test_what_was_lost_by_a_kill_does_not_count_where_the_resumed_run_makes_no_further_step(write, events):
    kept = [event for event in events if event["event"] != "checkpoint"]
    *before, finished = kept
    lost = [event for event in before if event["event"] in ("steps", "validation")][-5:]
    saved = lost[0]["step"] - lost[0].get("num_steps", 0)
    # Killed after the last step; the time was then over, so the resumed run saved the state of its checkpoint.
    more = [
        {"event": "run_started", "time_s": 301.0, "environment": {}},
        {"event": "checkpoint", "time_s": 301.5, "step": saved, "path": "checkpoints/1.pt", "seconds": 0.1},
    ]
    run = read_run(write(events=[*before, *more, {**finished, "step": saved}]))
    assert run.steps[-1].step == run.step == saved
    assert all(record.step <= saved for record in run.validations)
    assert run.lost_s == pytest.approx(sum(event["seconds"] for event in lost))


def test_unknown_events_and_fields_are_passed_over(write, record, events):
    record["dataset"]["added_later"] = 1
    record["added_later"] = 2
    events.insert(3, {"event": "added_later", "time_s": 1.0})
    assert read_run(write(record=record, events=events)).status == "finished"


def test_a_folder_without_a_run_is_named_with_its_cure(tmp_path):
    with pytest.raises(InputError, match=r"report: cannot read .*run\.yaml \(No such file.*name the folder that"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", [b"- a\n- b\n", b"a: [1\n", b"seed: \xff\xfe", b"seed: 2001-99-99"])
def test_a_damaged_record_is_named(tmp_path, content):
    (tmp_path / "run.yaml").write_bytes(content)
    with pytest.raises(InputError, match=r"report: .*run\.yaml (is damaged|holds no run).*restore it or train again"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"plan": 3}, r"'plan' is 3, not keys and values"),
        ({"dataset": [1]}, r"'dataset' is \[1\], not keys and values"),
        ({"fingerprint": "x"}, r"'fingerprint' is 'x', not keys and values"),
        ({"seed": "x"}, r"'x'"),
        ({"seed": [1]}, r"int\(\) argument"),
        ({"choices": 3}, r"int"),
        ({"choices": [3]}, r"a choice is 3, not keys and values"),
        ({"choices": [{"key": 3, "value": 1, "reason": "r"}]}, r"a choice has the key 3, which is not text"),
        ({"choices": [{"key": "seed", "value": 1, "reason": "r", "color": "red"}]}, r".*color"),
        ({"dataset": {"num_cases": "x"}}, r"'x'"),
        ({"dataset": {"classes": 3}}, r"int"),
    ],
)
def test_a_part_of_the_record_that_cannot_be_used_is_named(write, record, change, text):
    with pytest.raises(
        InputError, match=rf"run\.yaml was written by .* or was changed \(.*{text}.*restore it or train"
    ):
        read_run(write(record={**record, **change}))


def test_an_event_that_lacks_a_field_is_named_with_its_time(write, events):
    del events[5]["loss"]
    with pytest.raises(InputError, match=r"event 'steps' at 17\.0 s cannot be used \(KeyError: 'loss'\); render this"):
        read_run(write(events=events))


@pytest.mark.parametrize("kept_bytes", [0, 100])
def test_damaged_slices_are_left_out_with_a_warning(copied_run, kept_bytes):
    path = copied_run / "slices.npz"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    run = read_run(copied_run)
    assert run.slices == ()
    assert len(run.warnings) == 1
    assert "slices.npz cannot be used" in run.warnings[0]


def test_slices_of_unequal_shapes_are_left_out_with_a_warning(write):
    plane = np.zeros((4, 4), np.uint8)
    run = read_run(
        write(slices={"0_image": plane, "0_truth": plane[:2], "0_prediction": plane, "0_title": np.array("x")})
    )
    assert run.slices == ()
    assert "arrays of the shapes [(2, 4), (4, 4)]" in run.warnings[0]


def test_peaks_of_memory_are_read_where_the_run_stored_them(write, record, events):
    assert read_run(write(record=record, events=events)).finish.peak_host_bytes is None
    events[-1] |= {"peak_host_bytes": 3_000_000_000, "peak_device_bytes": None}
    finish = read_run(write(record=record, events=events)).finish
    assert (finish.peak_host_bytes, finish.peak_device_bytes) == (3_000_000_000, None)


@pytest.mark.parametrize(
    "cases",
    [
        3,
        [3],
        [{}],
        [{"case": 1}],
        [{"case_id": 3, "dice": {"a": 0.5}}],
        [{"case_id": "x", "dice": [0.5]}],
        [{"case_id": "x", "dice": {"a": "high"}}],
        [{"case_id": "x", "dice": {"a": 1e400}}],
        [{"case_id": "x", "dice": {}}],
        [{"case_id": "x", "dice": {"a": 0.5}, "hd95_mm": {"a": "far"}}],
        [{"case_id": "x", "dice": {"a": 0.5}, "hd95_mm": 3}],
        "[" * 100_000,
    ],
)
def test_scores_that_cannot_be_used_are_named_with_the_cure(write, events, cases):
    folder = write(events=events)
    text = cases if isinstance(cases, str) else json.dumps({"cases": cases}).replace("Infinity", "1e400")
    (folder / "scores.json").write_text(text)
    with pytest.raises(InputError, match=r"scores\.json cannot be used \(.*\); delete it to render the page without"):
        read_run(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": "long"},
        {"seconds": 1e400},
        {"step": -3},
        {"step": 2.5},
        {"step": True},
        {"loss": "low"},
        {"parts": [1]},
        {"parts": {"wait": "x"}},
    ],
)
def test_an_event_of_other_types_is_named_with_its_time(write, events, change):
    index = next(i for i, event in enumerate(events) if event["event"] == "steps")
    events[index] |= change
    folder = write(events=events)
    path = folder / "events.jsonl"
    path.write_text(path.read_text().replace("Infinity", "1e400"))
    with pytest.raises(InputError, match=r"events\.jsonl: event 'steps' at .* s cannot be used"):
        read_run(folder)


def test_slices_with_any_changed_byte_are_left_out_or_read(write, record):
    # The rest is read as often, and so is short.
    folder = write(record={"dataset": record["dataset"]})
    path = folder / "slices.npz"
    plane = np.zeros((8, 8), np.uint8)
    arrays = {f"0_{name}": plane for name in ("image", "truth", "prediction")}
    np.savez_compressed(path, **arrays, **{"0_title": np.array("case")})
    content = path.read_bytes()
    for position in range(0, len(content), 3):
        changed = bytearray(content)
        changed[position] ^= 0xFF
        path.write_bytes(changed)
        assert len(read_run(folder).slices) in (0, 1)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["run.yaml"], "run"),
        (["monitor.json"], "monitor"),
        (["diagnosis.json"], "diagnosis"),
        (["monitor.json", "run.yaml"], "run"),
        (["report.html"], None),
        ([], None),
    ],
)
def test_a_folder_is_reported_by_the_file_that_only_its_command_writes(tmp_path, names, kind):
    for name in names:
        (tmp_path / name).write_text("")
    assert folder_kind(tmp_path) == kind
    assert folder_kind(tmp_path / "none") is None


def test_a_copy_of_the_events_of_a_rank_is_no_rank(write, events):
    folder = write(events=events)
    for name in ("1", "1.bak", "1 (copy)"):
        (folder / f"events-rank{name}.jsonl").write_bytes((folder / "events.jsonl").read_bytes())
    assert [record.rank for record in read_run(folder).ranks] == [0, 1]
