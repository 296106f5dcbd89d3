"""Largest components: known answers, and nnU-Net's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.examples import examples
from voxelocity.infer import keep_largest


def volume():
    """Class 1 in two parts, class 2 in one part that touches itself at a corner, class 3 nowhere."""
    prediction = np.zeros((9, 8, 7), np.uint8)
    prediction[1:4, 1:4, 1:4], prediction[7:9, 6:8, 5:7] = 1, 1
    prediction[5, 5, 5] = prediction[6, 6, 6] = 2
    return prediction


def test_only_the_largest_component_of_the_chosen_classes_stays():
    prediction = volume()
    expected = volume()
    expected[7:9, 6:8, 5:7] = 0
    assert np.array_equal(keep_largest(prediction, [1, 3]), expected)
    assert np.array_equal(prediction, volume()), "the argument was changed"


def test_nothing_is_copied_where_nothing_is_removed():
    prediction = volume()
    assert keep_largest(prediction, []) is prediction
    assert keep_largest(prediction, [2, 3]) is prediction
    empty = np.zeros((3, 3, 3), np.uint8)
    assert keep_largest(empty, [1]) is empty


def test_several_classes_may_be_taken_as_one_and_steps_follow_each_other():
    prediction = np.zeros((3, 3, 12), np.uint8)
    prediction[1, 1, :3], prediction[1, 1, 3:5], prediction[1, 1, 7:11] = 1, 2, 2
    expected = prediction.copy()
    expected[1, 1, 7:11] = 0
    assert np.array_equal(keep_largest(prediction, [(1, 2)]), expected)
    # The larger part of class 2 is gone before its turn.
    assert np.array_equal(keep_largest(prediction, [(1, 2), 2]), expected)
    assert np.array_equal(keep_largest(prediction, [2])[1, 1], [1, 1, 1, 0, 0, 0, 0, 2, 2, 2, 2, 0])


@settings(max_examples=examples(40))
@given(hnp.arrays(np.uint8, (6, 5, 4), elements=st.integers(0, 2)))
def test_components_are_those_of_skimage_as_nnunet_takes_them(prediction):
    measure = pytest.importorskip("skimage.measure")
    kept = keep_largest(np.asfortranarray(prediction), [1, 2])
    for index in (1, 2):
        components, count = measure.label(prediction == index, return_num=True)
        sizes = np.bincount(components.ravel(), minlength=2)[1:]
        mine = kept == index
        assert mine.sum() == sizes.max()
        assert not (mine & (prediction != index)).any()
        assert count == 0 or len(np.unique(components[mine])) == 1
    assert set(np.unique(kept[kept != prediction])) <= {0}
