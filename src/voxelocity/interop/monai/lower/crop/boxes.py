"""Boxes of a sketch: crops, pads, and both at once, as one step."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch

from voxelocity.data.augment.steps import Crop
from voxelocity.interop.monai.lower.finish import finish
from voxelocity.interop.monai.lower.sketch import Sketch


def boxed(sketch: Sketch, start: Sequence[int], shape: Sequence[int], fill: float = 0.0) -> Sketch:
    """The sketch with the box as a further step, or without one if the box is the whole array.

    Changes the sketch, or finishes it first if the type that its steps are made in cannot hold `fill`.

    Args:
        sketch: with two or three spatial axes.
        start: on each of them, may lie before or beyond the array.
        shape: of the box.
        fill: what lies beyond the array, a value of the sketch's dtype (`fill_of`).
    """
    if not any(start) and tuple(shape) == sketch.spatial_shape:
        sketch.relocate(np.eye(4))
        return sketch
    is_filled = any(s < 0 or s + n > side for s, n, side in zip(start, shape, sketch.spatial_shape, strict=True))
    if not is_filled:
        fill = 0.0
    elif not _is_same(fill_of(fill, sketch.held_dtype), fill):
        sketch = Sketch.of(finish(sketch))
    x, y, z = (*start, 0)[:3]
    nx, ny, nz = (*shape, 1)[:3]
    sketch.add(_crop(int(x), int(y), int(z), int(nx), int(ny), int(nz), fill))
    return sketch


def fill_of(value: float, dtype: torch.dtype) -> float | None:
    """The value as an array of the dtype would hold it, or None if that is refused."""
    try:
        return float(torch.full((), value, dtype=dtype).item())
    except (RuntimeError, TypeError):
        return None


def sliced(slices: Sequence[slice], shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """Start and shape of the box that slices (steps of 1) take of an array; axes without a slice are taken whole."""
    start, sides = [], []
    for axis, side in enumerate(shape):
        taken = slices[axis] if axis < len(slices) else slice(None)
        first, last, _ = taken.indices(side)
        begin = taken.start or 0
        start.append(side + begin if begin < 0 else begin)
        sides.append(max(last - first, 0))
    return start, sides


def _is_same(one: float | None, other: float) -> bool:
    return one is not None and (one == other or (math.isnan(one) and math.isnan(other)))


@functools.lru_cache(maxsize=1024)
def _crop(x: int, y: int, z: int, nx: int, ny: int, nz: int, fill: float) -> Crop:
    """Equal boxes are one object, so `run` knows that an image and its label are taken from the same place."""
    return Crop(start=(x, y, z), shape=(nx, ny, nz), fill=fill)
