from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.volume import Grid, Scaling, Volume
from voxelocity.data.prepare.cast import Cast
from voxelocity_observe.core.errors import ScanError


def test_array_in_its_final_form_is_passed_on(make_volume) -> None:
    image, label = np.zeros((1, 3, 4, 5), np.float16), np.zeros((3, 4, 5), np.uint8)
    cast = Cast(dtype="float16")(make_volume(image, None, label))
    assert cast.image is image
    assert cast.label is label


@pytest.mark.parametrize(("value", "said"), [(1.7e6, r"from 0 to 1\.7e\+06"), (-7e4, "from -70000 to 0")])
def test_values_beyond_half_precision_are_refused(make_volume, value: float, said: str) -> None:
    image = np.zeros((3, 4, 5), np.float32)
    image[1, 1, 1] = value
    with pytest.raises(
        ScanError, match=rf"^prepare\.cast: case 'liver_01' has intensities {said}, beyond the 65504 that float16 holds"
    ):
        Cast(dtype="float16")(make_volume(image))
    assert Cast(dtype="float32")(make_volume(image)).image[0, 1, 1, 1] == np.float32(value)


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "?"])
def test_the_smallest_dtype_keeps_small_integers_and_their_scaling(make_volume, dtype: str) -> None:
    image = np.random.default_rng(0).integers(0, 2 if dtype == "?" else 100, (2, 3, 4, 5)).astype(dtype)
    scaling = (Scaling(0.5, 1.0), Scaling(2.0, 0.0))
    cast = Cast(dtype="smallest")(make_volume(image).with_(scaling=scaling))
    assert cast.image.dtype == (np.uint8 if dtype == "u1" else np.int16)
    assert np.array_equal(cast.image, image)
    assert cast.scaling == scaling


@given(
    low=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6), seed=st.integers(0, 99), dtype=st.sampled_from(["f4", "f8"])
)
def test_other_values_move_by_less_than_a_65000th_of_their_range(low, width, seed, dtype) -> None:
    image = (low + width * np.random.default_rng(seed).random((1, 3, 4, 5))).astype(dtype)
    volume = Volume(case_id="a", image=image, label=None, grid=Grid.of(image.shape, np.eye(4)))
    cast = Cast(dtype="smallest")(volume)
    assert cast.image.dtype == np.int16
    (scaling,) = cast.scaling
    exact = cast.image.astype(np.float64) * scaling.slope + scaling.inter
    assert np.abs(exact - image).max() <= np.ptp(image.astype(np.float64)) / 65_000 + 1e-12


def test_whole_numbers_stay_exact_in_two_bytes(make_volume) -> None:
    image = np.linspace(-30_000, 34_900, 60).round().reshape(1, 3, 4, 5).astype(np.float32)
    cast = Cast(dtype="smallest")(make_volume(image))
    np.testing.assert_array_equal(cast.intensities(), image)
    assert Cast(dtype="smallest")(make_volume(image.astype(np.int32))).scaling == cast.scaling


def test_a_scaling_on_the_way_is_a_part_of_the_result(make_volume) -> None:
    image = np.linspace(-10, 50, 60).reshape(1, 3, 4, 5).astype(np.float32)
    volume = make_volume(image).with_(scaling=(Scaling(0.25, -3.0),))
    np.testing.assert_allclose(Cast(dtype="smallest")(volume).intensities(), image * 0.25 - 3.0, atol=15 / 65_000)
    whole = Cast(dtype="float32")(volume)
    assert whole.scaling == ()
    np.testing.assert_allclose(whole.image, image * 0.25 - 3.0, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -7e30])
def test_a_constant_channel_is_kept_as_its_offset(make_volume, value: float) -> None:
    cast = Cast(dtype="smallest")(make_volume(np.full((3, 4, 5), value, np.float32)))
    assert not cast.image.any()
    assert (cast.intensities() == np.float32(value)).all()


def tissue(outlier: float, *, mean: float = 300.0, spread: float = 60.0, background: float = 0.7) -> np.ndarray:
    """Noise around a mean in a scan that is mostly background, and one voxel far from all of it."""
    rng = np.random.default_rng(0)
    image = rng.normal(mean, spread, (40, 40, 40)).astype(np.float32)
    image[rng.random(image.shape) < background] = 0.0
    image[1, 2, 3] = outlier
    return image


@pytest.mark.parametrize(
    ("image", "dtype"),
    [
        (tissue(3000.0), "int16"),
        (tissue(40_000.0), "float16"),
        (tissue(1e5), "float32"),
        (tissue(-1e7), "float32"),
        (tissue(40_000.0, mean=9000.0, spread=3.0), "float32"),
        (np.where(tissue(0.0) > 300, np.float32(1000), np.minimum(tissue(0.0), 300)), "int16"),
        (np.minimum(tissue(1e7), np.where(tissue(1e7) > 1e6, np.float32(1e7), 1)), "float32"),
    ],
    ids=["near", "half", "far", "below all", "little contrast", "clipped", "few values"],
)
def test_contrast_survives_an_outlier_in_the_smallest_dtype_that_keeps_it(make_volume, image, dtype) -> None:
    cast = Cast(dtype="smallest")(make_volume(image))
    assert cast.image.dtype == dtype
    tissue_voxels = (image > 0) & (image < 20_000)
    low, high = np.quantile(image[tissue_voxels], (0.25, 0.75))
    if high > low:
        moved = np.abs(cast.intensities()[0] - image)[tissue_voxels & (image >= low) & (image <= high)]
        assert moved.max() <= 0.01 * (high - low)


def test_channels_share_the_dtype_of_the_one_with_an_outlier_and_a_scaling_on_the_way_is_applied(make_volume) -> None:
    image = np.stack([tissue(500.0), tissue(1e6)])
    volume = make_volume(image).with_(scaling=(Scaling(2.0, 1.0), Scaling(0.5, 0.0)))
    cast = Cast(dtype="smallest")(volume)
    assert (cast.image.dtype, cast.scaling) == (np.float32, ())
    np.testing.assert_array_equal(cast.image, volume.intensities())
