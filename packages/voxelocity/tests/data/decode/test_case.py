from __future__ import annotations

import struct
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from voxelocity.core.volume import VolumeRef
from voxelocity.data.decode import label_values_in, read_case
from voxelocity.data.decode.labels import read_labels
from voxelocity_observe.core.errors import ScanError

SHAPE = (6, 5, 4)
LABEL = np.zeros(SHAPE, np.uint8)
LABEL[2:4] = 1


def _ref(*images: Path, label: Path | None = None) -> VolumeRef:
    return VolumeRef(case_id="liver_01", images=images, label=label)


def test_case_holds_image_label_and_grid(save) -> None:
    image = np.arange(120, dtype=np.int16).reshape(SHAPE)
    ref = _ref(
        save("i.nii.gz", image, np.diag([2.0, 2, 3, 1])), label=save("l.nii", LABEL * 5, np.diag([2.0, 2, 3, 1]))
    )
    volume = read_case(ref, label_values=(0, 5))
    assert volume.case_id == "liver_01"
    assert volume.image.dtype == np.int16
    assert np.array_equal(volume.image[0], image)
    assert volume.label is not None
    assert volume.label.dtype == np.uint8
    assert np.array_equal(volume.label, LABEL)
    assert volume.grid.spacing_mm == (2.0, 2.0, 3.0)
    assert volume.trace == ()


def test_channel_files_are_stacked_in_order_in_their_common_dtype(save) -> None:
    first, second = np.full(SHAPE, -3, np.int16), np.full(SHAPE, 300, np.uint16)
    volume = read_case(_ref(save("a.nii", first), save("b.nii", second)), label_values=(0,))
    assert volume.label is None
    assert volume.image.dtype == np.int32
    assert volume.image[:, 0, 0, 0].tolist() == [-3, 300]
    assert volume.image.strides[1] == 4


def test_channels_of_one_file_come_first(save) -> None:
    both = np.stack([np.zeros(SHAPE), np.ones(SHAPE)], axis=-1).astype(np.float32)
    volume = read_case(_ref(save("a.nii.gz", both)), label_values=(0,))
    assert volume.image.shape == (2, *SHAPE)
    assert (volume.image[1] == 1).all()


def test_channels_of_different_shape_are_refused(save) -> None:
    ref = _ref(save("a.nii", np.zeros(SHAPE, np.uint8)), save("b.nii", np.zeros((6, 5, 3), np.uint8)))
    with pytest.raises(
        ScanError,
        match=r"^decode: case 'liver_01': channels differ in shape: .*a\.nii has \(6, 5, 4\), .*b\.nii has \(6, 5, 3\)",
    ):
        read_case(ref, label_values=(0,))


def test_label_elsewhere_in_space_is_refused_with_the_distance(save) -> None:
    moved = np.eye(4)
    moved[0, 3] = 2.5
    ref = _ref(save("a.nii", np.zeros(SHAPE, np.uint8)), label=save("l.nii", LABEL, moved))
    with pytest.raises(
        ScanError, match=r"image and label lie up to 2\.5 mm apart: .*a\.nii has the affine \[\[1.*l\.nii has \[\[1"
    ):
        read_case(ref, label_values=(0, 1))


def _ordered_in_space(voxels: np.ndarray, affine: np.ndarray, codes: str) -> tuple[np.ndarray, np.ndarray]:
    """The same places of space in another order of axes, as nibabel turns them."""
    image = nib.Nifti1Image(voxels, affine)
    wanted = nib.orientations.axcodes2ornt(codes)
    turned = image.as_reoriented(nib.orientations.ornt_transform(nib.io_orientation(affine), wanted))
    return np.asarray(turned.dataobj), turned.affine


LPS = np.array([[-0.8, 0.1, 0, 10], [-0.1, -0.9, 0, 20], [0, 0, 2.5, 30], [0, 0, 0, 1.0]])


@pytest.mark.parametrize("codes", ["RAS", "PIR", "SAL", "LPI"])
def test_a_label_in_another_order_of_axes_is_turned_and_that_is_said_once(save, tmp_path: Path, codes: str) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    truth = np.random.default_rng(0).integers(0, 3, SHAPE).astype(np.uint8)
    image = save("images/a.nii", np.zeros(SHAPE, np.int16), LPS)
    label = save("labels/a.nii", *_ordered_in_space(truth, LPS, codes))
    ref = _ref(image, label=label)
    with pytest.warns(
        UserWarning, match=rf"image and label have the same voxel positions.* as LPS, .* as {codes}.*no value"
    ):
        volume = read_case(ref, label_values=(0, 1, 2))
    # A second warning would be an error.
    read_case(ref, label_values=(0, 1, 2))
    assert np.array_equal(volume.label, truth)
    assert volume.label.flags.f_contiguous


def test_a_channel_in_another_order_of_axes_is_turned(save, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    first = np.arange(120, dtype=np.int16).reshape(SHAPE)
    second = save("c/b.nii", *_ordered_in_space(first * 2, LPS, "PIR"))
    with pytest.warns(UserWarning, match="channels have the same voxel positions"):
        volume = read_case(_ref(save("c/a.nii", first, LPS), second), label_values=(0,))
    assert np.array_equal(volume.image[1], 2 * volume.image[0])
    assert np.array_equal(volume.image[0], first)


def test_a_turned_label_that_lies_elsewhere_is_refused_without_advice_to_copy_the_affine(save) -> None:
    turned, affine = _ordered_in_space(LABEL, LPS, "RAS")
    affine[0, 3] += 1.0
    ref = _ref(save("a.nii", np.zeros(SHAPE, np.uint8), LPS), label=save("l.nii", turned, affine))
    with pytest.raises(
        ScanError, match=r"lie up to 1 mm apart, even with the latter reoriented from RAS to LPS"
    ) as refused:
        read_case(ref, label_values=(0, 1))
    assert "copy the affine" not in str(refused.value)


def test_rounding_of_the_affine_is_not_a_difference(save) -> None:
    nearly = np.eye(4)
    nearly[0, 0] += 1e-5
    ref = _ref(save("a.nii", np.zeros(SHAPE, np.uint8)), label=save("l.nii", LABEL, nearly))
    assert read_case(ref, label_values=(0, 1)).grid.shape == SHAPE


def test_one_grid_told_by_a_matrix_and_by_a_quaternion_is_one_grid(tmp_path: Path) -> None:
    angle, shape = np.deg2rad(2.0), (512, 512, 30)
    affine = np.diag([-0.7, -0.7, 5.0, 1.0])
    turn = [[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]]
    affine[:3, :3] = turn @ affine[:3, :3]
    for name, codes in (("image.nii", {"sform": 1, "qform": 0}), ("label.nii", {"sform": 0, "qform": 1})):
        scan = nib.Nifti1Image(np.zeros(shape, np.uint8), affine)
        scan.set_sform(affine, code=codes["sform"])
        scan.set_qform(affine, code=codes["qform"])
        nib.save(scan, tmp_path / name)
    apart = np.abs(nib.load(tmp_path / "image.nii").affine - nib.load(tmp_path / "label.nii").affine).max()
    assert apart > 0.0
    case = read_case(_ref(tmp_path / "image.nii", label=tmp_path / "label.nii"), label_values=(0, 1))
    assert case.grid.shape == shape


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_voxels_that_are_not_finite_are_counted_and_placed(save, bad: float) -> None:
    second = np.ones(SHAPE, np.float32)
    second[3, 2, 1] = second[4, 4, 3] = bad
    ref = _ref(save("a.nii", np.ones(SHAPE, np.float32)), save("b.nii", second))
    with pytest.raises(
        ScanError,
        match=rf"b\.nii: 2 voxels are NaN or infinite, the first is {bad} at \(x, y, z\) = \(3, 2, 1\), channel 0; ",
    ):
        read_case(ref, label_values=(0,))


def test_undeclared_label_values_name_case_and_file(save) -> None:
    ref = _ref(save("a.nii", np.zeros(SHAPE, np.uint8)), label=save("l.nii", LABEL * 3))
    with pytest.raises(ScanError, match=r"^decode: case 'liver_01': .*l\.nii: .* not declared: 3 \(40 voxels\)"):
        read_case(ref, label_values=(0, 1))


def test_label_with_channels_is_refused(save) -> None:
    ref = _ref(save("a.nii", np.zeros(SHAPE, np.uint8)), label=save("l.nii", np.stack([LABEL, LABEL], -1)))
    with pytest.raises(ScanError, match=r"l\.nii: the label has 2 channels; save it as one 3-D image"):
        read_case(ref, label_values=(0, 1))
    with pytest.raises(ScanError, match=r"l\.nii: the label has 2 channels"):
        label_values_in(ref.label)


def test_broken_file_names_its_case(save, tmp_path: Path) -> None:
    with pytest.raises(ScanError, match=r"^decode: case 'liver_01': .*gone\.nii: the file does not exist"):
        read_case(_ref(tmp_path / "gone.nii"), label_values=(0,))
    path = save("a.nii.gz", np.random.default_rng(0).integers(0, 999, (20, 9, 9)).astype(np.int16))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ScanError, match=r"^decode: case 'liver_01': .*a\.nii\.gz: the file is truncated: 3,592 bytes"):
        read_case(_ref(path), label_values=(0,))


@pytest.mark.data
def test_real_case_of_four_channels_without_orientation_code(real_data: Path) -> None:
    folder = real_data / "ms_multimodal"
    images = tuple(folder / "imagesTr" / f"ms_patient07_000{c}.nii.gz" for c in range(4))
    ref = _ref(*images, label=folder / "labelsTr" / "ms_patient07.nii.gz")
    volume = read_case(ref, label_values=(0, 1))
    assert volume.image.shape == (4, 182, 218, 182)
    assert volume.label is not None
    assert int(volume.label.sum()) == 1300
    assert np.array_equal(volume.image[2], np.asarray(nib.load(images[2]).dataobj))
    assert volume.grid.matrix[0, 0] == -1.0


@pytest.mark.data
def test_real_label_with_gaps_becomes_class_indices(real_data: Path) -> None:
    folder = real_data / "small_ct_mr_samples" / "spine_mri"
    peer = np.asarray(nib.load(folder / "label_vert.nii.gz").dataobj)
    values = tuple(int(v) for v in np.unique(peer))
    volume = read_case(_ref(folder / "image.nii.gz", label=folder / "label_vert.nii.gz"), label_values=values)
    assert values[-1] == 207
    assert np.array_equal(np.array(values)[volume.label], peer)


@pytest.mark.data
def test_real_float_label_is_accepted(real_data: Path) -> None:
    folder = real_data / "hippocampus"
    name = "hippocampus_003.nii.gz"
    volume = read_case(_ref(folder / "imagesTr" / name, label=folder / "labelsTr" / name), label_values=(0, 1, 2))
    assert volume.label is not None
    assert volume.label.dtype == np.uint8
    assert np.array_equal(volume.label, nib.load(folder / "labelsTr" / name).get_fdata())


def test_voxels_beyond_float32_are_counted_and_placed(save) -> None:
    image = np.ones(SHAPE, np.float64)
    image[3, 2, 1] = -1e39
    with pytest.raises(
        ScanError,
        match=r"a\.nii: 1 voxel is larger than float32 can hold, the first is -1e\+39 at \(x, y, z\) = \(3, 2, 1\), "
        r"channel 0; rescale the image or leave the case out",
    ):
        read_case(_ref(save("a.nii", image)), label_values=(0, 1))


@pytest.mark.parametrize("stored", [np.uint8, np.int16])
@pytest.mark.parametrize("highest", [1, 2, 7, 40, 200])
def test_labels_that_nibabel_saved_as_scaled_integers_are_the_whole_numbers(
    tmp_path: Path, stored, highest: int
) -> None:
    truth = (np.arange(512) % (highest + 1)).reshape(8, 8, 8)
    with_header = nib.Nifti1Image(truth.astype(stored), np.eye(4))
    # Floating-point values under a header of integers: nibabel fills the range of these by a slope.
    nib.save(nib.Nifti1Image(truth.astype(float), np.eye(4), with_header.header), tmp_path / "l.nii.gz")
    assert nib.load(tmp_path / "l.nii.gz").dataobj.slope not in (0, 1)
    notes: list[str] = []
    labels, _ = read_labels(tmp_path / "l.nii.gz", where="x", note=lambda kind, text: notes.append(text))
    assert np.array_equal(labels, truth)
    assert all("scl_slope" in text for text in notes)
    found = label_values_in(tmp_path / "l.nii.gz", note=lambda kind, text: None)
    assert found == tuple(range(highest + 1))


def test_noise_of_floats_is_rounded_and_more_is_refused(save) -> None:
    notes: list[str] = []
    noisy = save("l.nii", (LABEL * 1.9995).astype(np.float32))
    labels, _ = read_labels(noisy, where="x", note=lambda kind, text: notes.append(text))
    assert np.array_equal(labels, 2 * LABEL)
    assert [text.partition(" from ")[0] for text in notes] == ["x: the values are up to 0.0005 away"]
    with pytest.raises(ScanError, match=r"40 values that are not whole numbers, the first is 0\.99;"):
        read_labels(save("m.nii", (LABEL * 0.99).astype(np.float32)), where="x", note=lambda kind, text: None)


def test_probabilities_that_are_stored_scaled_are_no_label(save, patch_header) -> None:
    path = patch_header(save("p.nii", LABEL * 100), 112, struct.pack("<ff", 1 / 255, 0.0))
    with pytest.raises(
        ScanError, match=r"0\.392157; the file stores whole numbers scaled by 0\.0039\d+ \(scl_slope\); if"
    ):
        read_labels(path, where="x", note=lambda kind, text: None)
