"""The file of one process."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from voxelocity_observe.diagnose.recorder.writer import Writer, note_failure, tell_user


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_file_is_made_by_the_first_event_and_holds_the_time(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path / "made"), "7-a", lambda: 2.5)
    writer.flush()
    assert not (tmp_path / "made").exists()
    writer.write("step", seconds=0.25)
    writer.close()
    assert lines(tmp_path / "made" / "7-a.jsonl") == [{"event": "step", "time_s": 2.5, "seconds": 0.25}]


def test_event_that_is_added_while_others_are_written_is_not_lost(tmp_path: Path) -> None:
    def age_s() -> float:
        # As the writing thread may do between the call of `write` and its end.
        writer.flush()
        return 2.5

    writer = Writer(str(tmp_path), "7-a", age_s)
    writer.write("step")
    writer.close()
    assert len(lines(tmp_path / "7-a.jsonl")) == 1


def test_failure_with_a_name_that_is_no_text_is_noted(tmp_path: Path) -> None:
    try:
        raise OSError("cannot read \udcff.nii")
    except OSError:
        note_failure(str(tmp_path), "a file")
    assert r"cannot read \udcff.nii" in (tmp_path / "errors.txt").read_text()


def test_telling_the_user_raises_nothing_where_stderr_is_closed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        tell_user("ended")
    assert capsys.readouterr().out == ""


def test_thread_writes_without_being_asked(writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxelocity_observe.diagnose.recorder.writer.PERIOD_S", 0.005)
    writer.start()
    writer.write("step")
    path = tmp_path / "1-a.jsonl"
    for _ in range(1000):
        if path.exists() and path.read_text():
            break
        os.sched_yield()
        writer._wake.wait(0.005)
    assert lines(path)[0]["event"] == "step"
    writer.close()


def test_value_that_is_no_plain_data_is_told_and_the_rest_is_written(writer: Writer, tmp_path: Path) -> None:
    writer.write("step", seconds=float("nan"))
    writer.write("loader", dataset=object())
    writer.write("step", seconds=1.0)
    writer.close()
    assert [line["event"] for line in lines(tmp_path / "1-a.jsonl")] == ["step"]
    told = (tmp_path / "errors.txt").read_text()
    assert "event 'step' holds a value that is not plain data" in told
    assert "event 'loader' holds a value that is not plain data" in told


def test_full_disk_leaves_whole_lines_and_raises_nothing(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write("step", seconds=1.0)
    writer.flush()
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: whole(descriptor, content[:10]))
    writer.write("step", seconds=2.0)
    writer.flush()
    monkeypatch.setattr(os, "write", whole)
    writer.write("step", seconds=3.0)
    writer.close()
    assert [line["seconds"] for line in lines(tmp_path / "1-a.jsonl")] == [1.0]
    told = (tmp_path / "errors.txt").read_text()
    assert told.startswith("nothing more could be written")
    assert told.count("No space left on device") == 1


def test_folder_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = Writer(str(tmp_path / "file" / "folder"), "7-a", lambda: 0.0)
    writer.write("step")
    writer.close()
    assert (tmp_path / "file").read_text() == ""


def test_sum_that_cannot_be_made_is_left_out_from_then_on(writer: Writer, tmp_path: Path) -> None:
    writer.before_flush(lambda: writer.write("fetch"))
    writer.before_flush(lambda: json.loads("{"))
    writer.flush()
    writer.flush()
    writer.close()
    assert [line["event"] for line in lines(tmp_path / "1-a.jsonl")] == ["fetch"] * 3
    assert (tmp_path / "errors.txt").read_text().count("a sum could not be written") == 1
