"""Structures are where they were drawn, whatever the order of the scan's axes; what was drawn elsewhere is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from data.decode.dicom.test_structures import HOLE, SQUARE, write_contours

from shared.dicom_series import SPACING_MM, STEP_MM, named_label, write_series
from voxelocity.core.axis_order import AxisOrder
from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode import read_case, read_header, read_structures_header, write_segmentation
from voxelocity_observe.core.errors import ScanError

SHAPE_ZYX = (6, 20, 16)
ORDERS = [
    AxisOrder(axes=axes, flips=flips)
    for axes in itertools.permutations(range(3))
    for flips in itertools.product((False, True), repeat=3)
]
# On the centers of voxels, where a rule decides which side they belong to.
ON_CENTERS = [(2, 3), (9, 3), (9, 12), (5, 15), (2, 12)]


@pytest.fixture
def series(tmp_path):
    write_series(tmp_path / "ct", np.zeros(SHAPE_ZYX, np.int16))
    return tmp_path / "ct"


def rewritten(path, change):
    """The DICOM file after a change of its data set."""
    import pydicom

    dataset = pydicom.dcmread(path)
    change(dataset)
    dataset.save_as(path)
    return path


@pytest.fixture
def seg(tmp_path, series):
    """Six frames of a segment that fills a box."""
    header = read_header(series)
    classes = np.zeros(header.grid.shape, np.uint8)
    classes[2:9, 3:12] = 1
    write_segmentation(tmp_path / "seg.dcm", classes, header, ["a"])
    return tmp_path / "seg.dcm"


@pytest.mark.parametrize("kind", ["seg", "rs"])
def test_structures_are_the_same_in_space_on_every_order_of_axes(tmp_path, series, seg, kind):
    contours = {"a": [(2, SQUARE), (2, HOLE), (3, ON_CENTERS)], "b": [(4, ON_CENTERS)]}
    path = seg if kind == "seg" else write_contours(tmp_path / "rs.dcm", series, contours)
    grid = read_header(series).grid
    expected = named_label(path, grid, {"a": 1, "b": 2})
    assert expected.any()
    for order in ORDERS:
        found = named_label(path, order.turn_grid(grid), {"a": 1, "b": 2})
        assert np.array_equal(found, order.turn(expected)), order


@pytest.mark.parametrize("num_frames", [None, 0, -5, 1, 5, 7])
def test_a_segmentation_with_another_number_of_frames_than_it_describes_is_refused(series, seg, num_frames):
    def change(dataset):
        if num_frames is None:
            del dataset.NumberOfFrames
        else:
            dataset.NumberOfFrames = num_frames

    rewritten(seg, change)
    said = "no" if num_frames is None else num_frames
    with pytest.raises(ScanError, match=rf"seg\.dcm: .* has {said} frames \(NumberOfFrames\), and describes 6; "):
        named_label(seg, read_header(series).grid, {"a": 1})


@pytest.mark.parametrize("num_bits", [1, 8])
@pytest.mark.parametrize("change", [b"\0" * 100, -100])
def test_a_segmentation_with_more_or_fewer_pixels_than_frames_is_refused(series, seg, num_bits, change):
    def resize(dataset):
        if num_bits == 8:
            dataset.PixelData = dataset.pixel_array.tobytes()
            dataset.BitsAllocated = dataset.BitsStored = 8
            dataset.HighBit = 7
        dataset.PixelData = dataset.PixelData[:change] if isinstance(change, int) else dataset.PixelData + change

    rewritten(seg, resize)
    with pytest.raises(ScanError, match=r"seg\.dcm: 6 frames take [\d,]+ bytes of pixels, and the file holds [\d,]+; "):
        named_label(seg, read_header(series).grid, {"a": 1})


def coarse(tmp_path, *, pixel, distance):
    """A series over the same places whose pixels and slices lie this many times as far apart."""

    def edit(index, dataset):
        dataset.PixelSpacing = [pixel * spacing for spacing in SPACING_MM]
        dataset.ImagePositionPatient[2] += index * (distance - 1) * STEP_MM

    shape = (6 // distance, 20 // pixel, 16 // pixel)
    write_series(tmp_path / "coarse", np.zeros(shape, np.int16), edit=edit)
    return tmp_path / "coarse"


@pytest.mark.parametrize(
    ("pixel", "distance", "words"),
    [
        (2, 1, r"pixels of 1\.2 x 1\.6 mm, which are not those of the scan \(voxels of 0\.6 x 0\.8 x 2\.5 mm"),
        (1, 2, r"a structure lies on slices 0, 2, 4 of the scan only"),
        (1, 3, r"a structure lies on slices 0, 3 of the scan only"),
    ],
)
def test_a_segmentation_of_coarser_pixels_or_slices_is_refused(tmp_path, series, pixel, distance, words):
    header = read_header(coarse(tmp_path, pixel=pixel, distance=distance))
    write_segmentation(tmp_path / "seg.dcm", np.ones(header.grid.shape, np.uint8), header, ["a"])
    with pytest.raises(ScanError, match=rf"seg\.dcm: .*{words}"):
        named_label(tmp_path / "seg.dcm", read_header(series).grid, {"a": 1})


def test_contours_on_every_second_slice_are_refused(tmp_path, series):
    path = write_contours(tmp_path / "rs.dcm", series, {"a": [(plane, SQUARE) for plane in (0, 2, 4)]})
    with pytest.raises(ScanError, match=r"rs\.dcm: a structure lies on slices 0, 2, 4 of the scan only"):
        named_label(path, read_header(series).grid, {"a": 1})
    # Separate findings, at distances of their own.
    path = write_contours(tmp_path / "rs.dcm", series, {"a": [(plane, SQUARE) for plane in (0, 2, 5)]})
    assert named_label(path, read_header(series).grid, {"a": 1}).any(axis=(0, 1)).tolist() == [
        True, False, True, False, False, True
    ]  # fmt: skip


def test_a_contour_of_fewer_points_than_it_says_is_refused(tmp_path, series):
    path = write_contours(tmp_path / "rs.dcm", series, {"a": [(2, SQUARE)]})

    def change(dataset):
        contour = dataset.ROIContourSequence[0].ContourSequence[0]
        contour.ContourData = contour.ContourData[:9]

    rewritten(path, change)
    with pytest.raises(
        ScanError, match=r"says that it has 4 points \(NumberOfContourPoints\), and holds 9 coordinates"
    ):
        named_label(path, read_header(series).grid, {"a": 1})


def test_the_background_of_a_label_map_is_no_structure(tmp_path, series):
    import highdicom
    import pydicom
    from pydicom.sr.codedict import codes

    slices = sorted(
        (pydicom.dcmread(file) for file in series.iterdir()), key=lambda file_slice: file_slice.ImagePositionPatient[2]
    )
    pixels = np.zeros(SHAPE_ZYX, np.uint8)
    pixels[2:4, 3:9, 4:12] = 1
    segment = highdicom.seg.SegmentDescription(
        1, "Liver", codes.SCT.Organ, codes.SCT.Liver, highdicom.seg.SegmentAlgorithmTypeValues.MANUAL
    )
    made = highdicom.seg.Segmentation(
        slices, pixels, "LABELMAP", [segment], highdicom.UID(), 9, highdicom.UID(), 1, "a", "a", "1", "1"
    )
    path = tmp_path / "map.dcm"
    made.save_as(path)
    assert [int(item.SegmentNumber) for item in made.SegmentSequence] == [0, 1]
    assert read_structures_header(path).names == ("Liver",)
    grid = read_header(series).grid
    found = named_label(path, grid, {"Liver": 3, "Background": 1})
    assert np.array_equal(found.transpose(2, 1, 0), 3 * pixels)
    # Another number may stand for the background.
    rewritten(path, lambda dataset: setattr(dataset, "PixelPaddingValue", 1))
    assert read_structures_header(path).names == ("Background",)


def test_structures_of_another_series_whose_places_fit_are_said(tmp_path, seg):
    write_series(tmp_path / "scan" / "other", np.zeros(SHAPE_ZYX, np.int16), name="other")
    ref = VolumeRef(case_id="a", images=(tmp_path / "scan" / "other",), label=seg, structures=(("a", 1),))
    with pytest.warns(UserWarning, match=r"seg\.dcm: it refers to another series than that of its scan"):
        volume = read_case(ref, label_values=(0, 1))
    assert volume.label.any()
