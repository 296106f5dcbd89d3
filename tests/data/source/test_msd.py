from __future__ import annotations

import pytest

from voxelocity.core.errors import DatasetError
from voxelocity.data.source import open_cases


def test_cases_are_sorted_with_their_files(tmp_path, msd, write_json):
    write_json(msd)
    cases = open_cases(tmp_path)
    assert (cases.name, cases.channels, cases.root) == ("Tiny", ("CT",), tmp_path)
    assert [ref.case_id for ref in cases] == ["a", "b", "c"]
    assert cases.refs[0].images == (tmp_path / "imagesTr" / "a.nii.gz",)
    assert cases.refs[0].label == tmp_path / "labelsTr" / "a.nii.gz"


def test_classes_follow_the_label_values(tmp_path, msd, write_json):
    write_json(msd)
    cases = open_cases(tmp_path)
    assert cases.class_names == ("background", "spleen", "liver")
    assert cases.label_values == (0, 1, 2)


def test_the_test_list_is_not_read(tmp_path, msd, write_json):
    write_json(msd | {"test": "nonsense"})
    assert len(open_cases(tmp_path)) == 3


def test_one_file_may_hold_several_channels(tmp_path, msd, write_json):
    write_json(msd | {"modality": {"0": "T1", "1": "T2"}})
    cases = open_cases(tmp_path)
    assert (cases.num_channels, len(cases.refs[0].images)) == (2, 1)


def test_a_list_of_images_is_one_file_per_channel(tmp_path, msd, write_json, touch):
    touch("imagesTr/d_0000.nii.gz", "imagesTr/d_0001.nii.gz", "labelsTr/d.nii.gz")
    images = ["imagesTr/d_0000.nii.gz", "imagesTr/d_0001.nii.gz"]
    entries = [{"image": images, "label": "labelsTr/d.nii.gz"}]
    write_json(msd | {"modality": {"0": "T1", "1": "T2"}, "training": entries})
    (ref,) = open_cases(tmp_path).refs
    assert (ref.case_id, ref.images) == ("d", tuple(tmp_path / image for image in images))


def test_folds_of_the_entries_are_honored(tmp_path, msd, write_json):
    for entry, fold in zip(msd["training"], (3, None, 0), strict=True):
        entry["fold"] = fold
    write_json(msd)
    write_json([{"train": [], "val": ["a", "b", "c"]}], "splits_final.json")
    cases = open_cases(tmp_path)
    assert {ref.case_id: ref.fold for ref in cases} == {"a": None, "b": 3, "c": 0}
    assert cases.num_folds == 4
    assert [ref.case_id for ref in cases.split(3).training] == ["a", "c"]


def test_a_splits_file_is_honored_where_entries_have_no_fold(tmp_path, msd, write_json):
    write_json(msd)
    write_json([{"train": ["a", "c"], "val": ["b"]}, {"train": ["b"], "val": ["c", "a"]}], "splits_final.json")
    cases = open_cases(tmp_path)
    assert ([ref.fold for ref in cases], cases.num_folds) == ([1, 0, 1], 2)


def test_a_link_to_another_disk_inside_the_folder_is_followed(tmp_path, msd, write_json):
    home = tmp_path / "set"
    home.mkdir()
    (home / "imagesTr").symlink_to(tmp_path / "imagesTr")
    (home / "labelsTr").symlink_to(tmp_path / "labelsTr")
    write_json(msd, "set/dataset.json")
    assert len(open_cases(home)) == 3


@pytest.mark.parametrize("listed", ["../elsewhere/x.nii.gz", "imagesTr/../../x.nii.gz", "/etc/passwd"])
@pytest.mark.parametrize("key", ["image", "label"])
def test_paths_that_leave_the_folder_are_refused(tmp_path, msd, write_json, listed, key):
    msd["training"][1][key] = listed
    write_json(msd)
    with pytest.raises(DatasetError, match=rf"entry 1 of \"training\" lists '{listed}', which lies outside .* \.csv"):
        open_cases(tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"training": []}, r'"training" lists no cases; add an'),
        ({"training": {}}, r'"training" is an object; write it in the form'),
        ({"training": ["x.nii.gz"]}, r'entry 0 of "training" is a string; write it as \{"image"'),
        ({"training": [{"image": "x.nii.gz"}]}, r"entry 0 of \"training\" has no \"label\", only \['image'\]; add"),
        ({"training": [{"label": "x.nii.gz"}]}, r"entry 0 of \"training\" has no \"image\", only \['label'\]; add"),
        ({"training": [{"image": 3, "label": "x"}]}, r'entry 0 of "training" has the image 3; write a path, or'),
        ({"training": [{"image": [], "label": "x"}]}, r'entry 0 of "training" has the image \[\]; write a path'),
        ({"training": [{"image": "x", "label": ["y"]}]}, r"entry 0 of \"training\" has the label \['y'\]; write the"),
        ({"training": [{"image": ["x", "y"], "label": "z"}]}, r"has 2 image files, but the data set has 1 channel"),
        ({"training": [{"image": "x", "label": "z", "fold": "0"}]}, r"has \"fold\": '0'; write a whole number from 0"),
        ({"training": [{"image": "x", "label": "z", "fold": -1}]}, r'has "fold": -1; write a whole number from 0'),
        ({"training": [{"image": "x", "label": "z", "fold": True}]}, r'has "fold": True; write a whole number from 0'),
        ({"labels": {}}, r'"labels" has the values \[\] and no 0'),
        ({"labels": {"background": "0"}}, r'"labels" has the key "background"; write the voxel value'),
        ({"labels": {"0": "background", "-1": "x"}}, r'"labels" gives "x" the value -1'),
        ({"labels": ["background"]}, r'"labels" is a list; write it in the form'),
        ({"name": 4}, r'"name" is a number; write it in the form'),
    ],
)
def test_malformed_descriptions_are_refused(tmp_path, msd, write_json, changes, text):
    path = write_json(msd | changes)
    with pytest.raises(DatasetError, match=text) as caught:
        open_cases(tmp_path)
    assert str(caught.value).startswith(f"source: {path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["labels", "modality", "training"])
def test_missing_keys_are_named(tmp_path, msd, write_json, key):
    del msd[key]
    write_json(msd)
    wanted = "channel_names" if key == "modality" else key
    with pytest.raises(DatasetError, match=rf'"{wanted}" is missing; add it in the form'):
        open_cases(tmp_path)
