import pytest
from filelock import FileLock

from voxelocity.core.errors import OutputError
from voxelocity.training.run_folder import RunFolder, differing_keys


def test_clearing_removes_what_a_run_writes_and_nothing_else(tmp_path):
    folder = RunFolder(tmp_path)
    written = [folder.record, folder.events, folder.report, tmp_path / "model.safetensors", tmp_path / "model.json"]
    for file in written:
        file.write_text("x")
    folder.checkpoints.mkdir()
    (folder.checkpoints / "step_000000001.pt").write_text("x")
    (tmp_path / "my_notes.txt").write_text("keep me")
    folder.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["my_notes.txt"]


def test_a_second_process_in_the_same_folder_is_refused(tmp_path):
    with FileLock(tmp_path / ".lock"), pytest.raises(OutputError, match="another process is training into"):  # noqa: SIM117
        with RunFolder(tmp_path).locked():
            pytest.fail("entered although the lock was taken")
    with RunFolder(tmp_path).locked():
        pass


def test_differing_keys_name_both_values():
    old = {"a": 1, "b": {"c": 2, "d": 3}}
    new = {"a": 1, "b": {"c": 5, "d": 3}, "e": 4}
    assert differing_keys(old, new) == ["b.c: 2 -> 5", "e: None -> 4"]
