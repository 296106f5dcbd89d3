from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.memory_order import in_c_order


@given(
    shape=st.lists(st.integers(1, 5), min_size=3, max_size=4),
    seed=st.integers(0, 999),
    dtype=st.sampled_from(["f4", "f2", "u1"]),
)
def test_any_order_in_memory_becomes_c_order(shape: list[int], seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(shape))
    array = np.ascontiguousarray(rng.integers(0, 99, shape).transpose(order)).transpose(np.argsort(order))[::-1]
    ordered = in_c_order(array, dtype)
    assert ordered.flags.c_contiguous
    assert ordered.dtype == dtype
    assert np.array_equal(ordered, array)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize("flip", [1, -1])
def test_planes_whose_lines_clash_in_the_cache_are_turned_whole(dtype: str, flip: int) -> None:
    in_file = np.random.default_rng(0).integers(0, 99, (2, 30, 8, 256)).astype("i2")
    array = in_file.transpose(0, 3, 2, 1)[:, ::flip, :, ::flip]
    assert array.strides[-1] % 4096 == 0
    ordered = in_c_order(array, dtype)
    assert ordered.flags.c_contiguous
    assert ordered.dtype == dtype
    assert np.array_equal(ordered, array)
