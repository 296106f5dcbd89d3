import os

import pytest

from voxelocity.core.errors import ScanError
from voxelocity.data.cache import entry_key, source_identity
from voxelocity.data.cache import key as key_module


def test_identity_is_the_same_while_no_file_changes(tmp_path, monkeypatch):
    file = tmp_path / "scan.nii"
    file.write_bytes(b"voxels")
    monkeypatch.chdir(tmp_path)
    assert source_identity([file]) == source_identity(["scan.nii"])


@pytest.mark.parametrize("change", ["size", "mtime", "path", "order"])
def test_identity_changes_with_size_time_path_and_order(tmp_path, change):
    first, second = tmp_path / "first.nii", tmp_path / "second.nii"
    first.write_bytes(b"voxels")
    second.write_bytes(b"voxels")
    os.utime(first, ns=(1, 1))
    paths = [first, second]
    before = source_identity(paths)
    if change == "size":
        first.write_bytes(b"voxels and more")
        os.utime(first, ns=(1, 1))
    elif change == "mtime":
        os.utime(first, ns=(1, 2))
    elif change == "path":
        paths[0] = first.rename(tmp_path / "moved.nii")
    else:
        paths.reverse()
    assert source_identity(paths) != before


def test_missing_file_is_named_with_its_cure(tmp_path):
    with pytest.raises(ScanError, match=r"cache\.key: file .*gone\.nii cannot be looked at \(No such file.*restore it"):
        source_identity([tmp_path / "gone.nii"])


def test_folder_is_refused_because_changes_inside_would_go_unnoticed(tmp_path):
    with pytest.raises(ScanError, match="no regular file"):
        source_identity([tmp_path])


def test_key_changes_with_identity_fingerprint_and_format_version(monkeypatch):
    keys = {entry_key("a", "b"), entry_key("a", "c"), entry_key("c", "b"), entry_key("ab", ""), entry_key("", "ab")}
    monkeypatch.setattr(key_module, "FORMAT_VERSION", key_module.FORMAT_VERSION + 1)
    keys.add(entry_key("a", "b"))
    assert len(keys) == 6
    assert all(len(key) == 40 and set(key) <= set("0123456789abcdef") for key in keys)
