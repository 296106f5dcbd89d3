from __future__ import annotations

import os
from pathlib import Path

import pytest

from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.whole_file import check_is_file, put_in_place, remove_abandoned, whole_file, write_whole


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_file_holds_exactly_the_newest_content_and_those_may_read_it_whom_the_umask_lets(tmp_path, umask, mode):
    path = tmp_path / "page.html"
    before = os.umask(umask)
    try:
        put_in_place(path, b"first, and longer")
        put_in_place(path, b"second")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == mode
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    calls = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr("os.fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr("os.replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    put_in_place(tmp_path / "model.json", b"{}")
    put_in_place(tmp_path / "metrics.prom", b"", is_durable=False)
    assert calls == ["fsync", "replace", "replace"]


def test_a_link_under_the_hidden_name_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep me")
    monkeypatch.setattr("secrets.token_hex", lambda num_bytes: "guessed")
    (tmp_path / ".run.yaml.guessed.part").symlink_to(victim)
    with pytest.raises(OSError):
        put_in_place(tmp_path / "run.yaml", b"new")
    assert victim.read_bytes() == b"keep me"


def test_an_error_in_the_middle_names_the_file_and_leaves_nothing(tmp_path):
    def fail():
        with whole_file(tmp_path / "step.pt") as file:
            file.write(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError) as caught:
        fail()
    assert caught.value.filename == str(tmp_path / "step.pt")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path):
    kept = [tmp_path / name for name in ("run.yaml", ".lock", ".other.0a.part", "run.yaml.part")]
    (tmp_path / ".run.yaml.fedcba9876543210.part" / "inside").mkdir(parents=True)
    for path in (*kept, tmp_path / ".run.yaml.0123456789abcdef.part"):
        path.write_text("")
    assert remove_abandoned(tmp_path, names=("run.yaml",)) == 2
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert remove_abandoned(tmp_path / "none", names=("run.yaml",)) == 0


def test_a_name_as_long_as_the_system_allows_can_be_written(tmp_path):
    path = tmp_path / ("ä" * 120)
    put_in_place(path, b"x")
    assert path.read_bytes() == b"x"


def test_a_folder_that_is_missing_is_an_error_and_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "none" / "page.html", b"")
    assert not (tmp_path / "none").exists()


def test_a_pipe_in_the_place_of_a_file_is_refused_before_it_is_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe or a device, not a file"):
        check_is_file(tmp_path / "pipe")
    for path in (tmp_path, Path(__file__)):
        assert check_is_file(path) == path


def test_a_path_that_cannot_be_written_is_named_with_its_cure(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"report: cannot write '.*file/page\.html': .*; free the path or choose"):
        write_whole(tmp_path / "file" / "page.html", b"")


def test_a_failed_write_leaves_the_old_content_and_no_rest(tmp_path, monkeypatch):
    path = write_whole(tmp_path / "new" / "page.html", b"old")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
