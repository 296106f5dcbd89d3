"""Which files of a folder belong together, for the ways in which people name them."""

from __future__ import annotations

import pytest

from voxelocity.data.source import group_files


def cases_of(found):
    return {case.case_id: (*case.images.values(), case.label) for case in found.cases}


@pytest.mark.parametrize(
    ("names", "channels", "cases"),
    [
        (
            ["images/a.nii.gz", "images/b.nrrd", "labels/a.nii.gz", "labels/b.seg.nrrd"],
            ("image",),
            {"a": ("images/a.nii.gz", "labels/a.nii.gz"), "b": ("images/b.nrrd", "labels/b.seg.nrrd")},
        ),
        (
            [
                *(f"imagesTr/p_{k:03d}_{c:04d}.nii.gz" for k in (1, 2) for c in (0, 1)),
                *(f"labelsTr/p_{k:03d}.nii.gz" for k in (1, 2)),
            ],
            ("0000", "0001"),
            {
                f"p_{k:03d}": (
                    *(f"imagesTr/p_{k:03d}_{c:04d}.nii.gz" for c in (0, 1)),
                    f"labelsTr/p_{k:03d}.nii.gz",
                )
                for k in (1, 2)
            },
        ),
        (
            ["images/s_2023.mha", "images/s_2024.mha", "labels/s_2023.mha", "labels/s_2024.mha"],
            ("image",),
            {f"s_{year}": (f"images/s_{year}.mha", f"labels/s_{year}.mha") for year in (2023, 2024)},
        ),
        (
            [
                "sub-01/ses-1/anat/sub-01_ses-1_T1w.nii.gz",
                "sub-01/ses-1/anat/sub-01_ses-1_FLAIR.nii.gz",
                "derivatives/manual/sub-01/ses-1/anat/sub-01_ses-1_T1w_dseg.nii.gz",
            ],
            ("FLAIR", "T1w"),
            {
                "sub-01_ses-1": (
                    "sub-01/ses-1/anat/sub-01_ses-1_FLAIR.nii.gz",
                    "sub-01/ses-1/anat/sub-01_ses-1_T1w.nii.gz",
                    "derivatives/manual/sub-01/ses-1/anat/sub-01_ses-1_T1w_dseg.nii.gz",
                )
            },
        ),
        (
            [f"data/{p}/{name}.nii.gz" for p in ("p1", "p2") for name in ("ct", "organs_seg")],
            ("ct",),
            {p: (f"data/{p}/ct.nii.gz", f"data/{p}/organs_seg.nii.gz") for p in ("p1", "p2")},
        ),
        (
            [f"B_{p}/B_{p}_{name}.nii.gz" for p in "12" for name in ("t1", "flair", "seg")],
            ("flair", "t1"),
            {f"B_{p}": tuple(f"B_{p}/B_{p}_{name}.nii.gz" for name in ("flair", "t1", "seg")) for p in "12"},
        ),
        (
            ["a.nii", "a_mask.nii", "b.nii", "b_mask.nii"],
            ("image",),
            {"a": ("a.nii", "a_mask.nii"), "b": ("b.nii", "b_mask.nii")},
        ),
        (
            [f"{p}/{name}.nii.gz" for p in ("p1", "p2") for name in ("image", "label")],
            ("image",),
            {p: (f"{p}/image.nii.gz", f"{p}/label.nii.gz") for p in ("p1", "p2")},
        ),
        (
            [f"Training/{name}/{name}000{k}.nii.gz" for name in ("img", "label") for k in (1, 2)],
            ("image",),
            {f"000{k}": (f"Training/img/img000{k}.nii.gz", f"Training/label/label000{k}.nii.gz") for k in (1, 2)},
        ),
        (
            [f"P_0{k}/{name}.nii.gz" for k in (1, 2) for name in (f"P_0{k}", "GT")],
            ("image",),
            {f"P_0{k}": (f"P_0{k}/P_0{k}.nii.gz", f"P_0{k}/GT.nii.gz") for k in (1, 2)},
        ),
        (
            [f"{kind}/p{k}/{name}.nii.gz" for k in (1, 2) for kind, name in (("images", "ct"), ("labels", "all"))],
            ("ct",),
            {f"p{k}": (f"images/p{k}/ct.nii.gz", f"labels/p{k}/all.nii.gz") for k in (1, 2)},
        ),
        (
            [
                "sub-s1/ses-1/dwi/sub-s1_ses-1_dwi.nii.gz",
                "sub-s1/ses-1/dwi/sub-s1_ses-1_adc.nii.gz",
                "derivatives/sub-s1/ses-1/sub-s1_ses-1_msk.nii.gz",
            ],
            ("adc", "dwi"),
            {
                "sub-s1_ses-1": (
                    "sub-s1/ses-1/dwi/sub-s1_ses-1_adc.nii.gz",
                    "sub-s1/ses-1/dwi/sub-s1_ses-1_dwi.nii.gz",
                    "derivatives/sub-s1/ses-1/sub-s1_ses-1_msk.nii.gz",
                )
            },
        ),
        (
            [f"s{k}/mri/{name}.mgz" for k in (1, 2) for name in ("orig", "aparc.DKTatlas+aseg.deep")],
            ("orig",),
            {f"s{k}": (f"s{k}/mri/orig.mgz", f"s{k}/mri/aparc.DKTatlas+aseg.deep.mgz") for k in (1, 2)},
        ),
    ],
    ids=[
        *("two folders", "nnU-Net", "years", "BIDS", "folder a patient", "BraTS", "side by side", "same names"),
        *("BTCV", "SegTHOR", "two trees", "ISLES22", "FastSurfer"),
    ],
)
def test_images_and_labels_of_one_case_are_found(names, channels, cases):
    found = group_files(names)
    assert found.channels == channels
    assert cases_of(found) == cases
    assert not found.left_out


def test_what_does_not_fit_is_left_out_with_its_reason():
    names = [f"images/{case}.nii.gz" for case in "abc"] + [f"labels/{case}.nii.gz" for case in "abx"]
    found = group_files(names)
    assert cases_of(found)["c"] == ("images/c.nii.gz", "")
    assert found.left_out == (("labels/x.nii.gz", "no image has this name"),)
    names = [f"{p}/{name}.nii.gz" for p in ("p1", "p2", "p3", "p4") for name in ("t1", "t2", "seg")]
    names = [name for name in names if name != "p3/t2.nii.gz"] + ["p1/odd.nii.gz", "p2/liver_mask.nii.gz"]
    found = group_files(names)
    assert {case: files[-1] for case, files in cases_of(found).items()} == {
        "p1": "p1/seg.nii.gz",
        "p2": "",
        "p4": "p4/seg.nii.gz",
    }
    reasons = dict(found.left_out)
    assert reasons["p3"] == "no t2"
    assert reasons["p1/odd.nii.gz"] == "most cases have no such file"
    assert reasons["p2"].startswith("2 label files")


def test_several_label_files_are_masks_or_the_one_next_to_its_image():
    names = [f"{p}/{name}.nii.gz" for p in ("p1", "p2") for name in ("ct", "masks/liver", "masks/spleen")]
    found = group_files(names)
    assert cases_of(found) == {p: (f"{p}/ct.nii.gz", "") for p in ("p1", "p2")}
    assert found.masks == {p: {f"{p}/masks/{name}.nii.gz": name for name in ("liver", "spleen")} for p in ("p1", "p2")}
    assert "--merge-masks" in dict(found.left_out)["p1"]
    found = group_files([*names, "p1/all_seg.nii.gz", "p2/all_seg.nii.gz"])
    assert [case.label for case in found.cases] == ["p1/all_seg.nii.gz", "p2/all_seg.nii.gz"]
    assert dict(found.left_out)["p1/masks/liver.nii.gz"] == "p1/all_seg.nii.gz is the label of its case"
    assert len(group_files([*names, "p1/all_seg.nii.gz"], are_masks=True).masks["p1"]) == 3


def test_images_begin_with_the_name_of_their_label():
    names = ["tr/p-1__CT.nii.gz", "tr/p-1__PT.nii.gz", "tr/p-2__CT.nii.gz", "tr/p-2__PT.nii.gz", "labels/p-1.nii.gz"]
    # Without a label, and named as the others.
    found = group_files([*names, "labels/p-2_mask.nii.gz", "ts/p-30__CT.nii.gz", "ts/p-30__PT.nii.gz"])
    assert found.channels == ("CT", "PT")
    assert cases_of(found) == {
        "p-1": ("tr/p-1__CT.nii.gz", "tr/p-1__PT.nii.gz", "labels/p-1.nii.gz"),
        "p-2": ("tr/p-2__CT.nii.gz", "tr/p-2__PT.nii.gz", "labels/p-2_mask.nii.gz"),
        "p-30": ("ts/p-30__CT.nii.gz", "ts/p-30__PT.nii.gz", ""),
    }


def test_a_name_of_separators_alone_is_no_error():
    group_files(["a_t1.nii.gz", "_.nii.gz", "a_seg.nii.gz"])


RUNS = [f"sub-0{k}/anat/sub-0{k}_run-{run}_T1w.nii.gz" for k in (1, 2) for run in (1, 2)]


def test_runs_of_bids_are_scans_of_their_own_where_every_file_has_one():
    labels = [name.replace("sub", "derivatives/sub", 1).replace("T1w", "dseg") for name in RUNS]
    found = group_files([*RUNS, *labels])
    assert cases_of(found) == {
        f"sub-0{k}_run-{run}": (name, label)
        for (k, run), name, label in zip(((1, 1), (1, 2), (2, 1), (2, 2)), RUNS, labels, strict=True)
    }
    assert not found.left_out
    # A label of the whole session cannot say which of them it was drawn on.
    found = group_files([*RUNS, *(f"derivatives/sub-0{k}_dseg.nii.gz" for k in (1, 2))])
    assert {name: why for name, why in found.left_out if "run-2" in name} == {
        f"sub-0{k}/anat/sub-0{k}_run-2_T1w.nii.gz": f"case sub-0{k} has sub-0{k}/anat/sub-0{k}_run-1_T1w.nii.gz as well"
        for k in (1, 2)
    }
    single = [name for name in (*RUNS, *labels) if "run-1" in name]
    assert list(cases_of(group_files(single))) == ["sub-01", "sub-02"]


@pytest.mark.parametrize(
    ("training", "test"),
    [
        (["imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz"], ["imagesTs/b_0000.nii.gz", "labelsTs/b.nii.gz"]),
        (["imagesTr/a.nii.gz", "labelsTr/a.nii.gz"], ["imagesTs/a.nii.gz"]),
        (["Train/p1/ct.nii.gz", "Train/p1/seg.nii.gz"], ["Test/p2/ct.nii.gz", "Test/p2/seg.nii.gz"]),
        (["training/img/1.nii.gz", "training/gt/1.nii.gz"], ["testing/img/1.nii.gz", "testing/gt/1.nii.gz"]),
        (["mr_train/1_image.nii", "mr_train/1_label.nii"], ["mr_test/2_image.nii", "mr_test/2_label.nii"]),
    ],
)
def test_a_test_set_next_to_a_training_is_not_learned_from(training, test):
    found = group_files([*test, *training])
    assert [(*case.images.values(), case.label) for case in found.cases] == [tuple(training)]
    assert {name for name, why in found.left_out if "test set, which is not learned from" in why} == {*test}


@pytest.mark.parametrize("folders", ["test/p1", "test_1", "latest/p1", "contest/p1"])
def test_a_folder_of_tests_without_a_training_is_what_the_user_names(folders):
    names = [f"{folders}/ct.nii.gz", f"{folders}/seg.nii.gz", "other/p2/ct.nii.gz", "other/p2/seg.nii.gz"]
    assert not group_files(names).left_out


def test_a_test_set_without_labels_is_listed_to_be_predicted():
    names = ["imagesTr/a.nii.gz", "labelsTr/a.nii.gz", "imagesTs/b.nii.gz"]
    found = group_files(names)
    assert cases_of(found) == {"a": (names[0], names[1]), "b": (names[2], "")}
    assert not found.left_out


def test_numbers_match_labels_only_if_nothing_else_differs():
    names = [f"scan/liver-orig{n:03d}.mhd" for n in (1, 2, 3)] + [f"label/liver-seg{n}.mhd" for n in (1, 3)]
    assert {case: files[-1] for case, files in cases_of(group_files(names)).items()} == {
        "liver-orig001": "label/liver-seg1.mhd",
        "liver-orig002": "",
        "liver-orig003": "label/liver-seg3.mhd",
    }
    # Numbers of channels are not those of patients.
    names = [f"{p}_t{n}.nii" for p in ("anna", "ben") for n in (1, 2)] + [f"{p}_seg1.nii" for p in ("anna", "ben")]
    found = group_files(names)
    assert found.channels == ("t1", "t2")
    assert [case.case_id for case in found.cases] == ["anna", "ben"]


def test_folders_are_channels_only_if_labels_have_one_image_in_each():
    names = [f"{channel}/p{n}.nii" for channel in ("CT", "PET", "labels") for n in (1, 2, 3)]
    found = group_files(names)
    assert found.channels == ("CT", "PET")
    assert cases_of(found)["p2"] == ("CT/p2.nii", "PET/p2.nii", "labels/p2.nii")


@pytest.mark.parametrize("path", ["{site}/{kind}/p{n}.nii", "data/{kind}/{site}/p{n}.nii", "{site}/{kind}Tr/p{n}.nii"])
def test_sites_may_number_their_patients_alike(path):
    names = [path.format(site=s, kind=k, n=n) for s in ("a", "b") for k in ("images", "labels") for n in (1, 2)]
    found = group_files(names)
    assert found.channels == ("image",)
    assert [case.case_id for case in found.cases] == ["a_p1", "a_p2", "b_p1", "b_p2"]
    assert all(case.label == case.images["image"].replace("images", "labels") for case in found.cases)


@pytest.mark.parametrize("folder", ["segmentation_data", "a/seg-challenge/train", "image_label_pairs"])
def test_words_in_the_folders_of_all_files_mark_no_labels(folder):
    names = [f"{folder}/{p}/{kind}.nii" for p in ("p1", "p2") for kind in ("ct", "seg")]
    assert cases_of(group_files(names)) == {p: (f"{folder}/{p}/ct.nii", f"{folder}/{p}/seg.nii") for p in ("p1", "p2")}
