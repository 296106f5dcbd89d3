from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.data.decode import label_values_in, read_scan
from voxelocity.data.decode.labels import class_indices
from voxelocity_observe.core.errors import ScanError

RNG = np.random.default_rng(0)
REAL = [
    "small_ct_mr_samples/msd_spleen_2_crop/image.nii.gz",
    "small_ct_mr_samples/spine_mri/label_vert.nii.gz",
    "small_ct_mr_samples/totalseg_ct/label_auto.nii.gz",
    "small_ct_mr_samples/totalseg_mr/image.nii.gz",
    "hippocampus/labelsTr/hippocampus_003.nii.gz",
    "openkbp_headneck_ct/imagesTr/openkbp_004_0000.nii.gz",
]


def _nibabel_voxels(path: Path) -> np.ndarray:
    voxels = np.asarray(nib.load(path).dataobj)
    return voxels[np.newaxis] if voxels.ndim == 3 else np.moveaxis(voxels, 3, 0)


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_voxels_equal_those_of_nibabel(tmp_path: Path, dtype: str, name: str, order: str) -> None:
    voxels = (RNG.random((5, 4, 3, 2)) * 100).astype(dtype)
    header = nib.Nifti1Header(endianness=order)
    header.set_data_dtype(dtype)
    nib.Nifti1Image(voxels, np.eye(4), header).to_filename(tmp_path / name)
    scan, grid = read_scan(tmp_path / name)
    assert scan.dtype == np.dtype(dtype)
    assert scan.dtype.isnative
    assert np.array_equal(scan, np.moveaxis(voxels, 3, 0))
    assert grid.shape == (5, 4, 3)


def test_voxels_are_a_view_with_x_fastest(save) -> None:
    scan, _ = read_scan(save("a.nii.gz", np.zeros((5, 6, 7), np.int16)))
    assert scan.strides[1:] == (2, 10, 60)
    assert not scan.flags.owndata
    assert not scan.flags.writeable


@pytest.mark.parametrize("dtype", [np.int16, np.uint8, np.float32, np.int32])
def test_scaled_values_are_those_of_nibabel_in_float32(save, dtype: type) -> None:
    voxels = RNG.integers(0, 200, (6, 5, 40)).astype(dtype)
    path = save("a.nii", np.zeros((6, 5, 40), dtype))
    data = bytearray(path.read_bytes())
    data[352:] = voxels.tobytes(order="F")
    data[112:120] = np.array([0.37, -1024.3], "<f4").tobytes()
    path.write_bytes(data)
    scan, _ = read_scan(path)
    assert scan.dtype == np.float32
    assert np.array_equal(scan[0], nib.load(path).get_fdata().astype(np.float32))
    assert scan.min() < -900


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float64])
def test_large_scans_are_scaled_piece_by_piece_alike(tmp_path: Path, dtype: type) -> None:
    voxels = RNG.integers(0, 200, (200, 150, 60, 2)).astype(dtype)
    scan = nib.Nifti1Image(voxels, np.eye(4))
    scan.header.set_slope_inter(0.5, -1024.0)
    scan.header.set_data_dtype(dtype)
    raw = nib.Nifti1Image(voxels, np.eye(4), scan.header)
    raw.to_filename(tmp_path / "raw.nii")
    data = bytearray((tmp_path / "raw.nii").read_bytes())
    data[112:120] = np.array([0.5, -1024.0], "<f4").tobytes()
    (tmp_path / "scaled.nii").write_bytes(data)
    assert np.array_equal(read_scan(tmp_path / "scaled.nii")[0], _nibabel_voxels(tmp_path / "scaled.nii"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_labels_kept_as_floats_are_read(tmp_path: Path, dtype: type) -> None:
    labels = np.zeros((256, 256, 60), dtype)
    labels[3, 4, 59], labels[100] = 2, 1
    nib.Nifti1Image(labels, np.eye(4)).to_filename(tmp_path / "a.nii")
    assert label_values_in(tmp_path / "a.nii") == (0, 1, 2)
    indices = class_indices(read_scan(tmp_path / "a.nii")[0][0], (0, 1, 2), where="here")
    assert np.array_equal(indices, labels)


def test_extensions_before_the_voxels_are_skipped(save) -> None:
    extension = nib.nifti1.Nifti1Extension("comment", b"a note" * 20)
    path = save("a.nii.gz", np.full((2, 2, 2), 7, np.int16), edit=lambda h: h.extensions.append(extension))
    assert (read_scan(path)[0] == 7).all()


def test_truncated_voxels_are_refused(save) -> None:
    path = save("a.nii", np.zeros((10, 10, 10), np.int16))
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ScanError, match="truncated: 2,352 bytes expected by its header, 1,852 found"):
        read_scan(path)


def test_label_values_are_distinct_and_ascending(save) -> None:
    labels = np.zeros((10, 10, 10), np.uint8)
    labels[2], labels[3] = 207, 4
    assert label_values_in(save("a.nii.gz", labels)) == (0, 4, 207)
    assert label_values_in(save("b.nii.gz", labels.astype(np.float32) - 5)) == (-5, -1, 202)
    assert label_values_in(save("c.nii.gz", labels.astype(np.int32) * 1_000_000)) == (0, 4_000_000, 207_000_000)
    assert label_values_in(save("d.nii.gz", (labels.astype(np.int16) - 100).astype(np.int8))) == (-100, -96, 107)


@pytest.mark.parametrize(("value", "said"), [(0.5, "0.5"), (float("nan"), "nan"), (float("inf"), "inf")])
def test_label_with_fractions_is_refused(save, value: float, said: str) -> None:
    labels = np.ones((4, 4, 4), np.float32)
    labels[1, 2, :3] = value
    with pytest.raises(
        ScanError, match=f"a.nii: the label holds 3 values that are not whole numbers, the first is {said};"
    ):
        label_values_in(save("a.nii", labels))


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_real_files_equal_those_of_nibabel(real_data: Path, name: str) -> None:
    scan, grid = read_scan(real_data / name)
    peer = _nibabel_voxels(real_data / name)
    assert scan.dtype == peer.dtype
    assert np.array_equal(scan, peer)
    assert np.array_equal(grid.matrix, nib.load(real_data / name).affine)


@pytest.mark.data
def test_real_label_values(real_data: Path) -> None:
    samples = real_data / "small_ct_mr_samples"
    assert len(label_values_in(samples / "totalseg_ct" / "label_auto.nii.gz")) == 42
    assert max(label_values_in(samples / "spine_mri" / "label_vert.nii.gz")) == 207
    assert label_values_in(real_data / "hippocampus" / "labelsTr" / "hippocampus_003.nii.gz") == (0, 1, 2)


LABELS = np.array([[[0, 1, 2], [2, 1, 0]]])


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "f4", "f8"])
@pytest.mark.parametrize("values", [(0, 1, 2), (2, 0, 1), (0, 1, 2, 100)])
def test_class_index_is_the_place_of_the_value(dtype: str, values: tuple[int, ...]) -> None:
    indices = class_indices(LABELS.astype(dtype), values, where="here")
    assert indices.dtype == np.uint8
    assert np.array_equal(np.array(values)[indices], LABELS)


@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=256, unique=True),
    dtype=st.sampled_from(["i4", "i8", "f8"]),
    seed=st.integers(0, 99),
)
def test_any_declared_values_come_back(values: list[int], dtype: str, seed: int) -> None:
    wanted = np.random.default_rng(seed).integers(0, len(values), (3, 4, 2)).astype(np.uint8)
    assert np.array_equal(class_indices(np.array(values)[wanted].astype(dtype), values, where="here"), wanted)


def test_all_256_values_are_told_apart_in_both_byte_types() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(8, 8, 4)
    backwards = list(range(256))[::-1]
    assert np.array_equal(class_indices(every, backwards, where="here"), 255 - every)
    signed = every.view(np.int8)
    ordered = list(range(-128, 128))
    assert np.array_equal(class_indices(signed, ordered, where="here"), (signed.astype(int) + 128).astype(np.uint8))


def test_indices_that_are_their_own_values_are_not_copied() -> None:
    labels = LABELS.astype(np.uint8)
    assert class_indices(labels, (0, 1, 2), where="here") is labels


@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "f4"])
def test_undeclared_values_are_named_and_counted(dtype: str) -> None:
    labels = LABELS.astype(dtype)
    labels[0, 0, :] = [7, 7, 9]
    with pytest.raises(
        ScanError,
        match=r"^here: the label holds values that are not declared: 7 \(2 voxels\), 9 \(1 voxels\); "
        r"declared are 0, 1, 2: add them to the labels of the data set or correct the file$",
    ):
        class_indices(labels, (0, 1, 2), where="here")


def test_long_lists_of_undeclared_values_are_cut() -> None:
    with pytest.raises(ScanError, match=r"1 \(1 voxels\), .*, 8 \(1 voxels\) and 11 more; declared are 0:"):
        class_indices(np.arange(20, dtype=np.int16).reshape(1, 4, 5), (0,), where="here")


@pytest.mark.parametrize("dtype", ["u2", "i4", "f4"])
def test_more_classes_than_a_byte_holds_have_indices_of_two(dtype: str) -> None:
    labels = np.array([[[0, 3, 897], [600, 3, 0]]])
    found = class_indices(labels.astype(dtype), range(0, 900, 3), where="here")
    assert found.dtype == np.uint16
    assert np.array_equal(found, labels // 3)
    every = np.arange(65_535, dtype=np.uint16).reshape(1, 5, -1)
    assert class_indices(every, range(65_535), where="here") is every


@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "f4"])
def test_several_values_may_be_one_class(dtype: str) -> None:
    found = class_indices(LABELS.astype(dtype), (0, (1, 2)), where="here")
    assert found.dtype == np.uint8
    assert np.array_equal(found, LABELS > 0)
    with pytest.raises(ScanError, match=r"3 label values are declared, 2 of them distinct, for 2 classes"):
        class_indices(LABELS, ((0, 1), 1), where="here")


def test_too_many_or_equal_classes_are_refused() -> None:
    with pytest.raises(ScanError, match=r"65,536 label values are declared, 65,536 of them distinct.*at most 65,535"):
        class_indices(LABELS, range(65_536), where="here")
    with pytest.raises(ScanError, match=r"here: 3 label values are declared, 2 of them distinct"):
        class_indices(LABELS, (0, 1, 1), where="here")


def test_a_negative_number_of_axes_is_refused(save, patch_header):
    path = patch_header(save("a.nii", np.zeros((2, 3, 4), np.uint8)), 40, (-3).to_bytes(2, "little", signed=True))
    with pytest.raises(ScanError, match="the header says -3 axes"):
        read_scan(path)
