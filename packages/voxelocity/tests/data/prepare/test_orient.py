from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from monai.data import MetaTensor
from monai.transforms import Orientation
from scipy.spatial.transform import Rotation

from voxelocity.core.axis_order import nearest_ras
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.prepare.orient import OrientToRAS

SHAPE = (3, 4, 5)


def _affine(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    affine = np.eye(4)
    affine[:3, :3] = Rotation.random(rng=rng).as_matrix() @ np.diag(rng.uniform(0.3, 5, 3) * rng.choice([-1, 1], 3))
    affine[:3, 3] = rng.uniform(-200, 200, 3)
    return affine


@given(seed=st.integers(0, 10_000))
def test_turn_is_the_one_of_nibabel(seed: int) -> None:
    affine = _affine(seed)
    voxels = np.random.default_rng(seed).integers(0, 99, SHAPE)
    peer = nib.as_closest_canonical(nib.Nifti1Image(voxels.astype(np.int16), affine))
    order = nearest_ras(Grid.of(SHAPE, affine))
    assert np.array_equal(order.turn(voxels), np.asarray(peer.dataobj))
    assert np.allclose(order.turn_grid(Grid.of(SHAPE, affine)).matrix, peer.affine, rtol=0, atol=1e-9)


def test_every_voxel_stays_where_it_is(make_volume, oblique: np.ndarray) -> None:
    place = np.stack(np.meshgrid(*(np.arange(n) for n in SHAPE), indexing="ij"))
    place_mm = np.einsum("ij,jxyz->ixyz", oblique[:3, :3], place) + oblique[:3, 3, None, None, None]
    turned = OrientToRAS()(make_volume(place_mm, oblique))
    index = np.stack(np.meshgrid(*(np.arange(n) for n in turned.grid.shape), indexing="ij"))
    affine = turned.grid.matrix
    assert np.allclose(
        np.einsum("ij,jxyz->ixyz", affine[:3, :3], index) + affine[:3, 3, None, None, None], turned.image
    )
    assert (np.diag(affine)[:3] > 0).all()


def test_result_is_a_view_with_a_plain_record(make_volume) -> None:
    label = np.zeros(SHAPE, np.uint8)
    volume = make_volume(np.zeros(SHAPE), np.diag([-1.0, -1, 1, 1]), label)
    turned = OrientToRAS()(volume)
    assert np.shares_memory(turned.image, volume.image)
    assert turned.label is not None
    assert np.shares_memory(turned.label, label)
    assert turned.trace == ({"step": "orient", "axes": [0, 1, 2], "flips": [True, True, False]},)


def test_scan_in_ras_is_left_alone(make_volume) -> None:
    volume = make_volume(np.zeros(SHAPE), np.diag([2.0, 1, 1, 1]))
    assert OrientToRAS()(volume) is volume


def _assert_as_monai(volume: Volume) -> None:
    moved = Orientation(axcodes="RAS")(MetaTensor(np.ascontiguousarray(volume.image), affine=volume.grid.matrix))
    turned = OrientToRAS()(volume)
    assert np.array_equal(turned.image, moved.numpy())
    assert np.allclose(turned.grid.matrix, np.asarray(moved.affine), rtol=0, atol=1e-9)


def test_monai_gives_the_same_for_an_oblique_scan(make_volume, oblique: np.ndarray) -> None:
    _assert_as_monai(make_volume(np.random.default_rng(0).random(SHAPE).astype(np.float32), oblique))


@pytest.mark.data
@pytest.mark.parametrize(
    "name", ["small_ct_mr_samples/totalseg_mr/image.nii.gz", "ms_multimodal/labelsTr/ms_patient07.nii.gz"]
)
def test_monai_gives_the_same_for_real_scans(load, name: str) -> None:
    _assert_as_monai(load(name))
