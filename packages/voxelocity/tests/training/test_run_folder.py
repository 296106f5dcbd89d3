import errno
import json
import os

import pytest
from filelock import FileLock

from voxelocity.training.run_folder import RunFolder
from voxelocity_observe.core.errors import OutputError


def test_clearing_removes_what_a_run_writes_but_for_its_record(tmp_path):
    folder = RunFolder(tmp_path)
    written = [
        folder.record,
        folder.events,
        tmp_path / "events-rank3.jsonl",
        folder.report,
        tmp_path / "model.safetensors",
        tmp_path / "model.json",
    ]
    for file in written:
        file.write_text("x")
    folder.checkpoints.mkdir()
    (folder.checkpoints / "step_000000001.pt").write_text("x")
    (tmp_path / "my_notes.txt").write_text("keep me")
    folder.clear()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_notes.txt", "run.yaml"]


def test_a_second_process_in_the_same_folder_is_refused(tmp_path):
    with FileLock(tmp_path / ".lock"), pytest.raises(OutputError, match="another process is training into"):  # noqa: SIM117
        with RunFolder(tmp_path).locked():
            pytest.fail("entered although the lock was taken")
    with RunFolder(tmp_path).locked() as notice:
        assert notice == ""


def events_of(*names):
    return "".join(json.dumps({"event": name, "time_s": float(i)}) + "\n" for i, name in enumerate(names))


@pytest.mark.parametrize(
    ("names", "is_finished"),
    [
        ((), False),
        (("run_started", "steps"), False),
        (("run_started", "steps", "interrupted"), False),
        (("run_started", "interrupted", "run_started", "run_finished"), True),
        (("run_started", "run_finished", "run_started", "interrupted"), True),
    ],
)
@pytest.mark.parametrize("has_page", [False, True])
def test_events_tell_whether_a_run_is_finished_and_a_page_does_not(tmp_path, names, is_finished, has_page):
    folder = RunFolder(tmp_path)
    folder.events.write_text(events_of(*names))
    if has_page:
        folder.report.write_text("<html>")
    assert folder.is_finished() == is_finished


def test_a_run_without_events_is_unfinished(tmp_path):
    assert not RunFolder(tmp_path).is_finished()


def test_a_record_keeps_any_name(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_record({"name": "Hüfte 股関節"})
    assert "Hüfte 股関節" in folder.record.read_bytes().decode()


def test_a_file_system_without_locks_is_told_once_and_used(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with RunFolder(tmp_path).locked() as notice:
        assert "has no locks" in notice


def test_a_folder_in_place_of_the_lock_is_named(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(OutputError, match=r"cannot write into .*\.lock"), RunFolder(tmp_path).locked():
        pytest.fail("entered without a lock")


@pytest.mark.parametrize("name", ["a" * 256, "/".join(["a" * 200] * 25)])
def test_a_path_that_is_too_long_is_refused_in_one_short_sentence(tmp_path, name):
    with pytest.raises(OutputError, match=r"bytes, .* allows \d+.*; choose another with -o") as caught:
        RunFolder(tmp_path / name).check_path()
    assert len(str(caught.value)) < 900


def test_a_folder_that_may_not_be_entered_is_refused(closed_folder):
    folder = RunFolder(closed_folder / "a" / "run")
    assert not folder.holds_run
    with pytest.raises(OutputError, match=rf"no permission to write into {closed_folder}\); choose another with -o"):
        folder.check()


def test_a_path_that_run_yaml_cannot_hold_is_refused(tmp_path):
    with pytest.raises(OutputError, match=r"its path is not UTF-8 text\); choose another with -o"):
        RunFolder(tmp_path / os.fsdecode(b"caf\xe9") / "run").check_path()


def test_what_killed_writers_left_is_removed_under_the_lock(tmp_path):
    left = [".run.yaml.00.part", ".slices.npz.00.part", ".model.safetensors.00.part"]
    for name in (*left, ".report.html.00.part", "my.part"):
        (tmp_path / name).write_text("")
    with RunFolder(tmp_path).locked():
        pass
    assert {path.name for path in tmp_path.iterdir()} == {".lock", ".report.html.00.part", "my.part"}
