"""DICOM SEG and RTSTRUCT as labels: what was drawn, where it was drawn, under the names of the classes."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from shared.dicom_series import SPACING_MM, named_label, write_series
from shared.examples import examples
from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode import label_values_in, read_case, read_header, read_scan, write_segmentation
from voxelocity.data.decode.dicom.structures import read_structures_header
from voxelocity_observe.core.errors import ScanError


@pytest.fixture
def series(tmp_path):
    """A folder of six planes of 20 rows of 16 pixels."""
    write_series(tmp_path / "ct", np.zeros((6, 20, 16), np.int16))
    return tmp_path / "ct"


def write_contours(path, series, contours):
    """An RTSTRUCT of one region per name; each polygon is given in pixels (column, row) and a plane."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import UID, ExplicitVRLittleEndian, RTStructureSetStorage

    header = read_header(series)
    to_lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ header.grid.matrix
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = RTStructureSetStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = UID("1.2.3.8")
    dataset.Modality, dataset.SeriesInstanceUID = "RTSTRUCT", UID("1.2.3.9")
    referred, study, frame = Dataset(), Dataset(), Dataset()
    referred.SeriesInstanceUID = header.slices[0].series_uid
    study.RTReferencedSeriesSequence = [referred]
    frame.RTReferencedStudySequence = [study]
    dataset.ReferencedFrameOfReferenceSequence = [frame]
    dataset.StructureSetROISequence, dataset.ROIContourSequence = [], []
    for number, (name, polygons) in enumerate(contours.items(), start=4):
        region, drawn = Dataset(), Dataset()
        region.ROINumber, region.ROIName = number, name
        drawn.ReferencedROINumber, drawn.ContourSequence = number, []
        for plane, polygon in polygons:
            contour = Dataset()
            contour.ContourGeometricType, contour.NumberOfContourPoints = "CLOSED_PLANAR", len(polygon)
            points = [to_lps @ [column, row, plane, 1] for column, row in polygon]
            contour.ContourData = [f"{value:.6f}" for point in points for value in point[:3]]
            drawn.ContourSequence.append(contour)
        dataset.StructureSetROISequence.append(region)
        dataset.ROIContourSequence.append(drawn)
    dataset.save_as(path, enforce_file_format=True)
    return path


SQUARE = [(1.5, 2.5), (9.5, 2.5), (9.5, 11.5), (1.5, 11.5)]
HOLE = [(3.5, 4.5), (5.5, 4.5), (5.5, 6.5), (3.5, 6.5)]


def test_contours_take_the_voxels_whose_centers_they_hold_and_holes_are_left_out(tmp_path, series):
    path = write_contours(tmp_path / "rs.dcm", series, {"Tumor": [(2, SQUARE), (2, HOLE), (3, SQUARE)]})
    label = named_label(path, read_header(series).grid, {"tumor": 7})
    expected = np.zeros((16, 20, 6), np.uint16)
    expected[2:10, 3:12, 2:4] = 7
    expected[4:6, 5:7, 2] = 0
    assert np.array_equal(label, expected)


def test_a_tilted_triangle_is_filled_as_its_edges_say(tmp_path, series):
    path = write_contours(tmp_path / "rs.dcm", series, {"a": [(0, [(1.1, 1.1), (13.3, 4.2), (5.2, 17.4)])]})
    label = named_label(path, read_header(series).grid, {"a": 1})
    x, y = np.mgrid[:16, :20]

    def side(ax, ay, bx, by):
        return (bx - ax) * (y - ay) - (by - ay) * (x - ax) >= 0

    expected = side(1.1, 1.1, 13.3, 4.2) & side(13.3, 4.2, 5.2, 17.4) & side(5.2, 17.4, 1.1, 1.1)
    assert np.array_equal(label[..., 0] == 1, expected)


@pytest.mark.data
@pytest.mark.parametrize("modality", ["CT", "MR_T1", "PET"])
def test_real_contours_are_the_mask_of_the_same_tumor(real_data, modality):
    folder = real_data / "dicom_sts_ct_mr_pet"
    case = folder / "dicom" / "STS_008" / modality
    ref = VolumeRef(
        case_id="a", images=(case / "image",), label=case / "mask" / "RS.dcm", structures=((f"gtv_mass_{modality}", 1),)
    )
    expected, _ = read_scan(folder / "nifti" / "STS_008" / f"{modality}_mask.nii.gz")
    volume = read_case(ref, label_values=(0, 1))
    assert volume.label.dtype == np.uint8
    assert np.array_equal(volume.label == 1, expected[0] > 0)


@pytest.mark.data
def test_real_segmentations_are_the_masks_that_they_were_made_from(real_data):
    case = real_data / "dicom_ct_seg"
    grid = read_header(case / "ct").grid
    liver = named_label(case / "seg" / "liver.dcm", grid, {"Liver": 1})
    assert np.array_equal(liver, read_scan(case / "nrrd" / "liver_seg.nrrd")[0][0])
    path = case / "seg" / "partial_overlaps.dcm"
    names = read_structures_header(path).names
    label = named_label(path, grid, {name: value for value, name in enumerate(names, start=1)})
    parts = [read_scan(case / "nrrd" / f"partial_overlaps-{number}.nrrd")[0][0] for number in (1, 2, 3)]
    # Where two overlap, the class with the larger value is taken.
    assert np.array_equal(label, np.maximum.reduce(parts))


def every_combination(names):
    """A value for each set of names: pairs of a name and each value whose bits have its place."""
    values = range(1, 1 << len(names))
    return tuple((name, value) for place, name in enumerate(names) for value in values if value >> place & 1)


@pytest.mark.data
def test_real_segments_that_overlap_are_regions_of_one_label(real_data):
    case = real_data / "dicom_ct_seg"
    grid, path = read_header(case / "ct").grid, case / "seg" / "partial_overlaps.dcm"
    names = read_structures_header(path).names
    ref = VolumeRef(case_id="a", images=(case / "ct",), label=path, structures=every_combination(names))
    label = read_case(ref, label_values=range(1 << len(names))).label
    for place, name in enumerate(names):
        alone = named_label(path, grid, {name: 1}) > 0
        assert alone.any()
        assert np.array_equal(label >> place & 1, alone)


def test_overlapping_classes_get_the_value_that_stands_for_all_of_them(tmp_path, series):
    path = write_contours(tmp_path / "rs.dcm", series, {"a": [(2, SQUARE)], "b": [(2, HOLE)]})
    grid, notes = read_header(series).grid, []
    label = named_label(path, grid, {"a": (1, 3), "b": (2, 3)}, note=lambda kind, text: notes.append(kind))
    inside, hole = (named_label(path, grid, {name: 1}) > 0 for name in "ab")
    assert np.array_equal(label, np.where(inside & hole, 3, np.where(inside, 1, np.where(hole, 2, 0))))
    assert notes == []
    # Where no value stands for both, the nearest does, and this is said.
    label = named_label(path, grid, {"a": (1, 3), "b": 2}, note=lambda kind, text: notes.append(kind))
    assert set(np.unique(label[inside & hole])) == {3}
    assert notes == ["overlap"]


def test_what_we_write_as_dicom_seg_is_read_as_the_same_label(tmp_path, series):
    header = read_header(series)
    classes = np.random.default_rng(0).integers(0, 3, header.grid.shape).astype(np.uint8)
    write_segmentation(tmp_path / "seg.dcm", classes, header, ["left", "right"])
    found = read_structures_header(tmp_path / "seg.dcm")
    assert (found.names, found.series_uids) == (("left", "right"), {header.slices[0].series_uid})
    ref = VolumeRef(case_id="a", images=(series,), label=tmp_path / "seg.dcm", structures=(("left", 5), ("right", 300)))
    assert np.array_equal(read_case(ref, label_values=(0, 5, 300)).label, classes)


def test_structures_of_another_series_are_refused(tmp_path, series):
    header = read_header(series)
    write_segmentation(tmp_path / "seg.dcm", np.ones(header.grid.shape, np.uint8), header, ["a"])
    path = write_contours(tmp_path / "rs.dcm", series, {"a": [(2, SQUARE)]})

    def shift(index, dataset):
        x, y, z = dataset.ImagePositionPatient
        dataset.ImagePositionPatient = [x + 0.4 * SPACING_MM[1], y, float(z) + 1.0]

    write_series(tmp_path / "other", np.zeros((6, 20, 16), np.int16), edit=shift)
    grid = read_header(tmp_path / "other").grid
    with pytest.raises(ScanError, match=r"seg\.dcm: the segmentation lies up to 0\.40 voxels away"):
        named_label(tmp_path / "seg.dcm", grid, {"a": 1})
    with pytest.raises(ScanError, match=r"rs\.dcm: a contour of 'a' lies 0\.40 slices away from slice 2 of 6"):
        named_label(path, grid, {"a": 1})


def test_names_that_are_not_there_are_answered_with_those_that_are(tmp_path, series):
    path = write_contours(tmp_path / "rs.dcm", series, {"Body": [(2, SQUARE)], "GTV": [(2, HOLE)]})
    ref = VolumeRef(case_id="p1", images=(series,), label=path, structures=(("liver", 1),))
    with pytest.raises(
        ScanError, match=r"case 'p1': .*rs\.dcm: none of the classes liver .*\(Body, GTV\).*dataset\.json.*\"Body\": 1"
    ):
        read_case(ref, label_values=(0, 1))
    with pytest.raises(ScanError, match=r"its structures have names \(Body, GTV\); name the ones to learn"):
        label_values_in(path)
    with pytest.raises(ScanError, match="is a DICOM file of CT, not SEG or RTSTRUCT; name the file that holds"):
        named_label(sorted(series.iterdir())[0], read_header(series).grid, {"a": 1})


@pytest.mark.parametrize("kind", ["seg", "rs"])
def test_a_file_without_its_modality_is_known_by_its_class(tmp_path, series, kind):
    import pydicom

    header, path = read_header(series), tmp_path / "label.dcm"
    if kind == "seg":
        write_segmentation(path, np.ones(header.grid.shape, np.uint8), header, ["a"])
    else:
        write_contours(path, series, {"a": [(2, SQUARE)]})
    expected, dataset = named_label(path, header.grid, {"a": 1}), pydicom.dcmread(path)
    dataset.Modality = ""
    dataset.save_as(path)
    assert read_structures_header(path).names == ("a",)
    assert np.array_equal(named_label(path, header.grid, {"a": 1}), expected)
    del dataset.SOPClassUID
    dataset.save_as(path)
    assert read_structures_header(path) is None
    with pytest.raises(ScanError, match=r"a DICOM file of no modality, not SEG or RTSTRUCT; .* export it again"):
        named_label(path, header.grid, {"a": 1})


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("kind", ["seg", "rs"])
def test_bytes_changed_at_random_end_in_our_error_or_in_a_label(tmp_path, series, kind):
    header = read_header(series)
    path = tmp_path / "label.dcm"
    if kind == "seg":
        write_segmentation(path, np.ones(header.grid.shape, np.uint8), header, ["a"])
    else:
        write_contours(path, series, {"a": [(2, SQUARE), (3, SQUARE)]})
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(examples(100)):
        content = bytearray(whole)
        for place in rng.integers(132, len(whole), 8):
            content[place] = rng.integers(256)
        path.write_bytes(content)
        # Anything else fails this test.
        with contextlib.suppress(ScanError):
            read_structures_header(path)
            named_label(path, header.grid, {"a": 1})


def test_a_truncated_segmentation_is_refused(tmp_path, series):
    header = read_header(series)
    write_segmentation(tmp_path / "seg.dcm", np.ones(header.grid.shape, np.uint8), header, ["a"])
    content = (tmp_path / "seg.dcm").read_bytes()
    (tmp_path / "seg.dcm").write_bytes(content[:-100])
    with pytest.raises(ScanError, match=r"seg\.dcm: .*(truncated|cannot be read)"):
        named_label(tmp_path / "seg.dcm", header.grid, {"a": 1})


def test_what_structures_do_not_say_is_noted(tmp_path, series):
    path = write_contours(
        tmp_path / "rs.dcm", series, {"a": [(2, SQUARE), (3, SQUARE[:1]), (4, SQUARE[:2])], "b": [(2, HOLE)]}
    )
    notes = []
    grid = read_header(series).grid
    label = named_label(path, grid, {"a": 1, "b": 2}, note=lambda kind, text: notes.append((kind, text)))
    assert np.unique(np.nonzero(label)[2]).tolist() == [2]
    assert (label == 2).sum() == 4
    assert [kind for kind, _ in notes] == ["open contours", "overlap"]
    assert "2 contours of these structures are points or lines" in notes[0][1]
    assert "4 voxels lie in a and in b, and count as b" in notes[1][1]


@pytest.mark.parametrize(
    "keyword", ["Modality", "ROIName", "ContourData", "NumberOfContourPoints", "SeriesDescription"]
)
def test_a_value_of_any_length_is_refused_in_a_short_message(tmp_path, series, keyword):
    import pydicom
    from pydicom.datadict import tag_for_keyword
    from pydicom.dataelem import RawDataElement

    path = write_contours(tmp_path / "rs.dcm", series, {"x": [(2, SQUARE)]})
    dataset = pydicom.dcmread(path)
    holder = {"ROIName": dataset.StructureSetROISequence[0]}.get(keyword, dataset)
    if keyword in ("ContourData", "NumberOfContourPoints"):
        holder = dataset.ROIContourSequence[0].ContourSequence[0]
    tag = pydicom.tag.Tag(tag_for_keyword(keyword))
    value = b"\\".join([b"12345678"] * 500)
    holder._dict[tag] = RawDataElement(tag, "LO", len(value), value, 0, False, True)
    dataset.save_as(path)
    with pytest.raises(ScanError) as refused:
        named_label(path, read_header(series).grid, {"a": 1})
    assert len(str(refused.value)) < 900
