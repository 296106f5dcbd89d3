import os

import numpy as np
import pytest

from voxelocity.data.cache import entry, entry_key, source_identity
from voxelocity_observe.core.errors import ScanError


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


@pytest.mark.parametrize("change", ["link", "replaced", "rewritten"])
def test_other_content_of_the_same_size_and_time_has_another_identity(tmp_path, change):
    files = [tmp_path / name for name in ("v1.nii", "v2.nii")]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * 6)
        os.utime(file, ns=(1, 1))
    link = tmp_path / "scan.nii"
    link.symlink_to(files[0])
    before = source_identity([link])
    if change == "link":
        link.unlink()
        link.symlink_to(files[1])
    elif change == "replaced":
        os.replace(files[1], files[0])
    else:
        files[0].write_bytes(bytes(6))
        os.utime(files[0], ns=(1, 1))
    assert source_identity([link]) != before


def test_inodes_do_not_count_where_a_file_system_numbers_its_files_as_they_come(tmp_path, monkeypatch):
    monkeypatch.setattr(entry, "_inodes_last", {})
    monkeypatch.setattr(entry, "file_system_of", lambda folder: "fuse.s3fs" if folder == str(tmp_path) else "")
    file = tmp_path / "scan.nii"
    file.write_bytes(b"voxels")
    assert str(file.stat().st_ino) not in source_identity([file])


def test_missing_file_is_named_with_its_cure(tmp_path):
    with pytest.raises(ScanError, match=r"cache\.key: file .*gone\.nii is not accessible \(No such file.*restore it"):
        source_identity([tmp_path / "gone.nii"])


def test_folder_is_refused_because_changes_inside_would_go_unnoticed(tmp_path):
    with pytest.raises(ScanError, match="not a regular file"):
        source_identity([tmp_path])


def test_key_changes_with_identity_fingerprint_and_format_version(monkeypatch):
    keys = {entry_key("a", "b"), entry_key("a", "c"), entry_key("c", "b"), entry_key("ab", ""), entry_key("", "ab")}
    monkeypatch.setattr(entry, "FORMAT_VERSION", entry.FORMAT_VERSION + 1)
    keys.add(entry_key("a", "b"))
    assert len(keys) == 6
    assert all(len(key) == 40 and set(key) <= set("0123456789abcdef") for key in keys)


@pytest.mark.parametrize(
    "header", [b"7", b"[]", b"[" * 100_000, b'{"__metadata__": 7}', b'{"' + b"x" * 10**6 + b'": 1}']
)
def test_any_header_that_is_none_is_damage_in_few_words(header):
    content = np.frombuffer(len(header).to_bytes(8, "little") + header, np.uint8).data
    with pytest.raises(entry.DamagedEntryError) as refused:
        entry.read_header("a", content)
    assert len(str(refused.value)) < 300
