import pytest

from voxelocity.core.errors import InputError
from voxelocity.infer import find_scans


def touch(folder, *names):
    for name in names:
        (folder / name).write_bytes(b"")
    return [folder / name for name in names]


def test_each_file_is_a_scan_for_a_network_of_one_channel(tmp_path):
    files = touch(tmp_path, "b.nii.gz", "a_0000.nii", "notes.txt")
    refs = find_scans(files[:2], num_channels=1)
    assert [(ref.case_id, ref.images) for ref in refs] == [("a_0000", (files[1],)), ("b", (files[0],))]
    assert find_scans([tmp_path], num_channels=1) == refs


def test_numbered_files_are_the_channels_of_one_scan(tmp_path):
    files = touch(tmp_path, "x_0001.nii.gz", "x_0000.nii.gz", "whole.nii.gz")
    x, whole = sorted(find_scans(files, num_channels=2), key=lambda ref: -len(ref.images))
    assert (x.case_id, x.images) == ("x", (files[1], files[0]))
    assert (whole.case_id, whole.images) == ("whole", (files[2],))


def test_a_missing_channel_is_named(tmp_path):
    files = touch(tmp_path, "x_0000.nii.gz", "x_0002.nii.gz")
    with pytest.raises(InputError, match=r"case 'x' has the channels \[0, 2\], but the network takes 0 to 2"):
        find_scans(files, num_channels=3)


def test_two_scans_of_one_name_are_refused(tmp_path):
    (tmp_path / "other").mkdir()
    files = touch(tmp_path, "x.nii.gz") + touch(tmp_path / "other", "x.nii")
    with pytest.raises(InputError, match=r"would both be written as x\.nii\.gz; predict them into different folders"):
        find_scans(files, num_channels=1)


def test_a_file_that_is_named_twice_is_taken_once(tmp_path):
    (file,) = touch(tmp_path, "x.nii.gz")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "x.nii.gz").symlink_to(file)
    refs = find_scans([file, tmp_path, tmp_path / "links" / ".." / "x.nii.gz", tmp_path / "links"], num_channels=1)
    assert [(ref.case_id, ref.images) for ref in refs] == [("x", (file,))]


def test_what_is_no_scan_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"gone\.nii\.gz does not exist"):
        find_scans([tmp_path / "gone.nii.gz"], num_channels=1)
    with pytest.raises(InputError, match=r"a\.png is not named \.nii or \.nii\.gz"):
        find_scans(touch(tmp_path, "a.png"), num_channels=1)
    with pytest.raises(InputError, match=r"holds no \.nii or \.nii\.gz file"):
        find_scans([tmp_path], num_channels=1)
