"""Kernels that bring a tile of scores onto the grid of its scan and classify it there: on a CUDA device, what
`data.prepare.native_restore` does on a CPU, in the same order of interpolation.

Interpolation is monotonic: a class that is ahead at every neighbor of a voxel is ahead at the voxel. So a block whose
neighbors all have one class takes it, and nothing is interpolated inside an organ or the background.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from voxelocity.infer.triton_window import _one_over, _voxels

ROWS: Final = 8
"""Lines along z of one program of `restore_classes`, next to each other along y."""
SIDE: Final = 32
"""Voxels of a line in one program."""


@triton.jit(
    do_not_specialize=[
        *("sums_c", "sums_x", "sums_y", "weights_x", "weights_y", "classes_x", "classes_y", "target_x", "target_y"),
        *("start_x", "start_y", "start_z", "last_x", "last_y", "last_z", "num_classes", "nx", "ny", "nz"),
    ],
    do_not_specialize_on_alignment=[
        *("sums", "weights", "order", "classes", "logs", "target"),
        *("below_x", "below_y", "below_z", "share_x", "share_y", "share_z"),
    ],
)
def restore_classes(
    sums,
    weights,
    order,
    classes,
    logs,
    target,
    below_x,
    below_y,
    below_z,
    share_x,
    share_y,
    share_z,
    sums_c,
    sums_x,
    sums_y,
    weights_x,
    weights_y,
    classes_x,
    classes_y,
    target_x,
    target_y,
    start_x,
    start_y,
    start_z,
    last_x,
    last_y,
    last_z,
    num_classes,
    nx,
    ny,
    nz,
    HAS_WEIGHTS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    IS_SOFTMAX: tl.constexpr,
    ROWS: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Interpolates the scores of every class between the voxels of a tile, and writes the class of each voxel.

    Programs: (blocks of lines, blocks of a line). `sums`, `weights`, `order`, `classes` and `logs`, with their steps,
    are those of `classify`, and what it wrote. `target` uint8, with the steps `target_x`, `target_y` and 1, is written
    from the first of nx * ny * nz voxels that are filled. For each of these along an axis, `below_*` int32 is the voxel
    of the volume before it and `share_*` float32 the weight of the voxel after that. `start_*` is the first voxel of
    the tile in the volume, and `last_*` the last voxel of the volume, from the start of the tile.
    """
    i, j, k, inside = _voxels(nx, ny, nz, ROWS, SIDE)
    x0 = (tl.load(below_x + i, mask=inside, other=0) - start_x).to(tl.int64)
    y0 = (tl.load(below_y + j, mask=inside, other=0) - start_y).to(tl.int64)
    z0 = (tl.load(below_z + k, mask=inside, other=0) - start_z).to(tl.int64)
    x1, y1, z1 = tl.minimum(x0 + 1, last_x), tl.minimum(y0 + 1, last_y), tl.minimum(z0 + 1, last_z)
    c00, c01 = x0 * classes_x + y0 * classes_y, x0 * classes_x + y1 * classes_y
    c10, c11 = x1 * classes_x + y0 * classes_y, x1 * classes_x + y1 * classes_y
    first = tl.load(classes + c00 + z0, mask=inside, other=0).to(tl.int32)
    differs = first ^ tl.load(classes + c00 + z1, mask=inside, other=0).to(tl.int32)
    differs |= first ^ tl.load(classes + c01 + z0, mask=inside, other=0).to(tl.int32)
    differs |= first ^ tl.load(classes + c01 + z1, mask=inside, other=0).to(tl.int32)
    differs |= first ^ tl.load(classes + c10 + z0, mask=inside, other=0).to(tl.int32)
    differs |= first ^ tl.load(classes + c10 + z1, mask=inside, other=0).to(tl.int32)
    differs |= first ^ tl.load(classes + c11 + z0, mask=inside, other=0).to(tl.int32)
    differs |= first ^ tl.load(classes + c11 + z1, mask=inside, other=0).to(tl.int32)
    found = first
    if tl.max(differs, axis=0) > 0:
        wx = tl.load(share_x + i, mask=inside, other=0.0)
        wy = tl.load(share_y + j, mask=inside, other=0.0)
        wz = tl.load(share_z + k, mask=inside, other=0.0)
        # What voxels inside of one class hold is not needed, and neither is it read.
        is_used = inside & (differs > 0)
        w00, w01 = x0 * weights_x + y0 * weights_y, x0 * weights_x + y1 * weights_y
        w10, w11 = x1 * weights_x + y0 * weights_y, x1 * weights_x + y1 * weights_y
        f000 = _one_over(weights, w00 + z0, is_used, HAS_WEIGHTS)
        f001 = _one_over(weights, w00 + z1, is_used, HAS_WEIGHTS)
        f010 = _one_over(weights, w01 + z0, is_used, HAS_WEIGHTS)
        f011 = _one_over(weights, w01 + z1, is_used, HAS_WEIGHTS)
        f100 = _one_over(weights, w10 + z0, is_used, HAS_WEIGHTS)
        f101 = _one_over(weights, w10 + z1, is_used, HAS_WEIGHTS)
        f110 = _one_over(weights, w11 + z0, is_used, HAS_WEIGHTS)
        f111 = _one_over(weights, w11 + z1, is_used, HAS_WEIGHTS)
        l000 = _log(logs, c00 + z0, is_used, IS_SOFTMAX)
        l001 = _log(logs, c00 + z1, is_used, IS_SOFTMAX)
        l010 = _log(logs, c01 + z0, is_used, IS_SOFTMAX)
        l011 = _log(logs, c01 + z1, is_used, IS_SOFTMAX)
        l100 = _log(logs, c10 + z0, is_used, IS_SOFTMAX)
        l101 = _log(logs, c10 + z1, is_used, IS_SOFTMAX)
        l110 = _log(logs, c11 + z0, is_used, IS_SOFTMAX)
        l111 = _log(logs, c11 + z1, is_used, IS_SOFTMAX)
        s00, s01 = x0 * sums_x + y0 * sums_y, x0 * sums_x + y1 * sums_y
        s10, s11 = x1 * sums_x + y0 * sums_y, x1 * sums_x + y1 * sums_y
        best = tl.full((ROWS * SIDE,), float("-inf"), tl.float32)
        mixed = tl.zeros((ROWS * SIDE,), tl.int32)
        step = tl.full((), 1, tl.int64) * sums_c
        for c in range(num_classes):
            scores = sums + c * step
            v00 = _score(scores, s00 + z0, f000, l000, is_used, IS_SOFTMAX)
            v01 = _score(scores, s01 + z0, f010, l010, is_used, IS_SOFTMAX)
            v10 = _score(scores, s10 + z0, f100, l100, is_used, IS_SOFTMAX)
            v11 = _score(scores, s11 + z0, f110, l110, is_used, IS_SOFTMAX)
            low, high = v00 + wy * (v01 - v00), v10 + wy * (v11 - v10)
            front = low + wx * (high - low)
            v00 = _score(scores, s00 + z1, f001, l001, is_used, IS_SOFTMAX)
            v01 = _score(scores, s01 + z1, f011, l011, is_used, IS_SOFTMAX)
            v10 = _score(scores, s10 + z1, f101, l101, is_used, IS_SOFTMAX)
            v11 = _score(scores, s11 + z1, f111, l111, is_used, IS_SOFTMAX)
            low, high = v00 + wy * (v01 - v00), v10 + wy * (v11 - v10)
            back = low + wx * (high - low)
            value = front + wz * (back - front)
            if HAS_ORDER:
                mixed = tl.where(value > 0.0, tl.load(order + c).to(tl.int32), mixed)
            else:
                mixed = tl.where(value > best, c, mixed)
                best = tl.maximum(best, value)
        found = tl.where(differs > 0, mixed, first)
    tl.store(target + (i * target_x + j * target_y + k), found.to(tl.uint8), mask=inside)


@triton.jit
def _log(logs, at, is_used, IS_SOFTMAX: tl.constexpr):
    """What `classify` wrote for a voxel."""
    if IS_SOFTMAX:
        return tl.load(logs + at, mask=is_used, other=0.0)
    else:  # noqa: RET505
        return 0.0


@triton.jit
def _score(scores, at, factor, log, is_used, IS_SOFTMAX: tl.constexpr):
    """The score of a class at a voxel, or its probability."""
    value = tl.load(scores + at, mask=is_used, other=0.0) * factor
    if IS_SOFTMAX:
        value = tl.exp(value - log)
    return value
