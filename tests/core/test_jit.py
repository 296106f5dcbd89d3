import numpy as np
import pytest

from voxelocity.core.jit import exact_kernel, kernel, pair_copier

copy_pair = pair_copier()


@kernel
def copy_pairs(source, places, target):
    for n in range(places.size):
        copy_pair(source, np.uint64(places[n]), target, np.uint64(1), np.uint64(n))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_pairs_are_copied_from_any_place_and_nothing_else_is_written(dtype):
    source = np.arange(1, 40).astype(dtype)
    places = np.array([0, 7, 7, 2, source.size - 2])
    target = np.zeros((3, 2 * places.size), dtype)
    copy_pairs(source, places, target)
    wanted = np.stack([source[places], source[places + 1]], axis=1).reshape(-1)
    np.testing.assert_array_equal(target[1], wanted)
    assert not target[0].any()
    assert not target[2].any()


def test_pairs_are_copied_from_a_source_that_may_not_be_written():
    source = np.arange(6, dtype=np.int16)
    source.flags.writeable = False
    target = np.zeros((2, 2), np.int16)
    copy_pairs(source[1:], np.array([2]), target)
    assert target[1].tolist() == [3, 4]


@exact_kernel
def scaled_and_shifted(source, target, slope, start):
    for i in range(source.size):
        target[i] = source[i] / slope * slope + start


def test_an_exact_kernel_rounds_each_step_as_numpy_does():
    source = np.random.default_rng(0).normal(0, 100, 4096).astype(np.float32)
    slope, start = np.float32(0.3), np.float32(7.7)
    target = np.empty_like(source)
    scaled_and_shifted(source, target, slope, start)
    np.testing.assert_array_equal(target, source / slope * slope + start)
