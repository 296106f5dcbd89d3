"""Scans prepared as nnU-Net prepares them, compared with the calls of SciPy and scikit-image that nnU-Net makes."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.spatial.transform import Rotation

from shared.examples import examples
from voxelocity.core.volume import Grid, Volume
from voxelocity.data.prepare import Restoration, restore_labels
from voxelocity.infer.models.nnunet_prepare import (
    Interpolation,
    NnunetPreparation,
    Normalization,
    normalize,
    resize,
    thick_axis,
)
from voxelocity_observe.core.errors import ScanError


def as_skimage(values, shape, order):
    """`skimage.transform.resize` with mode="edge" and without anti-aliasing: the call of SciPy that it makes."""
    factors = [1 / (before / after) for before, after in zip(values.shape, shape, strict=True)]
    return ndimage.zoom(values, factors, order=order, mode="nearest", grid_mode=True).clip(values.min(), values.max())


def in_planes(values, shape, order, axis, order_thick):
    """nnU-Net's `resample_data_or_seg` with `do_separate_z`."""
    plane_shape = [n for other, n in enumerate(shape) if other != axis]
    planes = [as_skimage(plane, plane_shape, order) for plane in np.moveaxis(values, axis, 0)]
    stacked = np.stack(planes, axis)
    scale = [before / after for before, after in zip(stacked.shape, shape, strict=True)]
    places = [s * (grid + 0.5) - 0.5 for s, grid in zip(scale, np.mgrid[tuple(map(slice, shape))], strict=True)]
    return ndimage.map_coordinates(stacked, np.array(places), order=order_thick, mode="nearest")


def scan(image, spacing=(1.0, 1.0, 1.0)):
    return Volume(case_id="case", image=image, label=None, grid=Grid.of(image.shape, np.diag([*spacing, 1.0])))


def preparation(**changes):
    given = {
        "axes": (2, 1, 0),
        "is_reoriented": False,
        "spacing_mm": (1.0, 1.0, 1.0),
        "channels": (Normalization(scheme="NoNormalization"),),
        "interpolation": Interpolation(),
    }
    return NnunetPreparation(**{**given, **changes})


SHAPES = st.tuples(*[st.integers(1, 9)] * 3)


@settings(max_examples=examples(40))
@given(shape=SHAPES, new_shape=SHAPES, order=st.sampled_from([1, 3]), seed=st.integers(0, 99))
def test_images_are_resized_as_scikit_image_does(shape, new_shape, order, seed):
    image = np.random.default_rng(seed).standard_normal((1, *shape)).astype(np.float32)
    found = resize(image, new_shape, Interpolation(order=order), thick=None)
    np.testing.assert_allclose(found[0], as_skimage(image[0].astype(float), new_shape, order), rtol=0, atol=1e-5)
    assert found.flags.c_contiguous


@settings(max_examples=examples(30))
@given(shape=SHAPES, new_shape=SHAPES, thick=st.none() | st.integers(0, 2), seed=st.integers(0, 99))
def test_in_float64_images_are_equal_to_the_last_bit_of_float32(shape, new_shape, thick, seed):
    image = np.random.default_rng(seed).standard_normal((1, *shape)).astype(np.float32)
    found = resize(image, new_shape, Interpolation(), thick=thick, compute="float64")
    wide = image[0].astype(float)
    expected = as_skimage(wide, new_shape, 3) if thick is None else in_planes(wide, new_shape, 3, thick, 0)
    np.testing.assert_allclose(found[0], expected.astype(np.float32), rtol=1.2e-7, atol=1e-12)


@settings(max_examples=examples(40))
@given(
    shape=SHAPES,
    new_shape=SHAPES,
    axis=st.integers(0, 2),
    order_thick=st.sampled_from([0, 1]),
    seed=st.integers(0, 99),
)
def test_thick_slices_are_resized_plane_by_plane(shape, new_shape, axis, order_thick, seed):
    image = np.random.default_rng(seed).standard_normal((1, *shape)).astype(np.float32)
    found = resize(image, new_shape, Interpolation(image_order_thick=order_thick), thick=axis)
    expected = in_planes(image[0].astype(float), new_shape, 3, axis, order_thick)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-5)


@settings(max_examples=25)
@given(shape=SHAPES, new_shape=SHAPES, axis=st.integers(0, 2), seed=st.integers(0, 99))
def test_logits_of_thick_slices_come_back_from_the_nearest_slice(shape, new_shape, axis, seed):
    spacing = [1.0, 1.0, 1.0]
    spacing[axis] = 4.0
    wanted = tuple(s * n / m for s, n, m in zip(spacing, shape, new_shape, strict=True))
    thick = thick_axis(wanted, spacing, in_planes=None)
    image = np.ones((1, *shape), np.float32)
    prepared = preparation(axes=(0, 1, 2), spacing_mm=wanted)(scan(image, spacing))
    assert prepared.grid.shape == new_shape
    logits = np.random.default_rng(seed).standard_normal((3, *new_shape)).astype(np.float32)
    if shape == new_shape:
        expected = logits
    elif thick is None:
        expected = np.stack([as_skimage(logit.astype(float), shape, 1) for logit in logits])
    else:
        expected = np.stack([in_planes(logit.astype(float), shape, 1, thick, 0) for logit in logits])
    restoration = Restoration(prepared.trace, new_shape)
    restoration.add(logits)
    ordered = np.sort(expected, axis=0)
    is_clear = ordered[-1] - ordered[-2] > 1e-4
    assert np.array_equal(restoration.result()[is_clear], expected.argmax(0)[is_clear])


def test_the_prepared_volume_has_the_axes_of_the_plan_and_its_labels_come_back():
    image = np.zeros((1, 7, 9, 11), np.int16)
    image[0, 2:6, 1:8, 3:10] = np.arange(4 * 7 * 7).reshape(4, 7, 7) + 1
    prepared = preparation(axes=(1, 2, 0))(scan(image))
    assert np.array_equal(prepared.image[0], image[0, 2:6, 1:8, 3:10].transpose(1, 2, 0))
    assert prepared.image.flags.c_contiguous
    assert np.array_equal(restore_labels((prepared.image[0] % 3).astype(np.uint8), prepared.trace), image[0] % 3)


def test_readers_that_reorient_turn_the_scan_to_ras_first():
    image = np.arange(1, 25, dtype=np.int16).reshape(1, 2, 3, 4)
    grid = Grid.of(image.shape, np.diag([-1.0, 1.0, 1.0, 1.0]))
    volume = Volume(case_id="case", image=image, label=None, grid=grid)
    assert np.array_equal(preparation(is_reoriented=True)(volume).image[0], image[0, ::-1].T)
    assert np.array_equal(preparation()(volume).image[0], image[0].T)


def test_each_normalization_is_that_of_nnunet():
    rng = np.random.default_rng(0)
    image = rng.uniform(1, 200, (5, 6, 7, 8)).astype(np.float32)
    image[:, :2] = 0
    image[:, 4, 3, 3] = 0  # inside, so that it counts as filled
    schemes = ["CTNormalization", "ZScoreNormalization", "ZScoreNormalization", "RescaleTo01Normalization",
               "RGBTo01Normalization"]  # fmt: skip
    channels = [Normalization(scheme=scheme) for scheme in schemes]
    channels[0] = Normalization(scheme="CTNormalization", low=20, high=120, mean=70, std=30)
    channels[2] = Normalization(scheme="ZScoreNormalization", inside_only=True)
    found = normalize(image, channels, who="case 'x'")
    inside = ndimage.binary_fill_holes(image[0] != 0)
    assert inside[4, 3, 3]
    expected = image.astype(np.float64)
    expected[0] = (expected[0].clip(20, 120) - 70) / 30
    expected[1] = (expected[1] - expected[1].mean()) / expected[1].std()
    expected[2][inside] = (expected[2][inside] - expected[2][inside].mean()) / expected[2][inside].std()
    expected[3] = (expected[3] - expected[3].min()) / (expected[3].max() - expected[3].min())
    expected[4] /= 255
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert (found[2][~inside] == 0).all()


def test_values_that_are_no_rgb_are_refused():
    image = np.full((1, 2, 2, 2), 300, np.int16)
    with pytest.raises(ScanError, match=r"case 'x' has values from 300 to 300 .* RGB, 0 to 255"):
        normalize(image, [Normalization(scheme="RGBTo01Normalization")], who="case 'x'")


@pytest.mark.parametrize(
    ("first", "second", "in_planes", "axis"),
    [
        ((5.0, 1.0, 1.0), (1.0, 1.0, 1.0), None, 0),
        ((1.0, 1.0, 1.0), (1.0, 4.0, 1.2), None, 1),
        ((3.0, 1.0, 1.0), (1.0, 1.0, 1.0), None, None),
        ((1.0, 5.0, 5.0), (9.0, 1.0, 1.0), None, None),
        ((1.0, 1.0, 1.1), (1.0, 1.0, 1.0), True, 2),
        ((9.0, 1.0, 1.0), (9.0, 1.0, 1.0), False, None),
    ],
)
def test_planes_are_interpolated_alone_where_nnunet_does(first, second, in_planes, axis):
    assert thick_axis(first, second, in_planes=in_planes) == axis


@pytest.mark.parametrize("seed", range(5))
def test_a_rotated_scan_has_as_many_prepared_voxels_as_its_header_says(seed):
    # 35 voxels of 0.7 mm are 17.5 of 1.4 mm; the float32 of the header is a little less than 0.7.
    affine = np.eye(4)
    affine[:3, :3] = (Rotation.random(rng=np.random.default_rng(seed)).as_matrix() * 0.7).astype(np.float32)
    volume = Volume(case_id="x", image=np.ones((1, 35, 35, 35)), label=None, grid=Grid.of((35, 35, 35), affine))
    assert preparation(spacing_mm=(1.4, 1.4, 1.4))(volume).grid.shape == (17, 17, 17)


def test_a_scan_without_a_spacing_is_refused():
    with pytest.raises(ScanError, match=r"case 'case' has the spacing \(1\.0, 1\.0, 0\.0\) mm; fix its header"):
        preparation(axes=(0, 1, 2))(scan(np.ones((1, 2, 2, 2), np.float32), (1.0, 1.0, 0.0)))


def test_a_scan_with_too_many_prepared_voxels_is_refused_before_they_are_made():
    huge = preparation(spacing_mm=(1e-3, 1e-3, 1e-3))
    with pytest.raises(ScanError, match=re.escape("would have 2000 x 2000 x 2000 voxels")):
        huge(scan(np.ones((1, 2, 2, 2), np.float32)))


def test_the_fingerprint_differs_with_every_setting():
    texts = [
        preparation().fingerprint(),
        preparation(spacing_mm=(1.0, 1.0, 2.0)).fingerprint(),
        preparation(channels=(Normalization(scheme="ZScoreNormalization"),)).fingerprint(),
        preparation(interpolation=Interpolation(order=1)).fingerprint(),
    ]
    assert len({*texts}) == len(texts)
    assert preparation().fingerprint() == texts[0]
