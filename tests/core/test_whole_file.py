from __future__ import annotations

import pytest

from voxelocity.core.whole_file import put_in_place


def test_the_file_holds_exactly_the_newest_content_and_all_may_read_it(tmp_path):
    path = tmp_path / "page.html"
    put_in_place(path, b"first, and longer")
    put_in_place(path, b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_move_that_fails_leaves_the_old_content_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    put_in_place(path, b"old")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left on device"):
        put_in_place(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_an_error_and_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "none" / "page.html", b"")
    assert not (tmp_path / "none").exists()
