"""The class of each voxel of a scan from scores on the prepared grid, in compiled passes. Does not hold the GIL.

Interpolation is monotonic: a class that is ahead at every neighbor of a voxel is ahead at the voxel. So a block of the
scan whose neighbors all have one class takes that class, and inside an organ or the background nothing is interpolated,
divided or exponentiated. `restore.fill_classes_plain` is the slow reference.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from voxelocity.core.jit import kernel
from voxelocity.core.volume import Array
from voxelocity.data.prepare.interpolate import Positions, neighbors

# Voxels of a block along (x, y, z): large enough that its neighbors are read few times, small enough for one class.
_BLOCK_X, _BLOCK_Y, _BLOCK_Z = 8, 8, 32


def largest_class(scores_kxyz: Array, target_xyz: Array) -> None:
    """Writes the index of the largest score of each voxel, the lowest of equals, to `target_xyz`, uint8."""
    line, steps = _flat(scores_kxyz)
    _largest_class(line, steps, target_xyz)


def signs_of(scores_kxyz: Array, target_xyz: Array, order: Array) -> None:
    """Writes the class of the last score above 0 to `target_xyz`, uint8, or 0; `order` has the class of each score."""
    line, steps = _flat(scores_kxyz)
    _last_above(line, steps, target_xyz, order)


def fill_classes(
    scores_kxyz: Array,
    weights_xyz: Array,
    classes_xyz: Array,
    positions: tuple[Positions, ...],
    target_xyz: Array,
    order: Array,
    *,
    is_softmax: bool,
) -> None:
    """As `restore.fill_classes_plain`.

    Args:
        scores_kxyz: any float type.
        weights_xyz: float32, what the scores are divided by.
        classes_xyz: uint8, from `largest_class` or `signs_of` of the same scores.
        positions: of the target's voxels along each axis, ascending.
        target_xyz: uint8, zeros.
        order: (k,) uint8, the class of each score, for overlapping classes; empty otherwise.
        is_softmax: whether probabilities are interpolated, not scores.
    """
    if not target_xyz.size:
        return
    line, steps = _flat(scores_kxyz)
    x, y, z = (neighbors(axis, n) for axis, n in zip(positions, scores_kxyz.shape[1:], strict=True))
    blocks = ((x, _BLOCK_X), (y, _BLOCK_Y), (z, _BLOCK_Z))
    num_loaded = math.prod(_reach(below, above, block) for (below, above, _), block in blocks)
    scratch = np.empty(len(scores_kxyz) * num_loaded, dtype=np.float32)
    _fill(line, steps, weights_xyz, classes_xyz, x, y, z, target_xyz, order, is_softmax, scratch)


def _reach(below: Array, above: Array, block: int) -> int:
    """The most neighbors along an axis that a block of target voxels has."""
    starts = range(0, len(below), block)
    return max(int(above[min(start + block, len(below)) - 1]) + 1 - int(below[start]) for start in starts)


def _flat(scores: Array) -> tuple[Array, Array]:
    """The memory of the scores as one line, and their shape and steps in it: kernels need rows known to be dense."""
    if scores.dtype != np.float32 or scores.strides[-1] != scores.itemsize or min(scores.strides) < 0:
        scores = np.ascontiguousarray(scores, dtype=np.float32)
    steps = [stride // scores.itemsize for stride in scores.strides]
    length = 1 + sum(step * (n - 1) for step, n in zip(steps, scores.shape, strict=True))
    line = np.lib.stride_tricks.as_strided(scores, (length,), (scores.itemsize,), writeable=False)
    return line, np.array([*scores.shape, *steps], dtype=np.int64)


@kernel
def _largest_class(line: Any, steps: Any, target: Any) -> None:
    best, found = np.empty(steps[3], np.float32), np.empty(steps[3], np.int32)
    for i in range(steps[1]):
        for j in range(steps[2]):
            row = i * steps[5] + j * steps[6]
            for k in range(steps[3]):
                best[k], found[k] = line[row + k], 0
            for c in range(1, steps[0]):
                at = row + c * steps[4]
                for k in range(steps[3]):
                    wins = line[at + k] > best[k]
                    best[k] = line[at + k] if wins else best[k]
                    found[k] = c if wins else found[k]
            for k in range(steps[3]):
                target[i, j, k] = found[k]


@kernel
def _last_above(line: Any, steps: Any, target: Any, order: Any) -> None:
    for i in range(steps[1]):
        for j in range(steps[2]):
            for k in range(steps[3]):
                target[i, j, k] = 0
            for c in range(steps[0]):
                row = c * steps[4] + i * steps[5] + j * steps[6]
                for k in range(steps[3]):
                    if line[row + k] > np.float32(0.0):
                        target[i, j, k] = order[c]


@kernel
def _is_uniform(classes: Any, sx: Any, sy: Any, sz: Any, nx: Any, ny: Any, nz: Any) -> Any:
    first = classes[sx, sy, sz]
    for i in range(sx, sx + nx):
        for j in range(sy, sy + ny):
            same = True
            for k in range(sz, sz + nz):
                same = same and classes[i, j, k] == first
            if not same:
                return False
    return True


@kernel
def _load(line: Any, steps: Any, weights: Any, box: Any, is_softmax: Any, scratch: Any) -> None:
    """The scores of a box (start and shape) as (k, x, y, z) in `scratch`, divided by the weights, as probabilities."""
    sx, sy, sz, nx, ny, nz = box
    size = nx * ny * nz
    for c in range(steps[0]):
        for i in range(nx):
            for j in range(ny):
                row = c * steps[4] + (sx + i) * steps[5] + (sy + j) * steps[6] + sz
                to = c * size + (i * ny + j) * nz
                for k in range(nz):
                    scratch[to + k] = line[row + k] / weights[sx + i, sy + j, sz + k]
    if not is_softmax:
        return
    for n in range(size):
        largest = scratch[n]
        for c in range(1, steps[0]):
            largest = max(largest, scratch[c * size + n])
        total = np.float32(0.0)
        for c in range(steps[0]):
            value = np.exp(scratch[c * size + n] - largest)
            scratch[c * size + n] = value
            total += value
        for c in range(steps[0]):
            scratch[c * size + n] /= total


@kernel
def _row(
    scratch: Any, start: Any, i: Any, j: Any, box: Any, along: Any, first: Any, last: Any, mixed: Any, out: Any
) -> None:
    """Interpolates voxels `first` to `last` of row (i, j) of the target into `out`; `start` is that of the class."""
    (below_x, above_x, weight_x), (below_y, above_y, weight_y), (below_z, above_z, weight_z) = along
    sx, sy, sz, _, ny, nz = box
    wx, wy = weight_x[i], weight_y[j]
    at_x, over_x = start + (below_x[i] - sx) * ny * nz, start + (above_x[i] - sx) * ny * nz
    at_y, over_y = (below_y[j] - sy) * nz, (above_y[j] - sy) * nz
    for k in range(nz):
        v00, v01 = scratch[at_x + at_y + k], scratch[at_x + over_y + k]
        v10, v11 = scratch[over_x + at_y + k], scratch[over_x + over_y + k]
        low, high = v00 + wy * (v01 - v00), v10 + wy * (v11 - v10)
        mixed[k] = low + wx * (high - low)
    for k in range(first, last):
        value = mixed[below_z[k] - sz]
        out[k - first] = value + weight_z[k] * (mixed[above_z[k] - sz] - value)


@kernel
def _can_win(scratch: Any, size: Any, num_scores: Any, left: Any) -> Any:
    """Fills `left` with the scores that may be the largest somewhere in the box, and returns how many there are."""
    floor = np.float32(-np.inf)
    for c in range(num_scores):
        smallest = scratch[c * size]
        for n in range(1, size):
            smallest = min(smallest, scratch[c * size + n])
        floor = max(floor, smallest)
    # Rounding may move an interpolated value out of the range of its neighbors.
    floor -= np.float32(1e-5) * max(np.float32(1.0), abs(floor))
    num_left = 0
    for c in range(num_scores):
        largest = scratch[c * size]
        for n in range(1, size):
            largest = max(largest, scratch[c * size + n])
        if largest >= floor:
            left[num_left] = c
            num_left += 1
    return num_left


@kernel
def _fill(
    line: Any, steps: Any, weights: Any, classes: Any, along_x: Any, along_y: Any, along_z: Any, target: Any,
    order: Any, is_softmax: Any, scratch: Any,
) -> None:  # fmt: skip
    along = (along_x, along_y, along_z)
    mixed, best, scores = np.empty(steps[3], np.float32), np.empty(_BLOCK_Z, np.float32), np.empty(_BLOCK_Z, np.float32)
    left = np.arange(steps[0])
    for x0 in range(0, target.shape[0], _BLOCK_X):
        x1 = min(x0 + _BLOCK_X, target.shape[0])
        sx, nx = along_x[0][x0], along_x[1][x1 - 1] + 1 - along_x[0][x0]
        for y0 in range(0, target.shape[1], _BLOCK_Y):
            y1 = min(y0 + _BLOCK_Y, target.shape[1])
            sy, ny = along_y[0][y0], along_y[1][y1 - 1] + 1 - along_y[0][y0]
            for z0 in range(0, target.shape[2], _BLOCK_Z):
                z1 = min(z0 + _BLOCK_Z, target.shape[2])
                sz, nz = along_z[0][z0], along_z[1][z1 - 1] + 1 - along_z[0][z0]
                if _is_uniform(classes, sx, sy, sz, nx, ny, nz):
                    for i in range(x0, x1):
                        for j in range(y0, y1):
                            for k in range(z0, z1):
                                target[i, j, k] = classes[sx, sy, sz]
                    continue
                box = (sx, sy, sz, nx, ny, nz)
                _load(line, steps, weights, box, is_softmax, scratch)
                size = nx * ny * nz
                num_left = steps[0] if order.size else _can_win(scratch, size, steps[0], left)
                for i in range(x0, x1):
                    for j in range(y0, y1):
                        row = target[i, j]
                        for n in range(num_left):
                            c = n if order.size else left[n]
                            _row(scratch, c * size, i, j, box, along, z0, z1, mixed, scores)
                            for k in range(z1 - z0):
                                if order.size:
                                    if scores[k] > np.float32(0.0):
                                        row[z0 + k] = order[c]
                                elif n == 0 or scores[k] > best[k]:
                                    best[k] = scores[k]
                                    row[z0 + k] = c
