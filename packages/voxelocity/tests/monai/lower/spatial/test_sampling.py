"""Coordinates bit for bit: an error of the last bit moves a label's voxel only here and there in a large patch."""

import numpy as np
import pytest
import torch
from monai.networks.utils import to_norm_affine
from monai.transforms import AffineGrid
from monai.transforms.utils import create_grid

from voxelocity.monai.lower.spatial import sampling
from voxelocity.monai.lower.spatial.sampling import centered_positions, unit_positions

CPU = torch.device("cpu")
SHAPES = [((40, 33), (40, 33)), ((64, 50), (31, 70)), ((32, 40, 24), (32, 40, 24)), ((9, 48, 33), (47, 20, 1))]


def drawn_matrix(num, seed):
    matrix = np.eye(num + 1)
    matrix[:num] += np.random.default_rng(seed).normal(scale=0.3, size=(num, num + 1))
    return matrix.astype(np.float32)


@pytest.mark.parametrize(("shape", "before"), SHAPES)
def test_centered_places_are_the_grid_that_monai_makes_bit_for_bit(shape, before):
    num = len(shape)
    for seed in range(3):
        matrix = drawn_matrix(num, seed)
        grid, _ = AffineGrid(affine=torch.from_numpy(matrix))(spatial_size=shape)
        wanted = [grid[axis].double() * (2.0 / max(2, before[axis])) for axis in range(num)]
        made = centered_positions(matrix, shape, before).normalized(CPU).reshape(*shape, 3)
        for axis in range(num):
            assert torch.equal(made[..., 2 - axis], wanted[axis].as_subclass(torch.Tensor))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("shape", "before"), SHAPES)
def test_unit_places_are_the_affine_grid_of_torch_bit_for_bit(shape, before, align_corners):
    num = len(shape)
    for seed in range(3):
        matrix = drawn_matrix(num, seed).astype(np.float64)
        theta = to_norm_affine(torch.from_numpy(matrix).float()[None], before, shape, align_corners)
        turned = theta[:, :num].flip(1)
        turned = torch.cat([turned[..., :num].flip(2), turned[..., num:]], dim=2)
        wanted = torch.nn.functional.affine_grid(turned, [1, 1, *shape], align_corners=align_corners)[0]
        made = unit_positions(matrix, shape, before, align_corners=align_corners).normalized(CPU).reshape(*shape, 3)
        for axis in range(num):
            assert torch.equal(made[..., 2 - axis], wanted[..., num - 1 - axis])


def test_an_order_of_sums_that_is_not_known_is_seen():
    matrix, grid = sampling._random(3)
    assert sampling._is_fused(matrix, grid, (torch.from_numpy(matrix) @ torch.from_numpy(grid)).numpy()) in (
        True,
        False,
    )
    backwards = (matrix[:, ::-1].astype(np.float64) @ grid[::-1].astype(np.float64)).astype(np.float32)
    assert sampling._is_fused(matrix, grid, backwards) is None


def test_whole_numbers_and_halves_are_exact_so_that_ties_are_ties():
    shape, before = (6, 5, 4), (7, 5, 5)
    made = centered_positions(np.eye(4), shape, before).normalized(CPU)
    centered = create_grid(shape, backend="torch")[0]
    assert torch.equal(made[..., 2], centered * (2.0 / 7))
