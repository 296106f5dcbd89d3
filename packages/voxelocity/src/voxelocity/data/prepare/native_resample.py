"""Resampling on an axis-aligned grid in one compiled pass, for images and labels. Nothing here holds the GIL."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voxelocity.core.native import ALONG, NativeLoop, flat_along, interpolate, rows_of
from voxelocity.core.volume import Array
from voxelocity.data.prepare.interpolate import Positions, neighbors

_resample_label = NativeLoop(
    "resample_label", "in stored", "in int64", *ALONG, "out stored", stored=("uint8", "uint16")
)


def interpolate_compiled(array: Array, positions: tuple[Positions, ...]) -> npt.NDArray[np.float32]:
    """The array (..., x, y, z) as float32 at the given positions of its last three axes, order in memory kept."""
    leading = array.ndim - 3
    slow_to_fast = sorted(range(3), key=lambda axis: -abs(array.strides[leading + axis]))
    order = [*range(leading), *(leading + axis for axis in slow_to_fast)]
    shape = (*array.shape[:leading], *(len(positions[axis]) for axis in slow_to_fast))
    out = np.empty(shape, dtype=np.float32)
    along = [neighbors(positions[axis], array.shape[leading + axis]) for axis in slow_to_fast]
    source = array.transpose(order)
    for index in np.ndindex(*array.shape[:leading]):
        interpolate(source[index], out[index], along)
    return out.transpose(np.argsort(order))


def resample_label_compiled(label_xyz: Array, positions: tuple[Positions, ...]) -> Array:
    """Class indices (x, y, z), uint8 or uint16: the class with the largest linear share, the lower one of equals."""
    slow_to_fast = sorted(range(3), key=lambda axis: -abs(label_xyz.strides[axis]))
    out = np.empty([len(positions[axis]) for axis in slow_to_fast], dtype=label_xyz.dtype)
    along = [neighbors(positions[axis], label_xyz.shape[axis]) for axis in slow_to_fast]
    source = label_xyz.transpose(slow_to_fast)
    line, steps = rows_of(source, frozenset([out.dtype]))
    sizes = np.array([*source.shape, *steps, *out.shape], dtype=np.int64)
    _resample_label(line, sizes, *flat_along("resample_label", along, out.shape), out)
    return out.transpose(np.argsort(slow_to_fast))
