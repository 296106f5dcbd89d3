import json
import os

import pytest

from voxelocity.observe import FakeClock, SpanRecord, SpanRecorder, span
from voxelocity.observe.spans.scope import LISTENERS
from voxelocity.training.parts import PART_OF_SPAN, EpochPhases, part_seconds


def record(name, number, *, parent=None, seconds=1.0, device_s=None):
    return SpanRecord(name, 0.0, seconds, device_s, "", "MainThread", 0, number, parent, 0, False, {})


def test_parts_are_summed_over_the_steps_in_one_order():
    records = [
        record("loss", 3, parent=1, seconds=0.5),
        record("forward", 2, parent=1),
        record("layout", 7, parent=1, seconds=0.25),
        record("step", 1),
        record("averaging", 6, parent=4, seconds=0.25),
        record("wait", 5, parent=4, seconds=3.0),
        record("step", 4),
    ]
    assert list(part_seconds(records).items()) == [("wait", 3.0), ("forward", 1.75), ("optimizer", 0.25)]


def test_only_what_lies_in_a_step_counts():
    records = [record("layout", 1), record("layout", 3, parent=2), record("batch", 2), record("step", 4)]
    assert part_seconds(records) == {}


def test_the_devices_seconds_are_taken_where_there_are_any():
    records = [
        record("backward", 2, parent=1, seconds=0.001, device_s=0.2),
        record("wait", 3, parent=1, seconds=0.7, device_s=0.0),
        record("step", 1),
    ]
    assert part_seconds(records) == {"wait": 0.0, "backward": 0.2}


def test_parts_are_those_of_a_diagnosis():
    from voxelocity.diagnosis.facts import PARTS

    assert set(PART_OF_SPAN.values()) <= set(PARTS)


@pytest.fixture
def phases():
    """A function that gives the phases told since the last call, with their seconds."""
    with SpanRecorder() as recorder:
        yield lambda: [(each.name, each.seconds) for each in recorder.take()]


def test_each_epoch_is_a_phase_and_short_ones_are_told_together(phases):
    clock = FakeClock()
    epochs = EpochPhases(clock)
    for epoch, seconds in ((0, 1.0), (0, 1.0), (1, 0.4), (2, 0.4), (3, 0.4), (4, 5.0)):
        epochs.at(epoch)
        clock.advance(seconds)
    epochs.end()
    epochs.end()
    assert phases() == [("epoch 0", 2.0), ("epochs 1 to 3", pytest.approx(1.2)), ("epoch 4", 5.0)]


def test_a_training_without_a_step_has_no_epoch(phases):
    EpochPhases(FakeClock()).end()
    assert phases() == []


def test_a_run_under_a_monitor_leaves_its_phases_and_not_its_steps(
    voxelocity, tiny_msd, tiny_sets, tmp_path, monkeypatch
):
    monkeypatch.setenv("VOXELOCITY_SPANS", str(tmp_path))
    LISTENERS.forget()
    try:
        with span("ours"):
            (file,) = LISTENERS.now
        ended = voxelocity("train", tiny_msd, "-o", tmp_path / "run", "--device", "cpu", *tiny_sets,
                           "--set", "train.validate_every_steps=3")  # fmt: skip
        assert ended.status == 0, ended.err
        file.close()
    finally:
        LISTENERS.forget()
    lines = [json.loads(line) for line in (tmp_path / f"spans-{os.getpid()}.jsonl").read_text().splitlines()]
    names = [line["name"] for line in lines]
    expected = ["start-up", "plan", "cache", "network", "validation", "checkpoint", "train", "report"]
    assert [name for name in dict.fromkeys(names) if name in expected] == [
        "start-up", "plan", "cache", "network", "checkpoint", "validation", "train", "report",
    ]  # fmt: skip
    assert names[-2:] == ["report", "report"]
    assert {name for name in names if name not in expected and not name.startswith("epoch")} == {"final validation"}
    assert all(line["seconds"] >= 0.0 and line["rank"] == 0 for line in lines)
