"""Which turn brings one grid onto another, and that it changes no place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from voxelocity.core.axis_order import AxisOrder, nearest_turn, orientation_of, turn_onto
from voxelocity.core.volume import Grid

ORDERS = [
    AxisOrder(axes=axes, flips=flips)
    for axes in itertools.permutations(range(3))
    for flips in itertools.product((False, True), repeat=3)
]


def random_grid(seed: int, shape: tuple[int, int, int]) -> Grid:
    rng = np.random.default_rng(seed)
    affine = np.eye(4)
    affine[:3, :3] = Rotation.random(rng=rng).as_matrix() @ np.diag(rng.uniform(0.3, 5, 3) * rng.choice([-1, 1], 3))
    affine[:3, 3] = rng.uniform(-200, 200, 3)
    return Grid.of(shape, affine)


@given(seed=st.integers(0, 10_000), order=st.sampled_from(ORDERS), shape=st.sampled_from([(3, 4, 5), (4, 4, 4)]))
def test_the_turn_between_two_orders_of_one_grid_takes_each_voxel_to_its_place(seed, order, shape):
    grid = random_grid(seed, shape)
    turned = order.turn_grid(grid)
    back = turn_onto(turned, grid)
    voxels = np.random.default_rng(seed).integers(0, 9999, shape)
    assert np.array_equal(back.turn(order.turn(voxels)), voxels)
    assert back.turn_grid(turned).is_close(grid, atol_mm=1e-9)


def test_another_sampling_of_the_same_box_is_no_turn():
    fine = Grid.of((8, 8, 4), np.diag([1.0, 1.0, 2.0, 1.0]))
    assert turn_onto(Grid.of((8, 8, 4), np.diag([1.0, 1.2, 2.0, 1.0])), fine) is None
    assert turn_onto(Grid.of((4, 8, 4), np.diag([2.0, 1.0, 2.0, 1.0])), fine) is None
    assert nearest_turn(Grid.of((4, 8, 5), np.eye(4)), fine) is None


def test_a_plane_of_one_voxel_is_not_turned_without_need():
    grid = Grid.of((5, 6, 1), np.diag([-1.0, 1.0, 3.0, 1.0]))
    assert turn_onto(grid, grid).is_identity


@pytest.mark.parametrize("letters", ["RAS", "LPS", "PIR", "SAL"])
def test_orientation_is_named_by_where_axes_point(letters):
    matrix = np.eye(4)
    for axis, letter in enumerate(letters):
        matrix[:3, axis] = [{"R": 1, "L": -1}.get(letter, 0), {"A": 1, "P": -1}.get(letter, 0),
                            {"S": 1, "I": -1}.get(letter, 0)]  # fmt: skip
    assert orientation_of(Grid.of((3, 4, 5), matrix)) == letters
