from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.errors import ScanError
from voxelocity.data.prepare.cast import Cast, in_c_order


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


def test_description_agrees_with_the_result(make_volume) -> None:
    volume = make_volume(np.zeros((3, 4, 5), np.int16))
    assert Cast(dtype="float16").describe(volume.spec).spec == Cast(dtype="float16")(volume).spec
