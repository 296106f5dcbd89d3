"""The event log: whole lines, times that continue, and what happens when something breaks."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.examples import examples
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.errors import InputError, OutputError
from voxelocity_observe.core.events import EventLog, events_path, read_events


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_events_come_back_in_order_with_the_time_of_the_run(path):
    clock = FakeClock(1000.0)
    with EventLog(path, clock=clock) as log:
        log.write("start", seed=3)
        assert [event["event"] for event in read_events(path)] == ["start"], "at once"
        clock.advance(1.5)
        log.write("step", loss=0.25, parts={"copy": 0.5}, cases=("a", "b"))
    log.close()
    assert read_events(path) == [
        {"event": "start", "time_s": 0.0, "seed": 3},
        {"event": "step", "time_s": 1.5, "loss": 0.25, "parts": {"copy": 0.5}, "cases": ["a", "b"]},
    ]


def test_time_counts_from_when_the_run_began_if_that_was_before_the_log(path):
    clock = FakeClock(50.0)
    with EventLog(path, begin_s=42.0, clock=clock) as log:
        log.write("start")
        assert log.elapsed_s() == 8.0
    assert read_events(path)[0]["time_s"] == 8.0


def test_what_is_not_finite_becomes_null(path):
    with EventLog(path) as log:
        log.write("step", loss=math.nan, low=-math.inf, nested={"a": [math.inf, 1.0]}, numpy=np.float32("nan"))
    event = read_events(path)[0]
    assert (event["loss"], event["low"], event["nested"], event["numpy"]) == (None, None, {"a": [None, 1.0]}, None)


def test_numpy_numbers_paths_and_dataclasses_become_plain(path):
    @dataclass
    class Point:
        x: int
        where: Path

    with EventLog(path) as log:
        log.write("plain", a=np.int64(3), b=np.float32(0.5), c=True, d=None, e=Point(1, Path("a/b")), f={1: "one"})
    event = read_events(path)[0]
    del event["event"], event["time_s"]
    assert event == {"a": 3, "b": 0.5, "c": True, "d": None, "e": {"x": 1, "where": "a/b"}, "f": {"1": "one"}}


@pytest.mark.parametrize("value", [torch.zeros(3), np.zeros(3), b"bytes", {1, 2}])
def test_what_is_no_plain_data_is_refused_by_name_and_nothing_is_written(path, value):
    with (
        EventLog(path) as log,
        pytest.raises(TypeError, match=f"event 'step', field 'loss' holds a {type(value).__name__}"),
    ):
        log.write("step", loss=value)
    assert read_events(path) == []


def test_fields_of_the_log_itself_cannot_be_given(path):
    with EventLog(path) as log, pytest.raises(TypeError, match="event and time_s are set by the log itself"):
        log.write("step", time_s=1.0)


def test_new_log_refuses_a_file_with_events(path):
    with EventLog(path) as log:
        log.write("start")
    with pytest.raises(OutputError, match=r"already holds events; continue with EventLog\.resume"):
        EventLog(path)
    assert len(read_events(path)) == 1


def test_log_in_a_missing_folder_says_which_file_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*absent/events\.jsonl \(No such file or directory\)"):
        EventLog(tmp_path / "absent" / "events.jsonl")


def test_resumed_log_continues_with_the_time_of_the_last_event(path):
    with EventLog(path, clock=(clock := FakeClock(7.0))) as log:
        clock.advance(10.0)
        log.write("step")
        clock.advance(5.0)
    later = FakeClock(90_000.0)
    with EventLog.resume(path, clock=later) as log:
        later.advance(2.0)
        log.write("step")
        assert log.elapsed_s() == 12.0
    assert [event["time_s"] for event in read_events(path)] == [10.0, 12.0]


def test_resume_begins_a_missing_file(path):
    with EventLog.resume(path, begin_s=0.0, clock=FakeClock(3.0)) as log:
        log.write("start")
    assert read_events(path) == [{"event": "start", "time_s": 3.0}]


@settings(max_examples=examples(60))
@given(data=st.data())
def test_log_cut_anywhere_keeps_every_whole_event_and_continues(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    clock = FakeClock()
    with EventLog(path, clock=clock) as log:
        for number in range(3):
            clock.advance(1.0)
            log.write("step", number=number, text="ä\n")
    content = path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut] + data.draw(st.sampled_from([b"", b"\0\0\0"])))
    num_whole = content[:cut].count(b"\n")
    with EventLog.resume(path, clock=FakeClock()) as log:
        assert log.elapsed_s() == float(num_whole)
        log.write("resumed")
    events = read_events(path)
    assert [event.get("number") for event in events] == [*range(num_whole), None]
    assert path.read_bytes().count(b"\n") == num_whole + 1


def test_torn_last_line_is_left_out_when_reading(path):
    path.write_text('{"event":"a","time_s":1}\n{"event":"b","ti')
    assert read_events(path) == [{"event": "a", "time_s": 1}]


def test_damage_before_the_last_line_is_named(path):
    path.write_text('{"event":"a","time_s":1}\nrubbish\n{"event":"b","time_s":2}\n')
    with pytest.raises(InputError, match=r"line 2 is not an event .*rubbish"):
        read_events(path)


def test_missing_file_is_named(path):
    with pytest.raises(InputError, match=r"cannot read .*events\.jsonl \(No such file or directory\)"):
        read_events(path)


def test_full_disk_leaves_no_part_of_a_line(path, monkeypatch):
    real_write = os.write
    with EventLog(path) as log:
        log.write("whole")
        monkeypatch.setattr(os, "write", lambda descriptor, line: real_write(descriptor, line[:5]))
        with pytest.raises(OutputError, match=r"took 5 of \d+ bytes, the disk is full; free some space"):
            log.write("torn", text="long enough")
        monkeypatch.undo()
        log.write("after")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["whole", "after"]


def test_failing_write_is_an_error_with_the_cure(path, monkeypatch):
    def full(descriptor: int, line: bytes) -> int:
        raise OSError(28, "No space left on device")

    with EventLog(path) as log:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OutputError, match=r"No space left on device\); free some space and resume"):
            log.write("step")
        monkeypatch.undo()


def test_listeners_get_each_event_once_its_line_is_written(tmp_path):
    path, messages = tmp_path / "events.jsonl", []
    with EventLog(path, clock=FakeClock()) as log:
        log.write("before")
        log.listen(lambda event: messages.append((event, len(read_events(path)))))
        log.write("loss", value=math.nan, step=3)
    assert messages == [({"event": "loss", "time_s": 0.0, "value": None, "step": 3}, 2)]


def test_a_listener_may_write_events_itself(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path, clock=FakeClock()) as log:
        log.listen(lambda event: log.write("answer") if event["event"] == "question" else None)
        log.write("question")
    assert [event["event"] for event in read_events(path)] == ["question", "answer"]


def test_each_rank_has_a_file_of_its_own(tmp_path):
    names = [events_path(tmp_path, rank=rank).name for rank in (0, 2, 11)]
    assert names == ["events.jsonl", "events-rank2.jsonl", "events-rank11.jsonl"]


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"event": 3, "time_s": 1.0}',
        b'{"event": "x", "time_s": 1e400}',
        b'{"event": "x", "time_s": "1"}',
    ],
)
def test_a_line_that_is_nested_too_deep_or_has_no_time_is_no_event(path, line):
    whole = b'{"event":"start","time_s":0.0}\n'
    path.write_bytes(whole + line + b"\n" + whole)
    with pytest.raises(InputError, match=r"line 2 is not an event"):
        read_events(path)
