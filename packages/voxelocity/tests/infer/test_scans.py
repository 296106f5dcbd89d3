import nibabel as nib
import numpy as np
import pytest

from shared.dicom_series import write_series
from voxelocity.core.scan_formats import SCAN_ENDINGS, format_names
from voxelocity.infer import find_scans, split_models
from voxelocity_observe.core.errors import InputError


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
    messages = []
    assert find_scans([tmp_path], num_channels=1, warn=messages.append) == refs
    assert messages == [f"predict: 2 of 5 entries of {tmp_path} are not scans (more.nii/, notes.txt)"]


def test_a_number_is_a_channel_only_where_the_network_has_it_and_the_first_is_there(tmp_path):
    """A year is none, and so is the channel of another network."""
    years = touch(tmp_path, "patient_2023.nii.gz", "patient_2024.nii.gz", "x_0001.nii.gz")
    refs = find_scans(years, num_channels=4)
    assert [ref.case_id for ref in refs] == ["patient_2023", "patient_2024", "x_0001"]
    files = touch(tmp_path, "y_0000.nii.gz", "y_0001.nii.gz")
    messages = []
    refs = find_scans(files, num_channels=1, warn=messages.append)
    assert [ref.case_id for ref in refs] == ["y", "y_0001"]
    (text,) = messages
    assert f"{files[1]} is treated as a separate scan" in text
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
    with pytest.raises(InputError, match=r"would both be written as 'x'; predict them into different folders"):
        find_scans(files, num_channels=1)


def test_a_file_that_is_named_twice_is_taken_once(tmp_path):
    (file,) = touch(tmp_path, "x.nii.gz")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "x.nii.gz").symlink_to(file)
    inputs = [file, tmp_path, tmp_path / "links" / ".." / "x.nii.gz", tmp_path / "links"]
    refs = find_scans(inputs, num_channels=1, warn=lambda text: None)
    assert [(ref.case_id, ref.images) for ref in refs] == [("x", (file,))]


def test_a_folder_that_may_not_be_read_is_named(tmp_path, closed_folder):
    assert split_models([tmp_path / "model", closed_folder]) == ([tmp_path / "model"], [closed_folder])
    text = rf"{closed_folder} cannot be read \(Permission denied\); check its permissions"
    with pytest.raises(InputError, match=text):
        find_scans([closed_folder], num_channels=1)


def test_what_is_no_scan_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"gone\.nii\.gz does not exist"):
        find_scans([tmp_path / "gone.nii.gz"], num_channels=1)
    with pytest.raises(InputError, match=rf"a\.png is not a {format_names()} file; convert it"):
        find_scans(touch(tmp_path, "a.png"), num_channels=1)
    with pytest.raises(InputError, match=r"holds no NIfTI, .* file and no DICOM series \(a\.png\); name one"):
        find_scans([tmp_path], num_channels=1)


VOXELS = np.zeros((3, 4, 5), np.int16)


def named(refs):
    return [(ref.case_id, ref.images) for ref in refs]


def test_every_format_is_a_scan_of_its_name(tmp_path):
    names = [f"{index:02d}{ending}" for index, ending in enumerate((*SCAN_ENDINGS, ".MHA"))]
    files = touch(tmp_path, *names)
    touch(tmp_path, "c.raw")
    told = []
    refs = find_scans([tmp_path], num_channels=1, warn=told.append)
    assert named(refs) == [(f"{index:02d}", (file,)) for index, file in enumerate(files)]
    assert told == [f"predict: 1 of {len(names) + 1} entries of {tmp_path} are not scans (c.raw)"]


def test_a_folder_of_slices_is_one_scan_and_so_is_each_such_folder_inside(tmp_path):
    for name in ("p1", "p2"):
        write_series(tmp_path / "all" / name, VOXELS)
    (tmp_path / "all" / "texts").mkdir()
    touch(tmp_path / "all" / "texts", "a.txt")
    p1, p2 = tmp_path / "all" / "p1", tmp_path / "all" / "p2"
    assert named(find_scans([p1], num_channels=1)) == [("p1", (p1,))]
    messages = []
    refs = find_scans([tmp_path / "all"], num_channels=1, warn=messages.append)
    assert named(refs) == [("p1", (p1,)), ("p2", (p2,))]
    assert messages == [f"predict: 1 of 3 entries of {tmp_path / 'all'} are not scans (texts/)"]


def test_series_deep_in_an_archive_are_named_after_their_way(tmp_path):
    series = [tmp_path / patient / "study" / "ct" for patient in ("p1", "p2")]
    for folder in series:
        write_series(folder, VOXELS)
    messages = []
    touch(tmp_path, "LICENSE")
    refs = find_scans([tmp_path], num_channels=1, warn=messages.append)
    assert named(refs) == [("p1_study_ct", (series[0],)), ("p2_study_ct", (series[1],))]
    assert messages == [f"predict: 1 of 3 entries of {tmp_path} are not scans (LICENSE)"]


def test_files_of_a_series_stand_for_it_however_many_are_named(tmp_path):
    files = write_series(tmp_path / "p1", VOXELS)
    assert named(find_scans(files, num_channels=1)) == [("p1", (tmp_path / "p1",))]
    scout = write_series(tmp_path / "p1", VOXELS, name="scout")
    refs = find_scans([*files, *scout], num_channels=1)
    assert named(refs) == [("p1_CT_001", (files[-1],)), ("p1_scout_001", (scout[-1],))]


def test_folders_with_other_dicom_are_left_out(tmp_path):
    write_series(tmp_path / "ct", VOXELS)
    (report,) = write_series(tmp_path / "sr", VOXELS[:1], edit=lambda _, dataset: setattr(dataset, "Modality", "SR"))
    messages = []
    refs = find_scans([tmp_path], num_channels=1, warn=messages.append)
    assert named(refs) == [("ct", (tmp_path / "ct",))]
    assert "(sr/)" in messages[0]
    with pytest.raises(InputError, match="holds no image of a scan"):
        find_scans([report], num_channels=1)


def test_a_list_names_cases_and_files_relative_to_itself(tmp_path):
    (tmp_path / "x").mkdir()
    one, two, other = touch(tmp_path / "x", "t1.nii.gz", "t2.mha", "b.nii")
    table = tmp_path / "scans.csv"
    table.write_text("case,image_0000,image_0001,note\na,x/t1.nii.gz,x/t2.mha,first\n")
    refs = find_scans([table, other], num_channels=2)
    assert named(refs) == [("a", (one, two)), ("b", (other,))]
    table.write_text("case,image\nb,x/t1.nii.gz\n")
    with pytest.raises(InputError, match=r"b\.nii and .*t1\.nii\.gz would both be written as 'b'"):
        find_scans([table, other], num_channels=1)
    table.write_text("image\nx/gone.nii.gz\n")
    with pytest.raises(InputError, match=r"scans\.csv: 1 of 1 files are missing"):
        find_scans([table], num_channels=1)


def test_a_label_in_a_list_is_not_read(tmp_path):
    image, _ = touch(tmp_path, "a.nii.gz", "a_seg.nii.gz")
    (tmp_path / "scans.csv").write_text("image,label\na.nii.gz,a_seg.nii.gz\n")
    (ref,) = find_scans([tmp_path / "scans.csv"], num_channels=1)
    assert (ref.images, ref.label) == ((image,), None)


def test_a_pair_is_one_scan_known_by_its_header(tmp_path):
    nib.save(nib.Nifti1Pair(np.zeros((3, 4, 5), np.int16), np.eye(4)), tmp_path / "a.img")
    said = []
    for name in ("a.hdr", "."):
        (ref,) = find_scans([tmp_path / name], num_channels=1, warn=said.append)
        assert (ref.case_id, ref.images) == ("a", (tmp_path / "a.hdr",))
    assert said == []
    with pytest.raises(InputError, match=r"a\.img cannot be predicted: \.img files are the voxels of a pair: name the"):
        find_scans([tmp_path / "a.img"], num_channels=1)
