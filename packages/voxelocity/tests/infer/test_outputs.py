"""The format of predictions: as asked for, or as the scans are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shared.dicom_series import write_series
from voxelocity.core.volume import Grid, VolumeRef
from voxelocity.data.decode import read_header, read_scan, write_scan
from voxelocity.infer import outputs
from voxelocity.infer.mask_files import mask_names
from voxelocity.infer.model import PredictionSpec
from voxelocity.infer.outputs import check_can_write, check_segmentations, choose_output
from voxelocity_observe.core.errors import InputError, OutputError


def refs_of(*paths):
    return [VolumeRef(case_id=str(number), images=(Path(path),)) for number, path in enumerate(paths)]


@pytest.fixture
def series(tmp_path):
    write_series(tmp_path / "ct", np.zeros((3, 4, 5), np.int16))
    return tmp_path / "ct"


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["a.nii.gz", "b.nii"], "0.nii.gz"),
        (["a.nrrd", "b.nhdr"], "0.nrrd"),
        (["a.nrrd", "b.nii.gz"], "0.nii.gz"),
        (["a.mha"], "0.nii.gz"),
        (["a.mgz", "b.mgh"], "0.mgz"),
        (["a.mgz", "b.nrrd"], "0.nii.gz"),
        ([], "0.nii.gz"),
    ],
)
def test_auto_follows_the_scans(paths, name):
    assert choose_output("auto", refs_of(*paths), pytest.fail).file_name("0") == name


def test_auto_is_dicom_seg_for_series_and_nifti_with_one_warning_without_highdicom(series, monkeypatch):
    assert choose_output("auto", refs_of(series), pytest.fail).file_name("p1") == "p1.dcm"
    assert choose_output("auto", refs_of(series, "b.nii.gz"), pytest.fail).format == "nii.gz"
    monkeypatch.setattr(outputs, "can_write_segmentations", lambda: False)
    messages = []
    assert choose_output("auto", refs_of(series, series), messages.append).format == "nii.gz"
    assert len(messages) == 1
    assert "pip install 'voxelocity[formats]'" in messages[0]
    with pytest.raises(OutputError, match=r"dicom-seg needs highdicom, which is not installed; pip install"):
        choose_output("dicom-seg", refs_of(series), pytest.fail)


def test_a_format_that_does_not_fit_is_refused(series):
    with pytest.raises(
        InputError, match=r"case '1' \(b\.nrrd\) is not a DICOM series; choose --format nii\.gz, nrrd or mgz"
    ):
        choose_output("dicom-seg", refs_of(series, "b.nrrd"), pytest.fail)
    with pytest.raises(
        InputError, match=r"--format 'png' is not known; choose one of auto, nii\.gz, nrrd, mgz, dicom-seg"
    ):
        choose_output("png", refs_of("a.nii"), pytest.fail)


def spec_of(*names, values=(), **fields):
    labels = dict(zip(values or range(len(names) + 1), ("background", *names), strict=True))
    return PredictionSpec.parse(
        {
            "channels": ["CT"],
            "labels": labels,
            "window": {"shape_voxel": [8, 8, 8]},
            "precision": {"compute": "float32"},
            **fields,
        }
    )


@pytest.fixture
def header(tmp_path):
    write_scan(
        tmp_path / "scan.nii.gz", np.zeros((4, 5, 6), np.int16), Grid.of((4, 5, 6), np.diag([2.0, 2.0, 2.0, 1.0]))
    )
    return read_header(tmp_path / "scan.nii.gz")


def test_each_class_has_a_mask_of_its_own(tmp_path, header):
    spec = spec_of("liver", "lung/left", "never")
    output = choose_output("auto", refs_of("a.nii.gz"), pytest.fail, masks=mask_names(spec))
    assert output.file_name("p1") == "p1"
    assert output.files("p1") == ["p1/liver.nii.gz", "p1/lung_left.nii.gz", "p1/never.nii.gz"]
    classes = np.random.default_rng(0).integers(0, 3, header.grid.shape).astype(np.uint8)
    (tmp_path / "p1").mkdir()
    (tmp_path / "p1" / "ct.nii.gz").write_bytes(b"of the user")
    for folder in ("p1", "p2"):
        output.write(tmp_path / folder, classes, header, spec, also={"statistics.json": b"{}"})
        for index, path in enumerate(output.files(folder), start=1):
            assert np.array_equal(read_scan(tmp_path / path)[0][0], classes == index)
        assert (tmp_path / folder / "statistics.json").read_bytes() == b"{}"
    assert (tmp_path / "p1" / "ct.nii.gz").read_bytes() == b"of the user"
    assert len([*tmp_path.iterdir()]) == 3, "nothing is left over"


def test_masks_of_overlapping_classes_overlap(tmp_path, header):
    spec = spec_of("rest", "core", regions={"whole": [1, 2], "core": [2]}, region_order=[1, 2])
    output = choose_output("nii.gz", refs_of("a.nii.gz"), pytest.fail, masks=mask_names(spec))
    classes = np.random.default_rng(0).integers(0, 3, header.grid.shape).astype(np.uint8)
    output.write(tmp_path / "p1", classes, header, spec)
    assert np.array_equal(read_scan(tmp_path / "p1" / "whole.nii.gz")[0][0], classes > 0)
    assert np.array_equal(read_scan(tmp_path / "p1" / "core.nii.gz")[0][0], classes == 2)


def test_masks_that_cannot_be_written_are_refused(series):
    with pytest.raises(InputError, match=r"classes 'Lung' and 'lung' into one file, lung; leave it out"):
        mask_names(spec_of("Lung", "lung"))
    masks = mask_names(spec_of("lung"))
    assert choose_output("auto", refs_of(series), pytest.fail, masks=masks).format == "nii.gz"
    with pytest.raises(InputError, match=r"--one-file-per-class writes volumes, and RTSTRUCT holds all classes"):
        choose_output("dicom-rtstruct", refs_of(series), pytest.fail, masks=masks)


def test_more_classes_than_a_byte_holds_are_written_with_their_values(tmp_path, header):
    values = [0, *range(1000, 1300)]
    spec = spec_of(*map(str, values[1:]), values=values)
    classes = np.random.default_rng(0).integers(0, 301, header.grid.shape).astype(np.uint16)
    output = choose_output("nii.gz", refs_of("a.nii.gz"), pytest.fail)
    output.write(tmp_path / "p1.nii.gz", classes, header, spec)
    found = read_scan(tmp_path / "p1.nii.gz")[0][0]
    assert found.dtype == np.uint16
    assert np.array_equal(found, np.array(values)[classes])


def test_contours_are_chosen_for_series_alone(series):
    output = choose_output("dicom-rtstruct", refs_of(series), pytest.fail)
    assert output.file_name("p1") == "p1.dcm"
    assert output.in_words(refs_of(series)) == ["1 prediction as RTSTRUCT, such as 0.dcm"]
    with pytest.raises(InputError, match=r"RTSTRUCT refers to the slices of its scan, and case '0' \(a\.nii\)"):
        choose_output("dicom-rtstruct", refs_of("a.nii"), pytest.fail)


def test_a_series_that_no_object_can_refer_to_is_refused_or_written_as_nifti(tmp_path):
    def drop(index, dataset):
        del dataset.FrameOfReferenceUID

    write_series(tmp_path / "ct", np.zeros((3, 4, 5), np.int16), edit=drop)
    headers = {"0": read_header(tmp_path / "ct")}
    output = choose_output("dicom-rtstruct", refs_of(tmp_path / "ct"), pytest.fail)
    with pytest.raises(InputError, match=r"no RTSTRUCT can be made of 1 of 1 series.*lack FrameOfReferenceUID"):
        check_segmentations(output, headers, pytest.fail, is_chosen=True)
    messages = []
    chosen = check_segmentations(output, headers, messages.append, is_chosen=False)
    assert chosen.files("0") == ["0.nii.gz"]
    assert chosen.in_words(refs_of(tmp_path / "ct")) == ["1 prediction as NIfTI, such as 0.nii.gz"]
    assert len(messages) == 1


def test_a_place_that_is_no_folder_is_refused_before_anything_is_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot hold predictions, because .*file is not a folder"):
        check_can_write(tmp_path / "file" / "out")
    check_can_write(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
