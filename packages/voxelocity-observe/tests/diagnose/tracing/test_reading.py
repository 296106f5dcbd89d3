"""Traces are decoded event by event, whole or packed; what is no trace is told."""

import gzip
import json
import re
import tracemalloc

import pytest

from shared.cuda_trace import CudaTrace
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose.tracing import reading
from voxelocity_observe.diagnose.tracing.reading import read_events, read_trace


def events_of(number):
    trace = CudaTrace()
    for at in range(number):
        trace.operator(f"aten::op_{at}", 10 * at, 10 * at + 5, at, [[1, 2, 3], []])
    return trace.events


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_events_come_as_they_were_written_whatever_the_spacing_and_the_chunks(tmp_path, monkeypatch, indent, packed):
    monkeypatch.setattr(reading, "_CHUNK", 257)
    events = events_of(40)
    text = json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "a]b"}, indent=indent).encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text) if packed else text)
    assert list(read_events(path)) == events


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("\n" + json.dumps(events_of(3)))
    assert len(list(read_events(path))) == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}', 'has no "traceEvents" in its first megabyte; name a trace of torch.profiler'),
        (b"", 'has no "traceEvents"'),
        (b'{"traceEvents": [{"ph": "X", "na', "ends or breaks within an event"),
        (b'{"traceEvents": [{"ph": "X"}', "ends or breaks within an event .*; record it again"),
        (
            gzip.compress(b'{"traceEvents": [{"ph": "X"}, {}]}', mtime=0)[:-20],
            "cannot read .*; record it again, or name a trace",
        ),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff", "cannot read .* invalid block type"),
    ],
)
def test_what_is_no_whole_trace_is_told_with_the_file_and_the_cure(tmp_path, content, message):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        list(read_events(path))
    assert re.match(rf"diagnosis\.trace: .*'{path}'", str(caught.value))


def test_a_file_that_is_missing_is_told(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*trace\.json.*No such file"):
        read_trace(tmp_path / "trace.json")


def test_reading_takes_less_memory_than_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_CHUNK", 1 << 14)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events_of(8000)}, indent=2))
    tracemalloc.start()
    try:
        kept = read_trace(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(map(len, kept.operators.values())) == 8000
    assert peak < 1.5 * path.stat().st_size
