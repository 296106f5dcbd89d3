"""Resampling as MONAI's `Spacing`: to the last bit where a transform takes voxels of value 0 apart."""

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import NormalizeIntensity, ScaleIntensity, Spacing

from voxelocity.core.volume import Grid, Volume
from voxelocity.infer import open_model
from voxelocity.infer.models.bundle_grid import ResampleAsMonai
from voxelocity_observe.core.errors import ScanError

from .test_bundle import CROPPED, SPACED, WINDOWED, config, save

NORMALIZED = {"_target_": "NormalizeIntensityd", "keys": "@keys", "nonzero": True}
SCALED = {"_target_": "ScaleIntensityd", "keys": "@keys", "minv": -1.0, "maxv": 1.0}
# Every second sample lies on a voxel along two axes, and every tenth along the third.
PIXDIM = [1.5, 1.5, 1.5]


def turned(spacing, degrees):
    """The affine of a scan whose patient lies askew."""
    angle = np.radians(degrees)
    rotation = [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    affine = np.eye(4)
    affine[:3, :3] = rotation @ np.diag(spacing)
    affine[:3, 3] = (-70.25, 31.5, 400.75)
    return affine


def scan(affine, *, num_channels=1):
    """Whole numbers around 0, as those of soft tissue in a CT."""
    image = np.random.default_rng(0).integers(-2, 3, (num_channels, 13, 11, 7)).astype(np.float32)
    return Volume(case_id="x", image=image, label=None, grid=Grid.of(image.shape, affine))


def as_monai(volume, *later, pixdim=PIXDIM):
    image = MetaTensor(torch.from_numpy(volume.image.copy()), affine=torch.from_numpy(volume.grid.matrix))
    image = Spacing(pixdim=pixdim, mode="bilinear")(image)
    for transform in later:
        image = transform(image)
    return image.numpy()


AFFINES = {
    "twice": turned((3.0, 3.0, 5.0), 0),
    "flipped": turned((-3.0, 3.0, -5.0), 0),
    "in planes alone": turned((2.9, 3.0, 1.5), 0),
    "oblique": turned((3.0, 3.0, 5.0), 20),
    "finer": turned((0.7, 0.75, 1.0), 0),
}


@pytest.mark.parametrize("name", AFFINES)
@pytest.mark.parametrize("piece", [1 << 20, 100])
def test_an_exact_resampling_has_every_bit_of_monais(name, piece, monkeypatch):
    monkeypatch.setattr("voxelocity.infer.models.bundle_grid._PIECE_VOXELS", piece)
    volume = scan(AFFINES[name], num_channels=2)
    expected = as_monai(volume)
    found = ResampleAsMonai((1.5, 1.5, 1.5), is_exact=True)(volume).image
    assert found.dtype == np.float32
    assert np.array_equal(found, expected)
    # Otherwise it is as close, and other voxels are exactly 0.
    quick = ResampleAsMonai((1.5, 1.5, 1.5))(volume).image
    np.testing.assert_allclose(quick, expected, rtol=0, atol=1e-5)
    assert ((quick == 0) != (expected == 0)).any()


def test_values_of_0_are_left_out_of_a_normalization_where_monai_leaves_them_out(tmp_path):
    model = open_model(save(tmp_path / "b", config({**SPACED, "pixdim": PIXDIM}, NORMALIZED, SCALED)))
    volume = scan(AFFINES["twice"])
    expected = as_monai(volume, NormalizeIntensity(nonzero=True), ScaleIntensity(minv=-1.0, maxv=1.0))
    np.testing.assert_allclose(model.preparation(volume).image, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("transforms", "is_exact"),
    [((SPACED, NORMALIZED), True), ((SPACED, WINDOWED, CROPPED), True), ((NORMALIZED, CROPPED, SPACED, SCALED), False)],
)
def test_a_resampling_is_exact_if_a_later_transform_takes_values_of_0_apart(tmp_path, transforms, is_exact):
    stages = open_model(save(tmp_path / "b", config(*transforms))).preparation.stages
    assert [stage.is_exact for stage in stages if isinstance(stage, ResampleAsMonai)] == [is_exact]


def test_a_scan_whose_axes_lie_in_a_plane_is_refused():
    affine = np.diag([3.0, 3.0, 5.0, 1.0])
    affine[:3, 1] = affine[:3, 0]
    with pytest.raises(ScanError, match="whose axes lie in one plane; fix its header"):
        ResampleAsMonai((1.5, 1.5, 1.5), is_exact=True)(scan(affine))


def test_a_spacing_that_differs_by_less_than_monai_minds_is_left_alone():
    volume = scan(AFFINES["twice"])
    pixdim = [3.002, 3.0, 5.004]
    assert np.array_equal(as_monai(volume, pixdim=pixdim), volume.image)
    assert ResampleAsMonai(tuple(pixdim))(volume) is volume
