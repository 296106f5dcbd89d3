import numpy as np
import pytest

from voxelocity.core.jit import exact_kernel, fused_multiply_add, kernel, pair_copier

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


fma = fused_multiply_add()


@exact_kernel
def sums(a, b, c, fused, rounded):
    for k in range(a.size):
        fused[k] = fma(a[k], b[k], c[k])
        rounded[k] = a[k] * b[k] + c[k]


def test_a_fused_sum_rounds_once_and_an_exact_kernel_rounds_at_each_operation():
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(3, 4000)).astype(np.float32)
    fused, rounded = np.empty((2, 4000), np.float32)
    sums(a, b, c, fused, rounded)
    np.testing.assert_array_equal(fused, (a.astype(np.float64) * b.astype(np.float64) + c).astype(np.float32))
    np.testing.assert_array_equal(rounded, a * b + c)
    assert (fused != rounded).any()
