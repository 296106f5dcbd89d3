"""How this machine's matrix products round: places halfway between two voxels, and so labels, depend on it."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]
_NUM = 4096


@functools.cache
def product_is_fused(num_spatial: int) -> bool | None:
    """Whether torch's `matrix @ grid` adds each product before it is rounded; None if it sums in another order.

    A matrix is (1 + num_spatial, 1 + num_spatial) float32 here, the grid has thousands of columns.
    """
    matrix, grid = _random(num_spatial)
    return _told(matrix, grid, (torch.from_numpy(matrix) @ torch.from_numpy(grid)).numpy())


@functools.cache
def affine_grid_is_fused(num_spatial: int) -> bool | None:
    """As `product_is_fused`, for torch's `affine_grid`."""
    matrix, _ = _random(num_spatial)
    matrix = matrix[:num_spatial]
    shape = (64, 64) if num_spatial == 2 else (16, 16, 16)
    made = torch.nn.functional.affine_grid(torch.from_numpy(matrix)[None], [1, 1, *shape], align_corners=False)[0]
    lines = [unit_line(side, False) for side in shape]
    mesh = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(shape, np.float32)])
    return _told(matrix, mesh.reshape(len(mesh), -1), made.reshape(-1, num_spatial).numpy().T)


@functools.lru_cache(maxsize=256)
def unit_line(side: int, align_corners: bool) -> Floats:
    """The coordinates of `side` voxels by torch's `affine_grid`: -1 to 1, of their faces or of their centers."""
    if side <= 1:
        return np.zeros(1, np.float32)
    line = torch.linspace(-1, 1, side)
    made: Floats = (line if align_corners else line * (side - 1) / side).numpy()
    return made


def _random(num_spatial: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    size = num_spatial + 1
    grid = rng.normal(scale=40.0, size=(size, _NUM)).astype(np.float32)
    grid[-1] = 1.0
    return rng.normal(size=(size, size)).astype(np.float32), grid


def _told(matrix: Floats, grid: Floats, made: Floats) -> bool | None:
    for is_fused in (True, False):
        total = np.zeros((len(matrix), grid.shape[1]), np.float32)
        for column, row in zip(matrix.T, grid, strict=True):
            # Exact in float64.
            product = column[:, None].astype(np.float64) * row.astype(np.float64)
            total = (total + product).astype(np.float32) if is_fused else total + product.astype(np.float32)
        if np.array_equal(total, made):
            return is_fused
    return None
