from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from monai.transforms import NormalizeIntensity, ScaleIntensityRange

from voxelocity.core.volume import Grid, Volume
from voxelocity.data.prepare import IntensityConfig, Preparation, PrepareConfig, intensity
from voxelocity.data.prepare.intensity import ScaleIntensity

SHAPE = (2, 6, 5, 4)


def _volume(image: np.ndarray) -> Volume:
    return Volume(case_id="a", image=image, label=None, grid=Grid.of(image.shape, np.eye(4)))


@given(
    dtype=st.sampled_from(["i2", "u2", "f4", "f8"]),
    slab_values=st.sampled_from([1, 7, 1 << 16]),
    order=st.permutations([0, 1, 2, 3]),
    seed=st.integers(0, 99),
)
def test_each_channel_gets_mean_zero_and_deviation_one(dtype: str, slab_values: int, order, seed: int) -> None:
    image = np.random.default_rng(seed).normal([[[[500]]], [[[90]]]], [[[[100]]], [[[9]]]], SHAPE).astype(dtype)
    image = np.ascontiguousarray(image.transpose(order)).transpose(np.argsort(order))
    before = image.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intensity, "_SLAB_VALUES", slab_values)
        scaled = ScaleIntensity(IntensityConfig(mode="zscore"))(_volume(image)).intensities()
    wanted = [(c - c.mean()) / c.std() for c in image.astype(np.float64)]
    assert scaled.dtype == np.float32
    assert np.allclose(scaled, wanted, atol=1e-5)
    assert np.array_equal(image, before)


def test_large_values_close_together_keep_their_digits() -> None:
    image = np.array([1e7, 1e7 + 1, 1e7 + 2, 1e7 + 3], np.float64).reshape(1, 4, 1, 1)
    scaled = ScaleIntensity(IntensityConfig())(_volume(image)).image.ravel()
    assert np.allclose(scaled, np.array([-1.5, -0.5, 0.5, 1.5]) / np.sqrt(1.25), atol=1e-6)


def test_zero_voxels_can_be_left_out_as_in_monai() -> None:
    rng = np.random.default_rng(0)
    image = (rng.normal(50, 9, SHAPE) * (rng.random(SHAPE) < 0.5)).astype(np.float32)
    scaled = ScaleIntensity(IntensityConfig(nonzero_only=True))(_volume(image)).image
    peer = NormalizeIntensity(nonzero=True, channel_wise=True)(image)
    assert np.allclose(scaled, np.asarray(peer), atol=1e-5)
    assert (scaled[image == 0] == 0).all()
    empty = ScaleIntensity(IntensityConfig(nonzero_only=True))(_volume(np.zeros(SHAPE, np.int16)))
    assert not empty.image.any()


def test_window_scales_to_unit_range_as_in_monai() -> None:
    image = np.random.default_rng(0).integers(-1024, 2000, SHAPE).astype(np.int16)
    scaled = ScaleIntensity(IntensityConfig(mode="window", low=-57, high=164))(_volume(image)).intensities()
    peer = ScaleIntensityRange(a_min=-57, a_max=164, b_min=0.0, b_max=1.0, clip=True)(image)
    assert np.allclose(scaled, np.asarray(peer), atol=1e-6)
    assert (scaled.min(), scaled.max()) == (0.0, 1.0)


def test_window_takes_global_mean_and_deviation() -> None:
    image = np.array([-2000, 40, 100, 3000], np.int16).reshape(1, 4, 1, 1)
    config = IntensityConfig(mode="window", low=-100, high=300, mean=100, std=50)
    assert ScaleIntensity(config)(_volume(image)).intensities().ravel().tolist() == pytest.approx(
        [-4.0, -1.2, 0.0, 4.0]
    )


@pytest.mark.parametrize(("low", "high"), [(-200, -100), (300, 500)])
def test_values_beyond_a_window_become_its_end_even_if_their_type_cannot_hold_it(low, high) -> None:
    image = np.arange(120, dtype=np.uint8).reshape(1, 6, 5, 4)
    scaled = ScaleIntensity(IntensityConfig(mode="window", low=low, high=high))(_volume(image)).intensities()
    assert (scaled == (1.0 if high < 0 else 0.0)).all()


def test_none_passes_the_volume_on() -> None:
    volume = _volume(np.zeros(SHAPE, np.int16))
    assert ScaleIntensity(IntensityConfig(mode="none"))(volume) is volume


@pytest.mark.parametrize(
    "image", [np.full(SHAPE, 7, np.int16), *(np.full((1, 40, 50, 60), 0.1, d) for d in ("f4", "f8"))]
)
def test_a_constant_becomes_zero_also_if_it_rounds(image: np.ndarray) -> None:
    assert not ScaleIntensity(IntensityConfig(mode="zscore"))(_volume(image)).intensities().any()


@pytest.mark.parametrize("dtype", [np.int16, np.uint8])
def test_small_integers_stay_what_they_are_and_tell_what_they_mean(dtype) -> None:
    image = np.random.default_rng(0).integers(0, 200, SHAPE).astype(dtype)
    scaled = ScaleIntensity(IntensityConfig())(_volume(image))
    assert scaled.image is image
    wanted = [(c - c.mean()) / c.std() for c in image.astype(np.float64)]
    np.testing.assert_allclose(scaled.intensities(), wanted, atol=1e-5)
    window = ScaleIntensity(IntensityConfig(mode="window", low=-57, high=164))(_volume(image))
    assert window.image.dtype == dtype
    assert (window.intensities().min(), window.intensities().max()) == pytest.approx((57 / 221, 1.0), abs=0.02)


@pytest.mark.parametrize(
    "config", [IntensityConfig(nonzero_only=True), IntensityConfig(mode="window", low=-57.5, high=164)]
)
def test_what_is_not_exact_in_integers_becomes_float32(config) -> None:
    scaled = ScaleIntensity(config)(_volume(np.full(SHAPE, -100, np.int16)))
    assert (scaled.image.dtype, scaled.scaling) == (np.float32, ())


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("nonzero_only", [False, True])
def test_a_voxel_that_alone_decides_the_scale_is_named_by_its_place_in_the_file(dtype, nonzero_only) -> None:
    image = np.zeros((2, 30, 24, 20))
    image[:, 4:26, 4:20, 3:17] = np.random.default_rng(0).normal(300, 40, (2, 22, 16, 14))
    image[1, 7, 9, 11] = 1e9
    flipped = Volume(
        case_id="a", image=image.astype(dtype), label=None, grid=Grid.of(image.shape, np.diag([-1, 1, -2, 1]))
    )
    prepare = {"intensity": {"nonzero_only": nonzero_only}, "crop": "nonzero", "spacing_mm": [1.0, 1.0, 1.0]}
    with pytest.warns(UserWarning, match="case 'a'") as said:
        Preparation(PrepareConfig.parse(prepare))(flipped)
    (text,) = [str(warning.message) for warning in said]
    for words in ("1 voxel far", r"1e+09 at (x, y, z) = (7, 9, 11), channel 1", "numpy.clip", "leave the case out"):
        assert words in text
    # Without the voxel, the deviation is that of tissue.
    assert 30 < float(text.partition("in place of ")[2].partition(",")[0]) < 200


def test_bright_vessels_burnt_in_markers_and_maps_of_points_are_no_reason_to_warn() -> None:
    image = np.random.default_rng(0).normal(100, 10, (1, 40, 40, 40)).astype(np.float32)
    image[0, 20, 10:20, 10:20] = 1_000
    image[0, 3, 3, 3] = 4_000
    ScaleIntensity(IntensityConfig())(_volume(image))
    points = np.zeros((1, 40, 40, 40), np.float32)
    points[0, 3, 3, 3] = 1
    ScaleIntensity(IntensityConfig())(_volume(points))
