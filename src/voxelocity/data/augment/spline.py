"""The uniform cubic B-spline of an elastic deformation: control points on a coarse grid, smooth between them.

Source: Rueckert et al., "Nonrigid registration using free-form deformations", IEEE TMI 18(8), 1999.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from voxelocity.core.region import Index3


def num_points(side: int, spacing_voxel: float) -> int:
    """Control points along a patch axis of `side` voxels, no farther apart than `spacing_voxel`."""
    return max(1, math.ceil((side - 1) / spacing_voxel)) + 3


def elastic_points(patch_shape: Index3, spacing_voxel: float) -> Index3:
    """Control points along (x, y, z) of a patch."""
    x, y, z = (num_points(side, spacing_voxel) for side in patch_shape)
    return (x, y, z)


def weights(side: int, points: int) -> npt.NDArray[np.float32]:
    """The share of each control point in each voxel of an axis: (side, points) float32, four nonzero per row."""
    first, shares = four_weights(side, points)
    table = np.zeros((side, points), dtype=np.float32)
    for number in range(4):
        table[np.arange(side), first + number] = shares[:, number]
    return table


def four_weights(side: int, points: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """For each voxel of an axis the first of the four control points that move it (side,), and their shares (side, 4).

    The first and the last voxel lie on the second and the second-to-last control point.
    """
    intervals = points - 3
    place = np.arange(side, dtype=np.float64) * (intervals / max(1, side - 1))
    first = np.minimum(place.astype(np.int64), intervals - 1)
    t = place - first
    shares = np.stack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=1) / 6.0
    return first.astype(np.int32), shares.astype(np.float32)
