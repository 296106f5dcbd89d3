"""Files of a recording to facts: every event and its record, several processes, torn files, and what was not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose.facts import (
    Ending,
    ExperimentFacts,
    Facts,
    FetchFacts,
    FileFacts,
    Pass,
    ProcessFacts,
    Step,
    read_facts,
)
from voxelocity_observe.diagnose.facts.events import RECORDS
from voxelocity_observe.diagnose.facts.process_file import Unseen
from voxelocity_observe.diagnose.judging import diagnose
from voxelocity_observe.diagnose.recorder.writer import Writer

MAIN = ProcessFacts(pid=10, parent_pid=1, role="main", argv=("python", "train.py"), versions={"torch": "2.13.0"})
STEP = Step(start_s=1.0, seconds=0.5, parts={"wait": 0.5}, host_parts={"wait": 0.5}, num_images=2)


def example(kind: Any) -> Any:
    """A value of a type, of which all fields have one."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return kind(**{name: example(hint) for name, hint in get_type_hints(kind).items()})
    if origin in (UnionType, Union):
        return example(inner[0])
    if origin is Literal:
        return inner[0]
    if origin is Mapping:
        return {example(inner[0]): example(inner[1])}
    if origin in (Sequence, tuple):
        return tuple(example(part) for part in inner if part is not ...)
    return {float: 1.5, int: 3, bool: True, str: "text"}[kind]


EVERYTHING: dict[str, Any] = {name: example(kind) for name, kind in RECORDS.items()} | {
    "process": MAIN,
    "step": STEP,
    "pass": Pass(kind="validation", start_s=2.0, seconds=1.0, num_forwards=3, batch_shapes=(((1, 1, 4), 3),)),
    "open pass": Pass(kind="validation", start_s=9.0, seconds=4.0),
    "files": FileFacts(
        kinds={".nii.gz": 3}, num_opens=3, num_files=2, read_bytes=100, largest=("/a", "/b"), unseen=("itk",)
    ),
    "unseen": Unseen("kernels: no profiler"),
}


def write(folder: Path, name: str, events: list[tuple[str, Any]]) -> Path:
    times = iter(range(1000))
    writer = Writer(str(folder), name, lambda: float(next(times)))
    for event, record in events:
        fields = asdict(record)
        fields.pop("time_s", None)
        writer.write(event, **fields)
    writer.close()
    return folder / f"{name}.jsonl"


def process(pid: int, role: str = "main", *, parent: int = 1, rank: int = 0, torch: bool = True) -> tuple[str, Any]:
    versions = {"torch": "2.13.0"} if torch else {}
    return "process", ProcessFacts(pid=pid, parent_pid=parent, role=role, rank=rank, versions=versions)  # type: ignore[arg-type]


def fetch(worker: int, num_batches: int) -> tuple[str, Any]:
    one = EVERYTHING["fetch"]
    return "fetch", FetchFacts(**{**asdict(one), "worker": worker, "num_batches": num_batches, "batch_s": (0.1,)})


def test_every_event_is_read_back_as_the_record_that_was_written(tmp_path: Path) -> None:
    write(tmp_path, "10-a", list(EVERYTHING.items()))
    facts = read_facts(tmp_path)
    values = [getattr(facts, field.name) for field in fields(Facts)]
    read = [record for value in values for record in (value if isinstance(value, tuple) else (value,))]
    ending = replace(EVERYTHING["end"], time_s=[*RECORDS].index("end"))
    wanted = {**EVERYTHING, "end": ending, "unseen": "kernels: no profiler"}
    assert [name for name, record in wanted.items() if record not in read] == [], "Facts has no field for these events"
    assert facts.command == ("python", "train.py")
    assert facts.passes == (EVERYTHING["pass"], EVERYTHING["open pass"])
    # Of the last event but "refused".
    assert facts.seconds == len(RECORDS) - 1
    assert facts.not_measured == ("kernels: no profiler",)


def test_last_event_of_a_key_counts(tmp_path: Path) -> None:
    write(tmp_path, "10-a", [process(10), ("step", STEP), fetch(-1, 1), fetch(-1, 5)])
    assert [f.num_batches for f in read_facts(tmp_path).fetches] == [5]


def test_workers_are_joined_to_the_process_they_work_for(tmp_path: Path) -> None:
    write(tmp_path, "10-a", [process(10), ("step", STEP)])
    write(tmp_path, "11-a", [process(11, "worker", parent=10), fetch(0, 2)])
    write(tmp_path, "12-a", [process(12, "worker", parent=10), fetch(0, 3)])
    write(tmp_path, "13-a", [process(13, parent=10, torch=False)])
    write(tmp_path, "14-a", [process(14, "worker", parent=13), fetch(1, 4)])
    write(tmp_path, "20-a", [process(20, rank=1), ("step", STEP), ("step", STEP)])
    write(tmp_path, "21-a", [process(21, "worker", parent=20), fetch(1, 100)])
    facts = read_facts(tmp_path)
    assert facts.main.pid == 10
    assert [(f.worker, f.num_batches, len(f.batch_s)) for f in facts.fetches] == [(0, 5, 2), (1, 4, 1)]
    assert "rank 1: also recorded; this report is about rank 0" in facts.not_measured


def test_process_that_trains_is_the_main_one_and_not_the_one_that_started_it(tmp_path: Path) -> None:
    write(tmp_path, "10-a", [process(10, torch=False)])
    write(tmp_path, "11-a", [process(11, parent=10), ("end", Ending(reason="program", time_s=0))])
    write(tmp_path, "12-a", [process(12, parent=11, rank=0), ("step", STEP)])
    assert read_facts(tmp_path).main.pid == 12
    (tmp_path / "12-a.jsonl").unlink()
    assert read_facts(tmp_path).main.pid == 11


def test_torn_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "10-a", [process(10), ("step", STEP)])
    with path.open("a") as file:
        file.write('{"event":"step","time_s":1}\n[1]\nnull\n{"event":"weather","time_s":1}\n{"event":"step","ti')
    write(tmp_path, "11-a", [("step", STEP)])
    facts = read_facts(tmp_path)
    assert facts.steps == (STEP,)
    assert (
        "the end: the program was killed, or ended by os._exit, and up to the last second is missing"
        in facts.not_measured
    )


@pytest.mark.parametrize(
    "line",
    [
        '{"event":["step"],"time_s":1}',
        '{"event":"step","time_s":NaN,"start_s":1,"seconds":1,"parts":{}}',
        '{"event":"step","time_s":1,"start_s":"x","seconds":1,"parts":{}}',
        '{"event":"step","time_s":1,"start_s":1,"seconds":NaN,"parts":{}}',
        '{"event":"step","time_s":1,"start_s":1,"seconds":1,"parts":{"wait":null}}',
        '{"event":"step","time_s":1,"start_s":1,"seconds":1,"parts":{},"phase":"asleep"}',
        '{"event":"end","time_s":1,"reason":7}',
    ],
)
def test_lines_with_what_their_fields_cannot_hold_are_left_out(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, "10-a", [process(10), ("step", STEP)])
    with path.open("a") as file:
        file.write(line + "\n")
    facts = read_facts(tmp_path)
    assert (facts.steps, facts.ended) == ((STEP,), None)
    diagnose(facts)


def test_open_validation_counts_only_if_it_was_never_closed(tmp_path: Path) -> None:
    closed = Pass(kind="validation", start_s=9.0, seconds=8.0)
    events = [process(10), ("step", STEP), ("open pass", EVERYTHING["open pass"]), ("pass", closed)]
    write(tmp_path, "10-a", events)
    assert read_facts(tmp_path).passes == (closed,)


def test_program_that_only_warmed_up_or_never_stepped_is_told_so(tmp_path: Path) -> None:
    warm = Step(**{**asdict(STEP), "phase": "warm-up"})
    write(tmp_path, "10-a", [process(10), ("step", warm), ("end", Ending(reason="program", time_s=0))])
    told = read_facts(tmp_path).not_measured
    assert "steps: the program ended after 1 warm-up step; let it train longer" in told
    assert "the ceiling: no experiment was done because the program ended by itself before" in told
    (tmp_path / "10-a.jsonl").unlink()
    write(tmp_path, "10-a", [process(10), ("end", Ending(reason="program", time_s=0))])
    assert "steps: no torch optimizer made a step while the program was watched" in read_facts(tmp_path).not_measured


def test_experiment_that_could_not_be_done_is_told_with_its_reason(tmp_path: Path) -> None:
    copy = ExperimentFacts(name="copy", unit="batch", seconds=(), note="no device")
    write(tmp_path, "10-a", [process(10), ("step", STEP), ("experiment", copy)])
    assert "copying a batch to the device: no device" in read_facts(tmp_path).not_measured


def test_what_the_recorder_could_not_do_is_told(tmp_path: Path) -> None:
    write(tmp_path, "10-a", [process(10), ("step", STEP)])
    (tmp_path / "errors.txt").write_text("torch could not be watched\nTraceback\nKeyError: 'x'\n")
    (told,) = [text for text in read_facts(tmp_path).not_measured if text.startswith("the recorder")]
    assert told == f"the recorder: torch could not be watched: KeyError: 'x' (all of it in {tmp_path / 'errors.txt'})"


def test_further_trainings_of_a_command_are_told(tmp_path: Path) -> None:
    for pid in (10, 11, 12):
        write(tmp_path, f"{pid}-a", [process(pid), ("step", STEP)])
    assert "2 more trainings: also recorded; this report is about process 10" in read_facts(tmp_path).not_measured


def test_errors_of_the_program_are_read_without_passwords(tmp_path: Path) -> None:
    note = "ConnectionError: no answer from https://me:hunter2@data.org/scans"
    failed = ExperimentFacts(name="items", unit="item", seconds=(), note=f"the data set raised {note}")
    write(tmp_path, "10-a", [process(10), ("experiment", failed), ("end", Ending(reason="error", time_s=0, note=note))])
    facts = read_facts(tmp_path)
    assert facts.ended.note == "ConnectionError: no answer from https://***@data.org/scans"
    assert "hunter2" not in repr(facts)


def test_folder_without_a_recording_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no Python program was recorded in .*: the command starts no Python, or one"):
        read_facts(tmp_path)
    with pytest.raises(InputError, match="missing is not a folder; name the folder of a recording"):
        read_facts(tmp_path / "missing")


def test_files_and_stacks_of_workers_are_summed(tmp_path: Path) -> None:
    seen = [("files", EVERYTHING["files"]), ("stacks", EVERYTHING["stacks"]), ("transform", EVERYTHING["transform"])]
    write(tmp_path, "10-a", [process(10), ("step", STEP), *seen])
    write(tmp_path, "11-a", [process(11, "worker", parent=10), *seen])
    facts = read_facts(tmp_path)
    assert facts.files == FileFacts(
        kinds={".nii.gz": 6}, num_opens=6, num_files=2, read_bytes=200, largest=("/a", "/b"), unseen=("itk",)
    )
    assert [stack.num_samples for stack in facts.stacks] == [2 * EVERYTHING["stacks"].num_samples]
    assert [(t.num_calls, t.self_s) for t in facts.transforms] == [(6, 3.0)]


def test_a_reason_that_several_experiments_share_is_told_once(tmp_path: Path) -> None:
    names = ("loader", "items", "storage", "storage, page cache")
    notes = [ExperimentFacts(name=name, unit="item", seconds=(), note="no loader") for name in names]
    write(tmp_path, "10-a", [process(10), ("step", STEP), *(("experiment", note) for note in notes)])
    told = "the loader alone, the data set alone, reading the files from storage: no loader"
    assert told in read_facts(tmp_path).not_measured
