"""Geometry of streamlines, against values that can be computed by hand."""

import numpy as np
import pytest

from voxelocity_lab.recipes.tractography.shapes import (
    as_ragged,
    curvature_per_mm,
    lengths_mm,
    nearest,
    nearest_mm,
    resample,
    with_one_direction,
)


def test_points_lie_at_equal_distances_from_end_to_end():
    points = np.array([[0, 0, 0], [1, 0, 0], [9, 0, 0], [5, 5, 5], [5, 5, 5], [5, 8, 9]], np.float32)
    offsets = np.array([0, 3, 6])
    found = resample(points, offsets, 4)
    assert found[0, :, 0] == pytest.approx([0.0, 3.0, 6.0, 9.0])
    assert found[1, :, 1] == pytest.approx([5.0, 6.0, 7.0, 8.0]), "a point that is there twice does no harm"
    assert found[1, -1] == pytest.approx(points[-1])
    assert lengths_mm(points, offsets) == pytest.approx([9.0, 5.0])


def test_resampling_again_changes_nothing():
    line = np.cumsum(np.random.default_rng(1).random((2, 16, 3)).astype(np.float32), axis=1)
    straight = resample(*as_ragged(line), 2)
    assert resample(*as_ragged(straight), 2) == pytest.approx(straight)


def test_streamlines_of_a_bundle_run_the_same_way_whatever_their_order():
    numbers = np.random.default_rng(0)
    line = np.stack([np.linspace(0, 50, 8), np.zeros(8), np.linspace(0, 10, 8)], axis=1)
    lines = (line + numbers.standard_normal((10, 1, 3))).astype(np.float32)
    turned = lines.copy()
    turned[[0, 3, 4, 8]] = turned[[0, 3, 4, 8], ::-1]
    bundle = np.zeros(10, int)
    assert np.array_equal(with_one_direction(turned, bundle), lines)
    assert np.array_equal(with_one_direction(turned[::-1].copy(), bundle), lines[::-1])


def test_the_nearest_streamline_may_run_either_way():
    line = np.stack([np.arange(5.0), np.zeros(5), np.zeros(5)], axis=1).astype(np.float32)
    others = np.stack([line[::-1] + np.float32([0, 3, 0]), line + np.float32([0, 0, 10])])
    assert nearest_mm(line[None], others) == pytest.approx([3.0])
    distances, index = nearest(others, others, num=2, own=np.array([0, -1]))
    assert distances == pytest.approx(np.float32([[np.sqrt(109.0), np.inf], [0.0, np.sqrt(109.0)]]), abs=1e-3)
    assert index.tolist() == [[1, -1], [1, 0]]
    assert nearest_mm(line[None], others[:0])[0] == np.inf


def test_curvature_is_that_of_a_circle():
    angle = np.linspace(0.0, 1.0, 101)
    circle = 20.0 * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)[None].astype(np.float32)
    assert curvature_per_mm(circle) == pytest.approx([1.0 / 20.0], rel=1e-2)
