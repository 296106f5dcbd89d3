"""A DICOM series is the volume that its positions say, or is refused with the file, the place and the cure."""

from __future__ import annotations

import contextlib

import numpy as np
import pydicom
import pytest
from pydicom.uid import DeflatedExplicitVRLittleEndian

from shared.dicom_series import ORIGIN_LPS, SPACING_MM, STEP_MM, write_series
from shared.examples import examples
from voxelocity.data.decode import holds_series, is_dicom, read_header, read_scan
from voxelocity_observe.core.errors import ScanError

VOXELS = np.random.default_rng(0).integers(-500, 500, (6, 5, 4)).astype(np.int16)


def test_slices_are_stacked_by_position_and_placed_in_ras(tmp_path):
    write_series(tmp_path, VOXELS)
    (tmp_path / "notes.txt").write_text("not a slice")
    header = read_header(tmp_path)
    voxels, grid = read_scan(tmp_path)
    assert np.array_equal(voxels[0].transpose(2, 1, 0), VOXELS)
    assert (header.grid, header.dtype, header.num_channels) == (grid, "int16", 1)
    between_rows, between_columns = SPACING_MM
    x, y, z = ORIGIN_LPS
    expected = np.diag([-between_columns, -between_rows, STEP_MM, 1.0])
    expected[:3, 3] = -x, -y, z
    assert np.allclose(grid.matrix, expected)


def test_an_oblique_series_has_the_affine_that_simpleitk_gives_it(tmp_path):
    import SimpleITK

    angle = np.radians(25)
    row, column = (np.cos(angle), np.sin(angle), 0.0), (0.0, 0.0, -1.0)
    write_series(tmp_path, VOXELS, directions=(*(float(f"{v:.12f}") for v in row), *column))
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(SimpleITK.ImageSeriesReader.GetGDCMSeriesFileNames(str(tmp_path)))
    image = reader.Execute()
    voxels, grid = read_scan(tmp_path)
    assert np.array_equal(voxels[0].transpose(2, 1, 0), SimpleITK.GetArrayFromImage(image))
    corner = image.TransformIndexToPhysicalPoint((3, 4, 5))
    assert np.allclose((grid.matrix @ [3, 4, 5, 1])[:3], np.multiply(corner, [-1, -1, 1]), atol=1e-4)


@pytest.mark.data
@pytest.mark.parametrize("modality", ["CT", "MR_T1", "PET"])
def test_real_series_equal_the_nifti_files_of_the_same_scans(real_data, modality):
    folder = real_data / "dicom_sts_ct_mr_pet"
    voxels, grid = read_scan(folder / "dicom" / "STS_008" / modality / "image")
    expected, expected_grid = read_scan(folder / "nifti" / "STS_008" / f"{modality}_image.nii.gz")
    # A PET file holds rescaled values as float32.
    assert np.abs(voxels - expected.astype(np.float64)).max() <= (1e-6 if modality == "PET" else 0)
    assert grid.is_close(expected_grid, atol_mm=1e-3)


@pytest.mark.data
def test_distance_between_slices_comes_from_positions_not_from_thickness(real_data):
    voxels, grid = read_scan(real_data / "dicom_ct_seg" / "ct")
    assert np.allclose(grid.spacing_mm, (0.810547, 0.810547, 1.0))
    assert (voxels.shape, voxels.min()) == ((1, 512, 512, 3), -3024)


def test_whole_rescaling_keeps_whole_numbers_and_other_gives_float32(tmp_path):
    def rescale(slope, intercept):
        def edit(index, dataset):
            dataset.RescaleSlope, dataset.RescaleIntercept = slope, intercept

        return edit

    for name, slope, inter, dtype in (
        ("ct", 1, -1024, "int16"),
        ("wide", 100, 0, "int32"),
        ("pet", 0.25, 0, "float32"),
    ):
        write_series(tmp_path / name, VOXELS, edit=rescale(slope, inter))
        voxels, _ = read_scan(tmp_path / name)
        assert (voxels.dtype, read_header(tmp_path / name).dtype) == (dtype, dtype)
        assert np.array_equal(voxels[0].transpose(2, 1, 0), VOXELS.astype(np.float64) * slope + inter)


def test_slices_with_their_own_scale_are_rescaled_one_by_one(tmp_path):
    write_series(tmp_path, VOXELS, edit=lambda index, dataset: setattr(dataset, "RescaleSlope", 1 + index))
    voxels, _ = read_scan(tmp_path)
    assert voxels.dtype == np.float32
    assert np.array_equal(voxels[0].transpose(2, 1, 0), VOXELS * (1 + np.arange(6))[:, None, None])


def test_bits_above_those_stored_are_left_out(tmp_path):
    with_overlay = (VOXELS & 0x0FFF).astype(np.int16)
    write_series(tmp_path, with_overlay)
    assert np.array_equal(read_scan(tmp_path)[0][0].transpose(2, 1, 0), VOXELS)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (
            [0, 1, 2, 4, 5, 6],
            r"1 slice\(s\) are missing between CT_004\.dcm at 105 mm and CT_003\.dcm at 110 mm .* 2\.5",
        ),
        ([0, 1, 2, 3, 7, 8], r"3 slice\(s\) are missing between CT_003\.dcm at 107\.5 mm and CT_002\.dcm"),
        (
            [0, 1, 2, 2, 3, 4],
            r"1 of 6 slices share the position of another, first CT_003\.dcm and CT_004\.dcm at 105 mm",
        ),
        (
            [0, 1.3, 2, 3, 4, 5],
            r"unevenly spaced, 1\.75 to 3\.25 mm apart, .*CT_005\.dcm is 0\.75 mm away from its position",
        ),
    ],
)
def test_gaps_duplicates_and_uneven_steps_are_refused_with_their_place(tmp_path, places, words):
    write_series(tmp_path, VOXELS, places=places)
    for read in (read_header, read_scan):
        with pytest.raises(ScanError, match=rf"^decode: {tmp_path}: .*{words}"):
            read(tmp_path)


def test_a_slice_that_is_shifted_between_others_is_refused(tmp_path):
    def edit(index, dataset):
        if index == 2:
            dataset.ImagePositionPatient[0] += 2.0

    write_series(tmp_path, VOXELS, edit=edit)
    with pytest.raises(ScanError, match=r"sheared: from CT_006\.dcm to CT_004\.dcm they shift sideways by 2 mm"):
        read_header(tmp_path)


def test_bits_above_those_stored_are_left_out_of_packed_pixels_too(tmp_path):
    from pydicom.uid import RLELossless

    def edit(index, dataset):
        # An overlay in the upper four of sixteen bits.
        dataset.PixelData = ((VOXELS[index].view(np.uint16) & 0xFFF) | 0x7000).astype("<u2").tobytes()
        dataset.BitsStored, dataset.HighBit = 16, 15
        dataset.compress(RLELossless, encoding_plugin="pydicom", generate_instance_uid=False)
        dataset.BitsStored, dataset.HighBit = 12, 11

    write_series(tmp_path, VOXELS, edit=edit)
    assert np.array_equal(read_scan(tmp_path)[0][0].transpose(2, 1, 0), VOXELS)


def test_a_tilted_gantry_is_refused_with_its_angle(tmp_path):
    write_series(tmp_path, VOXELS, shear_mm=STEP_MM * np.tan(np.radians(12)))
    with pytest.raises(
        ScanError, match=r"sheared: from CT_006\.dcm to CT_001\.dcm .* 2\.657 mm \(12\.0 degrees\).*dcm2niix"
    ):
        read_header(tmp_path)


def test_several_series_in_a_folder_are_listed_and_chosen_by_a_file(tmp_path):
    write_series(tmp_path, VOXELS, name="thin")
    chosen = write_series(tmp_path, VOXELS[:2] + 1, name="scout")
    with pytest.raises(
        ScanError,
        match=r"2 series: CT 3 'scout' with 2 slices, such as scout_001\.dcm; CT 3 'thin' with 6 slices.*naming one of",
    ):
        read_header(tmp_path)
    assert np.array_equal(read_scan(chosen[1])[0][0].transpose(2, 1, 0), VOXELS[:2] + 1)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "PixelSpacing",
            [0.9, 0.6],
            r"differ in pixel spacing: CT_006\.dcm has \(0\.8, 0\.6\), CT_002\.dcm has \(0\.9",
        ),
        ("ImageOrientationPatient", [0, 1, 0, 1, 0, 0], r"differ in orientation: .* such as a localizer"),
        ("ImagePositionPatient", None, r"CT_002\.dcm: ImagePositionPatient are missing"),
        (
            "ImagePositionPatient",
            [1.0, 2.0, float("nan")],
            r"CT_002\.dcm: ImagePositionPatient is '1\.0\\\\2\.0\\\\nan'",
        ),
        ("NumberOfFrames", 3, r"CT_002\.dcm: the file holds 3 frames"),
        ("SamplesPerPixel", 3, r"CT_002\.dcm: a pixel has 3 values"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*:UserWarning:pydicom")
def test_a_slice_unlike_the_others_is_named(tmp_path, field, value, words):
    def edit(index, dataset):
        if index == 4:
            setattr(dataset, field, value)

    write_series(tmp_path, VOXELS, edit=edit)
    if field in ("PixelSpacing", "ImageOrientationPatient"):
        # Sorted by name, so the first file is the last plane.
        words = words.replace("CT_006", "CT_001")
    with pytest.raises(ScanError, match=words):
        read_header(tmp_path)


def test_slices_of_another_size_are_refused(tmp_path):
    write_series(tmp_path, VOXELS[:3])
    for file in write_series(tmp_path / "wide", np.zeros((1, 5, 8), np.int16), places=[3]):
        file.rename(tmp_path / "wide.dcm")
    with pytest.raises(ScanError, match=r"size \(rows, columns\): CT_001\.dcm has \(5, 4\), wide\.dcm has \(5, 8\)"):
        read_header(tmp_path)


def test_a_compression_that_cannot_be_undone_is_named_before_any_pixel_is_read(tmp_path):
    def edit(index, dataset):
        from pydicom.encaps import encapsulate
        from pydicom.uid import JPEG2000MCLossless

        dataset.file_meta.TransferSyntaxUID = JPEG2000MCLossless
        dataset.PixelData = encapsulate([b"\xff\xd8\xff\xd9"])

    write_series(tmp_path, VOXELS, edit=edit)
    with pytest.raises(ScanError, match=r"CT_001\.dcm: .* compressed \(JPEG 2000.*pylibjpeg-libjpeg.*gdcmconv --raw"):
        read_header(tmp_path)


def test_run_length_encoded_slices_are_read(tmp_path):
    def edit(index, dataset):
        from pydicom.uid import RLELossless

        dataset.compress(RLELossless, generate_instance_uid=False)

    write_series(tmp_path, VOXELS, edit=edit)
    assert np.array_equal(read_scan(tmp_path)[0][0].transpose(2, 1, 0), VOXELS)


def test_damaged_files_are_named(tmp_path):
    files = write_series(tmp_path, VOXELS)
    whole = files[2].read_bytes()
    files[2].write_bytes(whole[:-10])
    with pytest.raises(ScanError, match=r"CT_004\.dcm: .*(truncated|cannot be read)"):
        read_scan(tmp_path)
    for content in (b"", b"<html>not found</html>"):
        files[2].write_bytes(content)
        with pytest.raises(ScanError, match=rf"CT_004\.dcm: .* no DICOM content \({len(content)} bytes\)"):
            read_header(tmp_path)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_bytes_changed_at_random_end_in_our_error_or_in_a_volume(tmp_path):
    files = write_series(tmp_path, VOXELS)
    whole = files[1].read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(examples(100)):
        content = bytearray(whole)
        for place in rng.integers(132, len(whole), 4):
            content[place] = rng.integers(256)
        files[1].write_bytes(content[: rng.integers(200, len(whole) + 1)])
        # Anything else, such as an error of pydicom's, fails this test.
        with contextlib.suppress(ScanError):
            read_scan(tmp_path)


def test_folders_without_a_scan_are_refused(tmp_path):
    with pytest.raises(ScanError, match="the folder holds no DICOM images"):
        read_header(tmp_path)

    def edit(index, dataset):
        dataset.Modality = "SR"

    (file,) = write_series(tmp_path, VOXELS[:1], edit=edit)
    with pytest.raises(ScanError, match="the folder holds no DICOM images"):
        read_header(tmp_path)
    with pytest.raises(ScanError, match="holds no image of a scan"):
        read_header(file)


def test_one_slice_is_a_volume_as_thick_as_it_says(tmp_path):
    write_series(tmp_path, VOXELS[:1])
    assert read_header(tmp_path).grid.spacing_mm == pytest.approx((0.6, 0.8, STEP_MM))


def test_a_folder_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ScanError, match=r"gone cannot be read \(No such file or directory\); check its permissions"):
        holds_series(tmp_path / "gone")


def edited(**values):
    def edit(index, dataset):
        for name, value in values.items():
            setattr(dataset, name, value)

    return edit


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ImageType": ["ORIGINAL", "PRIMARY", "M", "ND", "MOSAIC"]}, "a mosaic, a whole volume .*dcm2niix"),
        ({"PhotometricInterpretation": "MONOCHROME1"}, "low values are shown bright .*dcmodify .*SimpleITK"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, r"its values are not intensities \(PALETTE COLOR\)"),
        ({"PixelSpacing": [-0.8, 0.6]}, r"PixelSpacing is \(-0\.8, 0\.6\) mm; export"),
        ({"PixelSpacing": [0.8, 0]}, r"PixelSpacing is \(0\.8, 0\.0\) mm; export"),
        ({"ImageOrientationPatient": [2, 0, 0, 0, 1, 0]}, r"ImageOrientationPatient is \(2\.0, .* of length 1; export"),
        ({"ImageOrientationPatient": [1, 0, 0, 0.6, 0.8, 0]}, r"ImageOrientationPatient is .* at a right angle"),
        ({"RescaleSlope": 0}, "RescaleSlope is 0, which would make all values equal"),
    ],
)
def test_values_that_are_not_those_of_a_plane_are_refused_with_the_reason(tmp_path, values, words):
    write_series(tmp_path, VOXELS, edit=edited(**values))
    with pytest.raises(ScanError, match=rf"CT_\d+\.dcm: .*{words}"):
        read_header(tmp_path)


def without_mark(file):
    """The file from which the first 132 bytes were cut off."""
    file.write_bytes(file.read_bytes()[132:])


@pytest.mark.parametrize("num_without", [1, len(VOXELS)])
@pytest.mark.parametrize("ending", [".dcm", ""])
def test_slices_without_the_mark_of_dicom_are_slices(tmp_path, num_without, ending):
    files = [file.rename(file.with_suffix(ending)) for file in write_series(tmp_path, VOXELS)]
    for file in files[-num_without:]:
        without_mark(file)
    assert is_dicom(files[-1])
    assert np.array_equal(read_scan(tmp_path)[0][0].transpose(2, 1, 0), VOXELS)


@pytest.mark.parametrize(("is_implicit", "is_little"), [(True, True), (False, True), (False, False)])
def test_slices_that_begin_with_their_data_set_are_slices(tmp_path, is_implicit, is_little):
    import pydicom

    for file in write_series(tmp_path, VOXELS):
        dataset = pydicom.Dataset()
        for element in pydicom.dcmread(file):
            dataset.add(element)
        if not is_little:
            dataset.PixelData = np.frombuffer(dataset.PixelData, "<i2").astype(">i2").tobytes()
        dataset.save_as(file, implicit_vr=is_implicit, little_endian=is_little, enforce_file_format=False)
    assert np.array_equal(read_scan(tmp_path)[0][0].transpose(2, 1, 0), VOXELS)


@pytest.mark.parametrize(
    "content", [b"", b"\x08", b"\x08\x00 a text", b"\x89PNG\r\n\x1a\n", bytes(400), b"\x02\x00\x00\x00xx"]
)
def test_other_files_are_not_taken_for_dicom(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    assert not is_dicom(tmp_path / "a")


def test_files_named_like_slices_that_are_left_out_are_named(tmp_path):
    for number, file in enumerate(write_series(tmp_path, VOXELS)):
        file.rename(tmp_path / f"IM{number:04d}")
    (tmp_path / "IM0009").write_bytes(bytes(1000))
    (tmp_path / "notes.txt").touch()
    with pytest.warns(UserWarning, match=r"left out 1 file without DICOM content \(IM0009\); if they are slices"):
        header = read_header(tmp_path)
    assert header.grid.shape[2] == len(VOXELS)
    # Once: commands read the headers several times.
    read_scan(tmp_path)


@pytest.mark.filterwarnings("ignore:.*:UserWarning:pydicom.*")
def test_compressed_pixels_of_an_unknown_compression_are_refused(tmp_path):
    import pydicom
    from pydicom.uid import RLELossless

    file = write_series(tmp_path, VOXELS[:1])[0]
    dataset = pydicom.dcmread(file)
    dataset.compress(RLELossless)
    dataset.save_as(file)
    without_meta = pydicom.dcmread(file)
    del without_meta.file_meta
    without_meta.save_as(file, implicit_vr=False, little_endian=True, enforce_file_format=False)
    with pytest.raises(ScanError, match="the pixels are compressed, but the file does not say how"):
        read_scan(tmp_path)


def test_damaged_deflated_files_are_refused(tmp_path):
    import pydicom
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    file = write_series(tmp_path, VOXELS)[0]
    dataset = pydicom.dcmread(file)
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    dataset.save_as(file)
    read_header(tmp_path)
    content = file.read_bytes()
    # The meta information says its own length; no block of deflate begins with these bits.
    start = 144 + int.from_bytes(content[140:144], "little")
    file.write_bytes(content[:start] + b"\xff" * (len(content) - start))
    with pytest.raises(ScanError, match=rf"{file.name}: the DICOM file cannot be read \(.*\); copy or export it again"):
        read_header(tmp_path)


def deflate(path, num_bytes=0):
    """Writes the file again as a deflated one, with this many bytes of pixels if there are any."""
    dataset = pydicom.dcmread(path)
    dataset.PixelData = bytes(num_bytes) or dataset.PixelData
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    dataset.save_as(path, enforce_file_format=True)


def test_a_deflated_file_is_read_and_one_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    files = write_series(tmp_path / "ct", VOXELS)
    before = read_scan(tmp_path / "ct")[0]
    for file in files:
        deflate(file)
    assert np.array_equal(read_scan(tmp_path / "ct")[0], before)
    deflate(files[0], 1 << 22)
    assert files[0].stat().st_size < 1 << 14
    monkeypatch.setattr("voxelocity.data.decode.dicom.deflate._MOST_BYTES", 1 << 21)
    with pytest.raises(ScanError, match=r"unpacks to more than [\d,]+ bytes"):
        read_scan(tmp_path / "ct")


def test_a_series_of_several_patients_is_said(tmp_path):
    write_series(tmp_path, VOXELS, edit=lambda index, dataset: setattr(dataset, "PatientID", f"p{index // 3}"))
    with pytest.warns(UserWarning, match=r"the slices of the series name 2 patients \(PatientID\)"):
        read_header(tmp_path)


@pytest.mark.parametrize(
    ("kind", "bits", "content"),
    [
        ("US", 16, lambda entries: entries.tolist()),
        ("OW", 16, lambda entries: entries.astype("<u2").tobytes()),
        ("OW", 8, lambda entries: entries.astype("<u2").tobytes()),
        ("OW", 8, lambda entries: entries.astype("u1").tobytes()),
    ],
    ids=["numbers", "words", "bytes in words", "packed bytes"],
)
def test_a_table_in_place_of_slope_and_intercept_gives_the_values(tmp_path, kind, bits, content):
    entries = np.random.default_rng(0).permutation(np.arange(600) % 251).astype(np.uint16)

    def edit(index, dataset):
        del dataset.RescaleSlope, dataset.RescaleIntercept
        table = pydicom.Dataset()
        # Entries, the first value with one, and their bits; then these.
        table.add_new(0x00283002, "SS", [len(entries), -300, bits])
        table.add_new(0x00283006, kind, content(entries))
        dataset.ModalityLUTSequence = [table]

    files = write_series(tmp_path, VOXELS, edit=edit)
    voxels, _ = read_scan(tmp_path)
    assert voxels.dtype == read_header(tmp_path).read_dtype == "uint16"
    # Values beyond the table have its first or last entry.
    assert np.array_equal(voxels[0].transpose(2, 1, 0), entries[np.clip(VOXELS.astype(int) + 300, 0, 599)])
    if kind == "US":
        dataset = pydicom.dcmread(files[0])
        expected = pydicom.pixels.apply_modality_lut(dataset.pixel_array, dataset)
        assert np.array_equal(voxels[0, :, :, 0].T, expected)


def test_a_damaged_table_is_named(tmp_path):
    def edit(index, dataset):
        table = pydicom.Dataset()
        table.add_new(0x00283002, "SS", [4, 0, 16])
        dataset.ModalityLUTSequence = [table]

    write_series(tmp_path, VOXELS, edit=edit)
    with pytest.raises(ScanError, match=r"CT_\d+\.dcm: the DICOM file lacks an attribute.*LUTData"):
        read_scan(tmp_path)
