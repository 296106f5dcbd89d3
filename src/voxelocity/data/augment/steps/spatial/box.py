"""A part of an array and its surroundings, in the thread's own memory: the input to the loops of a warp."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from voxelocity.core.region import Index3
from voxelocity.core.volume import Array
from voxelocity.data.augment.steps.spatial.moves import Moves
from voxelocity.data.augment.steps.spatial.numba_move import move
from voxelocity.data.augment.steps.spatial.step import Beyond

_own = threading.local()
_MOVED_DTYPES = frozenset(np.dtype(name) for name in ("uint8", "int16", "int32", "int64", "float32", "float64"))
RING = 3
"""Extra voxels of a box along each axis, beyond those requested."""
_LARGEST_KEPT_BYTES = 2**27
"""Larger scratch, as for a warp of a whole large scan, is freed when it is done."""


def scratch(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialized array that this thread keeps until it requests one of this name again."""
    num_bytes = math.prod(shape) * dtype.itemsize
    held: Array | None = getattr(_own, name, None)
    if held is None or held.size < num_bytes:
        held = np.empty(num_bytes, dtype=np.uint8)
        if num_bytes <= _LARGEST_KEPT_BYTES:
            setattr(_own, name, held)
    kept: Array = held[:num_bytes].view(dtype).reshape(shape)
    return kept


def boxed(
    name: str, array: Array, moves: Moves, start: Index3, stop: Index3, beyond: Beyond, dtype: np.dtype[Any]
) -> Array:
    """Voxels `start` to `stop` of the moved array, plus one before and two after them, (c, ...) in C order, scratch.

    Beyond the end of the array, voxels are 0 if `beyond` is "zeros", else copies of the outermost voxel.
    """
    target = scratch(name, (len(array), *(b - a + RING for a, b in zip(start, stop, strict=True))), dtype)
    inner, window = [], []
    for one, side, first, last in zip(moves.along, moves.shape, start, stop, strict=True):
        low, high = max(first - 1, 0), min(last + 2, side)
        inner.append(slice(low - first + 1, high - first + 1))
        window.append(one.cropped(low, high - low))
    part = target[(slice(None), *inner)]
    shown = Moves((window[0], window[1], window[2]), moves.fill)
    copy(shown.view(array), shown.shown(part))
    if shown.has_fill:
        shown.fill_around(part)
    for axis, within in enumerate(inner, start=1):
        lines = np.moveaxis(target, axis, 0)
        for edge in (*range(within.start), *range(within.stop, target.shape[axis])):
            inward = within.start if edge < within.start else within.stop - 1
            lines[edge] = 0 if beyond == "zeros" else lines[inward]
    return target


def copy(source: Array, target: Array) -> None:
    """Copies between arrays (c, x, y, z) of any memory order, by rows if their orders match, else by small tiles."""
    if source.size == 0:
        return
    steps = [abs(step) if side > 1 else 2**62 for step, side in zip(source.strides, source.shape, strict=True)]
    fastest = int(np.argmin(steps[1:])) + 1
    if fastest == 3 or not {source.dtype, target.dtype} <= _MOVED_DTYPES:
        np.copyto(target, source, casting="unsafe")
        return
    # The source's fastest axis comes third, the target's fastest last.
    axes = (0, *(axis for axis in (1, 2) if axis != fastest), fastest, 3)
    move(source.transpose(axes), target.transpose(axes))
