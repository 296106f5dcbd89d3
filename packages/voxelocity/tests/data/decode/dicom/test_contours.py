"""Contours of masks: filled at the centers of pixels, they are the masks again, holes included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from voxelocity.data.decode.dicom.contours import contours_of
from voxelocity.data.decode.dicom.structures import _inside


def windings(polygons, shape):
    """How often polygons wind around the center of each pixel, the other rule by which readers fill them."""
    found = np.zeros(shape, dtype=int)
    for i, j in np.ndindex(*shape):
        for polygon in polygons:
            x, y = (polygon - (i, j)).T
            after_x, after_y = np.roll(x, -1), np.roll(y, -1)
            left = x * after_y - after_x * y
            found[i, j] += int(((y <= 0) & (after_y > 0) & (left > 0)).sum())
            found[i, j] -= int(((y > 0) & (after_y <= 0) & (left < 0)).sum())
    return found


@given(hnp.arrays(np.bool_, st.tuples(st.integers(1, 8), st.integers(1, 8))))
def test_any_mask_comes_back_by_crossings_and_by_windings(mask):
    polygons = contours_of(mask)
    assert np.array_equal(_inside(polygons, mask.shape), mask)
    assert np.array_equal(windings(polygons, mask.shape), mask.astype(int)), "each pixel is surrounded once"


def test_a_rectangle_has_four_corners_on_the_edges_of_its_pixels():
    mask = np.zeros((5, 6), bool)
    mask[1:4, 2:4] = True
    (polygon,) = contours_of(mask)
    assert {tuple(point) for point in polygon.tolist()} == {(0.5, 1.5), (3.5, 1.5), (3.5, 3.5), (0.5, 3.5)}
    assert len(polygon) == 4


@pytest.mark.parametrize("num_holes", [1, 3])
def test_holes_are_joined_to_the_border_around_them(num_holes):
    mask = np.ones((4 * num_holes + 1, 5), bool)
    mask[2::4, 2] = False
    (polygon,) = contours_of(mask)
    assert np.array_equal(_inside([polygon], mask.shape), mask)


def test_an_island_in_a_hole_has_a_contour_of_its_own_and_nothing_has_none():
    mask = np.ones((9, 9), bool)
    mask[2:7, 2:7] = False
    mask[4, 4] = True
    assert len(contours_of(mask)) == 2
    assert np.array_equal(_inside(contours_of(mask), mask.shape), mask)
    assert contours_of(np.zeros((3, 3), bool)) == []
