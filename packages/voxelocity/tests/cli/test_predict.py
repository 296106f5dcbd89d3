"""`voxelocity predict`: no scan is ever replaced, what cannot be predicted is told first, what can be is written."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
from functools import partial

import nibabel as nib
import numpy as np
import pydicom
import pytest
import torch
from matplotlib.image import imread

from shared.dicom_series import write_series
from shared.refused import assert_refused
from voxelocity.data.decode import read_scan, write_scan
from voxelocity.infer import load_model, predict_files, save_keep_largest, writing
from voxelocity_observe.core.errors import UnpredictedError
from voxelocity_observe.core.whole_file import whole_file

SHAPE = (10, 9, 8)
CPU = torch.device("cpu")


@pytest.fixture
def predict(voxelocity):
    def call(run, *inputs, out, options=()):
        return voxelocity("predict", run, *inputs, "-o", out, "--device", "cpu", *options)

    return call


def names_in(folder):
    """Of the files besides the table and the page."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("predictions."))


def rows_of(folder):
    with (folder / "predictions.csv").open(newline="") as file:
        return {row["case"]: row for row in csv.DictReader(file)}


def scan(path, *, num_channels=None):
    """A scan of noise; four axes where a number of channels is given."""
    path.parent.mkdir(exist_ok=True, parents=True)
    shape = SHAPE if num_channels is None else (*SHAPE, num_channels)
    voxels = np.random.default_rng(len(path.name)).standard_normal(shape).astype(np.float32)
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), path)
    return path


@pytest.mark.parametrize("way", ["file", "folder", "link to the folder", "link to the scan", "hard link"])
def test_no_scan_is_replaced_by_a_prediction(predict, model, tmp_path, way):
    folder = tmp_path / "p1"
    other, file = scan(folder / "a.nii.gz"), scan(folder / "c0.nii.gz")
    before = {path: path.read_bytes() for path in (other, file)}
    inputs, out = [file], folder
    if way == "folder":
        inputs = [folder]
    elif way == "link to the folder":
        out = tmp_path / "link"
        out.symlink_to(folder)
    elif way == "link to the scan":
        out = tmp_path / "out"
        out.mkdir()
        (out / "c0.nii.gz").symlink_to(file)
    elif way == "hard link":
        out = tmp_path / "out"
        out.mkdir()
        (out / "c0.nii.gz").hardlink_to(file)
    ended = predict(model("CT"), *inputs, out=out)
    first = "a" if way == "folder" else "c0"
    assert_refused(
        ended,
        f"the prediction of case '{first}' would be written as {out / first}.nii.gz, over the scan "
        f"{folder / first}.nii.gz; choose another folder with -o",
    )
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(folder.iterdir()) == [other, file]


def test_no_prediction_goes_over_the_scan_of_another_case(predict, model, tmp_path):
    scans = [scan(tmp_path / "x" / "a.nii.gz"), scan(tmp_path / "y" / "b.nii.gz")]
    (tmp_path / "x" / "b.nii.gz").symlink_to(scans[0])
    before = [path.read_bytes() for path in scans]
    ended = predict(model("CT"), *scans, out=tmp_path / "x")
    assert_refused(ended, "the prediction of case 'a'", "choose another folder")
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "b.nii.gz").symlink_to(scans[0])
    ended = predict(tmp_path / "run", *scans, out=tmp_path / "z")
    assert_refused(ended, "case 'b'", f"over the scan {scans[0]}")
    assert [path.read_bytes() for path in scans] == before


def test_no_scan_is_replaced_by_its_probabilities(predict, model, tmp_path):
    file = scan(tmp_path / "out" / "probabilities" / "a.nii.gz")
    before = file.read_bytes()
    ended = predict(model("CT"), file, out=tmp_path / "out", options=["--probabilities"])
    assert_refused(ended, f"the prediction of case 'a' would be written as {file}, over the scan {file}")
    assert file.read_bytes() == before


def test_predictions_beside_their_scans_under_other_names_are_written_again_and_again(predict, model, tmp_path):
    file = scan(tmp_path / "p1" / "c0.nii")
    run, before = model("CT"), file.read_bytes()
    for options in ([], ["--overwrite"], ["--overwrite"]):
        predict(run, file, out=file.parent, options=options).succeeded()
    assert names_in(file.parent) == ["c0.nii", "c0.nii.gz"]
    assert file.read_bytes() == before


def test_a_scan_of_any_format_is_predicted_as_the_nifti_file_of_the_same_scan(predict, model, tmp_path):
    """Each in its own format, at the same place; DICOM has the names of the classes."""
    voxels = np.random.default_rng(0).integers(-500, 500, (8, 9, 10)).astype(np.int16)
    write_series(tmp_path / "p1", voxels)
    array, grid = read_scan(tmp_path / "p1")
    names = ["p2.nrrd", "p3.nii.gz", "p4.mgz"]
    for name in names:
        write_scan(tmp_path / name, array[0], grid)
    run, out = model("CT"), tmp_path / "out"
    for scan_path, name in (("p1", "p1.dcm"), *zip(names, names, strict=True)):
        ended = predict(run, tmp_path / scan_path, out=out).succeeded()
        assert name in ended.out
    expected, expected_grid = read_scan(out / "p3.nii.gz")
    for name in ("p2.nrrd", "p4.mgz"):
        found, found_grid = read_scan(out / name)
        assert np.array_equal(found, expected)
        assert found_grid.is_close(expected_grid)
    written = pydicom.dcmread(out / "p1.dcm")
    assert [segment.SegmentLabel for segment in written.SegmentSequence] == ["organ"]
    frames = written.pixel_array.reshape(-1, 9, 10)
    assert frames.sum() == (expected == 7).sum() > 0
    predict(run, tmp_path / "p1", out=tmp_path / "nifti", options=["--format", "nii.gz"]).succeeded()
    again, again_grid = read_scan(tmp_path / "nifti" / "p1.nii.gz")
    assert np.array_equal(again, expected)
    assert again_grid.is_close(expected_grid)


def test_a_series_with_a_missing_slice_does_not_stop_the_others(predict, model, tmp_path):
    voxels = np.zeros((8, 9, 10), np.int16)
    write_series(tmp_path / "all" / "gap", voxels, places=[0, 1, 2, 3, 4, 6, 7, 8])
    write_series(tmp_path / "all" / "whole", voxels)
    ended = predict(model("CT"), tmp_path / "all", out=tmp_path / "out")
    assert ended.status == 1
    assert "1 slice(s) are missing between CT_004.dcm at 110 mm and CT_003.dcm" in ended.out
    assert names_in(tmp_path / "out") == ["whole.dcm"]


DE_IDENTIFIED = (
    *("PatientName", "PatientBirthDate", "PatientSex", "PatientID"),
    *("AccessionNumber", "StudyID", "StudyDate", "StudyTime", "ReferringPhysicianName"),
)


def without(*names):
    def edit(index, dataset):
        for name in names:
            delattr(dataset, name)

    return edit


def test_a_series_without_what_may_be_empty_becomes_dicom_seg(predict, model, tmp_path):
    write_series(tmp_path / "p1", np.zeros((8, 9, 10), np.int16), edit=without(*DE_IDENTIFIED))
    predict(model("CT"), tmp_path / "p1", out=tmp_path / "out").succeeded()
    written = pydicom.dcmread(tmp_path / "out" / "p1.dcm")
    assert [written[name].value or "" for name in DE_IDENTIFIED] == [""] * len(DE_IDENTIFIED)
    assert written.FrameOfReferenceUID == "1.2.3.4"


def test_a_series_of_which_no_segmentation_can_be_made_is_written_as_nifti(predict, model, tmp_path):
    write_series(
        tmp_path / "all" / "a",
        np.zeros((8, 9, 10), np.int16),
        edit=without("StudyInstanceUID", "FrameOfReferenceUID", "PatientSex"),
    )
    write_series(tmp_path / "all" / "b", np.zeros((8, 9, 10), np.int16))
    run = model("CT")
    facts = ("no DICOM SEG can be made of 1 of 2 series: a (", "lack StudyInstanceUID, FrameOfReferenceUID")
    told = predict(run, tmp_path / "all", out=tmp_path / "out", options=["--dry-run"])
    assert all(fact in told.out for fact in facts)
    ended = predict(run, tmp_path / "all", out=tmp_path / "out")
    ended.succeeded()
    assert all(fact in ended.out for fact in (*facts, "written as .nii.gz instead"))
    assert names_in(tmp_path / "out") == ["a.nii.gz", "b.dcm"]
    assert {case: row["file"] for case, row in rows_of(tmp_path / "out").items()} == {"a": "a.nii.gz", "b": "b.dcm"}
    predict(run, tmp_path / "all", out=tmp_path / "out", options=["--resume"]).succeeded()
    # As the message for a format that was asked for says.
    options = ["--format", "dicom-seg", "--overwrite"]
    refused = predict(run, tmp_path / "all", out=tmp_path / "seg", options=options)
    assert_refused(refused, *facts, "choose --format nii.gz")
    assert not (tmp_path / "seg").exists()
    predict(run, tmp_path / "all", out=tmp_path / "seg", options=["--format", "nii.gz"]).succeeded()


def test_values_that_no_segmentation_can_repeat_are_named_before_the_network_runs(predict, model, tmp_path):
    def edit(index, dataset):
        dataset.PatientSex = "UNKNOWN"

    write_series(tmp_path / "p1", np.zeros((8, 9, 10), np.int16), edit=edit)
    refused = predict(model("CT"), tmp_path / "p1", out=tmp_path / "out", options=["--format", "dicom-seg"])
    assert_refused(refused, "p1 (", "UNKNOWN", "choose --format nii.gz")


def test_no_slice_is_replaced_by_the_segmentation_of_its_series(predict, model, tmp_path):
    files = write_series(tmp_path / "p1", np.zeros((8, 9, 10), np.int16))
    files[0].rename(tmp_path / "p1" / "p1.dcm")
    ended = predict(model("CT"), tmp_path / "p1", out=tmp_path / "p1", options=["--overwrite"])
    assert_refused(ended, "case 'p1' would be written as", "over the scan")


def test_a_prediction_is_not_replaced_unless_that_is_asked_for(predict, model, tmp_path):
    scan(tmp_path / "p1" / "a.nii.gz")
    scan(tmp_path / "p1" / "b_0000.nii.gz")
    (tmp_path / "out").mkdir()
    corrected = tmp_path / "out" / "b.nii.gz"
    corrected.write_bytes(b"by hand")
    ended = predict(model("CT"), tmp_path / "p1", out=tmp_path / "out")
    assert_refused(ended, "1 of 2 predictions already exist", str(corrected), "--overwrite", "another folder with -o")
    assert corrected.read_bytes() == b"by hand"
    left = tmp_path / "out" / ".b.nii.gz.0123456789abcdef.part"
    left.write_bytes(b"of a killed process")
    os.utime(left, (1, 1))
    assert predict(tmp_path / "run", tmp_path / "p1", out=tmp_path / "out", options=["--overwrite"]).status == 0
    assert nib.load(corrected).shape == SHAPE
    assert names_in(tmp_path / "out") == ["a.nii.gz", "b.nii.gz"]


def test_a_command_that_was_interrupted_continues_with_the_scans_that_are_left(predict, model, tmp_path):
    for name in ("a", "b", "c"):
        scan(tmp_path / "p1" / f"{name}.nii.gz")
    out = tmp_path / "out"
    assert predict(model("CT"), tmp_path / "p1" / "b.nii.gz", out=out).status == 0
    kept = out / "b.nii.gz"
    before = kept.read_bytes(), kept.stat().st_mtime_ns
    ended = predict(tmp_path / "run", tmp_path / "p1", out=out, options=["--resume"]).succeeded()
    assert "predicted 2 scans into" in ended.out
    assert (kept.read_bytes(), kept.stat().st_mtime_ns) == before
    assert names_in(out) == ["a.nii.gz", "b.nii.gz", "c.nii.gz"]
    ended = predict(tmp_path / "run", tmp_path / "p1", out=out, options=["--resume"]).succeeded()
    assert "predicted 0 scans into" in ended.out
    assert "2 scans predicted in" in (out / "predictions.html").read_text(), "the page is that of the last predictions"
    both = predict(tmp_path / "run", tmp_path / "p1", out=out, options=["--resume", "--overwrite"])
    assert_refused(both, "--overwrite and --resume: the first replaces predictions, the second keeps them; give one")


def test_a_file_named_twice_is_predicted_once(predict, model, tmp_path):
    file = scan(tmp_path / "p1" / "c0.nii.gz")
    ended = predict(model("CT"), file, file, file.parent, out=tmp_path / "out").succeeded()
    assert "predicted 1 scan into" in ended.out


@pytest.mark.parametrize(
    ("channels", "name", "case", "num_channels", "cure"),
    [
        (["CT"], "c0.nii.gz", "c0", 3, "give that channel alone, as a 3-D file"),
        (["T1", "T2"], "c0.nii.gz", "c0", None, "give these in this order, in one 4-D file or as the files CASE_0000."),
        (["T1", "T2"], "X_0000.nii.gz", "X", None, "as the files CASE_0000.nii.gz to CASE_0001.nii.gz"),
        (["T1", "T2"], "X_0001.nii.gz", "X_0001", None, "as the files CASE_0000.nii.gz to CASE_0001.nii.gz"),
    ],
)
def test_other_channels_are_refused_before_anything_is_written(
    predict, model, tmp_path, channels, name, case, num_channels, cure
):
    file = scan(tmp_path / "p1" / name, num_channels=num_channels)
    has = "3 channels" if num_channels else "1 channel"
    wanted = f"but the network was trained on {len(channels)} ({', '.join(channels)}); "
    ended = predict(model(*channels), file, out=tmp_path / "out")
    assert_refused(ended, f"predict: case '{case}' ({file}) has {has}, {wanted}", cure)
    assert not (tmp_path / "out").exists()


def test_one_of_several_volumes_is_predicted_by_its_number(predict, model, tmp_path):
    file, run = scan(tmp_path / "p1" / "a.nii.gz", num_channels=3), model("CT")
    image = nib.load(file)
    nib.save(nib.Nifti1Image(np.asarray(image.dataobj)[..., 1], image.affine), tmp_path / "p1" / "b.nii.gz")
    predict(run, file, out=tmp_path / "out", options=["--volume", "2"]).succeeded()
    predict(run, tmp_path / "p1" / "b.nii.gz", out=tmp_path / "out").succeeded()
    found, expected = (read_scan(tmp_path / "out" / f"{name}.nii.gz")[0] for name in "ab")
    assert np.array_equal(found, expected)
    ended = predict(run, file, out=tmp_path / "none", options=["--volume", "4"])
    assert_refused(ended, "has no volume 4, but 3 volumes; choose one from 1 to 3")
    (tmp_path / "scans.csv").write_text("case,image,image_volume\nx,p1/a.nii.gz,2\n")
    predict(run, tmp_path / "scans.csv", out=tmp_path / "out").succeeded()
    assert np.array_equal(read_scan(tmp_path / "out" / "x.nii.gz")[0], expected)


@pytest.mark.filterwarnings("ignore:.*the series holds 2 volumes.*:UserWarning")
def test_a_series_of_several_volumes_is_refused_with_their_number_and_what_tells_them_apart(predict, model, tmp_path):
    def edit(index, dataset):
        dataset.EchoTime = 10 * (1 + index // 6)

    voxels = np.random.default_rng(0).integers(0, 99, (12, 9, 10)).astype(np.int16)
    write_series(tmp_path / "mr", voxels, places=[*range(6)] * 2, edit=edit)
    run = model("CT")
    ended = predict(run, tmp_path / "mr", out=tmp_path / "out")
    words = (
        "with 2 volumes, which differ in echo time (EchoTime 10, 20), has 2 channels, but the network was trained on"
    )
    assert_refused(ended, words, "or choose one of several volumes by --volume")
    options = ["--volume", "2", "--format", "dicom-rtstruct"]
    predict(run, tmp_path / "mr", out=tmp_path / "out", options=options).succeeded()
    written = pydicom.dcmread(tmp_path / "out" / "mr.dcm").ReferencedFrameOfReferenceSequence[0]
    images = written.RTReferencedStudySequence[0].RTReferencedSeriesSequence[0].ContourImageSequence
    slices = map(pydicom.dcmread, (tmp_path / "mr").iterdir())
    second = {dataset.SOPInstanceUID for dataset in slices if dataset.EchoTime == 20}
    assert {image.ReferencedSOPInstanceUID for image in images} == second


def test_two_channels_are_taken_from_one_file_or_two(predict, model, tmp_path):
    scan(tmp_path / "p1" / "whole.nii.gz", num_channels=2)
    scan(tmp_path / "p1" / "X_0000.nii.gz")
    scan(tmp_path / "p1" / "X_0001.nii.gz")
    predict(model("T1", "T2"), tmp_path / "p1", out=tmp_path / "out").succeeded()
    assert names_in(tmp_path / "out") == ["X.nii.gz", "whole.nii.gz"]
    assert all(nib.load(path).shape == SHAPE for path in (tmp_path / "out").glob("*.nii.gz"))


def test_broken_scans_do_not_cost_the_others_and_are_listed_at_the_end(predict, model, tmp_path):
    files = [scan(tmp_path / "p1" / f"case_{index}.nii.gz") for index in range(6)]
    files[1].write_bytes(files[1].read_bytes()[:-400])
    files[2].write_bytes(b"")
    files[3].unlink()
    os.mkfifo(files[3])
    scan(files[5], num_channels=2)
    (tmp_path / "p1" / "notes.txt").write_text("")
    ended = predict(model("CT"), tmp_path / "p1", out=tmp_path / "out")
    assert ended.status == 1, ended
    assert "4 of 6 scans could not be predicted" in ended.err
    assert "case_1, case_2, case_3, case_5" in ended.err
    for text in ("truncated", "the file is empty", "is a named pipe", "has 2 channels", "1 of 7 entries", "notes.txt"):
        assert text in ended.out
    assert names_in(tmp_path / "out") == ["case_0.nii.gz", "case_4.nii.gz"]
    assert ended.out.count("->") == 2


def test_a_broken_scan_alone_is_refused(predict, model, tmp_path):
    file = scan(tmp_path / "p1" / "c0.nii.gz")
    file.write_bytes(file.read_bytes()[:-400])
    assert_refused(predict(model("CT"), file, out=tmp_path / "out"), "case 'c0'", str(file), "truncated")


def test_each_line_has_seconds_and_volumes_and_the_table_has_all(predict, model, tmp_path):
    file = scan(tmp_path / "p1" / "c0.nii.gz")
    ended = predict(model("CT"), file, out=tmp_path / "out").succeeded()
    num_voxels = int((nib.load(tmp_path / "out" / "c0.nii.gz").get_fdata() == 7).sum())
    (line,) = [line for line in ended.out.splitlines() if "->" in line]
    assert re.search(r"c0\.nii\.gz  [\d.]+ m?s  organ [\d.]+ ml$", line)
    assert re.search(rf"organ +│? *{num_voxels:,} +│? *[\d.]+", ended.out)


def test_a_doubtful_scan_is_predicted_with_one_warning(predict, model, tmp_path):
    file = scan(tmp_path / "p1" / "c0.nii.gz")
    image = nib.load(file)
    image.header.set_sform(None, 0)
    image.header.set_qform(None, 0)
    nib.save(nib.Nifti1Image(np.zeros(SHAPE, np.uint8), None, image.header), file)
    run = model("CT")
    (run / "run.yaml").write_text("")
    ended = predict(run, file, out=tmp_path / "out").succeeded()
    about_run, about_scan = [line for line in ended.out.splitlines() if line.startswith("warning: ")]
    assert "never validated" in about_run
    assert "case 'c0'" in about_scan
    assert "qform_code and sform_code are 0" in about_scan
    assert "are 0 everywhere" in about_scan
    header = nib.load(tmp_path / "out" / "c0.nii.gz").header
    assert (int(header["qform_code"]), int(header["sform_code"])) == (0, 0)


def test_names_and_folders_are_shown_letter_by_letter(predict, model, tmp_path):
    file = scan(tmp_path / "p1" / "a[red]\x1b]0;x\x9c\n.nii.gz")
    scan(tmp_path / "p1" / "b.nii.gz")
    out = tmp_path / "p[" / "b]q"
    ended = predict(model("CT"), file.parent, out=out).succeeded()
    assert "a[red]?]0;x?" in ended.out
    assert f"predicted 2 scans into {out}" in ended.out
    assert "\x1b" not in ended.out + ended.err


def test_a_name_that_is_not_utf_8_stays_as_it_is_in_files_and_is_escaped_in_the_table(predict, model, tmp_path):
    name, out = os.fsdecode(b"caf\xe9"), tmp_path / "out"
    file, run = scan(tmp_path / "p1" / f"{name}.nii.gz"), model("CT")
    for options in ((), ("--overwrite",)):
        predict(run, file, out=out, options=options).succeeded()
        assert (out / f"{name}.nii.gz").is_file()
        assert list(rows_of(out)) == ["caf\\udce9"]
        assert len((out / "predictions.csv").read_text().splitlines()) == 2
        assert "caf\\udce9" in (out / "predictions.html").read_text()


def test_a_prediction_that_is_complete_when_the_command_is_stopped_has_its_row(model, tmp_path, monkeypatch):
    write, out = writing.PredictionWriter.write, tmp_path / "out"

    def stop_at_b(writer, prediction):
        if prediction.scan.case_id == "b":
            raise KeyboardInterrupt
        write(writer, prediction)

    monkeypatch.setattr(writing.PredictionWriter, "write", stop_at_b)
    inputs = [scan(tmp_path / "p1" / f"{name}.nii.gz") for name in "ab"]
    with pytest.raises(KeyboardInterrupt):
        predict_files(model("CT"), inputs, out, device=CPU, num_threads=1)
    assert names_in(out) == ["a.nii.gz"]
    assert list(rows_of(out)) == ["a"]


@pytest.mark.parametrize(
    ("options", "again"), [([], "with --resume predicts the other scans"), (["--overwrite"], "starts over")]
)
def test_a_full_disk_ends_the_command_with_what_is_there_and_how_to_continue(
    predict, model, tmp_path, monkeypatch, options, again
):
    for name in "abc":
        scan(tmp_path / "in" / f"{name}.nii.gz")

    def on_a_disk_with_room_for_one(path):
        if path.name == "b.nii.gz":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole_file(path)

    monkeypatch.setattr("voxelocity.data.decode.write.whole_file", on_a_disk_with_room_for_one)
    ended = predict(model("CT"), tmp_path / "in", out=(out := tmp_path / "out"), options=options)
    assert ended.status == 2
    assert f"cannot write {out / 'b.nii.gz'} (No space left on device); make space" in ended.err
    assert f"1 prediction of this command is in {out}; the same command {again}" in ended.err
    assert names_in(out) == ["a.nii.gz"]


def test_a_model_that_is_no_text_is_named(predict, model, tmp_path):
    run = model("CT")
    (run / "model.json").write_bytes(b"\xff\xfe\x00")
    ended = predict(run, scan(tmp_path / "p1" / "c0.nii.gz"), out=tmp_path / "out")
    assert_refused(ended, str(run / "model.json"), "is damaged", "train the model again")


def test_another_gpu_is_refused_with_the_cure(predict, model, tmp_path, voxelocity):
    file = scan(tmp_path / "p1" / "c0.nii.gz")
    ended = voxelocity("predict", model("CT"), file, "-o", tmp_path / "out", "--device", "cuda:1")
    assert_refused(ended, "CUDA_VISIBLE_DEVICES=1 and give cuda")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 3.20 GiB for an array"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes\nmore"),
        RuntimeError("can't start new thread"),
        RuntimeError("could not create a primitive"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_too_little_memory_is_one_sentence(predict, model, tmp_path, monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr("voxelocity.infer.predict_scans", refuse)
    ended = predict(model("CT"), scan(tmp_path / "p1" / "c0.nii.gz"), out=tmp_path / "out")
    assert ended.status == 1
    assert len(ended.err.splitlines()) == 1
    assert str(error).splitlines()[0] in ended.err
    assert "use a machine or GPU with more" in ended.err


def test_a_run_keeps_what_its_scans_were_like_and_raises_no_doubt_about_them(predict, finished_run, tiny_msd, tmp_path):
    spec = load_model(finished_run)[1]
    assert spec.num_steps == 40
    assert spec.trained_on.spacing_mm == ((1.0, 1.0),) * 3
    assert spec.trained_on.extent_mm == ((20.0, 20.0), (22.0, 22.0), (18.0, 18.0))
    ended = predict(finished_run, tiny_msd / "imagesTr", out=tmp_path / "out").succeeded()
    assert "warning" not in ended.out


def test_scores_of_cases_that_were_trained_on_say_so(predict, voxelocity, finished_run, tiny_msd, tmp_path):
    known = load_model(finished_run)[1].division
    assert known.training.keys() | known.held_out.keys() == {f"case_{number}" for number in range(6)}
    predict(finished_run, tiny_msd / "imagesTr", out=tmp_path / "out").succeeded()
    sides = {case_id: row["division"] for case_id, row in rows_of(tmp_path / "out").items()}
    assert sides == {case_id: "trained on" if case_id in known.training else "held out" for case_id in sides}
    num = len(known.training)
    assert f"{num} of 6 scans were trained on" in (tmp_path / "out" / "predictions.html").read_text()
    ended = voxelocity("evaluate", tmp_path / "out", tiny_msd, "-o", tmp_path / "scored").succeeded()
    printed = " ".join(ended.out.split())
    assert f"over 6 cases, {num} of which the model was trained on; " in printed
    assert f"{num} of 6 cases were trained on, so means over all cases are too high; held-out mean" in printed
    page, plain = ((tmp_path / "scored" / f"evaluation.{ending}").read_text() for ending in ("html", "json"))
    assert "case_1 (trained on)" in page
    assert json.loads(plain)["num_trained_on"] == num


def test_the_table_has_a_row_for_each_prediction_and_keeps_those_of_others(model, predict, tmp_path):
    run, out = model("MR"), tmp_path / "out"
    scans = [scan(tmp_path / "scans" / f"{name}.nii.gz") for name in "ab"]
    predict(run, *scans, out=out)
    rows = rows_of(out)
    assert list(rows) == ["a", "b"]
    assert rows["a"]["file"] == "a.nii.gz"
    assert rows["a"]["device"] == "cpu"
    assert all(float(rows["a"][f"{stage}_s"]) > 0.0 for stage in ("decode", "prepare", "network", "restore", "write"))
    num_voxels = int((nib.load(out / "a.nii.gz").get_fdata() == 7).sum())
    assert float(rows["a"]["organ_ml"]) == pytest.approx(num_voxels / 1e3)
    # A killed process left half a row; another model's column and another case stay.
    text = (out / "predictions.csv").read_text().splitlines()
    more = [text[0] + ",spleen_ml", text[1] + ",3.5", text[2] + ",", text[1].replace("a,", "c,", 1) + ",4", "d,d.nii"]
    (out / "predictions.csv").write_text("\n".join(more))
    predict(run, scans[0], out=out, options=["--overwrite"])
    rows = rows_of(out)
    assert list(rows) == ["a", "b", "c"]
    assert [row["spleen_ml"] for row in rows.values()] == ["", "", "4"]


def test_probabilities_and_previews_are_written_beside_the_predictions_on_request(model, predict, voxelocity, tmp_path):
    run, out = model("MR"), tmp_path / "out"
    scans = [scan(tmp_path / "scans" / f"{name}.nii.gz") for name in "ab"]
    assert predict(run, *scans, out=out, options=["--probabilities", "--previews"]).status == 0
    assert names_in(out) == ["a.nii.gz", "b.nii.gz", "previews", "probabilities"]
    image = nib.load(out / "probabilities" / "b.nii.gz")
    assert image.shape == (*nib.load(scans[1]).shape, 2)
    np.testing.assert_allclose(image.get_fdata().sum(axis=-1), 1.0, atol=2 / 255)
    picture = imread(out / "previews" / "b.png")
    assert picture.max() > picture.min()
    assert sorted(path.name for path in out.rglob(".*")) == [], "no file is left half written"
    again = predict(run, *scans, out=out, options=["--previews", "--overwrite"])
    stale = out / "probabilities" / "a.nii.gz"
    assert f"2 files next to the predictions that are replaced will stay, such as {stale}, and describe" in again.out
    (out / "b.nii.gz").unlink()
    (out / "previews" / "b.png").unlink()
    assert predict(run, *scans, out=out, options=["--previews", "--resume"]).status == 0
    assert (out / "previews" / "b.png").is_file()
    ended = voxelocity("evaluate", out, out, "-o", tmp_path / "scores").succeeded()
    assert "previews" not in ended.out


def test_masks_statistics_and_label_files_are_written_on_request(model, predict, voxelocity, tmp_path):
    run, out, masks = model("MR"), tmp_path / "out", tmp_path / "masks"
    scans = [scan(tmp_path / "scans" / f"{name}.nii.gz") for name in "ab"]
    options = ["--one-file-per-class", "--statistics"]
    shown = " ".join(predict(run, *scans, out=masks, options=[*options, "--dry-run"]).out.split())
    assert "2 predictions, such as a/organ.nii.gz, each a folder of 1 mask" in shown
    assert "a/statistics.json" in shown
    predict(run, *scans, out=masks, options=options).succeeded()
    predict(run, *scans, out=out, options=["--statistics", "--label-files"]).succeeded()
    assert names_in(masks) == ["a", "b"]
    assert names_in(out) == ["a.nii.gz", "b.nii.gz", "labels.ctbl", "labels.label", "statistics"]
    for name in "ab":
        organ, label = nib.load(masks / name / "organ.nii.gz"), nib.load(out / f"{name}.nii.gz")
        assert np.array_equal(np.asarray(organ.dataobj), np.asarray(label.dataobj) == 7)
        found = json.loads((masks / name / "statistics.json").read_text())
        assert found == json.loads((out / "statistics" / f"{name}.json").read_text())
        assert found["organ"]["volume"] == (np.asarray(label.dataobj) == 7).sum()
    assert rows_of(masks)["a"]["file"] == "a"
    (masks / "a" / "organ.nii.gz").unlink()
    ended = predict(run, *scans, out=masks, options=[*options, "--resume"]).succeeded()
    assert "predicted 1 scan" in ended.out
    assert_refused(predict(run, *scans, out=masks, options=options), "2 of 2 predictions already exist")
    for predictions, truth in ((masks, out), (out, out)):
        ended = voxelocity("evaluate", predictions, truth, "-o", tmp_path / "scores", "--labels", run).succeeded()
        figures = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
        assert figures["classes"]["organ"]["mean_dice"] == 1.0
    refused = predict(run, *scans, out=masks, options=["--one-file-per-class", "--label-files"])
    assert_refused(refused, "--one-file-per-class", "--label-files", "give one of them")


def test_contours_of_a_series_are_the_labels_of_its_volume(model, predict, voxelocity, tmp_path):
    voxels = np.random.default_rng(0).integers(-900, 900, (8, 9, 10)).astype(np.int16)
    write_series(tmp_path / "p1", voxels, edit=without("AccessionNumber"))
    run = model("CT")
    shown = predict(run, tmp_path / "p1", out=tmp_path / "out", options=["--format", "dicom-rtstruct", "--dry-run"])
    assert "1 prediction as RTSTRUCT, such as p1.dcm" in shown.out
    for format in ("dicom-rtstruct", "nii.gz"):
        predict(run, tmp_path / "p1", out=tmp_path / format, options=["--format", format]).succeeded()
    assert 0 < np.asarray(nib.load(tmp_path / "nii.gz" / "p1.nii.gz").dataobj).mean() < 7
    voxelocity(
        "evaluate", tmp_path / "dicom-rtstruct", tmp_path / "nii.gz", "-o", tmp_path / "scores", "--labels", run
    ).succeeded()
    figures = json.loads((tmp_path / "scores" / "evaluation.json").read_text())
    assert figures["classes"]["organ"]["mean_dice"] == 1.0


def test_another_table_of_that_name_is_not_touched(model, predict, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "predictions.csv").write_text("patient,age\n1,70\n")
    ended = predict(model("MR"), scan(tmp_path / "a.nii.gz"), out=out)
    assert_refused(ended, f"{out / 'predictions.csv'} has no column 'case'", "move it away")
    assert (out / "predictions.csv").read_text() == "patient,age\n1,70\n"


def test_a_dry_run_shows_scans_and_memory_and_writes_nothing(model, predict, tmp_path):
    for name in "ab":
        scan(tmp_path / "scans" / f"{name}.nii.gz")
    (tmp_path / "scans" / "broken.nii.gz").write_bytes(b"no scan")
    ended = predict(model("MR"), tmp_path / "scans", out=tmp_path / "out", options=["--dry-run"])
    assert ended.status == 0
    shown = " ".join(ended.out.split())
    assert "2 scans to predict" in shown
    assert "broken.nii.gz: this is not a NIfTI file" in shown
    assert "10 x 9 x 8 voxels" in shown
    assert "scores of 2 classes, in main memory" in shown
    assert "2 predictions, such as a.nii.gz" in shown
    assert "predictions.csv: seconds, memory and volumes" in shown
    assert not (tmp_path / "out").exists()


def test_largest_components_are_kept_unless_that_is_switched_off(predict, model, tmp_path, monkeypatch):
    scan(tmp_path / "p1" / "a.nii.gz")
    run, asked = model("CT"), []
    save_keep_largest(run, ["organ"])

    def nothing_stays(prediction, classes):
        asked.append(list(classes))
        return prediction * 0 if classes else prediction

    monkeypatch.setattr(writing, "keep_largest", nothing_stays)
    for name, options in (("kept", []), ("all", ["--no-postprocess"])):
        assert predict(run, tmp_path / "p1", out=tmp_path / name, options=options).status == 0
    assert asked == [[(1,)], []]
    assert not np.asarray(nib.load(tmp_path / "kept" / "a.nii.gz").dataobj).any()
    assert np.asarray(nib.load(tmp_path / "all" / "a.nii.gz").dataobj).any()


def test_files_of_two_devices_are_those_of_one(finished_run, tiny_msd, tmp_path):
    predict = partial(predict_files, finished_run, [tiny_msd / "imagesTr"], num_threads=1, page=False)
    one = predict(tmp_path / "one", device=CPU)
    two = predict(tmp_path / "two", device=[CPU, CPU])
    assert {scan.case_id for scan in one} == {scan.case_id for scan in two}
    for scan in one:
        volumes = next(other for other in two if other.case_id == scan.case_id).num_voxels
        np.testing.assert_allclose(list(volumes.values()), list(scan.num_voxels.values()), rtol=0.01, atol=2)
    rows = rows_of(tmp_path / "two")
    assert {(row["device"], row["runtime"]) for row in rows.values()} == {("cpu", "eager")}


def test_in_a_program_paths_and_the_device_may_be_texts(model, tmp_path):
    file, out = scan(tmp_path / "p1" / "a.nii.gz"), tmp_path / "out"
    (found,) = predict_files(str(model("CT")), str(file), str(out), device="cpu", num_threads=1)
    assert (found.path, found.device) == (out / "a.nii.gz", "cpu")
    assert found.path.is_file()


def test_a_scan_that_cannot_be_predicted_is_named_after_the_others(finished_run, tiny_msd, tmp_path):
    broken = tmp_path / "broken.nii.gz"
    broken.write_bytes(b"no scan")
    with pytest.raises(UnpredictedError, match=r"1 of \d+ scans could not be predicted"):
        predict_files(finished_run, [tiny_msd / "imagesTr", broken], tmp_path / "out", device=[CPU, CPU], num_threads=1)
