from __future__ import annotations

import errno
import json
import os

import pytest

from voxelocity_observe.core.errors import InputError, OutputError
from voxelocity_observe.core.warn_once import WarnOnce
from voxelocity_observe.monitor import files as reader
from voxelocity_observe.monitor.files import MonitorFiles, read_monitor, read_phases
from voxelocity_observe.monitor.nvml import GpuName
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.samples import GpuSample, HostSample, PhaseMark, Sample

GPUS = (GpuName(index=0, name="A", uuid="GPU-a"),)


def sample(second):
    gpu = GpuSample(index=0, name="A", uuid="GPU-a", busy_share=0.5)
    host = HostSample(core_shares=(0.5, 0.25), program_cores=1.0)
    return Sample(time_s=float(second), period_s=1.0, host=host, gpus=(gpu,))


def write(folder, *, num_samples=3, is_over=True, messages=None):
    files = MonitorFiles(folder, (messages if messages is not None else []).append)
    record = MonitorRecord(
        command=("sleep", "3"),
        status=-9 if is_over else None,
        seconds=3.25 if is_over else 0.0,
        period_s=1.0,
        own_cpu_s=0.01,
        missing=["a thing"],
        environment={"cpu": "made up"},
    )
    files.describe(record, begin_s=100.0, gpus=GPUS, is_over=is_over)
    for second in range(1, num_samples + 1):
        files.add(sample(second), GPUS)
    files.close()
    return record


def test_a_record_comes_back_as_it_was_with_its_phases(tmp_path):
    record = write(tmp_path)
    (tmp_path / "spans-5.jsonl").write_text('{"name": "fit", "start_s": 101.0, "seconds": 2.0}\n')
    read = read_monitor(tmp_path)
    assert read.samples == [sample(1), sample(2), sample(3)]
    assert read.phases == [PhaseMark(name="fit", start_s=1.0, seconds=2.0)]
    assert (read.command, read.status, read.seconds) == (record.command, -9, 3.25)
    assert (read.period_s, read.own_cpu_s, read.environment) == (1.0, 0.01, {"cpu": "made up"})
    assert read.missing == ["a thing"]


def test_rows_are_in_the_file_as_soon_as_they_are_added(tmp_path):
    files = MonitorFiles(tmp_path, print)
    files.add(sample(1), GPUS)
    assert len((tmp_path / "samples.csv").read_text().splitlines()) == 2
    files.close()


def test_of_a_killed_monitor_all_whole_rows_are_read_and_its_death_is_reported(tmp_path):
    write(tmp_path, is_over=False)
    table = tmp_path / "samples.csv"
    table.write_bytes(table.read_bytes()[:-3])
    read = read_monitor(tmp_path)
    assert [s.time_s for s in read.samples] == [1.0, 2.0]
    assert read.seconds == 2.0
    assert read.status is None
    assert read.missing == [
        "a thing",
        "the end: the monitor was killed, or still runs",
        "samples: 1 torn row of samples.csv",
    ]


def test_a_torn_row_with_all_its_cells_is_not_taken_for_whole(tmp_path):
    write(tmp_path)
    table = tmp_path / "samples.csv"
    table.write_bytes(table.read_bytes().rstrip(b"\n"))
    assert len(read_monitor(tmp_path).samples) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"format": 99}'])
def test_without_its_description_the_table_is_still_read(tmp_path, content):
    write(tmp_path)
    (tmp_path / "monitor.json").write_bytes(content)
    read = read_monitor(tmp_path)
    assert len(read.samples) == 3
    assert (read.command, read.seconds, read.period_s) == ((), 3.0, 1.0)
    assert read.missing == ["what was watched: monitor.json is missing or damaged"]


def test_without_its_table_the_description_is_still_read(tmp_path):
    write(tmp_path)
    (tmp_path / "samples.csv").unlink()
    read = read_monitor(tmp_path)
    assert (read.samples, read.status) == ([], -9)
    assert read.missing[-1] == "samples: samples.csv cannot be read (No such file or directory)"


@pytest.mark.parametrize("content", [b"", b"\n", b"a,b\n1,2\n", b"time_s,per"])
def test_a_table_that_was_killed_before_its_first_row_gives_no_samples(tmp_path, content):
    write(tmp_path)
    (tmp_path / "samples.csv").write_bytes(content)
    assert read_monitor(tmp_path).samples == []


def test_a_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no record of a monitor .* name the folder that 'voxelocity monitor"):
        read_monitor(tmp_path)


def test_a_folder_that_holds_a_record_or_cannot_be_written_is_refused(tmp_path):
    write(tmp_path)
    before = (tmp_path / "samples.csv").read_bytes()
    with pytest.raises(OutputError, match="holds a record already; name another folder, or remove that one"):
        MonitorFiles(tmp_path, print)
    assert (tmp_path / "samples.csv").read_bytes() == before
    with pytest.raises(OutputError, match=r"cannot write to .*; name a folder you may write to"):
        MonitorFiles(tmp_path / "samples.csv" / "folder", print)


def test_a_disk_that_fills_costs_rows_is_reported_once_and_leaves_no_half_row(tmp_path, monkeypatch):
    messages = []
    files = MonitorFiles(tmp_path, messages.append)
    files.add(sample(1), GPUS)
    write_whole_line = os.write

    def full(descriptor, line):
        return write_whole_line(descriptor, line[:7])

    monkeypatch.setattr(os, "write", full)
    files.add(sample(2), GPUS)
    files.add(sample(3), GPUS)
    monkeypatch.setattr(os, "write", write_whole_line)
    files.add(sample(4), GPUS)
    files.close()
    assert messages == [
        f"files: {tmp_path} cannot be written (No space left on device); samples are kept in memory, and rows are "
        "written again when there is space"
    ]
    assert [s.time_s for s in read_monitor(tmp_path).samples] == [1.0, 4.0]


def test_a_disk_that_is_full_from_the_beginning_is_reported_and_nothing_is_written(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    messages = []
    monkeypatch.setattr(os, "open", full)
    files = MonitorFiles(tmp_path, messages.append)
    monkeypatch.undo()
    files.add(sample(1), GPUS)
    files.close()
    assert len(messages) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_description_that_cannot_be_written_is_reported_and_leaves_the_old_one(tmp_path, monkeypatch):
    messages = []
    record = write(tmp_path, messages=messages)
    before = json.loads((tmp_path / "monitor.json").read_text())

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    files = MonitorFiles.__new__(MonitorFiles)
    files.folder, files._warn = tmp_path, WarnOnce(messages.append)
    files.describe(record, begin_s=0.0, gpus=(), is_over=True)
    assert "(No space left on device)" in messages[0]
    assert json.loads((tmp_path / "monitor.json").read_text()) == before


def test_taking_files_back_removes_what_was_made_and_nothing_else(tmp_path):
    (tmp_path / "mine").touch()
    MonitorFiles(tmp_path / "a" / "b", print).remove()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    MonitorFiles(tmp_path, print).remove()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


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


def test_of_very_many_the_longest_are_kept_and_the_rest_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_PHASES", 2)
    (tmp_path / "spans-7.jsonl").write_text(span("a", 3, 5.0) + span("b", 2, 0.1) + span("c", 1, 2.0))
    marks, left_out = read_phases(tmp_path, begin_s=0.0)
    assert [mark.name for mark in marks] == ["c", "a"]
    assert left_out == "phases: the 1 shortest of 3 are left out"
