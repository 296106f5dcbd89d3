"""Labels on another grid, label for label as SciPy's calls give them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.ndimage import binary_fill_holes

from shared.examples import examples
from voxelocity.infer.models import nnunet_labels as labels_module
from voxelocity.infer.models.nnunet_labels import _along, outside_of, resize_labels, resize_labels_slowly

SHAPES = st.tuples(*[st.integers(1, 9)] * 3)


def zoom(values, shape, order):
    """What `skimage.transform.resize` calls, with mode="edge" and without anti-aliasing."""
    factors = [1 / (before / after) for before, after in zip(values.shape, shape, strict=True)]
    return ndimage.zoom(values.astype(float), factors, order=order, mode="nearest", grid_mode=True)


def as_batchgenerators(label, shape):
    """`resize_segmentation` of batchgenerators 0.25.5: the largest share, of equal ones the nearest voxel's."""
    known = np.unique(label)
    shares = np.stack([zoom(label == value, shape, 1) for value in known])
    near = zoom(label, shape, 0)
    most = shares.max(axis=0)
    is_near_best = ((shares == most) & (known[:, None, None, None] == near)).any(axis=0)
    return np.where(is_near_best, near, known[shares.argmax(axis=0)])


@settings(max_examples=examples(60))
@given(shape=SHAPES, new_shape=SHAPES, num=st.integers(1, 4), seed=st.integers(0, 99))
def test_labels_are_those_of_nnunet_even_where_shares_are_equal(shape, new_shape, num, seed):
    label = np.random.default_rng(seed).integers(-1, num, shape).astype(np.int16)
    found = resize_labels(label, new_shape, thick=None)
    assert found.dtype == np.int16
    assert np.array_equal(found, as_batchgenerators(label, new_shape))


def test_equal_shares_go_to_the_nearest_voxel_and_else_to_the_smaller_label():
    label = np.array([[[3, 1], [1, 1]], [[2, 2], [2, 3]]], np.int16)
    assert resize_labels(label, (1, 1, 1), thick=None) == 1, "1 and 2 have three corners each, the nearest has 3"
    line = np.array([[[7, 2, 2, 5]]], np.int16)
    assert resize_labels(line, (1, 1, 2), thick=None).tolist() == [[[2, 5]]], "the higher of two is the nearest"


@settings(max_examples=examples(30))
@given(shape=SHAPES, new_shape=SHAPES, thick=st.integers(0, 2), seed=st.integers(0, 99))
def test_thick_slices_are_repeated_or_left_out(shape, new_shape, thick, seed):
    label = np.random.default_rng(seed).integers(0, 3, shape).astype(np.int16)
    plane_shape = [1 if axis == thick else n for axis, n in enumerate(new_shape)]
    planes = [
        as_batchgenerators(np.expand_dims(plane, thick), plane_shape).take(0, thick)
        for plane in np.moveaxis(label, thick, 0)
    ]
    scale = shape[thick] / new_shape[thick]
    places = [scale * (np.arange(new_shape[thick]) + 0.5) - 0.5]
    chosen = ndimage.map_coordinates(np.arange(shape[thick]), places, order=0, mode="nearest")
    wanted = np.stack(planes, thick).take(chosen, thick)
    assert np.array_equal(resize_labels(label, new_shape, thick=thick), wanted)


def test_the_loop_and_its_reference_give_the_same_labels(monkeypatch):
    label = np.random.default_rng(0).integers(0, 5, (9, 11, 10)).astype(np.int16)
    shape = (18, 7, 15)
    along = [_along(a, b, is_nearest=False) for a, b in zip(label.shape, shape, strict=True)]
    quick = resize_labels(label, shape, thick=None)
    assert np.array_equal(quick, resize_labels_slowly(label, along))
    monkeypatch.setattr(labels_module, "has_loops", lambda: False)
    assert np.array_equal(quick, resize_labels(label, shape, thick=None)), "without the compiled loops"


def test_places_beyond_the_label_are_an_error():
    label, out = np.zeros((2, 3, 4), np.int16), np.zeros((2, 3, 4), np.int16)
    along = [_along(n, n, is_nearest=False) for n in label.shape]
    along[1][0][1, 2] = 3
    arguments = [part for axis in along for part in axis]
    with pytest.raises(ValueError, match="loop resize_labels: an index lies beyond its array"):
        labels_module._resize_labels(label, np.array([2, 3, 4, 2, 3, 4]), *arguments, out)


@settings(max_examples=examples(40))
@given(shape=st.tuples(*[st.integers(1, 7)] * 3), share=st.floats(0.05, 0.9), seed=st.integers(0, 99))
def test_empty_voxels_are_those_that_filling_holes_leaves(shape, share, seed):
    rng = np.random.default_rng(seed)
    image = (rng.random((2, *shape)) < share) * rng.integers(1, 9, (2, *shape))
    found = outside_of(image)
    wanted = ~binary_fill_holes((image != 0).any(axis=0))
    assert np.array_equal(np.zeros(shape, bool) if found is None else found, wanted)
