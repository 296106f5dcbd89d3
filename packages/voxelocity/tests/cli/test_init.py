"""`voxelocity init`: what a folder holds becomes a table that opens, or is refused with what was found."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pydicom
import pytest

from shared.dicom_series import write_series
from shared.refused import assert_refused
from voxelocity.core.volume import Grid, VolumeRef
from voxelocity.data.decode import (
    read_case,
    read_header,
    read_scan,
    source_files,
    write_scan,
    write_segmentation,
)
from voxelocity.data.pipeline.infer_labels import declare_channels
from voxelocity.data.source import open_cases
from voxelocity_observe.core.errors import ScanError


@pytest.fixture
def pairs(tmp_path, tiny_scan):
    """Two folders, images/ and labels/, of three cases."""
    for index in range(3):
        for name, array in zip(("images", "labels"), tiny_scan(index), strict=True):
            (tmp_path / "set" / name).mkdir(parents=True, exist_ok=True)
            nib.save(nib.Nifti1Image(array, np.eye(4)), tmp_path / "set" / name / f"case_{index}.nii.gz")
    return tmp_path / "set"


def test_a_folder_becomes_a_table_that_plan_reads(voxelocity, pairs):
    nib.save(nib.Nifti1Image(np.zeros((2, 2, 2), np.uint8), np.eye(4)), pairs / "labels" / "stray.nii.gz")
    ended = voxelocity("init", pairs).succeeded()
    for text in ("3 cases, 3 with a label; MRI", "case_0", "labels/stray.nii.gz", "no image has this name", "label_2"):
        assert text in ended.out
    assert (pairs / "cases.csv").read_text().splitlines()[:2] == [
        "case,image,label",
        "case_0,images/case_0.nii.gz,labels/case_0.nii.gz",
    ]
    assert json.loads((pairs / "dataset.json").read_text()) == {
        "name": "set",
        "channel_names": {"0": "MRI"},
        "labels": {"background": 0, "label_1": 1, "label_2": 2},
    }
    cases = open_cases(pairs)
    assert (len(cases), cases.channels, cases.class_names) == (3, ("MRI",), ("background", "label_1", "label_2"))
    assert voxelocity("plan", pairs, "--device", "cpu").status == 0
    (pairs / "images" / "gone").symlink_to(pairs / "nowhere")
    assert voxelocity("init", pairs, "--overwrite").status == 0


def test_what_was_written_is_replaced_only_on_request(voxelocity, pairs):
    assert voxelocity("init", pairs).status == 0
    (pairs / "dataset.json").write_text("{}")
    assert_refused(voxelocity("init", pairs), f"{pairs / 'cases.csv'} exists", "--overwrite")
    assert (pairs / "dataset.json").read_text() == "{}"
    assert voxelocity("init", pairs, "--overwrite").status == 0
    assert open_cases(pairs).channels == ("MRI",)


def test_a_description_that_lists_cases_is_never_replaced(voxelocity, own_msd, pairs):
    before = (own_msd / "dataset.json").read_bytes()
    ended = voxelocity("init", own_msd, "--overwrite")
    assert_refused(ended, f"lists the cases of this data set already; open it with `voxelocity plan {own_msd}`")
    ended = voxelocity("init", pairs, "-o", own_msd, "--overwrite")
    assert_refused(ended, "lists the cases of a data set and is never replaced")
    assert (own_msd / "dataset.json").read_bytes() == before
    assert not (own_msd / "cases.csv").exists()


def test_a_table_elsewhere_has_absolute_paths_and_other_tables_do_not_matter(voxelocity, pairs, tmp_path):
    (pairs / "participants.tsv").write_text("participant_id\tage\n")
    voxelocity("init", pairs, "-o", tmp_path / "lists" / "new").succeeded()
    assert open_cases(tmp_path / "lists" / "new").refs[0].images == (pairs / "images" / "case_0.nii.gz",)
    assert not (pairs / "cases.csv").exists()
    assert voxelocity("init", pairs).status == 0
    assert len(open_cases(pairs)) == 3


def test_dicom_series_and_their_segmentations_are_linked_and_trained(voxelocity, tmp_path, tiny_scan, tiny_sets):
    for index in range(2):
        image, label = tiny_scan(index)
        folder = tmp_path / "set" / f"p{index}"
        write_series(folder / "CT", image.T.astype(np.int16), name=f"CT{index}")
        write_series(folder / "scout", image.T[:3].astype(np.int16), name=f"scout{index}")
        header = read_header(folder / "CT")
        write_segmentation(folder / "seg.dcm", label, header, ["Ball" if index else "ball", "core"])
    ended = voxelocity("init", tmp_path / "set").succeeded()
    assert "no DICOM SEG or RTSTRUCT refers to it" in ended.out
    assert "Segments overlap" not in ended.out
    cases = open_cases(tmp_path / "set")
    assert cases.channels == ("CT",)
    assert cases.class_names == ("background", "ball", "core")
    assert [(ref.case_id, ref.label.name) for ref in cases] == [("p0", "seg.dcm"), ("p1", "seg.dcm")]
    run = tmp_path / "run"
    voxelocity("train", tmp_path / "set", "-o", run, "--device", "cpu", *tiny_sets).succeeded()
    assert '"ball"' in (run / "scores.json").read_text()


def test_segments_that_say_that_they_overlap_can_be_learned_as_regions(voxelocity, tmp_path, tiny_scan):
    image, label = tiny_scan(0)
    write_series(tmp_path / "CT", image.T.astype(np.int16))
    header = read_header(tmp_path / "CT")
    write_segmentation(tmp_path / "seg.dcm", label, header, ["ball", "core"])
    dataset = pydicom.dcmread(tmp_path / "seg.dcm")
    dataset.SegmentsOverlap = "YES"
    dataset.save_as(tmp_path / "seg.dcm")
    shown = " ".join(voxelocity("init", tmp_path).succeeded().out.split())
    assert "Segments overlap in some files" in shown
    description = json.loads((tmp_path / "dataset.json").read_text())
    description |= {"labels": {"background": 0, "ball": [1, 3], "core": [2, 3]}, "regions_class_order": [1, 2]}
    (tmp_path / "dataset.json").write_text(json.dumps(description))
    cases = open_cases(tmp_path)
    assert cases.refs[0].structures == (("ball", 1), ("ball", 3), ("core", 2), ("core", 3))
    found = read_case(cases.refs[0], label_values=cases.stored_values).label
    assert np.array_equal(found, label)


@pytest.mark.filterwarnings("ignore:.*the series holds 2 volumes.*:UserWarning")
def test_series_of_several_volumes_have_a_channel_for_each_or_one_by_a_column(voxelocity, tmp_path, tiny_scan):
    for index in range(2):
        image, label = tiny_scan(index)
        planes, folder = image.T.astype(np.int16), tmp_path / f"p{index}"
        num_planes = len(planes)

        def edit(number, dataset, num_planes=num_planes):
            dataset.EchoTime = number // num_planes

        places = [*range(len(planes))] * 2
        write_series(folder / "MR", np.concatenate([planes, planes // 2]), places=places, name=f"MR{index}", edit=edit)
        write_segmentation(folder / "seg.dcm", label, read_header(folder / "MR"), ["ball", "core"])
    voxelocity("init", tmp_path).succeeded()
    assert declare_channels(open_cases(tmp_path)).channels == ("channel_0", "channel_1")
    table = tmp_path / "cases.csv"
    rows = table.read_text().splitlines()
    table.write_text("\n".join([f"{rows[0]},image_volume", *(f"{row},2" for row in rows[1:])]) + "\n")
    assert declare_channels(open_cases(tmp_path)).num_channels == 1
    image = read_case(open_cases(tmp_path).refs[0], label_values=(0, 1, 2)).image
    assert np.array_equal(image[0], tiny_scan(0)[0].astype(np.int16) // 2)


@pytest.mark.nightly
def test_subjects_of_freesurfer_are_trained_predicted_and_compared(voxelocity, tmp_path, tiny_scan, tiny_sets):
    affine = np.array([[-1.0, 0, 0, 9], [0, 0, 1, -9], [0, -1.0, 0, 9], [0, 0, 0, 1]])
    for index in range(3):
        mri = tmp_path / "subjects" / f"s{index}" / "mri"
        mri.mkdir(parents=True)
        for name, array in zip(("orig", "aseg"), tiny_scan(index), strict=True):
            nib.save(nib.MGHImage(array, affine), mri / f"{name}.mgz")
    voxelocity("init", tmp_path / "subjects").succeeded()
    run, out = tmp_path / "run", tmp_path / "out"
    voxelocity("train", tmp_path / "subjects", "-o", run, "--device", "cpu", *tiny_sets).succeeded()
    scan = tmp_path / "subjects" / "s0" / "mri" / "orig.mgz"
    voxelocity("predict", run, scan, "-o", out, "--device", "cpu", "--runtime", "eager").succeeded()
    assert np.allclose(nib.load(out / "orig.mgz").affine, affine)
    (tmp_path / "truth").mkdir()
    scan.with_name("aseg.mgz").rename(tmp_path / "truth" / "orig.mgz")
    voxelocity("evaluate", out, tmp_path / "truth", "-o", tmp_path / "scores", "--labels", run).succeeded()
    assert (tmp_path / "scores" / "evaluation.json").exists()


def test_a_folder_that_is_itself_a_series_is_one_case_of_its_name(voxelocity, tmp_path):
    write_series(tmp_path / "p7", np.zeros((4, 5, 6), np.int16))
    header = read_header(tmp_path / "p7")
    write_segmentation(tmp_path / "p7" / "seg.dcm", np.ones(header.grid.shape, np.uint8), header, ["body"])
    assert voxelocity("init", tmp_path / "p7").status == 0
    (ref,) = open_cases(tmp_path / "p7").refs
    assert (ref.case_id, ref.label) == ("p7", tmp_path / "p7" / "seg.dcm")
    volume = read_case(ref, label_values=(0, 1))
    assert volume.label.min() == 1


def test_series_of_one_patient_stay_in_one_fold_and_the_table_keeps_no_id_of_a_patient(voxelocity, tmp_path):
    for patient, visits in (("x", ("first", "second")), ("y", ("only",))):
        for visit in visits:
            folder = tmp_path / "set" / patient / visit
            write_series(folder, np.zeros((4, 5, 6), np.int16), name=patient + visit)
            header = read_header(folder)
            write_segmentation(folder / "seg.dcm", np.ones(header.grid.shape, np.uint8), header, ["body"])
    assert voxelocity("init", tmp_path / "set").status == 0
    assert "MRN" not in (tmp_path / "set" / "cases.csv").read_text()
    cases = open_cases(tmp_path / "set")
    assert [(ref.case_id, ref.patient) for ref in cases] == [
        ("x_first", "x_first"),
        ("x_second", "x_first"),
        ("y_only", "y_only"),
    ]


@pytest.mark.data
def test_real_dicom_of_several_modalities_becomes_a_table_of_one(voxelocity, real_data, tmp_path):
    ended = voxelocity("init", real_data / "dicom_sts_ct_mr_pet", "-o", tmp_path).succeeded()
    for text in ("1 case, 1 with a label; CT", "MR; the table has CT", "GTV_Mass_CT"):
        assert text in ended.out
    (ref,) = open_cases(tmp_path).refs
    assert ref.structures == (("GTV_Mass_CT", 1),)


def test_what_cannot_be_understood_is_answered_with_what_was_found_and_an_example(voxelocity, tmp_path):
    for name in ("a.nii.gz", "b.nii.gz"):
        nib.save(nib.Nifti1Image(np.zeros((2, 2, 2), np.uint8), np.eye(4)), tmp_path / name)
    ended = voxelocity("init", tmp_path)
    assert ended.status == 2
    for text in ("2 scan files, 0 DICOM series, and no label", "cases.csv", "image,label", "docs/data-sets.md"):
        assert text in ended.err
    assert_refused(voxelocity("init", tmp_path / "gone"), "gone is not a folder")
    (tmp_path / "labels").mkdir()
    values = np.arange(1000).reshape(10, 10, 10).astype(np.int16)
    nib.save(nib.Nifti1Image(values, np.eye(4)), tmp_path / "labels" / "a.nii.gz")
    assert_refused(voxelocity("init", tmp_path), "hold 1,000 different values, at most 256 are classes")
    assert list(Path(tmp_path).glob("*.csv")) == []


def test_a_file_whose_name_is_not_utf8_is_left_out_and_such_a_folder_refused(voxelocity, pairs):
    name = os.fsdecode("Müller.nii.gz".encode("latin-1"))
    for place in ("images", "labels"):
        (pairs / place / "case_2.nii.gz").rename(pairs / place / name)
    ended = voxelocity("init", pairs).succeeded()
    assert "2 cases, 2 with a label" in ended.out
    assert r"images/M\xfcller.nii.gz" in ended.out
    assert "its name is not UTF-8" in ended.out
    ended = voxelocity("init", pairs.rename(pairs.with_name(name)))
    assert_refused(ended, r"M\xfcller.nii.gz is not UTF-8", "rename the folder")


def test_names_that_no_table_can_hold_are_left_out_and_formulas_marked(voxelocity, own_msd, tmp_path):
    folder = tmp_path / "scans"
    folder.mkdir()
    for name, number in (("=cmd|'A0", 0), ("plain", 1), ("nl\nx", 2)):
        shutil.copy(own_msd / "imagesTr" / f"case_{number}.nii.gz", folder / f"{name}.nii.gz")
        shutil.copy(own_msd / "labelsTr" / f"case_{number}.nii.gz", folder / f"{name}_label.nii.gz")
    ended = voxelocity("init", folder)
    assert ended.status == 0
    assert "a line break or another control character" in " ".join((ended.out + ended.err).split())
    table = (folder / "cases.csv").read_text()
    assert "\n=cmd" not in table
    assert "'=cmd" in table
    assert {ref.case_id for ref in open_cases(folder)} == {"=cmd|'A0", "plain"}


def save(path, voxels, affine=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels, np.eye(4) if affine is None else affine), path)


SLICER = "Segment0_LabelValue:=7\nSegment0_Name:=left kidney\nSegment1_LabelValue:=200\nSegment1_Name:=tumor\n"
SNAP = (
    '# ITK-SNAP\n  0  0 0 0  0 0 0  "Clear Label"\n  7  255 0 0  1 1 1  "left kidney"\n  200  0 9 0  1 1 1  "tumor"\n'
)
COLORS = "# Color table\n0 background 0 0 0 0\n7 left kidney 221 130 101 255\n200 tumor 144 238 144 255\n"


@pytest.mark.parametrize(
    ("name", "text", "is_known"),
    [
        ("drawn.label", SNAP, True),
        ("segments.ctbl", COLORS, True),
        ("colors.txt", COLORS, True),
        ("colors.txt", COLORS.replace("200", "201"), False),
        ("colors.txt", COLORS.replace("tumor", "left kidney"), False),
        ("notes.txt", "7 patients were 200 days late", False),
    ],
)
def test_classes_get_the_names_of_a_table_of_labels(voxelocity, pairs, name, text, is_known):
    for path in (pairs / "labels").iterdir():
        save(path, np.array([0, 7, 200], np.uint8)[nib.load(path).get_fdata().astype(int)])
    (pairs / name).write_text(text)
    out = voxelocity("init", pairs).succeeded().out
    names = ("left kidney", "tumor") if is_known else ("label_7", "label_200")
    assert open_cases(pairs).class_names == ("background", *names)
    assert (f"The classes have the names of {name}" in out) is is_known
    if is_known:
        # Two tables that differ name nothing.
        (pairs / "other.ctbl").write_text(COLORS.replace("tumor", "cyst"))
        voxelocity("init", pairs, "--overwrite").succeeded()
        assert open_cases(pairs).class_names == ("background", "label_7", "label_200")


def test_segments_of_slicer_have_their_names(voxelocity, tmp_path, tiny_scan):
    pytest.importorskip("SimpleITK")
    for index in range(3):
        image, label = tiny_scan(index)
        grid = Grid.of(image.shape, np.eye(4))
        write_scan(tmp_path / f"c{index}.nrrd", image, grid)
        path = tmp_path / f"c{index}.seg.nrrd"
        write_scan(path, np.array([0, 7, 200], np.uint8)[label], grid)
        head, _, voxels = path.read_bytes().partition(b"\n\n")
        path.write_bytes(head + b"\n" + SLICER.encode() + b"\n" + voxels)
    voxelocity("init", tmp_path).succeeded()
    assert open_cases(tmp_path).class_names == ("background", "left kidney", "tumor")


def save_masks(folder, tiny_scan, *, inside="segmentations"):
    for index in range(3):
        image, label = tiny_scan(index)
        case = folder / f"s{index}"
        save(case / "ct.nii.gz", image)
        save(case / inside / "mask_core.nii.gz", (label == 2).astype(np.uint8))
        if index < 2:
            save(case / inside / "mask_outer.nii.gz", (label > 0).astype(np.uint8) * 255)


def test_a_folder_of_masks_of_one_class_each_is_read_as_one_label(voxelocity, tmp_path, tiny_scan):
    save_masks(tmp_path / "set", tiny_scan)
    ended = voxelocity("init", tmp_path / "set").succeeded()
    assert "folder of masks of one class each, as s0/segmentations/ has 2" in " ".join(ended.out.split())
    assert "lie in mask_outer and in mask_core, and count as mask_core" in " ".join(ended.out.split())
    assert not (tmp_path / "set" / "merged_labels").exists()
    cases = open_cases(tmp_path / "set")
    # The larger one comes first, so that the one inside it is not lost.
    assert cases.class_names == ("background", "mask_outer", "mask_core")
    with pytest.warns(UserWarning, match="masks overlap: .* count as mask_core"):
        found = [read_case(ref, label_values=(0, 1, 2)).label for ref in cases.refs]
    for index, label in enumerate(found):
        whole = tiny_scan(index)[1]
        expected = np.where(whole == 2, 2, (whole > 0) * (index < 2))
        assert np.argwhere(label != expected).tolist() == [], (index, np.unique(label), np.unique(expected))
    with pytest.warns(UserWarning, match="reported once per data set"):
        assert voxelocity("plan", tmp_path / "set", "--device", "cpu").status == 0
    # A label as one file is scored against the masks.
    for ref, label in zip(cases.refs, found, strict=True):
        save(tmp_path / "out" / f"{ref.case_id}.nii.gz", label)
    scores = tmp_path / "scores"
    voxelocity("evaluate", tmp_path / "out", tmp_path / "set", "-o", scores).succeeded()
    assert json.loads((scores / "evaluation.json").read_text())["mean_dice"] == 1.0
    (tmp_path / "set" / "dataset.json").unlink()
    told = voxelocity("plan", tmp_path / "set")
    assert_refused(told, "its structures have names (mask_core, mask_outer)", '"labels"')


def test_a_mask_that_changed_is_another_label_for_the_cache(tmp_path, tiny_scan):
    save_masks(tmp_path, tiny_scan)
    files = source_files(tmp_path / "s0" / "segmentations")
    assert [file.name for file in files] == ["mask_core.nii.gz", "mask_outer.nii.gz"]


def test_a_folder_without_a_mask_of_any_class_is_named(tmp_path, tiny_scan):
    save_masks(tmp_path, tiny_scan)
    ref = VolumeRef(
        case_id="a",
        images=(tmp_path / "s0/ct.nii.gz",),
        label=tmp_path / "s0/segmentations",
        structures=(("liver", 1),),
    )
    with pytest.raises(ScanError, match="none of the classes liver is among its structures"):
        read_case(ref, label_values=(0, 1))
    shutil.copy(ref.label / "mask_core.nii.gz", ref.label / "Mask_Core.nii.gz")
    with pytest.raises(ScanError, match=r"two masks of one class, Mask_Core.nii.gz and mask_core.nii.gz; keep one"):
        read_case(ref, label_values=(0, 1))


def test_labels_of_several_raters_are_chosen_or_counted(voxelocity, tmp_path):
    values = np.array([[0, 1, 1], [0, 1, 2], [1, 1, 3]], np.uint8)
    for case in ("p1", "p2", "p3"):
        save(tmp_path / case / "t1.nii.gz", np.arange(3.0).reshape(3, 1, 1).astype(np.float32))
        for rater in range(3):
            save(tmp_path / case / f"seg_rater{rater + 1}.nii.gz", values[rater].reshape(3, 1, 1))
    told = voxelocity("init", tmp_path)
    assert told.status == 2
    assert "--raters majority takes the majority" in told.err
    assert_refused(voxelocity("init", tmp_path, "--raters", "rater"), "3 label files of case p1 have 'rater'")
    voxelocity("init", tmp_path, "--raters", "rater2").succeeded()
    assert [ref.label.name for ref in open_cases(tmp_path).refs] == ["seg_rater2.nii.gz"] * 3
    voxelocity("init", tmp_path, "--raters", "majority", "--overwrite").succeeded()
    cases = open_cases(tmp_path)
    assert cases.class_names == ("background", "label_1", "label_2", "label_3")
    # Of three different values the smallest is taken.
    assert read_case(cases.refs[0], label_values=(0, 1, 2, 3)).label.ravel().tolist() == [0, 1, 1]


def test_patterns_say_which_files_are_images_and_labels(voxelocity, tmp_path, tiny_scan):
    for index in range(3):
        image, label = tiny_scan(index)
        for channel in ("a", "b"):
            save(tmp_path / "x" / f"q{index}" / f"z_{channel}.nii.gz", image)
        save(tmp_path / "y" / f"q{index}" / "v1.nii.gz", label)
    images, labels = ("--image", "x/{case}/z_{channel}.nii.gz"), ("--label", "y/{case}/*.nii.gz")
    voxelocity("init", tmp_path, *images, *labels).succeeded()
    cases = open_cases(tmp_path)
    assert (cases.channels, len(cases), cases.refs[1].label) == (("a", "b"), 3, tmp_path / "y" / "q1" / "v1.nii.gz")
    assert_refused(voxelocity("init", tmp_path, *images), "--image and --label go together")
    ended = voxelocity("init", tmp_path, *images, "--label", "y/{name}.nii.gz", "--overwrite")
    assert_refused(ended, "has {name}; its fields are {case} and {class}")
    ended = voxelocity("init", tmp_path, "--image", "x/*/z_{channel}.nii.gz", *labels, "--overwrite")
    assert_refused(ended, "does not say what distinguishes cases; write {case}")
    ended = voxelocity("init", tmp_path, "--image", "x/{case}/*.nii.gz", *labels, "--overwrite")
    assert_refused(ended, "z_a.nii.gz and x/q0/z_b.nii.gz for the same channel of case q0")
    ended = voxelocity("init", tmp_path, *images, "--label", "w/{case}.nii.gz", "--overwrite")
    assert_refused(ended, "no file has a name like --label 'w/{case}.nii.gz'; there are x/q0/z_a.nii.gz")


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("q_{index}/masks/q_{index}_{part}", ()),
        ("masks/q_{index}_{part}_final", ("q_{case}/ct.nii.gz", "masks/q_{case}_{class}_final.nii.gz")),
        ("q_{index}/{part}/mask", ("{case}/ct.nii.gz", "{case}/{class}/mask.nii.gz")),
    ],
)
def test_classes_have_the_names_that_distinguish_the_masks_of_a_case(voxelocity, tmp_path, tiny_scan, name, patterns):
    for index in range(3):
        image, label = tiny_scan(index)
        save(tmp_path / "set" / f"q_{index}" / "ct.nii.gz", image)
        for value, part in enumerate(("left_lung", "right_lung"), start=1):
            path = tmp_path / "set" / f"{name.format(index=index, part=part)}.nii.gz"
            save(path, (label == value).astype(np.uint8))
    options = [word for pair in zip(("--image", "--label"), patterns, strict=False) for word in pair]
    voxelocity("init", tmp_path / "set", *options).succeeded()
    cases = open_cases(tmp_path / "set")
    assert cases.class_names == ("background", "left_lung", "right_lung")
    for index, ref in enumerate(cases.refs):
        assert np.array_equal(read_case(ref, label_values=(0, 1, 2)).label, tiny_scan(index)[1])


def test_masks_of_one_class_each_next_to_their_image_are_merged_by_the_command_that_plan_proposes(
    voxelocity, tmp_path, tiny_scan
):
    save_masks(tmp_path / "set", tiny_scan, inside="")
    told = voxelocity("plan", tmp_path / "set")
    command = f"voxelocity init {tmp_path / 'set'} --merge-masks"
    assert told.status == 2
    assert f"`{command}` merges those of a case" in told.err
    assert command in voxelocity("init", tmp_path / "set").err
    ended = voxelocity(*command.split()[1:]).succeeded()
    assert "masks overlap in 2 of 3 cases" in ended.out
    cases = open_cases(tmp_path / "set")
    assert cases.class_names == ("background", "mask_outer", "mask_core")
    for index, ref in enumerate(cases.refs):
        whole = tiny_scan(index)[1]
        expected = np.where(whole == 2, 2, (whole > 0) * (index < 2))
        assert np.array_equal(read_case(ref, label_values=(0, 1, 2)).label, expected)
    assert voxelocity("plan", tmp_path / "set", "--device", "cpu").status == 0
    # The merged files are not taken for labels of their own.
    voxelocity(*command.split()[1:], "--overwrite").succeeded()
    assert len(open_cases(tmp_path / "set")) == 3
    voxelocity(*command.split()[1:], "-o", tmp_path / "elsewhere").succeeded()
    assert open_cases(tmp_path / "elsewhere").refs[0].label == tmp_path / "elsewhere" / "merged_labels" / "s0.nii.gz"


def test_merged_masks_replace_no_file_of_the_users_own_unless_told_to(voxelocity, tmp_path, tiny_scan):
    image, label = tiny_scan(0)
    case, own = tmp_path / "s0", tmp_path / "merged_labels" / "s0.nii.gz"
    save(case / "ct.nii.gz", image)
    for value in (1, 2):
        save(case / f"mask_part{value}.nii.gz", (label == value).astype(np.uint8))
    own.parent.mkdir()
    own.write_bytes(b"drawn by hand")
    assert_refused(voxelocity("init", tmp_path, "--merge-masks"), str(own), "--overwrite")
    assert own.read_bytes() == b"drawn by hand"
    voxelocity("init", tmp_path, "--merge-masks", "--overwrite").succeeded()
    assert open_cases(tmp_path).refs[0].label == own


def test_what_is_no_mask_is_not_merged(voxelocity, tmp_path):
    ball = np.zeros((6, 6, 6), np.uint8)
    ball[2:4, 2:4, 2:4] = 1
    save(tmp_path / "p1" / "ct.nii.gz", ball.astype(np.int16))
    save(tmp_path / "p1" / "masks" / "a.nii.gz", ball)
    save(tmp_path / "p1" / "masks" / "b.nii.gz", ball + 1)
    ended = voxelocity("init", tmp_path, "--merge-masks")
    assert_refused(ended, "b.nii.gz holds the values 1, 2 besides 0, and a mask has only one")
    save(tmp_path / "p1" / "masks" / "b.nii.gz", ball, np.diag([1, 1, 2, 1]))
    ended = voxelocity("init", tmp_path, "--merge-masks")
    assert_refused(ended, "b.nii.gz", "image and mask lie up to")
    assert not (tmp_path / "cases.csv").exists()


def ct(index=0):
    return np.random.default_rng(index).integers(-1000, 800, (16, 16, 16)).astype(np.int16)


def mr(index=0):
    return np.random.default_rng(index).integers(0, 400, (16, 16, 16)).astype(np.int16)


@pytest.fixture
def mixed(tmp_path):
    """Makes cases with these names and voxels, each with a label."""

    def make(**cases):
        label = np.zeros((16, 16, 16), np.uint8)
        label[4:12, 4:12, 4:12] = 1
        for name, voxels in cases.items():
            save(tmp_path / "set" / name / "image.nii.gz", voxels)
            save(tmp_path / "set" / name / "label.nii.gz", label)
        return tmp_path / "set"

    return make


def test_scans_of_another_kind_are_left_out_of_the_table(voxelocity, mixed, tmp_path):
    folder = mixed(a_ct=ct(1), b=ct(2), c_ct=ct(3), d_mr=mr(4), e_mri=mr(5))
    ended = voxelocity("init", folder).succeeded()
    assert "MRI; the table has CT" in ended.out
    cases = open_cases(folder)
    assert (cases.channels, [ref.case_id for ref in cases]) == (("CT",), ["a_ct", "b", "c_ct"])
    # As the note says.
    assert "move them to a separate folder" in " ".join(ended.out.split())
    for name in ("d_mr", "e_mri"):
        shutil.move(folder / name, tmp_path / "others" / name)
    voxelocity("init", tmp_path / "others").succeeded()
    assert open_cases(tmp_path / "others").channels == ("MRI",)
    # A scan with air among MR scans is a CT, whatever its name.
    shutil.rmtree(folder)
    folder = mixed(x_mr=mr(1), y_mr=mr(2), z=ct(3))
    voxelocity("init", folder, "-o", tmp_path / "more").succeeded()
    assert [ref.case_id for ref in open_cases(tmp_path / "more")] == ["x_mr", "y_mr"]


def test_scans_of_which_nothing_says_the_kind_are_not_called_ct(voxelocity, mixed):
    folder = mixed(a=ct(1), b=mr(2), c=ct(3), d=mr(4))
    ended = voxelocity("init", folder).succeeded()
    text = " ".join(ended.out.split())
    assert "Are all scans CT? 2 of 4 that were read contain no air near -1000, such as b/image.nii.gz (from 0)" in text
    assert open_cases(folder).channels == ("image",)
    planned = voxelocity("plan", folder, "--device", "cpu").succeeded()
    text = " ".join(planned.out.replace("│", " ").split())
    assert "data.prepare.intensity.mode = zscore" in text
    # As the note says, if all of them are CT; the plan then still doubts it.
    description = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**description, "channel_names": {"0": "CT"}}))
    with pytest.warns(UserWarning, match="called CT, but 2 of 4 sampled cases, such as b, contain no air near -1000"):
        voxelocity("plan", folder, "--device", "cpu").succeeded()


def test_films_without_a_label_are_left_out(voxelocity, mixed):
    folder = mixed(p1=mr(1), p2=mr(2))
    save(folder / "p0" / "image.nii.gz", np.stack([mr(3), mr(4)], axis=-1))
    ended = voxelocity("init", folder).succeeded()
    assert "no label, and 2 channels; others have 1" in " ".join(ended.out.split())
    assert voxelocity("plan", folder, "--device", "cpu").status == 0


def test_folders_seven_deep_are_found(voxelocity, tmp_path):
    deep = tmp_path / "Training" / "R1" / "sub-1" / "ses-1" / "anat" / "more"
    save(deep / "sub-1_ses-1_T1w.nii.gz", mr())
    save(deep / "sub-1_ses-1_desc-lesion_mask.nii.gz", (mr() > 200).astype(np.uint8))
    voxelocity("init", tmp_path).succeeded()
    assert open_cases(tmp_path).channels == ("T1w",)


def test_pairs_of_header_and_voxels_are_one_scan_each(voxelocity, tmp_path):
    for name, voxels in (("a", mr()), ("a_mask", (mr() > 200).astype(np.uint8)), ("b", mr()), ("b_mask", mr() > 200)):
        nib.save(nib.Nifti1Pair(voxels.astype(np.int16), np.eye(4)), tmp_path / f"{name}.img")
    shown = voxelocity("init", tmp_path).succeeded()
    assert ".img" not in shown.out
    cases = open_cases(tmp_path)
    assert [(ref.case_id, ref.images[0].name, ref.label.name) for ref in cases] == [
        ("a", "a.hdr", "a_mask.hdr"), ("b", "b.hdr", "b_mask.hdr")
    ]  # fmt: skip
    assert "1 cases" not in voxelocity("plan", tmp_path).succeeded().out


def test_unlabeled_bids_data_and_dicom_get_a_table_to_fill_in(voxelocity, tmp_path):
    save(tmp_path / "bids" / "sub-01" / "anat" / "sub-01_T1w.nii.gz", mr())
    write_series(tmp_path / "dicom" / "p1" / "CT", np.zeros((4, 5, 6), np.int16))
    for folder, image in (("bids", "sub-01/anat/sub-01_T1w.nii.gz"), ("dicom", "p1/CT")):
        ended = voxelocity("init", tmp_path / folder)
        assert ended.status == 2
        rows = [line.strip() for line in ended.err.splitlines() if line.startswith("    ")]
        assert rows == ["image,label", f"{image},LABEL FILE OF THIS CASE"]
        # As the message says.
        voxels, grid = read_scan(tmp_path / folder / image)
        write_scan(tmp_path / folder / "mine.nii.gz", (voxels[0] > 9).astype(np.uint8), grid)
        (tmp_path / folder / "cases.csv").write_text("\n".join(rows).replace("LABEL FILE OF THIS CASE", "mine.nii.gz"))
        assert len(open_cases(tmp_path / folder)) == 1
