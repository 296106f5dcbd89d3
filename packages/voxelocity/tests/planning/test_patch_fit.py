import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.planning.patch_fit import fit_patch, strides_for


def fit(shape, spacing, max_voxels=96_000, max_levels=4):
    return fit_patch(np.array(shape, float), np.array(spacing, float), max_voxels=max_voxels, max_levels=max_levels)


def test_a_small_case_is_taken_in_whole():
    hippocampus = fit((35, 50, 36), (1, 1, 1))
    assert hippocampus.shape_voxel == (32, 48, 32)
    assert hippocampus.strides == ((2, 2, 2),) * 3


def test_a_large_case_gets_a_near_cubic_patch_within_the_budget():
    x, y, z = fit((300, 300, 200), (1, 1, 1), max_voxels=128**3, max_levels=6).shape_voxel
    assert (x, y, z) == (128, 128, 128)


def test_thick_slices_are_halved_later_than_the_plane():
    anisotropic = fit((256, 256, 30), (0.8, 0.8, 5.0), max_voxels=128**3, max_levels=6)
    assert anisotropic.strides[:2] == ((2, 2, 1), (2, 2, 1))
    x, y, z = anisotropic.shape_voxel
    assert x == y > z


def test_a_side_shorter_than_a_slice_is_thick_takes_one_slice_and_no_axis_is_longer_than_a_window_may_be():
    x, y, z = fit((5000, 5000, 3), (0.01, 0.01, 10.0), max_voxels=64_000).shape_voxel
    assert (x, z) == (y, 1)
    assert x * y <= 1.1 * 64_000
    assert fit((5000, 1, 1), (1, 1, 1), max_levels=6).shape_voxel == (2048, 1, 1)


@given(patch=st.tuples(*[st.integers(1, 200)] * 3), max_levels=st.integers(2, 6))
def test_a_chosen_patch_gets_strides_that_divide_it(patch, max_levels):
    strides = strides_for(patch, np.array([1.0, 1.0, 3.0]), max_levels=max_levels)
    divisor = np.prod(np.array(strides), axis=0)
    assert not (np.array(patch) % divisor).any()
    assert 1 <= len(strides) <= max_levels - 1


@given(
    shape=st.tuples(*[st.integers(1, 600)] * 3),
    spacing=st.tuples(*[st.floats(0.2, 8.0)] * 3),
    max_levels=st.integers(2, 6),
)
def test_any_case_gets_a_patch_the_network_can_take(shape, spacing, max_levels):
    found = fit(shape, spacing, max_levels=max_levels)
    assert 1 <= len(found.strides) <= max_levels - 1
    for n, divisor, whole in zip(found.shape_voxel, found.divisor, shape, strict=True):
        assert n % divisor == 0
        assert n >= divisor
        assert n <= max(whole + divisor / 2, divisor), "no longer than the case needs"
    # Rounding to the divisor may add a little to each axis, never more than half of it again.
    assert np.prod(found.shape_voxel) <= max(3.4 * 96_000, np.prod(found.divisor))
