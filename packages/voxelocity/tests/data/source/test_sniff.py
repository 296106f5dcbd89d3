from __future__ import annotations

import json

import pytest

from voxelocity.data.source import open_cases
from voxelocity_observe.core.errors import ConfigError, DatasetError


def test_direction_of_labels_tells_msd_from_nnunet(tmp_path, msd, nnunet, write_json):
    write_json(msd)
    assert open_cases(tmp_path).layout == "msd"
    write_json(nnunet)
    for case in "abc":
        (tmp_path / "imagesTr" / f"{case}.nii.gz").unlink()
    assert open_cases(tmp_path).layout == "nnunet"


def test_a_description_by_another_name_is_opened_by_its_path(tmp_path, msd, write_json):
    listing = write_json(msd, "dataset_v2.json")
    cases = open_cases(str(listing))
    assert cases.root == listing
    assert [ref.images[0] for ref in cases] == [tmp_path / "imagesTr" / f"{case}.nii.gz" for case in "abc"]


def test_a_folder_with_one_table_is_opened_by_it(tmp_path, touch):
    touch("a.nii.gz", ".hidden.csv", "notes.txt")
    (tmp_path / "cases.csv").write_text("image\na.nii.gz\n")
    cases = open_cases(tmp_path)
    assert (cases.layout, cases.root, len(cases)) == ("csv", tmp_path, 1)


def test_dataset_json_is_preferred_to_a_table(tmp_path, msd, write_json):
    write_json(msd)
    (tmp_path / "cases.csv").write_text("image\n")
    assert open_cases(tmp_path).layout == "msd"


def test_relative_paths_stay_true_when_the_working_folder_changes(tmp_path, msd, write_json, monkeypatch):
    write_json(msd)
    monkeypatch.chdir(tmp_path.parent)
    cases = open_cases(tmp_path.name)
    monkeypatch.chdir("/")
    assert cases.root == tmp_path
    assert all(path.is_absolute() and path.is_file() for ref in cases for path in (*ref.images, ref.label))


def test_a_leading_tilde_is_the_home_folder(tmp_path, msd, write_json, monkeypatch):
    write_json(msd)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert open_cases(f"~/{tmp_path.name}").root == tmp_path


@pytest.mark.parametrize("name", ["nowhere", "n" * 300], ids=["short", "too long for the disk"])
def test_a_path_that_does_not_exist_is_named(tmp_path, name):
    with pytest.raises(DatasetError, match=rf"source: .*/{name} does not exist; check the spelling"):
        open_cases(tmp_path / name)


def test_a_file_of_another_kind_is_refused(tmp_path, touch):
    touch("scan.nii.gz")
    with pytest.raises(DatasetError, match=r"scan\.nii\.gz is neither a \.json nor a \.csv or \.tsv file; give"):
        open_cases(tmp_path / "scan.nii.gz")


def test_a_folder_holding_neither_is_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"holds neither a dataset\.json nor a \.csv .*; add one"):
        open_cases(tmp_path)


def test_a_description_without_cases_names_the_channels_and_classes_of_a_table(tmp_path, touch, write_json):
    touch("a.nii.gz", "a_seg.nii.gz")
    (tmp_path / "cases.csv").write_text("image,label\na.nii.gz,a_seg.nii.gz\n")
    write_json({"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 3}})
    for path in (tmp_path, tmp_path / "cases.csv"):
        cases = open_cases(path)
        assert (cases.layout, cases.name, cases.channels) == ("csv", "cases", ("CT",))
        assert cases.labels == {0: "background", 3: "liver"}
    write_json({"labels": {"0": "background", "3": "liver"}})
    assert open_cases(tmp_path).labels == {0: "background", 3: "liver"}
    write_json({"channel_names": {"0": "CT"}})
    assert open_cases(tmp_path / "cases.csv").channels == ("CT",)


def test_a_description_that_lists_other_cases_is_left_alone_by_a_table(tmp_path, msd, write_json):
    write_json(msd)
    (tmp_path / "mine.csv").write_text("image,label\nimagesTr/a.nii.gz,labelsTr/a.nii.gz\n")
    cases = open_cases(tmp_path / "mine.csv")
    assert (len(cases), cases.labels, cases.channels) == (1, {}, ("image",))


def test_names_of_more_channels_than_columns_are_refused(tmp_path, touch, write_json):
    touch("a.nii.gz", "b.nii.gz")
    (tmp_path / "cases.csv").write_text("image_0,image_1\na.nii.gz,b.nii.gz\n")
    write_json({"channel_names": {"0": "CT"}})
    with pytest.raises(DatasetError, match=r"names 1 channel\(s\), but cases\.csv has 2 image columns"):
        open_cases(tmp_path)


def test_labels_the_wrong_way_round_for_nnunet_are_shown_turned_round(tmp_path, nnunet, write_json):
    write_json(nnunet | {"labels": {"0": "background", "1": "liver"}})
    with pytest.raises(DatasetError, match=r'maps numbers to names.*turn it into \{"background": 0, "liver": 1\}$'):
        open_cases(tmp_path)


def test_a_data_set_one_folder_below_is_suggested(tmp_path, touch):
    touch("Task09_Spleen/dataset.json")
    with pytest.raises(DatasetError, match=r"did you mean .*/Task09_Spleen\?"):
        open_cases(tmp_path)


def test_several_tables_need_a_choice(tmp_path, touch):
    touch("b.csv", "a.csv")
    with pytest.raises(DatasetError, match=r"holds 2 tables \(a\.csv, b\.csv\) and no dataset\.json; give the path"):
        open_cases(tmp_path)


def test_labels_of_mixed_direction_are_refused(tmp_path, msd, write_json):
    write_json(msd | {"labels": {"0": "background", "spleen": 1}})
    with pytest.raises(DatasetError, match=r'dataset\.json: "labels" mixes two directions: "0" maps to a string and'):
        open_cases(tmp_path)


@pytest.mark.parametrize("num_folds", [1, 0, -3])
def test_fewer_than_two_folds_are_refused(tmp_path, num_folds):
    with pytest.raises(ConfigError, match=rf"num_folds = {num_folds} leaves no case to train on; choose 2 or more"):
        open_cases(tmp_path, num_folds=num_folds)


@pytest.mark.data
def test_hippocampus_has_its_208_cases_in_five_folds(real_data):
    cases = open_cases(real_data / "hippocampus")
    assert (cases.name, cases.layout, len(cases), cases.num_folds) == ("Hippocampus", "msd", 208, 5)
    assert cases.channels == ("MRI",)
    assert cases.labels == {0: "background", 1: "Anterior", 2: "Posterior"}
    assert [ref.fold for ref in cases] == [index % 5 for index in range(208)]
    assert cases.refs[0].images == (real_data / "hippocampus/imagesTr/hippocampus_001.nii.gz",)
    assert len(cases.split(0).validation) == 42


@pytest.mark.data
def test_both_descriptions_of_hippocampus_list_the_same_cases_and_folds(real_data):
    by_entry = open_cases(real_data / "hippocampus")
    by_splits_file = open_cases(real_data / "hippocampus" / "dataset_nnunetv2.json")
    assert by_splits_file.layout == "nnunet"
    assert by_splits_file.refs == by_entry.refs
    assert (by_splits_file.labels, by_splits_file.num_folds) == (by_entry.labels, by_entry.num_folds)


@pytest.mark.data
def test_openkbp_cases_are_called_without_channel_number(real_data):
    cases = open_cases(real_data / "openkbp_headneck_ct")
    assert (cases.layout, len(cases), cases.num_classes) == ("msd", 20, 8)
    splits = json.loads((real_data / "openkbp_headneck_ct" / "splits_final.json").read_text())
    for fold, split in enumerate(splits):
        assert [ref.case_id for ref in cases.split(fold).validation] == sorted(split["val"])
        assert [ref.case_id for ref in cases.split(fold).training] == sorted(split["train"])


@pytest.mark.data
def test_ms_multimodal_has_four_files_per_case(real_data):
    cases = open_cases(real_data / "ms_multimodal")
    assert cases.channels == ("FLAIR", "T1", "T1POST", "T2")
    assert [ref.case_id for ref in cases] == ["ms_patient07", "ms_patient19"]
    assert [path.name for path in cases.refs[1].images] == [f"ms_patient19_000{channel}.nii.gz" for channel in range(4)]
    assert ([ref.fold for ref in cases], cases.num_folds) == ([0, 1], 2)


@pytest.mark.data
def test_a_data_set_of_one_case_has_one_fold(real_data):
    cases = open_cases(real_data / "vs_seg_001")
    assert ([(ref.case_id, ref.fold) for ref in cases], cases.num_folds) == ([("vs_seg_001", 0)], 1)
    assert not cases.split("all").held_out


@pytest.mark.parametrize(
    ("listed", "linked", "is_said"),
    [
        ("ct", "ct/slice_2", True),
        ("ct/slice_1", "ct/slice_2", True),
        ("a.mhd", "a.raw", True),
        ("a.nrrd", "a.raw", True),
        ("a.nii", "a.raw", False),
        ("a.mhd", "b.mhd", False),
    ],
)
def test_links_out_of_the_folder_are_said_of_every_file_of_a_scan(tmp_path, touch, recwarn, listed, linked, is_said):
    touch("set/ct/slice_1", "set/a.mhd", "set/a.nrrd", "set/a.nii", "elsewhere")
    (tmp_path / "set" / linked).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "cases.csv").write_text(f"image\n{listed}\n")
    assert len(open_cases(tmp_path / "set")) == 1
    said = [str(warning.message) for warning in recwarn]
    assert [f"such as {tmp_path}/set/{linked} to {tmp_path}/elsewhere; they are read" in text for text in said] == (
        [True] * is_said
    )
