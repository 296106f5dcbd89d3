from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from monai.data import MetaTensor
from monai.transforms import Spacing
from scipy import ndimage

from voxelocity.core.volume import Grid, Volume, VolumeSpec
from voxelocity.data.prepare.orient import OrientToRAS
from voxelocity.data.prepare.resample import Resample
from voxelocity_observe.core.errors import ScanError


def _by_scipy(volume: Volume, grid: Grid) -> np.ndarray:
    """The scan at the voxel centers of `grid`, each place worked out through millimeters."""
    index = np.stack([*np.meshgrid(*(np.arange(n) for n in grid.shape), indexing="ij"), np.ones(grid.shape)])
    old_index = np.tensordot(np.linalg.inv(volume.grid.matrix) @ grid.matrix, index, 1)[:3]
    return np.stack(
        [ndimage.map_coordinates(c.astype(float), old_index, order=1, mode="nearest") for c in volume.image]
    )


@given(
    shape=st.tuples(*[st.integers(1, 8)] * 3),
    spacing=st.tuples(*[st.floats(0.4, 4)] * 3),
    turned=st.booleans(),
    seed=st.integers(0, 99),
)
def test_values_are_those_of_scipy_at_the_same_places(shape, spacing, turned: bool, seed: int) -> None:
    affine = np.diag([1.0, 1.3, 2.0, 1.0])
    if turned:
        affine = np.array([[0.1, 1.2, 0.2, -10.0], [-0.9, 0.1, 0.3, 5.0], [-0.2, 0.1, -2.5, 7.0], [0, 0, 0, 1.0]])
    image = np.random.default_rng(seed).normal(100, 30, (2, *shape)).astype(np.float32)
    volume = Volume(case_id="a", image=image, label=None, grid=Grid.of(shape, affine))
    for engine in ("auto", "numpy"):
        resampled = Resample(spacing_mm=spacing, engine=engine)(volume)
        assert np.allclose(resampled.image, _by_scipy(volume, resampled.grid), rtol=1e-4)


def test_new_grid_has_the_spacing_and_the_center_of_the_field_of_view(make_volume, oblique: np.ndarray) -> None:
    volume = make_volume(np.zeros((10, 12, 6), np.int16), oblique)
    resampled = Resample(spacing_mm=(1.0, 2.0, 0.7))(volume)
    assert np.allclose(resampled.grid.spacing_mm, (1.0, 2.0, 0.7), rtol=1e-12)
    spacing = np.array(volume.grid.spacing_mm)
    assert resampled.grid.shape == tuple(np.round([10, 12, 6] * spacing / [1.0, 2.0, 0.7]).astype(int).tolist())
    old_center = volume.grid.matrix @ [4.5, 5.5, 2.5, 1]
    new_center = resampled.grid.matrix @ [*((n - 1) / 2 for n in resampled.grid.shape), 1]
    assert np.allclose(old_center, new_center)
    assert resampled.image.dtype == np.float32


def test_axis_whose_spacing_agrees_is_left_alone(make_volume) -> None:
    image = np.random.default_rng(0).random((4, 5, 6)).astype(np.float32)
    volume = make_volume(image, np.diag([1.0005, 1.0, 3.0, 1.0]))
    assert Resample(spacing_mm=(1.0, 1.0, 3.0))(volume) is volume
    resampled = Resample(spacing_mm=(1.0, 1.0, 1.0))(volume)
    assert resampled.grid.spacing_mm == (1.0005, 1.0, 1.0)
    assert resampled.trace[0]["step_voxel"] == [1.0, 1.0, 1 / 3]
    assert np.array_equal(resampled.image[0, :, :, 1], image[:, :, 0])


def test_axis_never_becomes_empty(make_volume) -> None:
    volume = make_volume(np.arange(60, dtype=np.float32).reshape(3, 4, 5))
    resampled = Resample(spacing_mm=(100.0, 1.0, 1.0))(volume)
    assert resampled.grid.shape == (1, 4, 5)
    assert np.array_equal(resampled.image[0, 0], volume.image[0, 1])


def test_zero_spacing_names_case_and_axis(make_volume) -> None:
    volume = make_volume(np.zeros((4, 5, 6), np.int16), np.diag([1.0, 1.0, 0.0, 1.0]))
    with pytest.raises(
        ScanError, match=r"^prepare\.resample: case 'liver_01' has spacing 0\.0 mm on z; fix the header or"
    ):
        Resample(spacing_mm=(1.0, 1.0, 1.0))(volume)


def test_too_many_voxels_are_refused_before_any_is_made() -> None:
    spec = VolumeSpec(num_channels=1, grid=Grid.of((512, 512, 300), np.eye(4)), dtype="int16")
    with pytest.raises(
        ScanError,
        match=r"the scan would have 5120 x 5120 x 3000 = 78,643,200,000 voxels at .* choose a coarser spac",
    ):
        Resample(spacing_mm=(0.1, 0.1, 0.1)).describe(spec)


def test_monai_gives_the_same_where_its_grid_coincides(make_volume) -> None:
    """MONAI keeps the first voxel center and we the center of the scan: for these shapes both are kept."""
    image = np.random.default_rng(0).random((13, 13, 19)).astype(np.float32)
    volume = make_volume(image, np.diag([1.0, 1.0, 2.0, 1.0]))
    ours = Resample(spacing_mm=(0.8, 1.5, 3.0))(volume)
    peer = Spacing(pixdim=(0.8, 1.5, 3.0), mode="bilinear")(MetaTensor(volume.image, affine=volume.grid.matrix))
    assert ours.grid.shape == (16, 9, 13)
    assert np.allclose(ours.grid.matrix, np.asarray(peer.affine), atol=1e-9)
    assert np.allclose(ours.image, peer.numpy(), atol=1e-5)


@pytest.mark.data
def test_real_scan_of_thick_slices_equals_scipy(load) -> None:
    volume = OrientToRAS()(
        load("small_ct_mr_samples/msd_spleen_2_crop/image.nii.gz", "small_ct_mr_samples/msd_spleen_2_crop/label.nii.gz")
    )
    resampled = Resample(spacing_mm=(1.6, 1.6, 2.0))(volume)
    peer = _by_scipy(volume, resampled.grid)
    assert np.abs(resampled.image - peer).max() < 1e-4 * np.abs(peer).max()
    assert resampled.label is not None
    mm3 = [int(v.label.sum()) * np.prod(v.grid.spacing_mm) for v in (volume, resampled)]
    assert mm3[1] == pytest.approx(mm3[0], rel=0.02)


@pytest.mark.parametrize("dtype", ["i2", "u1", "f2", "f4", "f8", ">i2", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_compiled_and_numpy_agree_for_every_dtype_and_order_in_memory(dtype: str, order: str) -> None:
    rng = np.random.default_rng(0)
    image = np.asarray(rng.integers(0, 2 if dtype == "?" else 100, (2, 9, 12, 7)), dtype=dtype, order=order)
    volume = Volume(case_id="a", image=image[:, :, ::-1], label=None, grid=Grid.of((9, 12, 7), np.eye(4)))
    fast, slow = (Resample(spacing_mm=(0.7, 1.0, 2.2), engine=engine)(volume) for engine in ("auto", "numpy"))
    np.testing.assert_allclose(fast.image, slow.image, rtol=1e-5, atol=1e-4)
    assert (fast.image.dtype, fast.grid, fast.trace) == (np.float32, slow.grid, slow.trace)
