from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.region import Region
from voxelocity.data.prepare.crop import CropToNonzero, nonzero_box, undo_crop


@given(
    shape=st.tuples(*[st.integers(1, 7)] * 3),
    order=st.permutations([0, 1, 2, 3]),
    seed=st.integers(0, 999),
)
def test_box_holds_every_nonzero_voxel_and_none_is_smaller(shape, order, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(2, *shape)) * (rng.random((2, *shape)) < 0.05)
    image = np.ascontiguousarray(dense.transpose(order)).transpose(np.argsort(order))
    box = nonzero_box(image)
    found = np.argwhere((image != 0).any(0))
    if len(found):
        assert box == Region(tuple(found.min(0).tolist()), tuple((found.max(0) + 1).tolist()))
    else:
        assert box == Region.whole(shape)


def test_crop_keeps_the_margin_inside_the_scan_and_the_place_in_space(make_volume, oblique: np.ndarray) -> None:
    image = np.zeros((2, 8, 9, 10), np.int16)
    image[0, 3, 4, 5], image[1, 4, 8, 5] = -7, 3
    label = np.arange(720, dtype=np.uint8).reshape(8, 9, 10)
    volume = make_volume(image, oblique, label)
    cropped = CropToNonzero(margin_voxel=1)(volume)
    assert cropped.trace == ({"step": "crop", "start": [2, 3, 4], "shape": [8, 9, 10]},)
    assert np.array_equal(cropped.image, image[:, 2:6, 3:9, 4:7])
    assert cropped.label is not None
    assert np.array_equal(cropped.label, label[2:6, 3:9, 4:7])
    assert np.allclose(cropped.grid.matrix @ [1, 1, 1, 1], oblique @ [3, 4, 5, 1])
    assert np.shares_memory(cropped.image, image)


@pytest.mark.parametrize("value", [0, 1])
def test_scan_of_zeros_or_without_border_is_kept_whole(make_volume, value: int) -> None:
    volume = make_volume(np.full((4, 5, 6), value, np.int16))
    assert CropToNonzero()(volume) is volume


def test_putting_back_fills_with_zeros() -> None:
    array = np.full((2, 2, 2), 9, np.uint8)
    restored = undo_crop(array, {"step": "crop", "start": [1, 0, 2], "shape": [4, 3, 4]})
    assert restored.shape == (4, 3, 4)
    assert restored.dtype == np.uint8
    assert int(restored.sum()) == 72
    assert (restored[1:3, 0:2, 2:4] == 9).all()


def test_voxels_that_a_step_added_are_left_out() -> None:
    array = np.arange(5, dtype=np.uint8).reshape(5, 1, 1)
    restored = undo_crop(array, {"step": "crop", "start": [-2, 0, 1], "shape": [2, 1, 3]})
    assert restored[:, 0].tolist() == [[0, 2, 0], [0, 3, 0]]


def test_only_values_above_zero_count_where_asked(make_volume, oblique: np.ndarray) -> None:
    image = np.zeros((2, 5, 6, 7), np.int16)
    image[0, 1, 2, 3], image[1, 2, 4, 3], image[0, 0, 0, 0] = 7, 3, -9
    assert CropToNonzero(positive_only=True)(make_volume(image, oblique)).trace[0]["start"] == [1, 2, 3]
    assert CropToNonzero()(make_volume(image, oblique)).trace[0]["start"] == [0, 0, 0]
