from __future__ import annotations

import pytest

from voxelocity.data.source import open_cases
from voxelocity_observe.core.errors import DatasetError


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


def test_labels_that_may_be_dicom_get_the_classes_by_name(tmp_path, msd, write_json, touch):
    touch("labelsTr/a.dcm")
    msd["training"][1]["label"] = "labelsTr/a.dcm"
    write_json(msd)
    structures = {ref.case_id: ref.structures for ref in open_cases(tmp_path)}
    assert structures == {"a": (("spleen", 1), ("liver", 2)), "b": (), "c": ()}


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
    with pytest.warns(
        UserWarning,
        match=r"6 files of the data set below .*set are links to files outside of it, such as .*they are read",
    ):
        assert len(open_cases(home)) == 3


def test_links_within_the_folder_and_those_of_git_annex_are_no_matter(tmp_path, msd, write_json):
    home = tmp_path / "repository" / "set"
    (tmp_path / "repository" / ".git" / "annex").mkdir(parents=True)
    home.mkdir()
    (tmp_path / "imagesTr").rename(tmp_path / "repository" / ".git" / "annex" / "objects")
    (home / "imagesTr").mkdir()
    for file in (tmp_path / "repository" / ".git" / "annex" / "objects").iterdir():
        (home / "imagesTr" / file.name).symlink_to(file)
    (tmp_path / "labelsTr").rename(home / "masks")
    (home / "labelsTr").symlink_to(home / "masks")
    write_json(msd, "repository/set/dataset.json")
    assert len(open_cases(home)) == 3


def test_names_of_nnunet_v1_lack_the_number_of_the_channel(tmp_path, touch, write_json, msd):
    entries = [{"image": f"./imagesTr/la_{k}.nii.gz", "label": f"./labelsTr/la_{k}.nii.gz"} for k in (1, 2)]
    for k in (1, 2):
        touch(f"imagesTr/la_{k}_0000.nii.gz", f"imagesTr/la_{k}_0001.nii.gz", f"labelsTr/la_{k}.nii.gz")
    write_json(msd | {"training": entries})
    assert [(ref.case_id, ref.images[0].name) for ref in open_cases(tmp_path)] == [
        ("la_1", "la_1_0000.nii.gz"),
        ("la_2", "la_2_0000.nii.gz"),
    ]
    write_json(msd | {"training": entries, "modality": {"0": "T1", "1": "T2"}})
    assert [path.name for path in open_cases(tmp_path).refs[1].images] == ["la_2_0000.nii.gz", "la_2_0001.nii.gz"]
    # A channel short: the file that is listed is missing.
    write_json(msd | {"training": entries, "modality": {"0": "T1", "1": "T2", "2": "PD"}})
    with pytest.raises(DatasetError, match=r"files are missing, the first is .*la_1\.nii\.gz"):
        open_cases(tmp_path)


@pytest.mark.parametrize("repeats_training", [False, True])
def test_a_list_of_cases_for_validation_is_held_out(tmp_path, msd, write_json, repeats_training):
    *training, last = msd["training"]
    write_json(msd | {"training": [*training, last] if repeats_training else training, "validation": [last]})
    cases = open_cases(tmp_path)
    split = cases.split(0)
    assert ([ref.case_id for ref in split.validation], len(split.training)) == (["c"], 2)
    assert cases.num_folds == 1


@pytest.mark.parametrize(
    ("fold", "entry", "why"),
    [
        ({}, {"label": "labelsTr/none.nii.gz"}, "1 of their files are missing, the first is .*none.nii.gz"),
        ({}, {"label": ""}, "not all of them have a label"),
        ({"fold": 1}, {}, 'those under "training" have folds; move them there'),
    ],
)
def test_a_list_for_validation_that_cannot_be_held_out_is_not_ignored_without_a_word(
    tmp_path, msd, write_json, fold, entry, why
):
    *training, last = msd["training"]
    write_json(msd | {"training": [case | fold for case in training], "validation": [last | entry]})
    with pytest.warns(UserWarning, match=rf'the 1 cases under "validation" are not used.*because {why}'):
        assert len(open_cases(tmp_path)) == 2


def test_a_list_by_another_name_is_opened_and_several_are_named(tmp_path, msd, write_json):
    write_json(msd, "dataset_0.json")
    write_json({"objects": {}}, "datastore_v2.json")
    assert len(open_cases(tmp_path)) == 3
    write_json(msd, "dataset_1.json")
    with pytest.raises(DatasetError, match=r"2 lists of cases \(dataset_0\.json, dataset_1\.json\); give"):
        open_cases(tmp_path)


@pytest.mark.parametrize(("modality", "channels"), [(None, ("image",)), ("CT", ("CT",)), ({"0": "MRI"}, ("MRI",))])
def test_a_list_without_names_of_classes_reads_them_from_its_labels(tmp_path, msd, write_json, modality, channels):
    del msd["labels"], msd["modality"]
    write_json(msd | ({} if modality is None else {"modality": modality}))
    cases = open_cases(tmp_path)
    assert (cases.labels, cases.channels, len(cases)) == ({}, channels, 3)
    assert cases.num_folds == 3


def test_numbers_in_quotes_are_numbers(tmp_path, msd, write_json):
    write_json(msd | {"labels": {"background": "0", "spleen": "1"}})
    cases = open_cases(tmp_path)
    assert (cases.labels, len(cases)) == ({0: "background", 1: "spleen"}, 3)


def test_a_split_that_holds_out_nothing_says_so(tmp_path, msd, write_json):
    write_json(msd)
    splits = write_json([{"train": ["a", "b", "c"], "val": []}], "splits_final.json")
    with pytest.raises(DatasetError, match=r'holds out any of the 3 labeled cases; list some under "val" in splits_f'):
        open_cases(tmp_path).split(0)
    assert len(open_cases(tmp_path).split("all").training) == 3
    splits.unlink()
    assert len(open_cases(tmp_path).split(0).validation) == 1


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
        ({"labels": {"background": "0"}}, r'"labels" has 1 classes with the background'),
        ({"labels": {"background": "0", "x": "y"}}, r'"labels" has the key "background"; write the voxel value'),
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


@pytest.mark.parametrize("key", ["modality", "training"])
def test_missing_keys_are_named(tmp_path, msd, write_json, key):
    del msd[key]
    write_json(msd)
    wanted = "channel_names" if key == "modality" else key
    with pytest.raises(DatasetError, match=rf'"{wanted}" is missing; add it in the form "{wanted}": [\[{{]'):
        open_cases(tmp_path)


def test_names_of_files_tell_the_cases(tmp_path, nnunet, write_json):
    write_json(nnunet)
    cases = open_cases(tmp_path)
    assert (cases.layout, cases.name, cases.channels) == ("nnunet", tmp_path.name, ("T1", "T2"))
    assert cases.labels == {0: "background", 1: "lesion"}
    assert [ref.case_id for ref in cases] == ["a", "b", "c"]
    assert cases.refs[2].images == (tmp_path / "imagesTr/c_0000.nii.gz", tmp_path / "imagesTr/c_0001.nii.gz")
    assert cases.refs[2].label == tmp_path / "labelsTr/c.nii.gz"


def test_case_ids_may_look_like_channel_numbers(tmp_path, nnunet, write_json, touch):
    touch("imagesTr/x_0001_0000.nii.gz", "imagesTr/x_0001_0001.nii.gz", "labelsTr/x_0001.nii.gz")
    write_json(nnunet | {"numTraining": 4})
    assert [ref.case_id for ref in open_cases(tmp_path)] == ["a", "b", "c", "x_0001"]


def test_other_endings_and_hidden_files_are_left_alone(tmp_path, nnunet, write_json, touch):
    touch("imagesTr/._a_0000.nii.gz", "imagesTr/notes.txt")
    write_json(nnunet)
    assert len(open_cases(tmp_path)) == 3


def test_folds_come_from_the_splits_file(tmp_path, nnunet, write_json):
    write_json(nnunet)
    write_json([{"train": ["a", "b"], "val": ["c"]}, {"train": ["b", "c"], "val": ["a"]}], "splits_final.json")
    cases = open_cases(tmp_path)
    assert ([ref.fold for ref in cases], cases.num_folds) == ([1, None, 0], 2)


def test_overlapping_classes_are_sets_of_values(tmp_path, nnunet, write_json):
    labels = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3}
    write_json(nnunet | {"labels": labels, "regions_class_order": [1, 2, 3]})
    cases = open_cases(tmp_path)
    assert cases.labels == {0: "background", 1: "rest of whole", 2: "rest of core", 3: "enhancing"}
    assert cases.scored == {"whole": (1, 2, 3), "core": (2, 3), "enhancing": (3,)}
    assert cases.region_order == (1, 2, 3)
    assert "classes: whole, core, enhancing" in repr(cases)
    write_json(nnunet | {"labels": {"background": 0, "a": [4], "b": 9}})
    assert open_cases(tmp_path).scored == {"a": (1,), "b": (2,)}, "lists of one value are classes"


def test_voxels_without_a_known_class_have_the_highest_index(tmp_path, nnunet, write_json):
    write_json(nnunet | {"labels": {"background": 0, "lesion": 3, "ignore": 7}})
    cases = open_cases(tmp_path)
    assert (cases.labels, cases.ignore_value, cases.ignored) == ({0: "background", 3: "lesion"}, 7, 2)
    assert cases.stored_values == (0, 3, 7)


def test_a_dataset_list_names_files_anywhere(tmp_path, nnunet, write_json, touch):
    touch("elsewhere/x.nii.gz", "elsewhere/y.nii.gz", "mask.nii.gz")
    (tmp_path / "set").mkdir()
    images = ["../elsewhere/x.nii.gz", str(tmp_path / "elsewhere/y.nii.gz")]
    listed = {"case 1": {"images": images, "label": "../mask.nii.gz"}}
    write_json(nnunet | {"dataset": listed, "numTraining": 99}, "set/dataset.json")
    (ref,) = open_cases(tmp_path / "set").refs
    assert ref.case_id == "case 1"
    assert [path.resolve() for path in ref.images] == [tmp_path / "elsewhere/x.nii.gz", tmp_path / "elsewhere/y.nii.gz"]
    assert ref.label is not None
    assert ref.label.resolve() == tmp_path / "mask.nii.gz"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"labels": {"background": 0, "whole": [1, 2], "core": 2}},
            r'has the regions whole, core, and "regions_class_order" is None; write one value for each .* different',
        ),
        (
            {"labels": {"background": 0, "whole": [1, 2], "core": 2}, "regions_class_order": [1, 1]},
            r'"regions_class_order" is \[1, 1\]; write one value for each',
        ),
        (
            {"labels": {"background": 0, "whole": [1, 2], "core": 2}, "regions_class_order": [1, 3]},
            r'writes "core" with the value 3, which is not one of its values \[2\]; write one that is',
        ),
        (
            {"labels": {"background": 0, "whole": [0, 1], "core": 1}, "regions_class_order": [1, 2]},
            r'"labels" makes 0, the background, a part of "whole"; leave it out there',
        ),
        (
            {"labels": {"background": 0, "whole": [1, "2"]}, "regions_class_order": [1]},
            r'"labels" gives "whole" the value \[1, \'2\'\]; write a whole number, or a list of them',
        ),
        (
            {"labels": {"background": 0, "lesion": 2, "ignore": 1}},
            r'"labels" gives "ignore" the value 1; it must be a whole number above all others, .* such as 3',
        ),
        (
            {"labels": {"background": 0, "lesion": 1, "ignore": [2]}},
            r'"labels" gives "ignore" the value \[2\]; it must be a whole number',
        ),
        ({"labels": {"background": 0, "lesion": 1.5}}, r'"labels" gives "lesion" the value 1\.5; write a whole number'),
        ({"labels": {"background": 0, "lesion": True}}, r'"labels" gives "lesion" the value True; write a whole'),
        ({"labels": {"background": 0, "lesion": -1}}, r'"labels" gives "lesion" the value -1; label values must be'),
        ({"labels": {"lesion": 1, "core": 2}}, r"\"labels\" has the values \[1, 2\] and no 0; add the background"),
        ({"file_ending": 3}, r'"file_ending" is a number; write it in the form "file_ending": "\.nii\.gz"'),
        ({"file_ending": ".nrrd"}, r"imagesTr holds no file ending in '\.nrrd'; add the images or correct"),
        ({"numTraining": 4}, r'"numTraining" is 4, but imagesTr holds 3 case\(s\); complete the copy'),
        (
            {"channel_names": {"0": "T1"}},
            r"case 'a': a_0001\.nii\.gz is one channel too many in .*imagesTr, as the data set has 1 channel\(s\): T1;",
        ),
        (
            {"channel_names": {"0": "T1", "1": "T2", "2": "FLAIR"}},
            r"case 'a': a_0002\.nii\.gz is missing from .*imagesTr, as .* 3 channel\(s\): T1, T2, FLAIR; complete",
        ),
        ({"dataset": {}}, r'"dataset" lists no cases; add them, or remove it to find the cases in imagesTr'),
        ({"dataset": {"a": "x"}}, r"case 'a' is a string; write it as \{\"images\""),
        ({"dataset": {"a": {"images": ["x"]}}}, r"case 'a' has no \"label\", only \['images'\]; add its path"),
        (
            {"dataset": {"a": {"images": ["x"] * 3, "label": "y"}}},
            r"case 'a' has 3 image files, but the data set has 2",
        ),
        ({"dataset": {"a": {"images": [1], "label": "y"}}}, r"case 'a' has the image \[1\]; write a path, or a list"),
        ({"dataset": {"a": {"images": ["x"], "label": None}}}, r"case 'a' has the label None; write the path of one"),
        ({"dataset": {"../a": {"images": ["x"], "label": "y"}}}, r"case id '\.\./a' cannot be part of a file name"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, nnunet, write_json, changes, text):
    path = write_json(nnunet | changes)
    with pytest.raises(DatasetError, match=text) as caught:
        open_cases(tmp_path)
    assert str(caught.value).startswith(f"source: {path}: ")


def test_an_image_without_channel_number_is_refused(tmp_path, nnunet, write_json, touch):
    touch("imagesTr/d.nii.gz")
    write_json(nnunet)
    with pytest.raises(
        DatasetError, match=r"imagesTr/d\.nii\.gz has no channel number; rename it to CASE_0000\.nii\.gz"
    ):
        open_cases(tmp_path)


def test_a_missing_label_file_is_counted_and_named(tmp_path, nnunet, write_json):
    (tmp_path / "labelsTr" / "b.nii.gz").unlink()
    write_json(nnunet)
    with pytest.raises(DatasetError, match=r"1 of 9 files are missing, the first is .*/labelsTr/b\.nii\.gz; complete"):
        open_cases(tmp_path)


def test_a_missing_image_folder_is_named(tmp_path, nnunet, write_json):
    (tmp_path / "imagesTr").rename(tmp_path / "images")
    write_json(nnunet)
    with pytest.raises(
        DatasetError, match=r"imagesTr cannot be read \(No such file.*\); put the images there, or list"
    ):
        open_cases(tmp_path)
