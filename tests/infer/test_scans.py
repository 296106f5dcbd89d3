import pytest

from voxelocity.core.errors import InputError
from voxelocity.infer import find_scans


def touch(folder, *names):
    for name in names:
        (folder / name).write_bytes(b"")
    return [folder / name for name in names]


def test_each_file_is_a_scan_for_a_network_of_one_channel(tmp_path):
    files = touch(tmp_path, "b.nii.gz", "a_0000.nii", "new\nline.nii.gz", "notes.txt")
    (tmp_path / "more.nii").mkdir()
    refs = find_scans(files[:3], num_channels=1)
    assert [(ref.case_id, ref.images) for ref in refs] == [
        ("a", (files[1],)),
        ("b", (files[0],)),
        ("new\nline", (files[2],)),
    ]
    told = []
    assert find_scans([tmp_path], num_channels=1, warn=told.append) == refs
    assert told == [f"predict: 2 of 5 entries of {tmp_path} are not scans (more.nii/, notes.txt)"]


def test_a_number_is_a_channel_only_where_the_network_has_it_and_the_first_is_there(tmp_path):
    """A year is none, and so is the channel of another network."""
    years = touch(tmp_path, "patient_2023.nii.gz", "patient_2024.nii.gz", "x_0001.nii.gz")
    refs = find_scans(years, num_channels=4)
    assert [ref.case_id for ref in refs] == ["patient_2023", "patient_2024", "x_0001"]
    files = touch(tmp_path, "y_0000.nii.gz", "y_0001.nii.gz")
    told = []
    refs = find_scans(files, num_channels=1, warn=told.append)
    assert [ref.case_id for ref in refs] == ["y", "y_0001"]
    (text,) = told
    assert f"{files[1]} is taken for a separate scan" in text
    assert "channel 1 of 'y'" in text


def test_a_name_too_long_for_its_prediction_is_refused(tmp_path):
    files = touch(tmp_path, "ü" * 124 + ".nii")
    assert len(find_scans(files, num_channels=1)) == 1
    files = touch(tmp_path, "ü" * 125 + ".nii")
    with pytest.raises(InputError, match=r"would have a name of 257 bytes, and file systems take 255; rename ü+\.nii"):
        find_scans(files, num_channels=1)


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
    inputs = [file, tmp_path, tmp_path / "links" / ".." / "x.nii.gz", tmp_path / "links"]
    refs = find_scans(inputs, num_channels=1, warn=lambda text: None)
    assert [(ref.case_id, ref.images) for ref in refs] == [("x", (file,))]


def test_what_is_no_scan_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"gone\.nii\.gz does not exist"):
        find_scans([tmp_path / "gone.nii.gz"], num_channels=1)
    with pytest.raises(InputError, match=r"a\.png is not named \.nii or \.nii\.gz"):
        find_scans(touch(tmp_path, "a.png"), num_channels=1)
    with pytest.raises(InputError, match=r"holds no \.nii or \.nii\.gz file \(a\.png\); name one that does"):
        find_scans([tmp_path], num_channels=1)
