from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK

from voxelocity.data.decode import read_header, write_scan
from voxelocity.data.decode.notes import as_one_data_set
from voxelocity_observe.core.errors import ScanError

OBLIQUE = np.array([[0.9, -0.1, 0.2, -10.0], [0.1, 1.1, 0.1, 5.0], [-0.2, 0.3, 2.0, 7.0], [0, 0, 0, 1.0]])
VOXELS = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
PIXDIM_AT, DIM_AT, DATATYPE_AT, SLOPE_AT, VOX_OFFSET_AT, MAGIC_AT, SROW_AT = 76, 40, 70, 112, 108, 344, 280


def test_header_says_what_the_file_holds(save) -> None:
    path = save("a.nii.gz", np.zeros((4, 5, 6, 2), np.float32), OBLIQUE)
    header = read_header(path)
    assert header.path == path
    assert header.grid.shape == (4, 5, 6)
    assert np.array_equal(header.grid.matrix, nib.load(path).affine)
    assert (header.num_channels, header.dtype, header.slope, header.inter) == (2, "float32", 1.0, 0.0)
    assert header.num_bytes == path.stat().st_size
    assert header.data_bytes == 4 * 5 * 6 * 2 * 4


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
def test_both_versions_and_byte_orders_are_read(save, tmp_path: Path, kind) -> None:
    path = save("a.nii", VOXELS, OBLIQUE, kind=kind)
    header = kind.header_class(endianness=">")
    header.set_data_dtype(np.int16)
    kind(VOXELS, OBLIQUE, header).to_filename(tmp_path / "big.nii")
    for file, is_big in ((path, False), (tmp_path / "big.nii", True)):
        header = read_header(file)
        assert header.is_big_endian == is_big
        assert header.dtype == "int16"
        assert np.array_equal(header.grid.matrix, nib.load(file).affine)


@pytest.mark.parametrize(("sform", "qform"), [(1, 1), (0, 1), (1, 0), (0, 0), (2, 4)])
def test_affine_is_the_one_that_nibabel_prefers(save, sform: int, qform: int) -> None:
    def edit(header) -> None:
        header.set_qform(np.diag([-2.0, 3.0, 4.0, 1.0]), code=qform)
        header.set_sform(OBLIQUE, code=sform)

    path = save("a.nii.gz", VOXELS, edit=edit)
    nib_image = nib.load(path)
    assert np.array_equal(read_header(path).grid.matrix, nib_image.affine)


def test_qfac_of_zero_means_one_as_for_nibabel(save, patch_header) -> None:
    path = save("a.nii", VOXELS, edit=lambda h: (h.set_sform(None, 0), h.set_qform(np.diag([2.0, 2, 2, 1]), 1)))
    patch_header(path, PIXDIM_AT, struct.pack("<f", 0.0))
    assert np.array_equal(read_header(path).grid.matrix, nib.load(path).affine)


@pytest.mark.parametrize("shape", [(3, 4, 5, 1), (3, 4, 5, 1, 1), (3, 4, 5, 2, 1), (3, 4, 5, 1, 2)])
def test_trailing_single_axes_do_not_matter(save, shape: tuple[int, ...]) -> None:
    header = read_header(save("a.nii", np.zeros(shape, np.uint8)))
    assert header.grid.shape == (3, 4, 5)
    assert header.num_channels == max(shape[3:])


def test_impossible_quaternion_is_refused(save, patch_header) -> None:
    path = save("a.nii", VOXELS, edit=lambda h: (h.set_sform(None, 0), h.set_qform(np.eye(4), 1)))
    patch_header(path, 256, struct.pack("<fff", 3.0, 3.0, 3.0))
    with pytest.raises(ScanError, match="the orientation is not valid"):
        read_header(path)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((4, 5), r"the image has 2 axes, shape \(4, 5\); volumes need 3 axes"),
        ((2, 2, 2, 3, 2), r"shape \(2, 2, 2, 3, 2\); beyond \(x, y, z\) only one axis"),
    ],
)
def test_another_number_of_axes_is_refused(save, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(ScanError, match=said):
        read_header(save("a.nii", np.zeros(shape, np.uint8)))


@pytest.mark.parametrize(
    ("offset", "content", "said"),
    [
        (DIM_AT + 4, struct.pack("<h", 0), r"shape \(2, 0, 4\), so it holds no voxels"),
        (DIM_AT, struct.pack("<5h", 4, *[32767] * 4), r"shape \(32767, .*\), more voxels than any file can hold"),
        (DIM_AT, struct.pack("<h", 9), "the header says 9 axes, NIfTI has at most 7"),
        (DATATYPE_AT, struct.pack("<h", 128), r"the voxel type is .*R.* \(NIfTI code 128\)"),
        (DATATYPE_AT, struct.pack("<h", 777), r"the voxel type is unknown \(NIfTI code 777\)"),
        (DATATYPE_AT, struct.pack("<h", 32), "the voxel type is .*complex64"),
        (SLOPE_AT, struct.pack("<ff", 2.0, float("nan")), "scl_slope is 2.0 but scl_inter is nan"),
        (VOX_OFFSET_AT, struct.pack("<f", 16.0), "puts the voxels at byte 16, inside the header of 352 bytes"),
        *(
            (VOX_OFFSET_AT, struct.pack("<f", start), "the header puts the voxels at byte .*; export the file again")
            for start in (float("inf"), 1e30, 2.0**31, float("nan"), 100.0)
        ),
        *(
            (offset, struct.pack("<f", step), rf"the spacing on x is .* mm \({where}\); set the true spacing")
            for offset, where in ((PIXDIM_AT + 4, "pixdim"), (SROW_AT, "affine"))
            for step in (1e30, 1e-30, float("inf"))
        ),
        # These nibabel would repair.
        (PIXDIM_AT + 4, struct.pack("<f", 0.0), r"the spacing on x is 0\.0 mm \(pixdim\); set the true"),
        (PIXDIM_AT + 8, struct.pack("<f", -1.5), r"the spacing on y is -1\.5 mm \(pixdim\); set the true"),
        (PIXDIM_AT + 12, struct.pack("<f", float("nan")), r"the spacing on z is nan mm \(pixdim\); set the true"),
        (SROW_AT + 2 * 16 + 2 * 4, struct.pack("<f", 0.0), r"the spacing on z is 0\.0 mm \(affine\)"),
        (SROW_AT, struct.pack("<8f", 1, 1, 0, 0, 0, 0, 0, 0), "the affine is singular .* set a valid one"),
        (SROW_AT + 12, struct.pack("<f", float("nan")), "the affine has values that are not finite"),
        (SROW_AT + 12, struct.pack("<f", 1e30), r"the affine puts the first voxel at .* mm, farther than 1e\+07 mm"),
        (MAGIC_AT, b"ni1\0", r"says that this is the header of a pair; name it \.hdr, next to its \.img"),
        (MAGIC_AT, b"\0\0\0\0", "this is not a NIfTI file"),
    ],
)
def test_broken_header_is_refused_in_words(save, patch_header, offset: int, content: bytes, said: str) -> None:
    path = patch_header(save("a.nii", VOXELS), offset, content)
    with pytest.raises(ScanError, match=rf"^decode: .*a\.nii: .*{said}"):
        read_header(path)


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"\x5c\x01\0\0" + b"\0" * 100])
def test_other_files_are_not_nifti(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.nii.gz"
    path.write_bytes(content)
    with pytest.raises(ScanError, match=r"this is not a NIfTI file .* convert it"):
        read_header(path)


@pytest.mark.data
def test_only_the_start_of_a_file_is_read(real_data: Path, tmp_path: Path) -> None:
    whole = real_data / "vs_seg_001" / "imagesTr" / "vs_seg_001_0000.nii.gz"
    start = tmp_path / "start.nii.gz"
    start.write_bytes(whole.read_bytes()[:200_000])
    assert read_header(start).grid == read_header(whole).grid


def test_what_is_no_file_or_holds_nothing_is_refused_in_words(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.nii.gz")
    (tmp_path / "folder.nii.gz").mkdir()
    for name, kind in (("pipe.nii.gz", "named pipe"), ("folder.nii.gz", "folder")):
        with pytest.raises(ScanError, match=rf"{name} is a {kind}, not a file; name the file of a scan"):
            read_header(tmp_path / name)
    with pytest.raises(ScanError, match=r"null is a device, not a file"):
        read_header(Path("/dev/null"))
    for content in (b"", gzip.compress(b"")):
        (tmp_path / "empty.nii.gz").write_bytes(content)
        with pytest.raises(ScanError, match=r"empty\.nii\.gz: the file is empty; copy or download it again"):
            read_header(tmp_path / "empty.nii.gz")


@pytest.mark.parametrize(
    ("sform", "qform", "form", "apart_mm"),
    [(1, 0, "sform", 0.0), (0, 2, "qform", 0.0), (0, 0, "none", 0.0), (2, 4, "sform", 5.0)],
)
def test_header_says_which_form_places_the_voxels_and_how_far_the_other_is(
    save, sform: int, qform: int, form: str, apart_mm: float
) -> None:
    def edit(header) -> None:
        header.set_qform(np.eye(4), code=qform)
        moved = np.eye(4)
        moved[:3, 3] = (3.0, 0.0, 4.0)
        header.set_sform(moved, code=sform)

    placement = read_header(save("a.nii.gz", VOXELS, edit=edit)).placement
    assert placement.form == form
    assert placement.forms_apart_mm == pytest.approx(apart_mm, abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*its header gives lengths in:UserWarning")
@pytest.mark.parametrize(("unit", "mm"), [("mm", 1.0), ("meter", 1e3), ("micron", 1e-3), ("unknown", 1.0)])
@pytest.mark.parametrize("form", ["sform", "qform"])
def test_lengths_are_in_the_units_of_the_header_as_itk_reads_them(tmp_path, unit, mm, form):
    affine = np.diag([-0.5, 0.75, 2.0, 1.0])
    affine[:3, 3] = 10.0, -20.0, 30.0
    affine[:3] /= mm
    image = nib.Nifti1Image(np.zeros((3, 4, 5), np.int16), affine)
    image.header.set_xyzt_units(unit, "sec")
    image.set_sform(affine, int(form == "sform"))
    image.set_qform(affine, int(form == "qform"))
    nib.save(image, tmp_path / "a.nii.gz")
    grid = read_header(tmp_path / "a.nii.gz").grid
    peer = SimpleITK.ReadImage(str(tmp_path / "a.nii.gz"))
    assert grid.spacing_mm == pytest.approx((0.5, 0.75, 2.0), rel=1e-6)
    assert grid.spacing_mm == pytest.approx(peer.GetSpacing(), rel=1e-6)
    assert grid.matrix[:3, 3] == pytest.approx(np.array([-1, -1, 1]) * peer.GetOrigin(), rel=1e-6)
    header = read_header(tmp_path / "a.nii.gz")
    assert not header.is_placed_twice
    assert not header.is_spaced_twice
    # A file on the same grid is in the same units.
    write_scan(tmp_path / "b.nii.gz", np.zeros((3, 4, 5), np.uint8), grid, placement=header.placement)
    assert read_header(tmp_path / "b.nii.gz").grid.is_close(grid)


def test_units_of_an_unknown_code_are_warned_of(tmp_path):
    image = nib.Nifti1Image(np.zeros((3, 4, 5), np.int16), np.eye(4))
    image.header["xyzt_units"] = 5
    nib.save(image, tmp_path / "a.nii")
    with pytest.warns(UserWarning, match=r"the unit of length is 'code 5' \(xyzt_units\), which is unknown"):
        assert read_header(tmp_path / "a.nii").grid.spacing_mm == (1, 1, 1)


def test_units_are_warned_of_once_for_a_data_set_with_a_folder_for_each_patient(tmp_path):
    image = nib.Nifti1Image(np.zeros((3, 4, 5), np.int16), np.eye(4))
    image.header["xyzt_units"] = 5
    files = [tmp_path / data / patient / "a.nii" for data in ("first", "second") for patient in ("p1", "p2", "p3")]
    for file in files:
        file.parent.mkdir(parents=True)
        nib.save(image, file)
    as_one_data_set(files[:3])
    with pytest.warns(UserWarning, match="reported once per data set") as seen:
        [read_header(file) for file in files]
    # What belongs to no known data set is said of each folder.
    assert len(seen) == 1 + 3


def test_a_data_set_of_two_places_takes_no_note_from_another_one_below_their_parent(tmp_path):
    image = nib.Nifti1Image(np.zeros((3, 4, 5), np.int16), np.eye(4))
    image.header["xyzt_units"] = 5
    files = [tmp_path / name / "a.nii" for name in ("first", "second", "other")]
    for file in files:
        file.parent.mkdir()
        nib.save(image, file)
    as_one_data_set(files[:2])
    with pytest.warns(UserWarning, match="first"):
        read_header(files[0])
    read_header(files[1])
    with pytest.warns(UserWarning, match="other"):
        read_header(files[2])


def test_the_voxels_of_a_pair_are_named_by_their_header(tmp_path):
    nib.save(nib.Nifti1Pair(VOXELS, np.eye(4)), tmp_path / "a.img")
    with pytest.raises(ScanError, match=r"a\.img: these are the voxels of a pair; name its header, the \.hdr file"):
        read_header(tmp_path / "a.img")
