"""The class of each voxel of a scan from scores on the prepared grid, in compiled passes. Does not hold the GIL.

`restore.c` says how; `restore.fill_classes_plain` is the slow reference.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from voxelocity.core.native import ALONG, NativeLoop, flat_along, need_shapes, rows_of, writable_rows
from voxelocity.core.volume import Array
from voxelocity.data.prepare.interpolate import Positions, neighbors

BLOCK = (8, 8, 32)
"""Voxels of a block along (x, y, z), as in `restore.c`."""
_FLOAT32 = frozenset([np.dtype(np.float32)])
_SCORES = ("in float32", "in int64")

_largest_class = NativeLoop("largest_class", *_SCORES, "out uint8", "in int64")
_last_above = NativeLoop("last_above", *_SCORES, "out uint8", "in int64", "in uint8")
_fill_classes = NativeLoop(
    "fill_classes", *_SCORES, "in float32", "in uint8", *ALONG, "out uint8", "in uint8", "in int64", "out float32"
)


def largest_class(scores_kxyz: Array, target_xyz: Array) -> None:
    """Writes the index of the largest score of each voxel, the lowest of equals, to `target_xyz`, uint8."""
    line, sizes = _rows(scores_kxyz)
    need_shapes("largest_class", target=(target_xyz, scores_kxyz.shape[1:]))
    target, steps = writable_rows(target_xyz)
    _largest_class(line, sizes, target, np.array(steps))


def signs_of(scores_kxyz: Array, target_xyz: Array, order: Array) -> None:
    """Writes the class of the last score above 0 to `target_xyz`, uint8, or 0; `order` has the class of each score."""
    line, sizes = _rows(scores_kxyz)
    need_shapes("last_above", target=(target_xyz, scores_kxyz.shape[1:]), order=(order, scores_kxyz.shape[:1]))
    target, steps = writable_rows(target_xyz)
    _last_above(line, sizes, target, np.array(steps), order)


def fill_classes(
    scores_kxyz: Array,
    weights_xyz: Array | None,
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
        weights_xyz: float32, what the scores are divided by, if anything.
        classes_xyz: uint8, from `largest_class` or `signs_of` of the same scores.
        positions: of the target's voxels along each axis, ascending.
        target_xyz: uint8, zeros.
        order: (k,) uint8, the class of each score, for overlapping classes; empty otherwise.
        is_softmax: whether probabilities are interpolated, not scores.
    """
    if not target_xyz.size:
        return
    num_scores, *shape = scores_kxyz.shape
    line, sizes = _rows(scores_kxyz)
    weights, weight_steps = np.empty(0, dtype=np.float32), [0, 0]
    if weights_xyz is not None:
        need_shapes("fill_classes", weights=(weights_xyz, shape))
        weights, weight_steps = rows_of(weights_xyz, _FLOAT32)
    need_shapes("fill_classes", classes=(classes_xyz, shape), order=(order, (num_scores if order.size else 0,)))
    along = [neighbors(axis, n) for axis, n in zip(positions, shape, strict=True)]
    flat = flat_along("fill_classes", along, target_xyz.shape)
    num_loaded = math.prod(_reach(below, above, block) for (below, above, _), block in zip(along, BLOCK, strict=True))
    scratch = np.empty(num_scores * num_loaded, dtype=np.float32)
    target, steps = writable_rows(target_xyz)
    counts = [*target_xyz.shape, *steps, *weight_steps, weights.size, order.size, scratch.size, int(is_softmax)]
    _fill_classes(line, sizes, weights, classes_xyz, *flat, target, order, np.array(counts), scratch)


def _reach(below: Array, above: Array, block: int) -> int:
    """The most neighbors along an axis that a block of target voxels has."""
    starts = range(0, len(below), block)
    return max(int(above[min(start + block, len(below)) - 1]) + 1 - int(below[start]) for start in starts)


def _rows(scores: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    """The memory of the scores as one line, and their shape and steps in it."""
    line, steps = rows_of(scores, _FLOAT32)
    return line, np.array([*scores.shape, *steps], dtype=np.int64)
