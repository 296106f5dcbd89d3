"""The class of each voxel of a scan from scores on the prepared grid, in one compiled pass. Does not hold the GIL.

A linear interpolation never leaves the range of its neighbors. So in a block of voxels, a class whose largest neighbor
is below another's smallest cannot win anywhere, and inside an organ or the background one class is left, which needs no
interpolation. `restore.fill_classes_plain` is the slow reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxelocity.core.jit import kernel
from voxelocity.core.volume import Array
from voxelocity.data.prepare.interpolate import Positions, neighbors

# Voxels of a block along (x, y, z): large enough that its neighbors are read few times, small enough for one class.
_BLOCK_X, _BLOCK_Y, _BLOCK_Z = 8, 8, 32
_SPARE = np.float32(1e-5)
"""Share of a score by which rounding may move an interpolated value out of the range of its neighbors, and more."""


def fill_classes(scores_kxyz: Array, positions: tuple[Positions, ...], target_xyz: Array, order: Array) -> None:
    """As `restore.fill_classes_plain`, for scores of any float type; positions ascend along each axis."""
    if not target_xyz.size:
        return
    line, steps = _flat(scores_kxyz)
    along = [neighbors(axis, n) for axis, n in zip(positions, scores_kxyz.shape[1:], strict=True)]
    if len(order):
        _fill_regions(line, steps, *along, target_xyz, order)
    else:
        _fill_largest(line, steps, *along, target_xyz)


def _flat(scores: Array) -> tuple[Array, Array]:
    """The memory of the scores as one line, and their shape and steps in it: kernels need rows known to be dense."""
    if scores.dtype != np.float32 or scores.strides[-1] != scores.itemsize or min(scores.strides) < 0:
        scores = np.ascontiguousarray(scores, dtype=np.float32)
    steps = [stride // scores.itemsize for stride in scores.strides]
    length = 1 + sum(step * (n - 1) for step, n in zip(steps, scores.shape, strict=True))
    line = np.lib.stride_tricks.as_strided(scores, (length,), (scores.itemsize,), writeable=False)
    return line, np.array([*scores.shape, *steps], dtype=np.int64)


@kernel
def _extremes(line: Any, start: Any, x: Any, y: Any, z: Any, steps: Any, low: Any, high: Any) -> Any:
    """The smallest and the largest score in a box that begins at `start`; `low` and `high` hold a row each."""
    for k in range(z):
        low[k] = high[k] = line[start + k]
    for i in range(x):
        for j in range(y):
            row = start + i * steps[5] + j * steps[6]
            for k in range(z):
                value = line[row + k]
                low[k] = value if value < low[k] else low[k]
                high[k] = value if value > high[k] else high[k]
    smallest, largest = low[0], high[0]
    for k in range(1, z):
        smallest, largest = min(smallest, low[k]), max(largest, high[k])
    return smallest, largest


@kernel
def _row(
    line: Any, start: Any, i: Any, j: Any, along: Any, first: Any, last: Any, steps: Any, mixed: Any, out: Any
) -> None:
    """Interpolates voxels `first` to `last` of row (i, j) of the target into `out`; `start` is that of the class."""
    (below_x, above_x, weight_x), (below_y, above_y, weight_y), (below_z, above_z, weight_z) = along
    wx, wy = weight_x[i], weight_y[j]
    low_z, num = below_z[first], above_z[last - 1] + 1 - below_z[first]
    at_x, over_x = start + below_x[i] * steps[5] + low_z, start + above_x[i] * steps[5] + low_z
    at_y, over_y = below_y[j] * steps[6], above_y[j] * steps[6]
    for k in range(num):
        v00, v01 = line[at_x + at_y + k], line[at_x + over_y + k]
        v10, v11 = line[over_x + at_y + k], line[over_x + over_y + k]
        low, high = v00 + wy * (v01 - v00), v10 + wy * (v11 - v10)
        mixed[k] = low + wx * (high - low)
    for k in range(first, last):
        value = mixed[below_z[k] - low_z]
        out[k - first] = value + weight_z[k] * (mixed[above_z[k] - low_z] - value)


@kernel
def _fill_largest(line: Any, steps: Any, along_x: Any, along_y: Any, along_z: Any, target: Any) -> None:
    num_classes = steps[0]
    along = (along_x, along_y, along_z)
    low, high, mixed = np.empty(steps[3], np.float32), np.empty(steps[3], np.float32), np.empty(steps[3], np.float32)
    smallest, largest = np.empty(num_classes, np.float32), np.empty(num_classes, np.float32)
    best, scores = np.empty(_BLOCK_Z, np.float32), np.empty(_BLOCK_Z, np.float32)
    left = np.empty(num_classes, np.int64)
    for x0 in range(0, target.shape[0], _BLOCK_X):
        x1 = min(x0 + _BLOCK_X, target.shape[0])
        sx, nx = along_x[0][x0], along_x[1][x1 - 1] + 1 - along_x[0][x0]
        for y0 in range(0, target.shape[1], _BLOCK_Y):
            y1 = min(y0 + _BLOCK_Y, target.shape[1])
            sy, ny = along_y[0][y0], along_y[1][y1 - 1] + 1 - along_y[0][y0]
            for z0 in range(0, target.shape[2], _BLOCK_Z):
                z1 = min(z0 + _BLOCK_Z, target.shape[2])
                sz, nz = along_z[0][z0], along_z[1][z1 - 1] + 1 - along_z[0][z0]
                box = sx * steps[5] + sy * steps[6] + sz
                floor = np.float32(-np.inf)
                for c in range(num_classes):
                    smallest[c], largest[c] = _extremes(line, c * steps[4] + box, nx, ny, nz, steps, low, high)
                    floor = max(floor, smallest[c])
                floor -= _SPARE * max(np.float32(1.0), abs(floor))
                num_left = 0
                for c in range(num_classes):
                    if largest[c] >= floor:
                        left[num_left] = c
                        num_left += 1
                for i in range(x0, x1):
                    for j in range(y0, y1):
                        row = target[i, j]
                        for k in range(z0, z1):
                            row[k] = left[0]
                        if num_left == 1:
                            continue
                        _row(line, left[0] * steps[4], i, j, along, z0, z1, steps, mixed, best)
                        for n in range(1, num_left):
                            _row(line, left[n] * steps[4], i, j, along, z0, z1, steps, mixed, scores)
                            for k in range(z1 - z0):
                                if scores[k] > best[k]:
                                    best[k] = scores[k]
                                    row[z0 + k] = left[n]


@kernel
def _fill_regions(line: Any, steps: Any, along_x: Any, along_y: Any, along_z: Any, target: Any, order: Any) -> None:
    along = (along_x, along_y, along_z)
    low, high, mixed = np.empty(steps[3], np.float32), np.empty(steps[3], np.float32), np.empty(steps[3], np.float32)
    scores = np.empty(_BLOCK_Z, np.float32)
    for x0 in range(0, target.shape[0], _BLOCK_X):
        x1 = min(x0 + _BLOCK_X, target.shape[0])
        sx, nx = along_x[0][x0], along_x[1][x1 - 1] + 1 - along_x[0][x0]
        for y0 in range(0, target.shape[1], _BLOCK_Y):
            y1 = min(y0 + _BLOCK_Y, target.shape[1])
            sy, ny = along_y[0][y0], along_y[1][y1 - 1] + 1 - along_y[0][y0]
            for z0 in range(0, target.shape[2], _BLOCK_Z):
                z1 = min(z0 + _BLOCK_Z, target.shape[2])
                sz, nz = along_z[0][z0], along_z[1][z1 - 1] + 1 - along_z[0][z0]
                box = sx * steps[5] + sy * steps[6] + sz
                for c in range(steps[0]):
                    smallest, largest = _extremes(line, c * steps[4] + box, nx, ny, nz, steps, low, high)
                    spare = _SPARE * max(abs(smallest), abs(largest))
                    if largest < -spare:
                        continue
                    for i in range(x0, x1):
                        for j in range(y0, y1):
                            row = target[i, j]
                            if smallest > spare:
                                for k in range(z0, z1):
                                    row[k] = order[c]
                                continue
                            _row(line, c * steps[4], i, j, along, z0, z1, steps, mixed, scores)
                            for k in range(z1 - z0):
                                if scores[k] > np.float32(0.0):
                                    row[z0 + k] = order[c]
