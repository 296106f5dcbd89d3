"""RTSTRUCT of a prediction: read again, it is the prediction, and it refers to the slices of its series."""

from __future__ import annotations

import numpy as np
import pytest

from shared.dicom_series import named_label, write_enhanced, write_series
from voxelocity.data.decode import (
    read_header,
    read_structures_header,
    what_contours_lack,
    write_contours,
)
from voxelocity_observe.core.errors import OutputError

pydicom = pytest.importorskip("pydicom")

NAMES = ("liver", "never seen", "kidney\\left")
VALUES = {"liver": 1, "never seen": 2, "kidney/left": 3}


def classes_on(header):
    """A ring, a shape of noise, and nothing of the second class."""
    classes = np.zeros(header.grid.shape, np.uint8)
    classes[1:-1, 1:-1, 1:-1] = 1
    classes[3:5, 3:5] = 0
    classes[np.random.default_rng(0).random(classes.shape) < 0.2] = 3
    return classes


@pytest.mark.parametrize("directions", [(1, 0, 0, 0, 1, 0), (0.8, 0.6, 0.0, 0.0, 0.0, -1.0)])
def test_classes_come_back_from_the_contours(tmp_path, directions):
    write_series(tmp_path / "ct", np.zeros((4, 9, 8), np.int16), directions=directions)
    header = read_header(tmp_path / "ct")
    classes = classes_on(header)
    write_contours(tmp_path / "a.dcm", classes, header, NAMES)
    assert read_structures_header(tmp_path / "a.dcm").names == tuple(VALUES)
    assert np.array_equal(named_label(tmp_path / "a.dcm", header.grid, VALUES), classes)
    written, source = pydicom.dcmread(tmp_path / "a.dcm"), pydicom.dcmread(header.slices[0].path)
    for name in ("FrameOfReferenceUID", "StudyInstanceUID", "PatientID", "PatientName"):
        assert written[name].value == source[name].value
    assert written.SeriesInstanceUID != source.SeriesInstanceUID
    series = written.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence[0].RTReferencedSeriesSequence[0]
    assert series.SeriesInstanceUID == source.SeriesInstanceUID
    uids = {slice_.uid for slice_ in header.slices}
    assert {image.ReferencedSOPInstanceUID for image in series.ContourImageSequence} == uids
    for region in written.ROIContourSequence:
        for contour in region.get("ContourSequence", ()):
            assert contour.ContourImageSequence[0].ReferencedSOPInstanceUID in uids
            assert all(len(str(value)) <= 16 for value in contour.ContourData)


def test_contours_lie_where_their_slices_do(tmp_path):
    # One of them is off its place on a regular grid, by less than is refused.
    write_series(tmp_path / "ct", np.zeros((4, 9, 8), np.int16), places=[0, 1.05, 2, 3])
    header = read_header(tmp_path / "ct")
    write_contours(tmp_path / "a.dcm", np.ones(header.grid.shape, np.uint8), header, ["a"])
    found = pydicom.dcmread(tmp_path / "a.dcm").ROIContourSequence[0].ContourSequence
    places_mm = [slice_.position_mm[2] for slice_ in header.slices]
    assert [float(contour.ContourData[2]) for contour in found] == pytest.approx(places_mm)


def test_contours_refer_to_frames_of_an_enhanced_file(tmp_path):
    voxels = np.zeros((4, 9, 8), np.int16)
    header = read_header(write_enhanced(tmp_path / "all.dcm", voxels, order=[2, 0, 3, 1]))
    classes = np.zeros(header.grid.shape, np.uint8)
    classes[2:4, 3:5, 1:4] = 1
    assert what_contours_lack(header) == ""
    write_contours(tmp_path / "a.dcm", classes, header, ["a"])
    assert np.array_equal(named_label(tmp_path / "a.dcm", header.grid, {"a": 1}), classes)
    found = pydicom.dcmread(tmp_path / "a.dcm").ROIContourSequence[0].ContourSequence
    assert [contour.ContourImageSequence[0].ReferencedFrameNumber for contour in found] == [4, 1, 3]


def test_what_a_series_lacks_is_named_and_what_may_be_empty_is(tmp_path):
    def edit(index, dataset):
        del dataset.AccessionNumber, dataset.PatientSex

    write_series(tmp_path / "ct", np.zeros((3, 5, 6), np.int16), edit=edit)
    header = read_header(tmp_path / "ct")
    assert what_contours_lack(header) == ""
    write_contours(tmp_path / "a.dcm", np.ones(header.grid.shape, np.uint8), header, ["a"])
    assert pydicom.dcmread(tmp_path / "a.dcm").AccessionNumber == ""
    with pytest.raises(OutputError, match=r"cannot write .*none/a\.dcm"):
        write_contours(tmp_path / "none" / "a.dcm", np.ones(header.grid.shape, np.uint8), header, ["a"])

    def drop(index, dataset):
        del dataset.FrameOfReferenceUID

    write_series(tmp_path / "other", np.zeros((3, 5, 6), np.int16), edit=drop)
    assert what_contours_lack(read_header(tmp_path / "other")) == "its files lack FrameOfReferenceUID"
