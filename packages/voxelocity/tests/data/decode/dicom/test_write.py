"""A DICOM SEG that highdicom and pydicom read back as the classes that were written, on the slices of its series."""

from __future__ import annotations

import highdicom
import numpy as np
import pydicom
import pytest

from shared.dicom_series import write_series
from voxelocity.data.decode import read_header, write_segmentation
from voxelocity_observe.core.errors import OutputError, ScanError

NAMES = ("liver", "never seen", "kidney\\left " + "x" * 80)


def classes_on(header):
    classes = np.random.default_rng(0).integers(0, 4, header.grid.shape).astype(np.uint8)
    classes[classes == 2] = 0
    classes[:, :, -1] = 0
    return classes


def assert_same_place(path, header, classes):
    """Every voxel of the segmentation, at its place in the patient, has the class of that place in the scan."""
    volume = highdicom.seg.segread(path).get_volume(combine_segments=True, allow_missing_positions=True)
    to_ras = np.diag([-1.0, -1.0, 1.0, 1.0]) @ volume.affine
    to_index = np.linalg.inv(header.grid.matrix) @ to_ras
    found = np.stack(np.nonzero(volume.array))
    places = to_index @ np.vstack([found, np.ones((1, found.shape[1]))])
    assert np.abs(places - places.round()).max() < 0.01
    again = np.zeros_like(classes)
    again[tuple(places[:3].round().astype(int))] = volume.array[tuple(found)]
    assert np.array_equal(again, classes)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.data
@pytest.mark.parametrize("series", ["dicom_ct_seg/ct", "dicom_sts_ct_mr_pet/dicom/STS_008/MR_T1/image"])
def test_classes_lie_on_the_real_series(real_data, tmp_path, series):
    header = read_header(real_data / series)
    classes = classes_on(header)
    write_segmentation(tmp_path / "a.dcm", classes, header, NAMES)
    assert_same_place(tmp_path / "a.dcm", header, classes)


def test_segments_have_the_names_of_the_classes_and_frames_their_slices(tmp_path):
    direction = (0.8, 0.6, 0.0, 0.0, 0.0, -1.0)
    write_series(tmp_path / "ct", np.zeros((4, 5, 6), np.int16), directions=direction)
    header = read_header(tmp_path / "ct")
    classes = classes_on(header)
    write_segmentation(tmp_path / "a.dcm", classes, header, NAMES)
    assert_same_place(tmp_path / "a.dcm", header, classes)
    written = pydicom.dcmread(tmp_path / "a.dcm")
    source = pydicom.dcmread(header.slices[0].path)
    assert [segment.SegmentLabel for segment in written.SegmentSequence] == [
        *NAMES[:2],
        ("kidney/left " + "x" * 80)[:64],
    ]
    assert [segment.SegmentNumber for segment in written.SegmentSequence] == [1, 2, 3]
    for name in ("FrameOfReferenceUID", "StudyInstanceUID", "PatientID"):
        assert written[name].value == source[name].value
    assert written.SeriesInstanceUID != source.SeriesInstanceUID
    references = written.ReferencedSeriesSequence[0]
    assert references.SeriesInstanceUID == source.SeriesInstanceUID
    assert {reference.ReferencedSOPInstanceUID for reference in references.ReferencedInstanceSequence} == {
        part.uid for part in header.slices
    }


def test_a_prediction_of_background_alone_is_written(tmp_path):
    write_series(tmp_path / "ct", np.zeros((4, 5, 6), np.int16))
    header = read_header(tmp_path / "ct")
    write_segmentation(tmp_path / "a.dcm", np.zeros(header.grid.shape, np.uint8), header, NAMES)
    assert not pydicom.dcmread(tmp_path / "a.dcm").pixel_array.any()


def test_a_series_that_cannot_be_referred_to_is_named(tmp_path):
    def edit(index, dataset):
        del dataset.StudyInstanceUID

    write_series(tmp_path / "ct", np.zeros((4, 5, 6), np.int16), edit=edit)
    header = read_header(tmp_path / "ct")
    with pytest.raises(ScanError, match=r"for the series in .*ct \(.*StudyInstanceUID.*\).* or write \.nii\.gz"):
        write_segmentation(tmp_path / "a.dcm", np.zeros(header.grid.shape, np.uint8), header, NAMES)
    assert not (tmp_path / "a.dcm").exists()


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    write_series(tmp_path / "ct", np.zeros((4, 5, 6), np.int16))
    header = read_header(tmp_path / "ct")
    with pytest.raises(OutputError, match=r"cannot write .*none/a\.dcm \(No such file"):
        write_segmentation(tmp_path / "none" / "a.dcm", np.zeros(header.grid.shape, np.uint8), header, NAMES)
