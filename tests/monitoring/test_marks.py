"""Spans of the watched program on the time axis of the samples."""

import json

from voxelocity.monitoring import marks as reader
from voxelocity.monitoring.marks import read_phases
from voxelocity.observe.samples import PhaseMark


def span(name, start_s, seconds=1.0, **others):
    return json.dumps({"name": name, "start_s": start_s, "seconds": seconds, **others}) + "\n"


def test_spans_of_all_ranks_are_put_on_the_axis_by_their_beginning(tmp_path):
    (tmp_path / "spans-7.jsonl").write_text(
        span("train", 105.0, 3.0, color="red", rank=1, pid=7) + span("fill", 101.0, color=None)
    )
    (tmp_path / "spans-8.jsonl").write_text(span("validate", 103.5))
    marks, left_out = read_phases(tmp_path, begin_s=100.0)
    assert marks == [
        PhaseMark(name="fill", start_s=1.0, seconds=1.0),
        PhaseMark(name="validate", start_s=3.5, seconds=1.0),
        PhaseMark(name="train", start_s=5.0, seconds=3.0, color="red", rank=1),
    ]
    assert left_out == ""


def test_torn_and_strange_lines_are_passed_over(tmp_path):
    strange = '[1]\n"x"\nnull\n{"name": "a"}\n{"name": "a", "start_s": "soon", "seconds": 1}\n'
    (tmp_path / "spans-7.jsonl").write_bytes(
        strange.encode() + b"\xff\xfe\n" + span("kept", 1).encode() + span("torn", 2)[:20].encode()
    )
    marks, _ = read_phases(tmp_path, begin_s=0.0)
    assert [mark.name for mark in marks] == ["kept"]


def test_without_files_there_are_no_phases(tmp_path):
    assert read_phases(tmp_path / "none", begin_s=0.0) == ([], "")


def test_of_very_many_the_longest_are_kept_and_the_rest_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_PHASES", 2)
    (tmp_path / "spans-7.jsonl").write_text(span("a", 3, 5.0) + span("b", 2, 0.1) + span("c", 1, 2.0))
    marks, left_out = read_phases(tmp_path, begin_s=0.0)
    assert [mark.name for mark in marks] == ["c", "a"]
    assert left_out == "phases: the 1 shortest of 3 are left out"
