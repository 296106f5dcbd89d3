from __future__ import annotations

import os
from pathlib import Path

import pytest

from voxelocity.core.volume import VolumeRef
from voxelocity.data.source import listing, open_cases
from voxelocity.data.source.listing import case_id_of, check_refs
from voxelocity_observe.core.errors import DatasetError


def ref_of(folder: Path, case_id: str, label: str | None = None) -> VolumeRef:
    return VolumeRef(
        case_id=case_id,
        images=(folder / "images" / f"{case_id}.nii.gz",),
        label=None if label is None else folder / "labels" / label,
    )


@pytest.mark.parametrize(
    ("images", "label", "case_id"),
    [
        (["spleen_1.nii.gz"], "spleen_1.nii.gz", "spleen_1"),
        (["spleen_1.nii"], None, "spleen_1"),
        (["scan.v2.nrrd"], None, "scan.v2"),
        (["a_0000.nii.gz"], "a.nii.gz", "a"),
        (["a_0000.nii.gz"], "a_0000.nii.gz", "a_0000"),
        (["a_0000.nii.gz"], None, "a_0000"),
        (["a_0000.nii.gz", "a_0001.nii.gz"], None, "a"),
        (["_0000.nii.gz", "_0001.nii.gz"], None, "_0000"),
        (["a_0001.nii.gz"], "a.nii.gz", "a_0001"),
    ],
)
def test_a_case_is_called_by_its_first_image(images, label, case_id):
    paths = tuple(Path("imagesTr") / image for image in images)
    assert case_id_of(paths, None if label is None else Path("labelsTr") / label) == case_id


def test_each_folder_is_listed_once_however_many_cases_it_holds(tmp_path, touch, monkeypatch):
    names = [f"{index:03d}" for index in range(200)]
    touch(*(f"images/{name}.nii.gz" for name in names), *(f"labels/{name}.nii.gz" for name in names))
    refs = [ref_of(tmp_path, name, f"{name}.nii.gz") for name in reversed(names)]
    listed, scandir = [], os.scandir

    def counted(folder):
        listed.append(folder)
        return scandir(folder)

    monkeypatch.setattr(listing.os, "scandir", counted)
    monkeypatch.setattr(listing.os, "stat", lambda *_: pytest.fail("a file was looked at"))
    checked = check_refs(refs, listing=tmp_path / "dataset.json")
    assert [ref.case_id for ref in checked] == names
    assert sorted(listed) == [str(tmp_path / "images"), str(tmp_path / "labels")]


def test_missing_files_are_counted_and_the_first_is_named(tmp_path, touch):
    touch("images/a.nii.gz", "labels/a.nii.gz", "images/c.nii.gz")
    refs = [ref_of(tmp_path, case_id, f"{case_id}.nii.gz") for case_id in "cba"]
    path = tmp_path / "dataset.json"
    with pytest.raises(DatasetError) as caught:
        check_refs(refs, listing=path)
    assert str(caught.value) == (
        f"source: {path}: 3 of 6 files are missing, the first is {tmp_path / 'images' / 'b.nii.gz'}; "
        "complete the copy of the data set, or correct the list"
    )


@pytest.mark.parametrize("case_id", ["dangling", "\0", "\ud800", "below/a_file"])
def test_what_is_no_file_is_missing(tmp_path, touch, case_id):
    touch("images/below")
    (tmp_path / "images" / "folder.nii.gz").mkdir()
    (tmp_path / "images" / "dangling.nii.gz").symlink_to(tmp_path / "nowhere")
    ref = VolumeRef(case_id="x", images=(tmp_path / f"images/{case_id}.nii.gz",))
    with pytest.raises(DatasetError, match="1 of 1 files are missing"):
        check_refs([ref], listing=tmp_path / "dataset.json")


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (["a.nrrd"], "name one of its files"),
        (["a.nii.gz"], "name one of its files"),
        ([], "no scan was found in it"),
    ],
)
def test_a_folder_in_place_of_a_file_is_called_a_folder(tmp_path, touch, inside, text):
    folder = tmp_path / "series"
    folder.mkdir()
    touch(*(f"series/{name}" for name in inside))
    ref = VolumeRef(case_id="x", images=(folder,))
    with pytest.raises(DatasetError, match=rf"series is a folder, not a file; .*{text}.*; see docs/data-sets\.md"):
        check_refs([ref], listing=tmp_path / "cases.csv")


def test_a_folder_of_other_files_may_be_a_dicom_series(tmp_path, touch):
    touch("ct/IM0001", "ct/IM0002")
    ref = VolumeRef(case_id="x", images=(tmp_path / "ct",))
    assert check_refs([ref], listing=tmp_path / "cases.csv") == (ref,)


@pytest.mark.parametrize(
    ("case_ids", "text"),
    [
        (["n" * 221], "has 221 bytes, and a file name holds 220 of them besides its ending; shorten it"),
        (["é" * 111], "has 222 bytes"),
        (["Case", "case"], "case ids 'Case' and 'case' differ only in capitalization"),
    ],
)
def test_ids_that_some_disks_cannot_hold_are_refused(tmp_path, touch, case_ids, text):
    touch("a.nii.gz")
    with pytest.raises(DatasetError, match=text):
        check_refs([VolumeRef(case_id=name, images=(tmp_path / "a.nii.gz",)) for name in case_ids], listing=tmp_path)


def test_a_file_name_that_is_not_utf8_cannot_name_a_case(tmp_path, nnunet, write_json, touch):
    write_json({name: value for name, value in nnunet.items() if name != "numTraining"})
    name = os.fsdecode("Müller".encode("latin-1"))
    touch(f"imagesTr/{name}_0000.nii.gz", f"imagesTr/{name}_0001.nii.gz", f"labelsTr/{name}.nii.gz")
    with pytest.raises(DatasetError, match=r"case id 'M.udcfcller' cannot be part .*and bytes that are not UTF-8"):
        open_cases(tmp_path)


def test_a_folder_name_beyond_the_file_system_is_reported(tmp_path):
    ref = VolumeRef(case_id="x", images=(tmp_path / ("n" * 300) / "a.nii.gz",))
    with pytest.raises(DatasetError, match=r"source: .*nnn cannot be read \(File name too long\); check"):
        check_refs([ref], listing=tmp_path / "dataset.json")


def test_a_link_to_a_file_is_a_file(tmp_path, touch):
    touch("store/a.nii.gz")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.nii.gz").symlink_to(tmp_path / "store" / "a.nii.gz")
    assert len(check_refs([ref_of(tmp_path, "a")], listing=tmp_path / "dataset.json")) == 1


def test_two_cases_of_one_name_are_refused_with_both_files(tmp_path, touch):
    touch("one/image.nii.gz", "two/image.nii.gz")
    refs = [VolumeRef(case_id="image", images=(tmp_path / folder / "image.nii.gz",)) for folder in ("one", "two")]
    with pytest.raises(DatasetError, match=r"two cases are called 'image' \(.*one/.* and .*two/.*\); .*'case' column"):
        check_refs(refs, listing=tmp_path / "dataset.json")


@pytest.mark.parametrize("case_id", ["", ".", "..", "a/b", "a\\b", "a\nb", "a\0"])
def test_ids_that_are_no_file_names_are_refused(tmp_path, case_id):
    ref = VolumeRef(case_id=case_id, images=(tmp_path / "x.nii.gz",))
    with pytest.raises(DatasetError, match=r"case id '.*' cannot be part of a file name; rename it without slashes"):
        check_refs([ref], listing=tmp_path / "dataset.json")


@pytest.mark.parametrize(
    ("files", "layout", "row"),
    [
        (
            ["images/a.nii.gz", "labels/a.nii.gz"],
            "images in images/ and labels in labels/",
            "images/a.nii.gz,labels/a.nii.gz",
        ),
        (
            ["imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz"],
            "nnU-Net's raw folder without its dataset.json",
            "imagesTr/a_0000.nii.gz,labelsTr/a.nii.gz",
        ),
        (
            ["sub-01/anat/sub-01_T1w.nii.gz", "derivatives/labels/sub-01/anat/sub-01_T1w_dseg.nii.gz"],
            "a BIDS data set",
            "sub-01/anat/sub-01_T1w.nii.gz,derivatives/labels/sub-01/anat/sub-01_T1w_dseg.nii.gz",
        ),
        (
            ["p1/ct.nii.gz", "p1/organs_seg.nii.gz", "p2/ct.nii.gz", "p2/organs_seg.nii.gz"],
            "a folder for each patient",
            "p1/ct.nii.gz,p1/organs_seg.nii.gz",
        ),
        (["a.nii", "a_mask.nii", "b.nii", "b_mask.nii"], "scans side by side", "a.nii,a_mask.nii"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_layout_is_recognized_and_its_table_begun(tmp_path, touch, files, layout, row):
    touch(*files)
    with pytest.raises(DatasetError) as caught:
        open_cases(tmp_path)
    text = str(caught.value)
    assert f"it looks like {layout} ({len(files)} scans): `voxelocity init {tmp_path}` lists its cases" in text
    assert f"or list the cases in {tmp_path / 'cases.csv'}" in text
    lines = str(caught.value).splitlines()
    assert lines[1:3] == ["    image,label", f"    {row}"]
    assert "see docs/data-sets.md" in lines[-1]


def test_the_table_that_is_proposed_opens(tmp_path, touch):
    touch("images/a.nii.gz", "labels/a.nii.gz", "images/b.nii.gz", "labels/b.nii.gz")
    with pytest.raises(DatasetError) as caught:
        open_cases(tmp_path)
    lines = str(caught.value).splitlines()
    (tmp_path / "cases.csv").write_text("\n".join(line for line in lines if line.startswith("    ")))
    assert [ref.label.parent.name for ref in open_cases(tmp_path)] == ["labels", "labels"]


def test_the_table_that_is_proposed_pairs_as_init_does(tmp_path, touch):
    touch("p1/image.nii.gz", "p2/image.nii.gz", "p2/label.nii.gz", "p3/image.nii.gz", "p3/label.nii.gz")
    touch("p4/label.nii.gz", "p5/label_a.nii.gz")
    with pytest.raises(DatasetError) as caught:
        open_cases(tmp_path)
    rows = [line.strip() for line in str(caught.value).splitlines() if line.startswith("    ")]
    assert rows == ["image,label", "p2/image.nii.gz,p2/label.nii.gz", "p3/image.nii.gz,p3/label.nii.gz"]


@pytest.mark.parametrize(
    ("files", "texts"),
    [
        (["a.nii"], ["no file or folder name marks the labels", "image,label", "a.nii,LABEL FILE"]),
        (["x.nii", "masks/y.nii"], ["no label shares its name", "image,label", "x.nii,LABEL FILE"]),
        (
            [f"{p}/{name}.nii.gz" for p in ("s1", "s2") for name in ("ct", "masks/liver", "masks/spleen")],
            ["2 for s1, such as s1/masks/liver.nii.gz", "--merge-masks", "s1/ct.nii.gz,LABEL FILE"],
        ),
        (
            [f"{p}/{name}.nii.gz" for p in ("s1", "s2") for name in ("t1", "t2", "seg_a", "seg_b")],
            ["--merge-masks", "image_0,image_1,label", "s1/t1.nii.gz,s1/t2.nii.gz,LABEL FILE"],
        ),
    ],
    ids=["no label", "no pair", "masks", "raters"],
)
def test_init_is_not_proposed_where_it_would_refuse(tmp_path, touch, files, texts):
    touch(*files)
    with pytest.raises(DatasetError) as caught:
        open_cases(tmp_path)
    assert all(text in str(caught.value) for text in texts)
    assert "lists its cases for you to check" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("series/1.dcm", r"DICOM files in 1 folder\(s\): `voxelocity init .*\n    image,label\n    series,LABEL FILE"),
        ("DICOMDIR", r"DICOM files in 1 folder"),
        ("a.nrrd", r"scans side by side \(1 scans\), and no file or folder name"),
        ("a.mnc", r"scans side by side \(1 scans\), and no file or folder name"),
        ("a.img", r"\.img files are the voxels of a pair: name the \.hdr file of the same name"),
    ],
)
def test_other_formats_are_answered_with_what_was_found_and_an_example(tmp_path, touch, file, found):
    touch(file)
    with pytest.raises(DatasetError, match=found):
        open_cases(tmp_path)
