import pytest

from voxelocity.core.errors import OutputError
from voxelocity.core.whole_file import write_whole


def test_the_file_holds_exactly_the_content_and_nothing_else_is_left(tmp_path):
    path = write_whole(tmp_path / "new" / "page.html", b"first")
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert [entry.name for entry in path.parent.iterdir()] == ["page.html"]


def test_a_path_that_cannot_be_written_is_named_with_its_cure(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"report: cannot write '.*file/page\.html': .*; free the path or choose"):
        write_whole(tmp_path / "file" / "page.html", b"")


def test_a_failed_write_leaves_the_old_content_and_no_rest(tmp_path, monkeypatch):
    path = write_whole(tmp_path / "page.html", b"old")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
