"""The whole recording as a trace: every step and pass stands where it was, and its parts fill it."""

import gzip
import json

import pytest

from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.diagnose.facts import Facts, Pass, ProcessFacts, Step
from voxelocity_observe.diagnose.tracing.reading import read_events
from voxelocity_observe.diagnose.tracing.timeline import write_timeline


def facts():
    parts = {"forward": 0.3, "wait": 0.1, "copy": 0.0, "backward": 0.5, "optimizer": 0.1}
    return Facts(
        command=["python", "train.py"],
        main=ProcessFacts(pid=7, parent_pid=1, role="main"),
        seconds=10.0,
        steps=[
            Step(start_s=1.0, seconds=1.0, parts=parts, num_images=2, phase="warm-up"),
            Step(start_s=2.5, seconds=1.0, parts=parts),
        ],
        passes=[
            Pass(
                kind="validation", start_s=2.0, seconds=0.5, num_forwards=4, parts={"forward": 0.4}, where="train.py:9"
            )
        ],
    )


def slices(path, track):
    return [event for event in read_events(path) if event.get("cat") == track]


def test_steps_and_passes_stand_where_they_were(tmp_path):
    path = write_timeline(facts(), tmp_path / "timeline.json")
    steps = slices(path, "steps")
    assert [(step["name"], step["ts"], step["dur"]) for step in steps] == [
        ("step 0 (warm-up)", 1_000_000, 1_000_000),
        ("step 1", 2_500_000, 1_000_000),
    ]
    assert steps[0]["args"] == {"phase": "warm-up", "images": 2}
    (validation,) = slices(path, "validation, saving, epoch starts")
    assert (validation["name"], validation["ts"], validation["dur"]) == ("validation", 2_000_000, 500_000)
    assert validation["args"] == {"where": "train.py:9", "forward passes": 4}
    assert [part["name"] for part in slices(path, "parts of these")] == ["forward"]


def test_parts_fill_their_step_in_its_order(tmp_path):
    parts = slices(write_timeline(facts(), tmp_path / "timeline.json"), "parts of steps")[4:]
    assert [(part["name"], part["ts"]) for part in parts] == [
        ("waiting for data", 2_500_000),
        ("forward", 2_600_000),
        ("backward", 2_900_000),
        ("optimizer", 3_400_000),
    ]
    assert parts[-1]["ts"] + parts[-1]["dur"] == 3_500_000


def test_each_track_has_its_name_and_one_thread(tmp_path):
    events = list(read_events(write_timeline(facts(), tmp_path / "timeline.json")))
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {event["cat"]: event["tid"] for event in events if event["ph"] == "X"} == {
        name: track for track, name in names.items()
    }
    assert next(event["args"]["name"] for event in events if event["name"] == "process_name") == "python train.py"


def test_a_path_that_ends_in_gz_is_packed(tmp_path):
    path = write_timeline(facts(), tmp_path / "timeline.json.gz")
    assert len(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]) == 21


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write '.*timeline\.json'"):
        write_timeline(facts(), tmp_path / "file" / "timeline.json")
