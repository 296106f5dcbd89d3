"""Enhanced multi-frame DICOM: one file is read as the same planes in files of their own."""

from __future__ import annotations

import numpy as np
import pytest

from shared.dicom_series import named_label, write_enhanced, write_series
from voxelocity.data.decode import read_header, read_scan, what_segmentation_lacks, write_segmentation
from voxelocity.data.decode.dicom import pixels
from voxelocity_observe.core.errors import ScanError

pydicom = pytest.importorskip("pydicom")


@pytest.fixture
def voxels_zyx():
    return np.random.default_rng(0).integers(-900, 900, (5, 6, 7)).astype(np.int16)


@pytest.mark.parametrize("order", [None, [3, 0, 4, 1, 2], [4, 3, 2, 1, 0]])
def test_frames_lie_where_the_same_planes_lie_in_files_of_their_own(tmp_path, voxels_zyx, order):
    write_series(tmp_path / "classic", voxels_zyx)
    file = write_enhanced(tmp_path / "enhanced" / "all.dcm", voxels_zyx, order=order)
    expected, grid = read_scan(tmp_path / "classic")
    for path in (file, file.parent):
        found, place = read_scan(path)
        assert np.array_equal(found, expected)
        assert found.dtype == expected.dtype
        assert place.is_close(grid)


def test_frames_are_those_that_simpleitk_reads(tmp_path, voxels_zyx):
    sitk = pytest.importorskip("SimpleITK")
    file = write_enhanced(tmp_path / "all.dcm", voxels_zyx)
    image = sitk.ReadImage(str(file))
    found, grid = read_scan(file)
    assert np.array_equal(found[0].transpose(2, 1, 0), sitk.GetArrayFromImage(image))
    assert np.allclose(grid.spacing_mm, image.GetSpacing(), atol=1e-4)
    origin_lps = grid.matrix[:3, 3] * [-1, -1, 1]
    assert np.allclose(origin_lps, image.GetOrigin())


def test_each_frame_has_its_own_scaling(tmp_path, voxels_zyx):
    scalings = [(1.0 + plane / 4.0, 10.0 * plane) for plane in range(5)]
    found, _ = read_scan(write_enhanced(tmp_path / "all.dcm", voxels_zyx, scalings=scalings, order=[2, 0, 1, 4, 3]))
    for plane, (slope, inter) in enumerate(scalings):
        assert np.allclose(found[0, :, :, plane], voxels_zyx[plane].T * slope + inter)


def test_two_files_of_one_series_are_one_volume(tmp_path, voxels_zyx):
    def edit(dataset):
        dataset.SeriesInstanceUID = "1.2.3"

    write_enhanced(tmp_path / "a.dcm", voxels_zyx[:2], edit=edit)
    write_enhanced(tmp_path / "b.dcm", voxels_zyx[2:], places=[2, 3, 4], edit=edit)
    found, _ = read_scan(tmp_path)
    assert np.array_equal(found[0].transpose(2, 1, 0), voxels_zyx)


def test_files_whose_frames_alternate_are_read_once_each(tmp_path, voxels_zyx, monkeypatch):
    def edit(dataset):
        dataset.SeriesInstanceUID = "1.2.3"

    write_enhanced(tmp_path / "a.dcm", voxels_zyx[::2], places=[0, 2, 4], edit=edit)
    write_enhanced(tmp_path / "b.dcm", voxels_zyx[1::2], places=[1, 3], edit=edit)
    read, opened = pixels.read_dataset, []
    monkeypatch.setattr(
        pixels, "read_dataset", lambda path, **options: opened.append(path.name) or read(path, **options)
    )
    found, _ = read_scan(tmp_path)
    assert np.array_equal(found[0].transpose(2, 1, 0), voxels_zyx)
    assert sorted(opened) == ["a.dcm", "b.dcm"]


@pytest.mark.filterwarnings("ignore:The decoded RLE segment:UserWarning")
def test_packed_frames_that_are_missing_are_refused(tmp_path, voxels_zyx):
    path = write_enhanced(tmp_path / "a.dcm", voxels_zyx)
    dataset = pydicom.dcmread(path)
    dataset.compress(pydicom.uid.RLELossless, encoding_plugin="pydicom")
    dataset.save_as(path)
    content = bytearray(path.read_bytes())
    # The length of the first frame, after the table of the offsets of five.
    content[content.rindex(b"OB\0\0\xff\xff\xff\xff") + 8 + 8 + 5 * 4 + 6] = 255
    path.write_bytes(content)
    with pytest.raises(ScanError, match=r"the compressed pixels cannot be read \(frames are missing\); copy"):
        read_scan(tmp_path)


def test_a_segmentation_of_frames_refers_to_them(tmp_path, voxels_zyx):
    pytest.importorskip("highdicom")

    def edit(dataset):
        dataset.PatientBirthDate = dataset.PatientSex = ""

    header = read_header(write_enhanced(tmp_path / "all.dcm", voxels_zyx, order=[3, 0, 4, 1, 2], edit=edit))
    assert what_segmentation_lacks(header) == ""
    classes = np.random.default_rng(0).integers(0, 3, header.grid.shape).astype(np.uint8)
    write_segmentation(tmp_path / "seg.dcm", classes, header, ["a", "b"])
    assert np.array_equal(named_label(tmp_path / "seg.dcm", header.grid, {"a": 1, "b": 2}), classes)


def test_no_segmentation_refers_to_frames_of_several_files(tmp_path, voxels_zyx):
    pytest.importorskip("highdicom")

    def edit(dataset):
        dataset.SeriesInstanceUID = "1.2.3"

    write_enhanced(tmp_path / "a.dcm", voxels_zyx[:2], edit=edit)
    write_enhanced(tmp_path / "b.dcm", voxels_zyx[2:], places=[2, 3, 4], edit=edit)
    assert what_segmentation_lacks(read_header(tmp_path)) == "its slices are frames of several files"


def drop_places(dataset):
    del dataset.PerFrameFunctionalGroupsSequence


def drop_one_place(dataset):
    del dataset.PerFrameFunctionalGroupsSequence[2].PlanePositionSequence


def drop_pixels(dataset):
    dataset.PixelData = dataset.PixelData[:-8]


def drop_a_frame(dataset):
    dataset.PerFrameFunctionalGroupsSequence = dataset.PerFrameFunctionalGroupsSequence[:-1]


def spoil_a_place(dataset):
    dataset.PerFrameFunctionalGroupsSequence[1].PlanePositionSequence[0].ImagePositionPatient = [1.0, 2.0]


@pytest.mark.parametrize(
    ("edit", "options", "text"),
    [
        (drop_places, {}, "the file holds 5 frames, without their positions; `dcm2niix` writes"),
        (drop_one_place, {}, "ImagePositionPatient are missing"),
        (drop_pixels, {}, "truncated: 420 bytes of pixels expected, 412 found"),
        (drop_a_frame, {}, r"says that it has 5 frames \(NumberOfFrames\), and describes 4"),
        (spoil_a_place, {}, "ImagePositionPatient is .*, which is not 3 finite"),
        (lambda dataset: None, {"places": [0, 1, 2, 0, 1]}, "several images of one position.*: `dcm2niix` writes each"),
        (lambda dataset: None, {"places": [0, 1, 2, 4, 5]}, r"1 slice\(s\) are missing"),
    ],
)
def test_frames_that_are_no_volume_are_refused(tmp_path, voxels_zyx, edit, options, text):
    file = write_enhanced(tmp_path / "all.dcm", voxels_zyx, edit=edit, **options)
    with pytest.raises(ScanError, match=text):
        read_scan(file)
